//! Reservations, cancelled or used, beside takes with whole or partial refunds, and stale
//! timestamps. No span holds more permits than the burst and what comes in. Each permit that was
//! not returned counts at the instant at which it may be used.

#[allow(dead_code, reason = "made for traces, too")]
#[path = "support/draws.rs"]
mod draws;

use core::time::Duration;

use draws::Draws;
use portcullis_core::parts::Reservation;
use portcullis_core::state::Word;
use portcullis_core::{AdjustableBucket, Denied, Lease, Rate, Retry, Timestamp};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

const fn nanos(n: u64) -> Timestamp {
    Timestamp::from_nanos(n)
}

/// The settings of a bucket. All times of a trace are multiples of `grain`.
#[derive(Clone, Copy, Debug)]
struct Scene {
    burst: u32,
    debt: u32,
    permits: u32,
    period: u64,
    grain: u64,
    /// Whether the bucket counts time in grains; otherwise in nanoseconds.
    coarse: bool,
    /// Whether permits are forced, so that the declared debt counts as part of the burst.
    forces: bool,
}

impl Scene {
    /// Builds a bucket with a staleness of one second.
    fn build<W: Word>(&self) -> AdjustableBucket<W> {
        let rate = Rate::new(self.permits, Duration::from_nanos(self.period));
        let tick = if self.coarse { self.grain } else { 1 };
        AdjustableBucket::builder(rate, self.burst.into())
            .debt(self.debt.into())
            .tick(Duration::from_nanos(tick))
            .staleness(Duration::from_secs(1))
            .build_on()
            .unwrap()
    }

    /// One permit every `grain`.
    fn simple(burst: u32, debt: u32, grain: u64) -> Self {
        Self {
            burst,
            debt,
            permits: 1,
            period: grain,
            grain,
            coarse: true,
            forces: false,
        }
    }

    /// The time in which `permits` come in, rounded up to whole grains.
    fn time_for(&self, permits: u32) -> u64 {
        (u64::from(permits) * self.period)
            .div_ceil(u64::from(self.permits))
            .next_multiple_of(self.grain)
    }
}

/// Permits, and when they count.
#[derive(Clone, Copy, Debug)]
struct Admission {
    /// When they may be used, by the request's own clock.
    own: u64,
    /// The same; or the newest `now` of an earlier grant that was not returned, if that is later.
    law: u64,
    /// The `now` of the request.
    now: u64,
    kept: u32,
}

#[derive(Debug)]
enum Held<'a, W: Word> {
    Taken(Lease<&'a AdjustableBucket<W>>),
    Reserved(Reservation<&'a AdjustableBucket<W>>),
}

/// Counts of what happened in the traces.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    operations: u64,
    granted: u64,
    denied: u64,
    late: u64,
    waits: u64,
    refused: u64,
    forced: u64,
    /// Returned in whole, in part, and worth nothing.
    whole: u64,
    part: u64,
    nothing: u64,
    /// Returned out of turn, and worth something.
    out_of_turn: u64,
}

/// What was done to a bucket, and what is held of it.
struct Trace<'a, W: Word> {
    scene: Scene,
    bucket: &'a AdjustableBucket<W>,
    admissions: Vec<Admission>,
    held: Vec<(usize, Held<'a, W>)>,
    /// The newest `now` of a grant, whether or not it was returned.
    written: u64,
    /// The newest `now` of a refund or cancellation.
    given_back: u64,
    /// The number of admissions whose receipts are void, because of an out-of-turn refund.
    void: usize,
    tally: &'a mut Tally,
}

impl<'a, W: Word> Trace<'a, W> {
    fn new(scene: Scene, bucket: &'a AdjustableBucket<W>, tally: &'a mut Tally) -> Self {
        let (admissions, held) = (Vec::new(), Vec::new());
        Self {
            scene,
            bucket,
            admissions,
            held,
            written: 0,
            given_back: 0,
            void: 0,
            tally,
        }
    }

    fn available(&self, at: u64) -> u64 {
        self.bucket.available_at(nanos(at))
    }

