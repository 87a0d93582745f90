//! After a denial, all requests are denied for at least the wait. Compared with a model that never
//! wraps, around a limiter and its twin.

#[macro_use]
#[path = "support/words.rs"]
mod words;

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::fmt::Debug;
use core::time::Duration;

use draws::Draws;
use portcullis_core::builder::{PenaltyBuilder, Setting};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::metadata::{REASON_PHRASE, RETRY_AFTER, USED_SHARE};
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, FixedWindow, Limiter, LimiterExt, Penalty, Rate, Retry,
    SettingsError, Timestamp, TokenBucket, Unlimited,
};

const SECOND: Duration = Duration::from_secs(1);

const fn s(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

const fn ns(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// One token per second, at most one at once, and penalties of `wait`.
fn one_a_second<W: Word>(settings: PenaltyBuilder) -> Penalty<TokenBucket<W>, W> {
    let bucket = TokenBucket::builder(Rate::per_second(1), 1)
        .build_on()
        .unwrap();
    settings.build_on().unwrap().around(bucket)
}

fn five<W: Word>() -> Penalty<TokenBucket<W>, W> {
    one_a_second(Penalty::builder(5 * SECOND))
}

fn take<L: Limiter>(limiter: &L, now: Timestamp) -> bool {
    limiter.take_at(now, 1).is_ok()
}

/// A limiter that always gives the same answer.
#[derive(Debug)]
struct Says(Result<(), Denied>);

impl Limiter for Says {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        if ask.is_look() {
            return ask.looked(self.available_at(ask.now()), || u64::MAX);
        }
        self.0.map(|()| Receipt::NONE).into()
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: if self.0.is_ok() { u64::MAX } else { 0 },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::ExceedsCapacity { .. } => Retry::Never,
            _ => Retry::After(3 * SECOND),
        }
    }
}

on_both_words!(
    a_penalty_lasts_exactly_the_wait_from_a_denial_and_no_denial_prolongs_it,
    a_penalty_writes_once_and_denials_in_it_write_nothing,
    probes_and_looks_and_requests_for_more_than_there_can_be_start_none,
    the_retry_is_the_longer_of_the_penalty_and_the_limiter,
    a_late_request_finds_the_penalty_of_a_newer_denial,
    a_limiter_is_idle_no_earlier_than_the_end_of_its_penalty,
    a_threshold_counts_denials_in_a_window_that_the_first_of_them_starts,
    a_pardon_ends_a_penalty_and_the_next_denial_starts_another,
    a_penalty_by_hand_lasts_until_the_latest_instant_asked_for_at_most_the_wait,
    a_penalty_of_a_denial_and_one_by_hand_last_until_the_later_end,
    if_only_a_hand_starts_penalties_denials_start_none,
    an_end_by_hand_that_would_read_as_never_is_delayed_by_a_tick,
    the_end_of_time_is_penalized_and_reported_as_never,
    an_end_that_would_read_as_never_is_delayed_by_a_tick,
    a_word_that_wraps_denies_once_more_and_not_after_a_grant,
    agrees_with_a_model_that_never_wraps,
    ticks_are_counted_from_the_origin,
    settings_are_refused_by_name,
);

fn a_penalty_lasts_exactly_the_wait_from_a_denial_and_no_denial_prolongs_it<W: Word>() {
    let limit = five::<W>();
    assert!(take(&limit, s(10)));
    assert_eq!(
        limit.take_at(s(10), 1),
        Err(Denied::Exhausted {
            now: s(10),
            permits: 1
        })
    );
    for now in [s(10), s(11), s(14), ns(14_999_999_999)] {
        assert_eq!(
            limit.take_at(now, 1),
            Err(Denied::Penalized { now, permits: 1 })
        );
        assert_eq!((limit.available_at(now), limit.is_on_at(now)), (0, true));
    }
    assert_eq!(
        (
            limit.available_at(s(15)),
            limit.limiter().available_at(s(14))
        ),
        (1, 1)
    );
    assert!(take(&limit, s(15)));
}

