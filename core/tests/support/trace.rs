//! Random operations on a limiter at arbitrary times, each compared with a model.

use core::fmt::{self, Debug, Display};

use portcullis_core::limiter::Detail;
use portcullis_core::{Denied, Limiter, LimiterExt, Retry, Timestamp};

use super::draws::Draws;
use super::model::{Model, Verdict};

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Requests judged.
    pub(crate) operations: u64,
    /// Requests that were granted.
    pub(crate) granted: u64,
    /// Requests that were denied.
    pub(crate) denied: u64,
    /// Retry instants that were tried, and 1 ns before each.
    pub(crate) retried: u64,
    /// Requests with a `now` older than the newest written.
    pub(crate) late: u64,
    /// Those among them that found less than at the newest time.
    pub(crate) late_and_less: u64,
    /// Requests after about a multiple of the horizon.
    pub(crate) wrapped: u64,
    /// Those among them that found less than was available.
    pub(crate) wrapped_and_less: u64,
    /// Requests with a `now` older than the staleness.
    pub(crate) void: u64,
}

impl Tally {
    fn count(&mut self, verdict: Verdict, told: u64) {
        self.operations += 1;
        match verdict {
            Verdict::Exactly(_) => {}
            Verdict::Late { most } => {
                self.late += 1;
                self.late_and_less += u64::from(told < most);
            }
            Verdict::Wrapped { ideal, .. } | Verdict::Blurred { ideal } => {
                self.wrapped += 1;
                self.wrapped_and_less += u64::from(told < ideal);
            }
            Verdict::Void => self.void += 1,
        }
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations: {} granted, {} denied, {} retried; {} late ({} with less), {} after a horizon ({} with less), {} too old",
            self.operations,
            self.granted,
            self.denied,
            self.retried,
            self.late,
            self.late_and_less,
            self.wrapped,
            self.wrapped_and_less,
            self.void,
        )
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Granted,
    Denied(Denied),
    /// Granted where nothing was guaranteed; from here on nothing is.
    Over,
}