    /// Checks every span from one admission to another.
    fn bound_holds(&self) -> bool {
        let Scene {
            burst,
            debt,
            permits,
            period,
            forces,
            ..
        } = self.scene;
        let burst = u128::from(burst) + if forces { debt.into() } else { 0 };
        let within = |at: fn(&Admission) -> u64| {
            let mut kept: Vec<(u64, u128)> = Vec::with_capacity(self.admissions.len());
            kept.extend(
                self.admissions
                    .iter()
                    .filter(|a| a.kept > 0)
                    .map(|a| (at(a), u128::from(a.kept))),
            );
            kept.sort_unstable();
            (0..kept.len()).all(|first| {
                let mut sum = 0;
                kept[first..].iter().all(|&(at, n)| {
                    sum += n;
                    let refill = u128::from(at - kept[first].0) * u128::from(permits);
                    sum * u128::from(period) <= burst * u128::from(period) + refill
                })
            })
        };
        within(|admission| admission.own) && within(|admission| admission.law)
    }

    fn admit(&mut self, now: u64, due: u64, n: u32, held: Option<Held<'a, W>>) {
        self.tally.granted += 1;
        self.tally.late += u64::from(now < self.written);
        self.written = self.written.max(now);
        // A returned admission is as if it had never been written.
        let before = self
            .admissions
            .iter()
            .filter(|before| before.kept > 0)
            .map(|before| before.now)
            .max();
        let law = if due > now {
            due
        } else {
            before.unwrap_or(0).max(now)
        };
        self.admissions.push(Admission {
            own: due,
            law,
            now,
            kept: n,
        });
        self.held
            .extend(held.map(|held| (self.admissions.len() - 1, held)));
        assert!(
            self.bound_holds(),
            "{n} at {now}: {:?}\n{:?}\n{:?}",
            self.admissions,
            self.scene,
            self.bucket
        );
    }

    fn take(&mut self, now: u64, n: u32) {
        self.tally.operations += 1;
        let enough = self.available(now) >= n.into();
        match self.bucket.try_acquire_at(nanos(now), n) {
            Ok(lease) => {
                assert!(enough);
                self.admit(now, now, n, Some(Held::Taken(lease)));
            }
            Err(denied) => {
                assert!(!enough);
                self.tally.denied += 1;
                if let Retry::At(at) = denied.retry(self.bucket) {
                    let early = at.as_nanos() - 1;
                    assert!(
                        self.available(at.as_nanos()) >= n.into()
                            && self.available(early) < n.into()
                    );
                }
            }
        }
    }

    fn force(&mut self, now: u64, n: u32) {
        self.tally.operations += 1;
        let before = format!("{:?}", self.bucket);
        match self.bucket.force_at(nanos(now), n) {
            Ok(()) => {
                self.tally.forced += 1;
                self.admit(now, now, n, None);
            }
            Err(_) => assert_eq!(format!("{:?}", self.bucket), before),
        }
    }

    /// The first instant from `now` on at which `n` are available.
    fn suffices(&self, now: u64, n: u32) -> Option<u64> {
        if u64::from(n) > self.bucket.burst() {
            return None;
        }
        match (Denied::Exhausted {
            now: nanos(now),
            permits: n,
        })
        .retry(self.bucket)
        {
            Retry::At(at) => {
                let at = at.as_nanos();
                assert!(
                    self.available(at) >= n.into(),
                    "{n} by {at}: {:?}",
                    self.bucket
                );
                assert!(
                    at == now || self.available(at - 1) < n.into(),
                    "{n} by {at}: {:?}",
                    self.bucket
                );
                Some(at)
            }
            _ => None,
        }
    }