fn a_penalty_writes_once_and_denials_in_it_write_nothing<W: Word>() {
    let limit = five::<W>();
    assert!(take(&limit, s(10)));
    let unpunished = format!("{limit:?}");
    assert!(!take(&limit, s(10)));
    let punished = format!("{limit:?}");
    assert_ne!(punished, unpunished);
    for now in [s(10), s(12), s(14), s(9)] {
        let denied = limit.take_at(now, 1).unwrap_err();
        _ = (
            limit.retry(denied),
            limit.peek_at(now, 1),
            limit.idle_at(now),
            limit.take_at(now, 0),
        );
    }
    assert_eq!(format!("{limit:?}"), punished);
    let grants = format!("{:?}", Penalty::new(Unlimited, SECOND));
    let unlimited = Penalty::new(Unlimited, SECOND);
    assert!((0..100).all(|now| take(&unlimited, s(now))));
    assert_eq!(format!("{unlimited:?}"), grants, "a grant writes nothing");
}

fn probes_and_looks_and_requests_for_more_than_there_can_be_start_none<W: Word>() {
    let limit = five::<W>();
    assert!(take(&limit, s(10)));
    let before = format!("{limit:?}");
    assert_eq!(
        limit.take_at(s(10), 0),
        Err(Denied::Exhausted {
            now: s(10),
            permits: 0
        })
    );
    assert_eq!(
        limit.peek_at(s(10), 1),
        Err(Denied::Exhausted {
            now: s(10),
            permits: 1
        })
    );
    assert_eq!(
        limit.take_at(s(10), 2),
        Err(Denied::ExceedsCapacity {
            permits: 2,
            capacity: 1
        })
    );
    assert!(!limit.explain_at(s(10), 1).is_allowed());
    assert_eq!(format!("{limit:?}"), before);
    assert!(take(&limit, s(11)));
}

fn the_retry_is_the_longer_of_the_penalty_and_the_limiter<W: Word>() {
    let exact = |limit: &Penalty<TokenBucket<W>, W>, denied: Denied, at: Timestamp| {
        assert_eq!(denied.retry(limit), Retry::At(at));
        let early = ns(at.as_nanos() - 1);
        assert!(limit.peek_at(early, 1).is_err() && limit.peek_at(at, 1).is_ok());
    };
    for (wait, at) in [(5 * SECOND, s(15)), (SECOND / 2, s(11))] {
        let limit = one_a_second::<W>(Penalty::builder(wait));
        assert!(take(&limit, s(10)));
        let denied = limit.take_at(s(10), 1).unwrap_err();
        exact(&limit, denied, at);
        let denied = limit.take_at(s(10), 1).unwrap_err();
        assert_eq!(
            denied,
            Denied::Penalized {
                now: s(10),
                permits: 1
            }
        );
        exact(&limit, denied, at);
    }
    // During a penalty, too, a request that can never be granted says so.
    let limit = five::<W>();
    assert!(take(&limit, s(10)) && !take(&limit, s(10)));
    let denied = limit.take_at(s(11), 2).unwrap_err();
    assert_eq!(
        denied,
        Denied::Penalized {
            now: s(11),
            permits: 2
        }
    );
    assert_eq!(denied.retry(&limit), Retry::Never);
}

fn a_late_request_finds_the_penalty_of_a_newer_denial<W: Word>() {
    let limit = five::<W>();
    let now =
        Timestamp::from_secs(10_000).saturating_add(limit.timing().staleness.min(3_600 * SECOND));
    assert!(take(&limit, now) && !take(&limit, now));
    let late = ns(now.as_nanos() - nanos(limit.timing().staleness.min(3_600 * SECOND)));
    assert_eq!(
        limit.take_at(late, 1),
        Err(Denied::Penalized {
            now: late,
            permits: 1
        })
    );
    assert_eq!(
        limit.take_at(late, 1).unwrap_err().retry(&limit),
        Retry::At(now.saturating_add(5 * SECOND)),
        "stale or not"
    );
}

fn a_limiter_is_idle_no_earlier_than_the_end_of_its_penalty<W: Word>() {
    let limit = five::<W>();
    assert_eq!(limit.idle_at(s(9)), limit.limiter().idle_at(s(9)));
    assert!(take(&limit, s(10)));
    assert!(!take(&limit, s(10)));
    assert_eq!(
        (limit.idle_at(s(12)), limit.limiter().idle_at(s(12))),
        (Idle::InUse, Idle::Since(s(11)))
    );
    assert_eq!(limit.idle_at(s(17)), Idle::Since(s(15)));
    assert!(take(&limit, s(17)));
    assert_eq!(
        limit.idle_at(s(19)),
        Idle::Since(s(18)),
        "by the inner limiter"
    );
}