/// Runs a random trace on `limiter`, and compares every answer with `model`.
pub(crate) fn trace<L, M>(limiter: &L, model: &mut M, draws: &mut Draws<'_>, tally: &mut Tally)
where
    L: Limiter + Debug,
    M: Model + Debug,
{
    let marks = model.landmarks();
    let mut now = match draws.below(6) {
        0..=2 => marks.first.saturating_add(draws.magnitude(marks.reach)),
        3 => marks
            .first
            .saturating_add(draws.magnitude(u64::MAX - marks.first)),
        4 => marks
            .first
            .saturating_sub(draws.magnitude(marks.staleness))
            .max(marks.earliest),
        _ => u64::MAX - draws.magnitude(marks.reach).min(u64::MAX - marks.first),
    };
    while draws.another_step() {
        let told = limiter.available_at(Timestamp::from_nanos(now));
        let most = told.min(u32::MAX.into());
        let some = draws.magnitude(most.saturating_add(1));
        let bold = draws.magnitude(u32::MAX.into());
        let n = draws
            .one_of(&[some, some, most, most + 1, 1, 1, 0, bold])
            .min(u32::MAX.into()) as u32;
        let outcome = operation(limiter, model, now, n, draws, tally);
        let stands = model.look(now).promises_a_retry();
        let retry = match outcome {
            Outcome::Denied(denied) if stands => Some(limiter.retry(denied)),
            Outcome::Denied(_) | Outcome::Granted => None,
            Outcome::Over => return,
        };
        now = match retry {
            // The request that must be denied, and the one that must be granted.
            Some(Retry::At(at)) if draws.once_in(2) => {
                let at = at.as_nanos();
                let early = operation(limiter, model, at - 1, n, draws, tally);
                assert!(
                    matches!(early, Outcome::Denied(_)),
                    "granted 1 ns before the retry at {at}"
                );
                let retried = operation(limiter, model, at, n, draws, tally);
                assert!(
                    matches!(retried, Outcome::Granted),
                    "denied at the retry at {at}"
                );
                tally.retried += 1;
                at
            }
            _ => next(model, now, draws),
        };
    }
}

/// Returns the time of the operation after the one at `now`.
fn next<M: Model>(model: &M, now: u64, draws: &mut Draws<'_>) -> u64 {
    let marks = model.landmarks();
    let back = |by: u64| now.saturating_sub(by).max(marks.earliest);
    match draws.below(32) {
        0..=5 => now,
        6..=15 => now.saturating_add(draws.magnitude(marks.grain.saturating_mul(4))),
        16..=22 => now.saturating_add(draws.magnitude(marks.reach.saturating_mul(2))),
        23 | 24 => back(draws.magnitude(marks.grain)),
        25 | 26 => back(draws.magnitude(marks.staleness)),
        27 => back(marks.staleness - draws.below(2)),
        28 => {
            // Around a multiple of the horizon, before and after it.
            let times = draws.magnitude((u64::MAX - now) / marks.horizon).max(1);
            let before = marks
                .staleness
                .saturating_add(marks.reach.saturating_mul(2));
            let early = draws.magnitude(before);
            let around = draws.one_of(&[0, early, early, marks.staleness]);
            now.saturating_add(times.saturating_mul(marks.horizon).saturating_sub(around))
                .saturating_add(draws.magnitude(marks.reach.saturating_mul(2)))
        }
        29 => now.saturating_add(draws.magnitude(marks.staleness.saturating_mul(2))),
        30 => now.saturating_add(draws.magnitude(u64::MAX)),
        _ if draws.once_in(8) => back(draws.magnitude(u64::MAX)),
        _ => now,
    }
}

/// Sends one request, and every query before and after it.
fn operation<L, M>(
    limiter: &L,
    model: &mut M,
    now: u64,
    n: u32,
    draws: &mut Draws<'_>,
    tally: &mut Tally,
) -> Outcome
where
    L: Limiter + Debug,
    M: Model + Debug,
{
    let at = Timestamp::from_nanos(now);
    let verdict = model.look(now);
    let told = limiter.available_at(at);
    let context = || {
        format!("{n} at {now}: reported {told}, by the model {verdict:?}\n{limiter:?}\n{model:?}")
    };
    tally.count(verdict, told);
    assert!(verdict.allows(told), "{}", context());
    assert_eq!(limiter.capacity(), model.capacity(), "{}", context());
    let idle = limiter.idle_at(at);
    assert!(
        model.allows_idle(now, told, idle),
        "{idle:?}; {}",
        context()
    );

    // Printing the state is the slow part.
    let looks = draws.is_small() || draws.once_in(32);
    let before = if looks {
        format!("{limiter:?}")
    } else {
        String::new()
    };
    let wanted = u64::from(n.max(1));
    let (answer, detail) = if draws.once_in(2) {
        let (answer, detail) = limiter.take_explained_at(at, n);
        (answer, Some(detail))
    } else {
        (limiter.take_at(at, n), None)
    };
    assert_eq!(answer.is_ok(), wanted <= told, "{answer:?}; {}", context());
    if looks && (answer.is_err() || n == 0) {
        assert_eq!(
            format!("{limiter:?}"),
            before,
            "a denial or a probe wrote; {}",
            context()
        );
    }
    let Err(denied) = answer else {
        tally.granted += 1;
        if n > 0 {
            if verdict == Verdict::Void {
                // From here on nothing is guaranteed.
                return Outcome::Over;
            }
            model.granted(now, n, told);
        }
        if let Some(detail) = detail {
            assert_eq!(detail.decision, Ok(()));
            explains(limiter, model, now, &detail);
        }
        return Outcome::Granted;
    };
    if let Some(detail) = detail {
        assert_eq!(detail.decision, Err(denied));
        explains(limiter, model, now, &detail);
    }
    tally.denied += 1;
    let capacity = model.capacity();
    let expected = if u64::from(n) > capacity {
        Denied::ExceedsCapacity {
            permits: n,
            capacity: capacity as u32,
        }
    } else {
        Denied::Exhausted {
            now: at,
            permits: n,
        }
    };
    assert_eq!(denied, expected, "{}", context());
    if verdict.promises_a_retry() {
        let retry = limiter.retry(denied);
        let is_exact = |at: u64, enough: bool| {
            let limiter_says = limiter.available_at(Timestamp::from_nanos(at)) >= wanted;
            let model_says = match model.look(at) {
                Verdict::Exactly(available) => available >= wanted,
                _ => enough,
            };
            limiter_says == enough && model_says == enough
        };
        match retry {
            Retry::At(at) if at.as_nanos() > now => {
                let at = at.as_nanos();
                assert!(
                    is_exact(at, true) && is_exact(at - 1, false),
                    "{retry:?}; {}",
                    context()
                );
            }
            Retry::Never => assert!(
                u64::from(n) > capacity || is_exact(u64::MAX, false) || is_wrapped(model, u64::MAX),
                "{retry:?}; {}",
                context()
            ),
            _ => panic!("{retry:?}; {}", context()),
        }
    }
    Outcome::Denied(denied)
}

/// Compares what a decision at `now` has told with the model, which has followed the decision, and
/// with a look at the limiter.
fn explains<L: Limiter + Debug, M: Model + Debug>(
    limiter: &L,
    model: &M,
    now: u64,
    detail: &Detail,
) {
    let at = Timestamp::from_nanos(now);
    let (verdict, capacity) = (model.look(now), model.capacity());
    let context = || format!("{detail:?}, by the model {verdict:?}\n{limiter:?}\n{model:?}");
    assert_eq!(detail.now, at);
    assert!(verdict.allows(detail.available), "{}", context());
    assert_eq!(detail.available, limiter.available_at(at), "{}", context());
    assert_eq!(detail.capacity, capacity, "{}", context());
    let retry = match detail.decision {
        Ok(()) => Retry::At(at),
        Err(denied) => limiter.retry(denied),
    };
    assert_eq!(detail.retry, retry, "{}", context());
    let look = limiter.explain_at(at, 0);
    let state = |of: &Detail| (of.available, of.capacity, of.time_to_fill, of.full_again);
    assert_eq!(state(&look), state(detail), "{}", context());
    assert_eq!(look.decision, limiter.peek_at(at, 0), "{}", context());
    if !verdict.promises_a_retry() {
        return;
    }
    let is_full = |at: u64| {
        let is_full = limiter.available_at(Timestamp::from_nanos(at)) >= capacity;
        if let Verdict::Exactly(available) = model.look(at) {
            assert_eq!(available >= capacity, is_full, "at {at}: {}", context());
        }
        is_full
    };
    match detail.full_again {
        Retry::At(full) if full == at => assert!(is_full(now), "{}", context()),
        Retry::At(full) => assert!(
            full > at && is_full(full.as_nanos()) && !is_full(full.as_nanos() - 1),
            "{}",
            context()
        ),
        Retry::Never => assert!(
            !is_full(u64::MAX) || is_wrapped(model, u64::MAX),
            "{}",
            context()
        ),
        _ => panic!("{}", context()),
    }
}

/// Whether the model knows that the limiter's word has wrapped between its newest `now` and `now`.
fn is_wrapped<M: Model>(model: &M, now: u64) -> bool {
    model.landmarks().horizon < now
}