    fn reserve(&mut self, now: u64, n: u32, wait: u64) {
        self.tally.operations += 1;
        let due = self.suffices(now, n);
        // Whether `n` less the declared debt are available at `now`.
        let (owed, each) = (
            u64::from(self.scene.debt) * self.scene.period,
            u64::from(self.scene.permits),
        );
        let fits = owed
            .is_multiple_of(each * self.scene.grain)
            .then(|| self.available(now + owed / each) >= n.into());
        let before = format!("{:?}", self.bucket);
        match self
            .bucket
            .reserve_at(nanos(now), n, Duration::from_nanos(wait))
        {
            Ok(reserved) => {
                let at = reserved.due().as_nanos();
                assert_eq!(
                    (Some(at), reserved.permits()),
                    (due, n),
                    "{:?}",
                    self.bucket
                );
                assert!(at - now <= wait && fits != Some(false));
                self.tally.waits += u64::from(at > now);
                self.admit(now, at, n, Some(Held::Reserved(reserved)));
            }
            Err(denied) => {
                self.tally.refused += 1;
                assert_eq!(format!("{:?}", self.bucket), before, "a denial wrote");
                assert_eq!(
                    matches!(denied, Denied::ExceedsCapacity { .. }),
                    n > self.scene.burst
                );
                let long = due.is_none_or(|due| due - now > wait);
                assert!(
                    long || fits != Some(true),
                    "{n} at {now}, due {due:?}: {:?}",
                    self.bucket
                );
            }
        }
    }

    /// Returns up to `n` permits of the held grant `pick`; of a reservation, all.
    fn give_back(&mut self, now: u64, pick: usize, n: u32) {
        self.tally.operations += 1;
        let is_last = self.held[pick].0 == self.admissions.len() - 1;
        let is_void = self.held[pick].0 < self.void;
        let newest = self.written.max(now);
        let probes: [u64; 6] = core::array::from_fn(|i| newest + i as u64 * self.scene.period);
        let before = probes.map(|at| self.available(at));
        let (of, held) = self.held.remove(pick);
        if let Held::Reserved(reserved) = &held
            && nanos(now) > reserved.due()
        {
            // It may have been used, and counts as used.
            let Held::Reserved(reserved) = held else {
                return;
            };
            assert_eq!(
                reserved.cancel_at(nanos(now)),
                0,
                "past its due time: {:?}",
                self.bucket
            );
            assert_eq!(probes.map(|at| self.available(at)), before);
            self.tally.nothing += 1;
            return;
        }
        let (n, worth) = match held {
            Held::Taken(mut lease) => {
                let n = n.min(lease.permits());
                let worth = lease.refund_at(nanos(now), n).unwrap();
                if lease.permits() > 0 {
                    self.held.insert(pick, (of, Held::Taken(lease)));
                }
                (n, worth)
            }
            Held::Reserved(reserved) => (reserved.permits(), reserved.cancel_at(nanos(now))),
        };
        self.given_back = self.given_back.max(now);
        self.admissions[of].kept -= n;
        assert!(worth <= n);
        assert!(
            !is_last || is_void || worth == n,
            "no later take: {:?}",
            self.bucket
        );
        match worth {
            0 => self.tally.nothing += 1,
            _ if worth == n => self.tally.whole += 1,
            _ => self.tally.part += 1,
        }
        if worth > 0 && !is_last {
            self.tally.out_of_turn += 1;
            self.void = self.admissions.len();
        }
        for (at, before) in probes.into_iter().zip(before) {
            let (after, full) = (self.available(at), u64::from(self.scene.burst));
            assert!(after <= before + u64::from(worth) && after >= before);
            assert!(before == 0 || after == full.min(before + u64::from(worth)));
        }
    }

    /// No permit is lost permanently.
    fn ends_full(self) {
        let last = self
            .admissions
            .iter()
            .map(|admission| admission.law)
            .max()
            .unwrap_or(0);
        let later =
            last.max(self.given_back) + self.scene.time_for(self.scene.burst + self.scene.debt);
        assert_eq!(
            self.available(later),
            self.scene.burst.into(),
            "{:?}",
            self.bucket
        );
        assert!(self.bucket.idle_at(nanos(later)).is_idle());
    }
}