fn a_threshold_counts_denials_in_a_window_that_the_first_of_them_starts<W: Word>() {
    let settings = Penalty::builder(5 * SECOND).after(3, 10 * SECOND);
    let limit = || {
        settings
            .build_on::<W>()
            .unwrap()
            .around(Concurrency::new(1))
    };
    let denied_at = |limit: &Penalty<Concurrency, W>, times: &[u64]| {
        times
            .iter()
            .map(|&at| limit.take_at(s(at), 1).unwrap_err())
            .map(|d| matches!(d, Denied::Penalized { .. }))
            .collect::<Vec<_>>()
    };
    let held = limit();
    assert!(take(&held, s(0)));
    assert_eq!(
        denied_at(&held, &[1, 5, 10, 10, 14]),
        [false, false, false, true, true]
    );
    // The window of the first denials ended at 11, that of the next at 25.
    assert_eq!(
        denied_at(&held, &[15, 24, 25, 29, 30, 30]),
        [false, false, false, false, false, true]
    );

    let held = limit();
    assert!(take(&held, s(0)));
    assert_eq!(
        denied_at(&held, &[1, 5, 11, 12, 20, 20]),
        [false, false, false, false, false, true]
    );

    let held = limit();
    assert!(take(&held, s(0)));
    for _ in 0..9 {
        assert!(
            held.take_at(s(1), 0).is_err()
                && held.take_at(s(1), 2).is_err()
                && held.peek_at(s(1), 1).is_err()
        );
    }
    assert_eq!(
        denied_at(&held, &[1, 1, 1, 1]),
        [false, false, false, true],
        "looks do not count"
    );
    assert_eq!(
        denied_at(&held, &[6, 6]),
        [false, true],
        "in the same window each further denial starts a penalty"
    );
}

fn a_pardon_ends_a_penalty_and_the_next_denial_starts_another<W: Word>() {
    let limit = five::<W>();
    let fresh = format!("{limit:?}");
    limit.pardon();
    assert_eq!(format!("{limit:?}"), fresh);
    assert!(take(&limit, s(10)) && !take(&limit, s(10)));
    limit.pardon();
    assert!(!limit.is_on_at(s(10)));
    assert!(take(&limit, s(11)) && !take(&limit, s(11)));
    assert!(limit.is_on_at(s(15)) && !limit.is_on_at(s(16)));
}

/// Penalties of at most 60 s, by hand alone.
fn by_hand<W: Word>() -> Penalty<TokenBucket<W>, W> {
    one_a_second(Penalty::builder(60 * SECOND).started_by_hand())
}

fn a_penalty_by_hand_lasts_until_the_latest_instant_asked_for_at_most_the_wait<W: Word>() {
    let limit = by_hand::<W>();
    assert_eq!(limit.penalize_at(s(10), s(40)), s(40));
    let now = ns(39_999_999_999);
    assert_eq!(
        limit.take_at(now, 1),
        Err(Denied::Penalized { now, permits: 1 })
    );
    for (now, earlier) in [(10, 20), (12, 39), (30, 5), (39, 40)] {
        assert_eq!(limit.penalize_at(s(now), s(earlier)), s(40));
    }
    assert!(limit.is_on_at(now) && !limit.is_on_at(s(40)));

    assert_eq!(limit.penalize_at(s(20), s(50)), s(50), "a later end");
    assert_eq!(limit.penalize_at(s(20), Timestamp::MAX), s(80), "the wait");
    assert_eq!(limit.penalize_at(s(15), s(81)), s(80), "a stale call");
    assert!(limit.is_on_at(ns(79_999_999_999)) && take(&limit, s(80)));

    let before = format!("{limit:?}");
    for past in [s(0), s(99), s(100)] {
        assert_eq!(limit.penalize_at(s(100), past), s(100));
    }
    assert_eq!(format!("{limit:?}"), before, "an end that has passed");

    // Both are rounded so that the penalty is not too short.
    let ticks = Penalty::builder(60 * SECOND).tick(10 * SECOND);
    let limit = one_a_second::<W>(ticks.started_by_hand());
    assert_eq!(limit.penalize_at(s(25), s(41)), s(50));
    assert_eq!(limit.penalize_at(s(25), s(99)), s(90));
    assert_eq!(limit.wait(), 60 * SECOND);
    // In the same tick.
    assert_eq!(limit.penalize_at(s(99), s(98)), s(99));
    assert!(!limit.is_on_at(s(99)));
    // Before the origin.
    let limit = one_a_second::<W>(ticks.started_by_hand().origin(s(1_000)));
    assert_eq!(limit.penalize_at(s(10), s(40)), s(10));
    assert!(!limit.is_on_at(s(10)));
}

fn a_penalty_of_a_denial_and_one_by_hand_last_until_the_later_end<W: Word>() {
    for (by_hand, end) in [(12, 15), (15, 15), (16, 16)] {
        for denied_first in [true, false] {
            let limit = one_a_second::<W>(Penalty::builder(6 * SECOND));
            assert!(take(&limit, s(9)));
            let penalize = || limit.penalize_at(s(9), s(by_hand));
            if denied_first {
                assert!(!take(&limit, s(9)));
                assert_eq!(penalize(), s(end.min(15)));
            } else {
                _ = penalize();
                // No denial of the limiter is made during the penalty.
                assert!(!take(&limit, s(9)));
                assert!(limit.is_on_at(s(by_hand.min(15) - 1)));
                assert!(!limit.is_on_at(s(by_hand.min(15))));
            }
        }
    }
    let limit = by_hand::<W>();
    _ = limit.penalize_at(s(10), s(40));
    limit.pardon();
    assert!(take(&limit, s(10)));
    assert_eq!(limit.penalize_at(s(11), s(20)), s(20), "once more");
    assert!(limit.is_on_at(s(19)) && !limit.is_on_at(s(20)));
}

fn if_only_a_hand_starts_penalties_denials_start_none<W: Word>() {
    let limit = by_hand::<W>();
    assert_eq!((limit.threshold(), limit.within()), (u64::MAX, None));
    assert!(take(&limit, s(10)));
    let before = format!("{limit:?}");
    for _ in 0..100 {
        assert_eq!(
            limit.take_at(s(10), 1),
            Err(Denied::Exhausted {
                now: s(10),
                permits: 1
            })
        );
    }
    assert_eq!(format!("{limit:?}"), before);
    assert!(take(&limit, s(11)));
    // The last choice counts.
    let builder = Penalty::builder(SECOND).started_by_hand();
    assert_eq!(one_a_second::<W>(builder.after(1, SECOND)).threshold(), 1);
    assert_eq!(one_a_second::<W>(builder.after(3, SECOND)).threshold(), 3);
}

fn an_end_by_hand_that_would_read_as_never_is_delayed_by_a_tick<W: Word>() {
    let tick = Duration::from_micros(10);
    let settings = Penalty::builder(SECOND).tick(tick).started_by_hand();
    let limit = settings.build_on::<W>().unwrap().around(Unlimited);
    // Where the word wraps, if timestamps reach that far.
    let Some(lap) = (W::MASK)
        .checked_add(1)
        .and_then(|lap| lap.checked_mul(10_000))
    else {
        return;
    };
    let now = ns(lap - 500_000_000);
    assert_eq!(limit.penalize_at(now, ns(lap)), ns(lap + 10_000));
    assert_eq!(limit.penalize_at(now, ns(lap)), ns(lap + 10_000));
    assert!(limit.is_on_at(ns(lap)) && !limit.is_on_at(ns(lap + 10_000)));
    assert_eq!(limit.penalize_at(now, ns(lap + 20_000)), ns(lap + 20_000));
}

fn the_end_of_time_is_penalized_and_reported_as_never<W: Word>() {
    let limit = five::<W>();
    _ = take(&limit, Timestamp::MAX);
    assert!(!take(&limit, Timestamp::MAX));
    assert!(limit.is_on_at(Timestamp::MAX));
    assert_eq!(
        limit.take_at(Timestamp::MAX, 1).unwrap_err().retry(&limit),
        Retry::Never
    );
    assert_eq!(limit.idle_at(Timestamp::MAX), Idle::InUse);
}

fn an_end_that_would_read_as_never_is_delayed_by_a_tick<W: Word>() {
    let tick = Duration::from_micros(10);
    let says = Says(Err(Denied::Refused {
        now: s(0),
        permits: 1,
    }));
    let limit = Penalty::builder(SECOND)
        .tick(tick)
        .build_on::<W>()
        .unwrap()
        .around(says);
    // Where the word wraps, if timestamps reach that far.
    let Some(lap) = (W::MASK)
        .checked_add(1)
        .and_then(|lap| lap.checked_mul(10_000))
    else {
        return;
    };
    assert!(!take(&limit, ns(lap - 1_000_000_000)));
    assert!(limit.is_on_at(ns(lap)));
    assert!(!limit.is_on_at(ns(lap + 10_000)));
}