fn random<W: Word>(seed: u64, forces: bool, tally: &mut Tally) {
    let mut draws = Draws::Seeded {
        state: seed,
        steps: 40,
    };
    // The staleness is a second: with longer grains, no `now` is stale.
    let grain = draws.one_of(&[MILLI, MILLI, 50 * MILLI, 250 * MILLI, SECOND, 3 * SECOND]);
    let scene = Scene {
        burst: draws.within(1, 6) as u32,
        debt: draws.below(9) as u32,
        permits: draws.one_of(&[1, 1, 1, 2, 3]),
        period: grain * draws.one_of(&[1, 1, 1, 2, 5]),
        grain,
        coarse: W::BITS == 32 || draws.once_in(2),
        forces,
    };
    let bucket = scene.build::<W>();
    let mut trace = Trace::new(scene, &bucket, tally);
    let mut newest = grain * draws.below(1_000_000);
    while draws.another_step() {
        newest += match draws.below(8) {
            0..=3 => 0,
            4..=6 => grain * draws.below(4),
            _ => grain * draws.below(20),
        };
        // Stale by no more than the staleness.
        let late = draws
            .magnitude((SECOND / grain).min(newest / grain))
            .min(draws.magnitude(8))
            * grain;
        let now = if draws.once_in(2) {
            newest - late
        } else {
            newest
        };
        let n = draws.within(1, u64::from(scene.burst)) as u32;
        let short = grain * draws.below(12);
        let wait = draws.one_of(&[100_000 * SECOND, 100_000 * SECOND, 0, short]);
        let held = trace.held.len();
        match draws.below(10) {
            0..=2 => trace.take(now, n),
            3..=5 => trace.reserve(now, n + u32::from(draws.once_in(32)), wait),
            6 if forces => trace.force(now, draws.within(1, 16) as u32),
            6..=9 if held > 0 => {
                // One of the latest, more often than not.
                let pick = held - 1 - draws.magnitude(held as u64 - 1) as usize;
                trace.give_back(now, pick, if draws.once_in(2) { u32::MAX } else { n });
            }
            _ => {}
        }
    }
    trace.ends_full();
}

/// Runs random traces until there were `operations` operations.
fn in_bulk<W: Word>(forces: bool) -> Tally {
    let operations = if cfg!(debug_assertions) {
        220_000
    } else {
        1_000_000
    };
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.operations < operations {
        seed += 1;
        random::<W>(seed, forces, &mut tally);
    }
    println!("{} bits: {tally:?}", W::BITS);
    tally
}

#[test]
fn no_trace_of_returned_takes_and_reservations_exceeds_the_bound() {
    for tally in [in_bulk::<u64>(false), in_bulk::<u32>(false)] {
        let Tally {
            granted,
            denied,
            late,
            waits,
            refused,
            whole,
            part,
            nothing,
            out_of_turn,
            ..
        } = tally;
        let counts = [
            granted,
            denied,
            late,
            waits,
            refused,
            whole,
            part,
            nothing,
            out_of_turn,
        ];
        assert!(counts.iter().all(|&count| count > 500), "{tally:?}");
    }
}

#[test]
fn forced_permits_exceed_the_bound_by_no_more_than_the_debt() {
    for tally in [in_bulk::<u64>(true), in_bulk::<u32>(true)] {
        assert!(
            tally.forced > 1_000 && tally.out_of_turn > 1_000,
            "{tally:?}"
        );
    }
}

// Every trace of a few steps.

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Lets N grains pass.
    Wait(u64),
    /// Takes permits with a `now` that is late by N grains: N, permits.
    Take(u64, u32),
    Reserve(u64, u32),
    /// Returns permits of the latest held grant, or of the one before, ...
    GiveBack(u64, usize, u32),
}

/// Does one step; returns false if there is nothing to do.
fn apply<W: Word>(trace: &mut Trace<'_, W>, newest: &mut u64, step: Step) -> bool {
    let grain = trace.scene.grain;
    match step {
        Step::Wait(grains) => *newest += grains * grain,
        Step::Take(late, n) => trace.take(*newest - late * grain, n),
        Step::Reserve(late, n) => trace.reserve(*newest - late * grain, n, u64::MAX / 2),
        Step::GiveBack(late, back, n) => match trace.held.len().checked_sub(back + 1) {
            Some(pick) => trace.give_back(*newest - late * grain, pick, n),
            None => return false,
        },
    }
    true
}

/// Runs every continuation of `prefix` by up to `depth` steps. Returns how many there were.
fn explore<W: Word>(
    scene: Scene,
    steps: &[Step],
    prefix: &mut Vec<Step>,
    depth: u32,
    tally: &mut Tally,
) -> u64 {
    let mut traces = 0;
    for &step in steps {
        if let (Step::Wait(_), Some(Step::Wait(_)) | None) = (step, prefix.last()) {
            continue;
        }
        prefix.push(step);
        let bucket = scene.build::<W>();
        let mut trace = Trace::new(scene, &bucket, tally);
        let mut newest = 10 * scene.grain;
        let applies = prefix
            .iter()
            .fold(true, |_, &step| apply(&mut trace, &mut newest, step));
        if applies {
            traces += 1;
            trace.ends_full();
            if depth > 1 {
                traces += explore::<W>(scene, steps, prefix, depth - 1, tally);
            }
        }
        prefix.pop();
    }
    traces
}

#[test]
fn no_trace_of_a_few_steps_on_a_small_bucket_exceeds_the_bound() {
    use Step::{GiveBack, Reserve, Take, Wait};
    const STEPS: [Step; 14] = [
        Wait(1),
        Wait(3),
        Take(0, 1),
        Take(0, 2),
        Take(1, 1),
        Reserve(0, 1),
        Reserve(0, 2),
        Reserve(1, 1),
        GiveBack(0, 0, 9),
        GiveBack(0, 0, 1),
        GiveBack(0, 1, 9),
        GiveBack(0, 2, 9),
        GiveBack(1, 0, 9),
        GiveBack(1, 1, 1),
    ];
    let depth = if cfg!(debug_assertions) { 5 } else { 6 };
    let mut tally = Tally::default();
    let mut traces = 0;
    // In the last scene, two permits come in every three grains, so that a reservation is due at a
    // whole grain, by which a fraction more has come in.
    let rounded = Scene {
        permits: 2,
        period: 3 * MILLI,
        ..Scene::simple(2, 4, MILLI)
    };
    for scene in [
        Scene::simple(2, 4, SECOND),
        Scene::simple(3, 4, MILLI),
        rounded,
    ] {
        traces += explore::<u64>(scene, &STEPS, &mut Vec::new(), depth, &mut tally);
        traces += explore::<u32>(scene, &STEPS, &mut Vec::new(), depth - 1, &mut tally);
    }
    println!("{traces} traces: {tally:?}");
    assert!(traces > 50_000 && tally.out_of_turn > 2_000);
}

// Traces found by hand, which break simpler rules.

/// Whatever is returned, a reservation keeps its instant, so that no other request may act at the
/// same one.
#[test]
fn reservations_cancelled_in_the_middle_let_no_more_than_the_burst_act_at_one_instant() {
    fn check<W: Word>(last: u64) {
        let scene = Scene::simple(5, 20, MILLI);
        let mut tally = Tally::default();
        let bucket = scene.build::<W>();
        let mut trace = Trace::new(scene, &bucket, &mut tally);
        for n in [5, 5, 1] {
            trace.reserve(0, n, SECOND);
        }
        let dues: Vec<u64> = trace
            .admissions
            .iter()
            .map(|admission| admission.own)
            .collect();
        assert_eq!(dues, [0, 5 * MILLI, 6 * MILLI]);
        trace.give_back(0, 1, u32::MAX);
        assert_eq!(
            trace.suffices(0, 5),
            Some(7 * MILLI),
            "four of the five, because the reservation after them stays"
        );
        trace.give_back(0, 0, u32::MAX);
        assert_eq!(trace.suffices(0, 5), Some(7 * MILLI), "and no more");
        trace.take(last * MILLI, 5);
        trace.give_back(last * MILLI, 0, u32::MAX);
        trace.take(last * MILLI, 1);
        trace.take(last * MILLI, 1);
        let acting = trace
            .admissions
            .iter()
            .filter(|admission| admission.own == last * MILLI);
        assert!(acting.map(|admission| admission.kept).sum::<u32>() <= 5);
        trace.ends_full();
    }
    for last in 5..10 {
        check::<u64>(last);
        check::<u32>(last);
    }
}