fn a_word_that_wraps_denies_once_more_and_not_after_a_grant<W: Word>() {
    if W::BITS == 64 {
        // Timestamps do not reach that far.
        return;
    }
    let lap = |limit: &Penalty<TokenBucket<W>, W>| {
        nanos(limit.timing().horizon) + nanos(limit.timing().tick)
    };
    let limit = five::<W>();
    assert!(take(&limit, s(10)) && !take(&limit, s(10)));
    let again = ns(s(12).as_nanos() + lap(&limit));
    assert!(limit.is_on_at(again), "idle for a whole horizon");
    let before = again.as_nanos() - nanos(limit.timing().staleness) - nanos(5 * SECOND);
    assert!(!limit.is_on_at(ns(before)), "for no longer than documented");
    assert!(!limit.is_on_at(ns(again.as_nanos() + 3_000_000_000)));

    let limit = five::<W>();
    assert!(take(&limit, s(10)) && !take(&limit, s(10)));
    let over = s(15).saturating_add(limit.timing().staleness);
    assert!(take(&limit, ns(over.as_nanos() - 1)));
    assert!(
        !format!("{limit:?}").contains("until: 0x0"),
        "a stale timestamp would still find it active"
    );
    assert!(take(&limit, over.saturating_add(SECOND)));
    assert!(format!("{limit:?}").contains("until: 0x0"));
    assert!(
        (0..10).all(|hold| !limit.is_on_at(ns(s(10 + hold).as_nanos() + lap(&limit)))),
        "cleared"
    );
}

#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    denied: u64,
    penalized: u64,
    penalties: u64,
    late: u64,
    cleared: u64,
    by_hand: u64,
}

fn agrees_with_a_model_that_never_wraps<W: Word>() {
    let traces = if cfg!(debug_assertions) {
        2_000
    } else {
        20_000
    };
    let mut tally = Tally::default();
    for seed in 0..traces {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 200,
        };
        let length = draws.magnitude(100_000_000_000).max(1);
        let permits = draws.within(1, 5);
        let rate = Rate::new(draws.within(1, 3) as u32, Duration::from_nanos(length));
        if draws.once_in(2) {
            let bucket = || {
                TokenBucket::builder(rate, permits)
                    .build_on::<u64>()
                    .unwrap()
            };
            trace::<_, W>(bucket, length, &mut draws, &mut tally);
        } else {
            let window = FixedWindow::builder(permits, Duration::from_nanos(length))
                .started_by_first_request();
            trace::<_, W>(
                || window.build_on::<u64>().unwrap(),
                length,
                &mut draws,
                &mut tally,
            );
        }
    }
    println!("{tally:?}");
    let each = traces * 3;
    assert!(
        tally.granted > each
            && tally.denied > each
            && tally.penalized > each
            && tally.penalties > each
            && tally.by_hand > each,
        "{tally:?}"
    );
    assert!(
        tally.late > each && (tally.cleared > 100 || W::BITS == 64),
        "{tally:?}"
    );
}