#[test]
fn permits_taken_before_the_bucket_was_full_again_are_worth_nothing() {
    fn check<W: Word>() {
        let scene = Scene::simple(10, 0, MILLI);
        let mut tally = Tally::default();
        let bucket = scene.build::<W>();
        let mut trace = Trace::new(scene, &bucket, &mut tally);
        trace.take(0, 1);
        trace.take(100 * MILLI, 10);
        trace.give_back(100 * MILLI, 0, u32::MAX);
        assert_eq!(trace.available(100 * MILLI), 0);
        trace.take(100 * MILLI, 1);

        // Takes all that is available, some of which is replenished by time, too.
        let bucket = scene.build::<W>();
        let mut tally = Tally::default();
        let mut trace = Trace::new(scene, &bucket, &mut tally);
        trace.take(0, 10);
        trace.give_back(4 * MILLI, 0, u32::MAX);
        assert_eq!(trace.available(4 * MILLI), 10, "not 14");
        trace.take(4 * MILLI, 20);
        trace.take(4 * MILLI, 10);
        trace.take(4 * MILLI, 1);
        assert_eq!(trace.available(5 * MILLI), 1);
    }
    check::<u64>();
    check::<u32>();
}

/// One permit per second.
#[test]
fn an_out_of_turn_refund_is_worth_what_cannot_have_come_in_since() {
    fn check<W: Word>() {
        for (later, worth) in [(0, 3), (1, 2), (2, 1), (3, 0), (9, 0)] {
            let scene = Scene::simple(6, 0, SECOND);
            let bucket = scene.build::<W>();
            let mut first = bucket.try_acquire_at(nanos(0), 3).unwrap();
            let mut second = bucket.try_acquire_at(nanos(0), 1).unwrap();
            let now = nanos(later * SECOND);
            let before = bucket.available_at(now);
            assert_eq!(first.refund_at(now, 3), Ok(worth), "{later} s later");
            assert_eq!(bucket.available_at(now), (before + u64::from(worth)).min(6));
            // One out-of-turn refund ends the era.
            let expected = u32::from(worth == 0);
            assert_eq!(second.refund_at(now, 1), Ok(expected), "{later} s later");
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_late_refund_is_worth_what_had_not_come_in_by_the_newest_grant() {
    fn check<W: Word>() {
        let bucket = Scene::simple(6, 0, SECOND).build::<W>();
        let mut first = bucket.try_acquire_at(nanos(0), 3).unwrap();
        let second = bucket.try_acquire_at(nanos(2 * SECOND), 1).unwrap();
        assert_eq!(first.refund_at(nanos(SECOND), 3), Ok(1));
        assert_eq!(bucket.available_at(nanos(2 * SECOND)), 5);
        drop(second);
    }
    check::<u64>();
    check::<u32>();
}

/// Two were replenished by the time at which the second part is refunded.
#[test]
fn a_part_split_off_is_worth_no_more_than_has_not_come_in_since() {
    let bucket = AdjustableBucket::new(Rate::per_second(1_000), 4);
    let at = |millis| nanos(millis * MILLI);
    let mut first = bucket.try_acquire_at(at(10), 4).unwrap();
    let mut second = first.split(2).unwrap();
    assert_eq!(first.refund_at(at(10), 2), Ok(2));
    assert!(bucket.try_acquire_at(at(12), 2).is_ok());
    let _ = second.refund_at(at(12), 2);
    let more = bucket.available_at(at(12));
    assert!(
        2 + more <= 4,
        "2 and {more} at one instant, of a burst of 4"
    );
}

/// The fraction of a permit that a whole tick brings beyond what was reserved is lost, so that
/// never more than a full bucket is held.
#[test]
fn by_the_tick_of_a_due_reservation_no_more_than_a_full_bucket_has_come_in() {
    fn check<W: Word>() {
        // 3 every 10 ticks: 1 is due after 3.3 ticks, and the next one no earlier than 3.3 ticks
        // after the fourth.
        let bucket = |burst, permits, period, debt| {
            let rate = Rate::new(permits, Duration::from_millis(period));
            let settings = AdjustableBucket::builder(rate, burst).debt(debt);
            let bucket = settings
                .tick(Duration::from_millis(100))
                .build_on::<W>()
                .unwrap();
            let _ = bucket.try_acquire_at(nanos(0), burst as u32).unwrap();
            bucket
        };
        let due = |bucket: &AdjustableBucket<W>| {
            bucket
                .reserve_at(nanos(0), 1, Duration::MAX)
                .unwrap()
                .due()
                .as_nanos()
                / (100 * MILLI)
        };
        let slow = bucket(1, 3, 1_000, 5);
        assert_eq!([(); 3].map(|()| due(&slow)), [4, 8, 12]);

        // 3 per tick, 2 at once: together with the reserved one, one more.
        let fast = bucket(2, 3, 100, 1);
        assert_eq!(due(&fast), 1);
        assert_eq!(fast.available_at(nanos(100 * MILLI)), 1);
        assert!(fast.try_acquire_at(nanos(100 * MILLI), 2).is_err());
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_reservation_is_worth_what_no_later_reservation_builds_on() {
    fn check<W: Word>() {
        let scene = Scene::simple(4, 20, SECOND);
        for (after, worth) in [(0, 4), (1, 3), (3, 1), (4, 0)] {
            let bucket = scene.build::<W>();
            let _all = bucket.try_acquire_at(nanos(0), 4).unwrap();
            let first = bucket.reserve_at(nanos(0), 4, Duration::MAX).unwrap();
            let others: Vec<u64> = (0..after)
                .map(|_| {
                    bucket
                        .reserve_at(nanos(0), 1, Duration::MAX)
                        .unwrap()
                        .due()
                        .as_nanos()
                        / SECOND
                })
                .collect();
            assert_eq!(others, (5..5 + after).collect::<Vec<_>>());
            assert_eq!(first.cancel_at(nanos(0)), worth);
            let next = bucket.reserve_at(nanos(0), 1, Duration::MAX).unwrap();
            assert_eq!(next.due().as_nanos() / SECOND, 5 + after - u64::from(worth));
        }
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_reservation_is_worth_nothing_once_the_debt_has_been_paid() {
    fn check<W: Word>() {
        let scene = Scene::simple(4, 20, SECOND);
        let bucket = scene.build::<W>();
        let _all = bucket.try_acquire_at(nanos(0), 4).unwrap();
        let first = bucket.reserve_at(nanos(0), 4, Duration::MAX).unwrap();
        let _paid = bucket.try_acquire_at(nanos(5 * SECOND), 1).unwrap();
        // A new debt, in another era.
        let second = bucket
            .reserve_at(nanos(5 * SECOND), 1, Duration::MAX)
            .unwrap();
        assert_eq!(second.due(), nanos(6 * SECOND));
        assert_eq!(first.cancel_at(nanos(5 * SECOND)), 0);
        assert_eq!(second.cancel_at(nanos(5 * SECOND)), 1);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_change_of_settings_voids_all_receipts_and_loses_no_permit() {
    fn check<W: Word>() {
        let scene = Scene::simple(4, 20, SECOND);
        let bucket = scene.build::<W>();
        let now = nanos(SECOND);
        let mut lease = bucket.try_acquire_at(now, 4).unwrap();
        let reserved = bucket.reserve_at(now, 4, Duration::MAX).unwrap();
        bucket
            .adjust_at(
                now,
                Rate::per_second(2),
                4,
                portcullis_core::state::Carry::Keep,
            )
            .unwrap();
        assert_eq!(
            (lease.refund_at(now, 4), reserved.cancel_at(now)),
            (Ok(0), 0)
        );
        assert_eq!(
            bucket.available_at(nanos(4 * SECOND)),
            2,
            "four owed in two seconds, and a second"
        );
        assert_eq!(bucket.available_at(nanos(5 * SECOND)), 4);
    }
    check::<u64>();
    check::<u32>();
}

#[test]
fn a_reservation_is_never_due_later_than_the_longest_wait() {
    let scene = Scene::simple(3, 9, 100 * MILLI);
    let bucket = scene.build::<u64>();
    let _all = bucket.try_acquire_at(nanos(0), 3).unwrap();
    let dues: Vec<u64> = (0..9)
        .map(|n| {
            let exact = Duration::from_millis(100 * (n + 1));
            let short = exact.saturating_sub(Duration::from_nanos(1));
            assert!(matches!(
                bucket.reserve_at(nanos(0), 1, short),
                Err(Denied::Exhausted { .. })
            ));
            bucket
                .reserve_at(nanos(0), 1, exact)
                .unwrap()
                .due()
                .as_nanos()
                / MILLI
        })
        .collect();
    assert_eq!(dues, [100, 200, 300, 400, 500, 600, 700, 800, 900]);
    assert!(
        bucket.reserve_at(nanos(0), 1, Duration::MAX).is_err(),
        "a debt of nine"
    );
    assert!(
        bucket
            .reserve_at(nanos(100 * MILLI), 1, Duration::MAX)
            .is_ok()
    );
    let exceeds = bucket
        .reserve_at(nanos(0), 4, Duration::MAX)
        .map(|reserved| reserved.due());
    assert_eq!(
        exceeds,
        Err(Denied::ExceedsCapacity {
            permits: 4,
            capacity: 3
        })
    );
}

#[test]
fn a_denied_reservation_says_when_the_permits_could_be_taken_without_a_wait() {
    let scene = Scene::simple(3, 2, SECOND);
    let bucket = scene.build::<u64>();
    let _all = bucket.try_acquire_at(nanos(0), 3).unwrap();
    let _owed = bucket.reserve_at(nanos(0), 2, Duration::MAX).unwrap();
    let denied = bucket
        .reserve_at(nanos(0), 1, Duration::MAX)
        .map(|reserved| reserved.due())
        .unwrap_err();
    assert_eq!(denied.retry(&bucket), Retry::At(nanos(3 * SECOND)));
    assert!(bucket.try_acquire_at(nanos(3 * SECOND - 1), 1).is_err());
    assert!(bucket.try_acquire_at(nanos(3 * SECOND), 1).is_ok());
}

#[test]
fn without_a_declared_debt_nothing_can_be_reserved_ahead() {
    let bucket = AdjustableBucket::new(Rate::per_second(1), 2);
    let now = nanos(0);
    assert_eq!(bucket.reserve_at(now, 2, Duration::MAX).unwrap().due(), now);
    assert!(bucket.reserve_at(now, 1, Duration::MAX).is_err());
}

/// A reservation may count until its due tick, and a `now` may still be stale by the documented
/// bound.
#[test]
fn the_most_stale_timestamp_finds_nothing_in_a_debt_that_was_rounded_up() {
    fn check<W: Word>() {
        let settings = AdjustableBucket::builder(Rate::per_second(3), 6).debt(1);
        let settings = settings
            .tick(Duration::from_secs(1))
            .staleness(Duration::from_secs(1));
        let bucket = settings.build_on::<W>().unwrap();
        let at = Timestamp::from_secs;
        let _one = bucket.try_acquire_at(at(10), 1).unwrap();
        let reserved = bucket
            .reserve_at(at(10), 6, Duration::from_secs(9))
            .unwrap();
        assert_eq!(reserved.due(), at(11));
        let late = bucket.timing().staleness.as_secs();
        assert!(late >= 1);
        for seconds in 0..=late {
            assert_eq!(
                bucket.available_at(at(10 - seconds)),
                0,
                "stale by {seconds} s"
            );
            assert!(bucket.try_acquire_at(at(10 - seconds), 1).is_err());
        }
    }
    check::<u64>();
    check::<u32>();
}