/// Takes from a limiter with penalties. If the model says that no penalty is active, takes from its
/// twin, too.
fn trace<L: Limiter + Debug, W: Word>(
    new: impl Fn() -> L,
    length: u64,
    draws: &mut Draws<'_>,
    tally: &mut Tally,
) {
    let some = draws.magnitude(200_000_000_000).max(1);
    let wait = draws.one_of(&[some, 1_000_000_000, 1, length]);
    let mut settings = Penalty::builder(Duration::from_nanos(wait));
    if draws.once_in(3) {
        settings = settings.tick(Duration::from_nanos(draws.magnitude(1_000_000_000).max(1)));
    }
    let denials = draws.one_of(&[1, 1, 2, 3, 0]);
    let within = draws.magnitude(length).max(1);
    if denials > 1 {
        settings = settings
            .after(denials, Duration::from_nanos(within))
            .tick(Duration::from_millis(1));
    }
    if denials == 0 {
        settings = settings.started_by_hand();
    }
    let Ok(settings) = settings.build_on::<W>() else {
        return;
    };
    let (limit, twin) = (settings.around(new()), new());
    let tick = nanos(limit.timing().tick);
    let step = i128::from(tick);
    let floor = |now: u64| i128::from(now) / step;
    let ceil = |now: u64| (i128::from(now) + step - 1) / step;
    let staleness = nanos(limit.timing().staleness).min(1_000_000_000);
    let range = 1i128 << W::BITS;
    let stale = (limit.timing().staleness.as_nanos() / step.cast_unsigned()).cast_signed();
    let near = range - 2 * stale - 2 * i128::from(wait.div_ceil(tick)) - 8;
    // The first instant after the penalty, if any; the end of the window of denials, and the number
    // of denials in it.
    let (mut until, mut end, mut counted) = (None::<i128>, i128::MIN, 0);
    let (mut now, mut newest) = (draws.magnitude(length), 0u64);
    while draws.another_step() {
        if until.is_some_and(|until| floor(now) - until > near) || now > u64::MAX / 2 {
            return;
        }
        let at = ns(now);
        let n = draws.one_of(&[1, 1, 1, 2, 0, 6]);
        let on = until.is_some_and(|until| floor(now) < until);
        let before = format!("{limit:?}");
        let context = || format!("{n} at {now}, until {until:?}: before {before}, after {limit:?}");
        assert_eq!(limit.is_on_at(at), on, "{}", context());
        assert_eq!(
            limit.available_at(at),
            if on { 0 } else { twin.available_at(at) },
            "{}",
            context()
        );
        tally.late += u64::from(now < newest);
        newest = newest.max(now);
        if draws.once_in(8) {
            let asked = now.saturating_add(draws.magnitude(2 * wait));
            let most = ceil(now) + i128::from(wait.div_ceil(tick));
            let end = if asked > now {
                ceil(asked).min(most)
            } else {
                floor(now)
            };
            let end = end + i128::from(end > floor(now) && end % range == 0);
            let later = until.is_none_or(|until| floor(now) >= until || until < end);
            if end > floor(now) && later {
                until = Some(end);
                tally.by_hand += 1;
            }
            let got = i128::from(limit.penalize_at(at, ns(asked)).as_nanos());
            match until {
                Some(until) if until > floor(now) => assert_eq!(got, until * step, "{asked}"),
                _ => assert_eq!(got, i128::from(now), "{asked}"),
            }
            continue;
        }
        let decision = limit.take_at(at, n);
        if on {
            assert_eq!(
                decision,
                Err(Denied::Penalized {
                    now: at,
                    permits: n
                }),
                "{}",
                context()
            );
            assert_eq!(
                format!("{limit:?}"),
                before,
                "a denial during the penalty wrote"
            );
            tally.penalized += 1;
        } else {
            assert_eq!(
                decision.is_ok(),
                twin.take_at(at, n).is_ok(),
                "{}",
                context()
            );
            match decision {
                Ok(_) => {
                    tally.granted += 1;
                    if n > 0 && until.is_some_and(|until| floor(now) - until >= stale) {
                        until = None;
                        tally.cleared += 1;
                    }
                }
                Err(Denied::Exhausted { .. }) if n > 0 => {
                    tally.denied += 1;
                    if denials > 0 && floor(now) >= end {
                        (end, counted) = (ceil(now) + i128::from(within.div_ceil(tick)), 0);
                    }
                    if counted + 1 == denials {
                        tally.penalties += 1;
                        let starts = ceil(now) + i128::from(wait.div_ceil(tick));
                        until = Some(if starts % range == 0 {
                            starts + 1
                        } else {
                            starts
                        });
                    } else if denials > 0 {
                        counted += 1;
                    }
                }
                Err(_) => assert_eq!(format!("{limit:?}"), before, "{n} at {now}"),
            }
        }
        if let Err(denied) = decision
            && let Retry::At(retry) = limit.retry(denied)
        {
            assert!(retry > at && n < 6, "{retry:?} for {n} at {at:?}");
            // Where the word may have wrapped by then, the answer is open.
            let known = until.is_none_or(|until| floor(retry.as_nanos()) - until <= near);
            assert!(
                limit.peek_at(retry, n).is_ok() || !known,
                "{n} at {retry:?}, {limit:?}"
            );
            assert!(
                limit.peek_at(ns(retry.as_nanos() - 1), n).is_err(),
                "{n} before {retry:?}, {limit:?}"
            );
        } else {
            assert!(decision.is_ok() || n == 6 || u64::from(n) > twin.capacity());
        }
        let late = draws.magnitude(staleness);
        now = match draws.below(16) {
            0..=4 => now,
            5..=7 => now + draws.magnitude(length),
            8 | 9 => now + draws.magnitude(length.saturating_mul(4)),
            10 => now + draws.magnitude(4 * nanos(limit.timing().staleness).min(100_000_000_000)),
            11..=13 => {
                let end = until.map_or(now, |until| u64::try_from(until * step).unwrap());
                newest.max(end).saturating_sub(draws.below(2))
            }
            _ => newest.saturating_sub(late),
        };
    }
}

/// Ticks of 10 s end at 5 s, 15 s, 25 s ...
fn ticks_are_counted_from_the_origin<W: Word>() {
    let settings = Penalty::builder(60 * SECOND).tick(10 * SECOND).origin(s(5));
    let limit = one_a_second::<W>(settings);
    assert_eq!(limit.timing().origin, s(5));
    assert!(take(&limit, s(6)) && !take(&limit, s(6)));
    assert!(!take(&limit, s(74)) && take(&limit, s(75)), "15 s and 60 s");

    let limit = one_a_second::<W>(settings.after(2, 10 * SECOND));
    assert!(take(&limit, s(6)) && !take(&limit, s(6)));
    assert!(take(&limit, s(24)) && !take(&limit, s(24)));
    assert!(limit.is_on_at(s(24)), "the window of denials ends at 25 s");
}

fn settings_are_refused_by_name<W: Word>() {
    let build = |settings: PenaltyBuilder| settings.build_on::<W>().map(drop);
    let zero = |setting| Err(SettingsError::Zero { setting });
    assert_eq!(build(Penalty::builder(Duration::ZERO)), zero(Setting::Wait));
    assert_eq!(
        build(Penalty::builder(SECOND).tick(Duration::ZERO)),
        zero(Setting::Tick)
    );
    assert_eq!(
        build(Penalty::builder(SECOND).after(0, SECOND)),
        zero(Setting::Threshold)
    );
    assert_eq!(
        build(Penalty::builder(SECOND).after(2, Duration::ZERO)),
        zero(Setting::Within)
    );
    let short = Penalty::builder(SECOND).staleness(Duration::from_millis(999));
    assert!(matches!(
        build(short),
        Err(SettingsError::TooSmall {
            setting: Setting::Staleness,
            ..
        })
    ));
    // The bound that an error names is accepted, and one more is not.
    let is_tight = |setting, from, with: &dyn Fn(u64) -> PenaltyBuilder| {
        let Err(SettingsError::TooLarge {
            setting: named,
            max,
        }) = build(with(from))
        else {
            panic!("{:?}", build(with(from)))
        };
        assert_eq!((named, build(with(max))), (setting, Ok(())));
        assert_eq!(
            build(with(max + 1)),
            Err(SettingsError::TooLarge { setting, max })
        );
        max
    };
    let span = Duration::from_nanos;
    assert_eq!(
        is_tight(Setting::Wait, u64::MAX, &|wait| Penalty::builder(span(
            wait
        ))),
        u64::MAX / 2
    );
    let max = is_tight(Setting::Wait, u64::MAX / 2, &|wait| {
        Penalty::builder(span(wait)).tick(span(1))
    });
    assert_eq!(max, (W::MASK >> 2) - 1);
    is_tight(Setting::Staleness, u64::MAX / 2, &|staleness| {
        Penalty::builder(SECOND)
            .tick(span(1))
            .staleness(span(staleness))
    });
    is_tight(Setting::Threshold, u64::MAX, &|denials| {
        Penalty::builder(SECOND).after(denials, SECOND)
    });
    assert_eq!(
        build(Penalty::builder(span(u64::MAX / 2)).staleness(span(u64::MAX / 2))),
        Ok(())
    );
}

#[test]
fn a_denial_and_an_inner_penalty_start_one_and_an_oversized_request_does_not() {
    let refused = Denied::Refused {
        now: s(0),
        permits: 1,
    };
    let penalized = Denied::Penalized {
        now: s(0),
        permits: 1,
    };
    let exceeds = Denied::ExceedsCapacity {
        permits: 1,
        capacity: 0,
    };
    for (says, starts) in [(refused, true), (penalized, true), (exceeds, false)] {
        let limit = Penalty::new(Says(Err(says)), SECOND);
        assert_eq!(limit.take_at(s(0), 1), Err(says));
        assert_eq!(limit.is_on_at(s(0)), starts, "{says:?}");
    }
    let limit = Penalty::new(Says(Err(refused)), 5 * SECOND);
    assert_eq!(
        limit.take_at(s(0), 1).unwrap_err().retry(&limit),
        Retry::After(5 * SECOND)
    );
    assert_eq!(
        limit.take_at(s(4), 1).unwrap_err().retry(&limit),
        Retry::After(3 * SECOND)
    );
    let held = Penalty::new(Concurrency::new(1), SECOND);
    assert!(take(&held, s(0)));
    assert_eq!(
        held.take_at(s(0), 1).unwrap_err().retry(&held),
        Retry::OnReleaseFrom(s(1))
    );
    held.release(1);
    assert_eq!(
        held.take_at(s(0), 1).unwrap_err().retry(&held),
        Retry::At(s(1))
    );
}

#[test]
fn nested_penalties_report_the_longer_one() {
    let limit = Penalty::new(
        Penalty::new(TokenBucket::new(Rate::per_second(1), 1), 9 * SECOND),
        4 * SECOND,
    );
    assert!(take(&limit, s(0)) && !take(&limit, s(0)));
    let denied = limit.take_at(s(1), 1).unwrap_err();
    assert_eq!(
        (denied, denied.retry(&limit)),
        (
            Denied::Penalized {
                now: s(1),
                permits: 1
            },
            Retry::At(s(9))
        )
    );
    assert!(
        !take(&limit, s(5)),
        "a penalty inside, which starts one outside again"
    );
    assert_eq!(limit.peek_at(s(9), 1).map(drop), Ok(()));
}

#[test]
fn a_wrapper_is_the_limiter_that_it_wraps() {
    let limit = Penalty::new(Counted::new(Concurrency::new(4)), SECOND);
    assert_eq!(limit.capacity(), 4);
    assert_ne!(
        limit.id(),
        limit.limiter().id(),
        "a request through it may start a penalty"
    );
    let lease = limit.try_acquire_at(s(0), 3).unwrap();
    assert_eq!((lease.permits(), limit.available_at(s(0))), (3, 1));
    drop(lease);
    let receipt = limit.take_at(s(0), 3).unwrap();
    assert_eq!(limit.refund_at(s(0), 3, receipt).permits, 3);
    assert_eq!(
        (limit.available_at(s(0)), limit.limiter().counts().held),
        (4, 0)
    );
}

#[test]
fn a_penalty_has_a_reason_of_its_own() {
    let limit = Penalty::new(TokenBucket::new(Rate::per_second(1), 1), 5 * SECOND);
    assert!(take(&limit, s(0)));
    let first = limit.take_at(s(0), 1).unwrap_err();
    assert_eq!(
        REASON_PHRASE.of_denied(&limit, s(0), first),
        Some("not enough permits available")
    );
    assert_eq!(
        RETRY_AFTER.of_denied(&limit, s(0), first),
        Some(Retry::At(s(5)))
    );
    let then = limit.take_at(s(1), 1).unwrap_err();
    assert_eq!(
        REASON_PHRASE.of_denied(&limit, s(1), then),
        Some("penalized after an earlier denial")
    );
    assert_eq!(
        RETRY_AFTER.of_denied(&limit, s(1), then),
        Some(Retry::At(s(5)))
    );
    assert_eq!(
        USED_SHARE
            .of_denied(&limit, s(1), then)
            .map(|used| used.permits),
        Some(0),
        "the inner limiter's"
    );
}

#[test]
fn a_composition_starts_the_penalty_of_the_limit_that_denies_and_no_other() {
    let bucket = || Penalty::new(TokenBucket::new(Rate::per_second(1), 2), 5 * SECOND);
    let limits = AllOf::new([bucket(), bucket()]);
    assert!(limits.limits()[1].take_at(s(0), 2).is_ok());
    assert_eq!(limits.try_acquire_at(s(0), 1).unwrap_err().index, 1);
    assert!(!limits.limits()[0].is_on_at(s(0)) && limits.limits()[1].is_on_at(s(0)));
    assert_eq!(limits.limits()[0].available_at(s(0)), 2);
    let denied = limits.try_acquire_at(s(1), 1).unwrap_err();
    assert_eq!(limits.retry(denied), Retry::At(s(5)));
    assert!(limits.try_acquire_at(s(5), 1).is_ok());
}

#[test]
fn a_grant_that_a_composition_rolls_back_starts_no_penalty() {
    let gate = Concurrency::new(1);
    let limit = Penalty::new(TokenBucket::new(Rate::per_second(1), 5), SECOND);
    // The look succeeds, and the last limit denies in the take.
    let limits = AllOf::new((&limit, &gate, Counted::new(&gate)));
    assert!(limits.try_acquire_at(Timestamp::ZERO, 1).is_err());
    assert!(!limit.is_on_at(Timestamp::ZERO));
    assert_eq!(limit.available_at(Timestamp::ZERO), 5);
    // The inner limiter itself denies, though it is the same composition that took the permit.
    let inside = Penalty::new(&gate, SECOND);
    assert!(
        AllOf::new((&gate, &inside))
            .try_acquire_at(Timestamp::ZERO, 1)
            .is_err()
    );
    assert!(inside.is_on_at(Timestamp::ZERO));
}
