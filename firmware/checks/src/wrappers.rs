//! What limiters do besides granting and denying by their tables: change, reserve, force, refund,
//! report, and take part in a composition.

use core::time::Duration;

use portcullis_core::builder::EscalationThreshold;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, AllOf, Concurrency, Counted, Denied, Escalation,
    FixedWindow, Limiter, Penalty, Rate, Retry, SlidingWindow, Sometimes, Timestamp, TokenBucket,
    Unlimited,
};

use crate::tally::Group;

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(1);

/// Unwraps in a constant, where a method cannot be called.
macro_rules! built {
    ($builder:expr) => {
        match $builder {
            Ok(limiter) => limiter,
            Err(_) => panic!("does not fit 32 bits"),
        }
    };
}

static BUCKET: AdjustableBucket<u32> = built!(
    AdjustableBucket::builder(Rate::per_second(2), 4)
        .debt(6)
        .tick(TICK)
        .build_on()
);
static WINDOW: AdjustableWindow<u32> =
    built!(AdjustableWindow::builder(10, Duration::from_mins(1)).build_on());
static SLIDING: SlidingWindow<4, u32> = built!(
    SlidingWindow::builder(2, Duration::from_secs(4), 4)
        .max_limit(9)
        .build_on()
);
static INDEBTED: TokenBucket<u32> = built!(
    TokenBucket::builder(Rate::per_second(10), 3)
        .debt(5)
        .tick(TICK)
        .build_on()
);
static OWING: TokenBucket<u32> = built!(
    TokenBucket::builder(Rate::per_second(10), 3)
        .debt(30)
        .tick(TICK)
        .build_on()
);
static REFUNDED: TokenBucket<u32> = built!(TokenBucket::builder(Rate::per_second(1), 5).build_on());
static FIXED: FixedWindow<u32> = built!(FixedWindow::builder(5, SECOND).build_on());
static COUNTING: Sometimes<u32> = built!(Sometimes::builder().first(3).every(2).build_on());
static ONE_A_SECOND: Sometimes<u32> = built!(
    Sometimes::builder()
        .first(2)
        .interval(SECOND)
        .tick(TICK)
        .build_on()
);
static COUNTED: Counted<Concurrency> = Counted::new(Concurrency::new(2));
static PENALISED: Penalty<Concurrency> = Penalty::new(Concurrency::new(1), Duration::from_secs(5));
static ESCALATED: Escalation<Concurrency, &str, 2> = Escalation::new(
    Concurrency::new(10),
    [
        EscalationThreshold {
            used: 5,
            hold: Duration::from_secs(5),
            decision: "warn",
        },
        EscalationThreshold {
            used: 8,
            hold: Duration::from_secs(5),
            decision: "slow down",
        },
    ],
);
static FEW: Concurrency = Concurrency::new(2);
static MANY: Concurrency = Concurrency::new(9);
static BOTH: AllOf<(&Concurrency, &Concurrency)> = AllOf::new((&MANY, &FEW));
static TWICE: AllOf<[&Concurrency; 3]> = AllOf::new([&MANY, &FEW, &MANY]);

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Checks that a value equals another one.
macro_rules! is {
    ($group:expr, $value:expr, $expected:expr) => {{
        let (value, expected) = ($value, $expected);
        $group.check(
            value == expected,
            format_args!("{} is {value:?}, not {expected:?}", stringify!($value)),
        );
    }};
}

pub(crate) fn check(group: &mut Group<'_>) {
    changes(group);
    debts(group);
    refunds(group);
    due_calls(group);
    reports(group);
    compositions(group);
}

fn changes(group: &mut Group<'_>) {
    is!(group, BUCKET.take_at(ms(0), 4).is_ok(), true);
    // Half a permit has come in, and is kept.
    is!(
        group,
        BUCKET.adjust_at(ms(250), Rate::per_second(1), 4, Carry::Keep),
        Ok(())
    );
    is!(group, BUCKET.available_at(ms(749)), 0);
    is!(group, BUCKET.available_at(ms(750)), 1);
    is!(
        group,
        BUCKET.adjust_at(ms(750), Rate::per_second(4), 8, Carry::Proportional),
        Ok(())
    );
    is!(group, BUCKET.available_at(ms(750)), 2);
    is!(
        group,
        BUCKET.adjust_at(ms(750), Rate::per_second(4), 4, Carry::Reset),
        Ok(())
    );
    is!(group, BUCKET.available_at(ms(750)), 4);

    // Permits that are added, and a reset: refunds from before are worth nothing.
    is!(group, BUCKET.reset_at(ms(750), 1), Ok(()));
    let Ok(mut lease) = BUCKET.try_acquire_at(ms(750), 1) else {
        group.check(false, format_args!("a permit is left after the reset"));
        return;
    };
    is!(group, BUCKET.add_at(ms(750), 3), Ok(()));
    is!(group, lease.refund_at(ms(750), 1), Ok(0));
    is!(group, BUCKET.available_at(ms(750)), 3);
    is!(group, BUCKET.add_at(ms(750), 2), Ok(()));
    is!(group, BUCKET.available_at(ms(750)), 4);

    is!(group, WINDOW.take_at(ms(0), 8).is_ok(), true);
    is!(
        group,
        WINDOW.adjust_at(ms(3_000), 5, Duration::from_secs(10), Carry::Keep),
        Ok(())
    );
    is!(group, WINDOW.available_at(ms(9_999)), 2);
    is!(group, WINDOW.available_at(ms(10_000)), 5);
    is!(
        group,
        WINDOW
            .adjust_at(ms(10_000), 11, Duration::from_secs(10), Carry::Keep)
            .is_err(),
        true
    );

    is!(group, WINDOW.take_at(ms(10_000), 5).is_ok(), true);
    is!(group, WINDOW.reset_at(ms(10_001), 2), Ok(()));
    is!(group, WINDOW.available_at(ms(10_001)), 2);
    is!(group, WINDOW.available_at(ms(20_000)), 5);

    is!(group, SLIDING.set_limit(5), Ok(2));
    is!(group, SLIDING.take_at(ms(0), 4).is_ok(), true);
    is!(group, SLIDING.set_limit(3), Ok(5));
    is!(group, SLIDING.available_at(ms(3_999)), 0);
    is!(group, SLIDING.available_at(ms(4_000)), 3);
    is!(group, SLIDING.set_limit(10).is_err(), true);
}

fn debts(group: &mut Group<'_>) {
    is!(group, INDEBTED.force_at(ms(0), 7), Ok(()));
    is!(group, INDEBTED.force_at(ms(0), 2).is_err(), true);
    is!(group, INDEBTED.force_at(ms(0), 1), Ok(()));
    is!(group, INDEBTED.available_at(ms(599)), 0);
    is!(group, INDEBTED.available_at(ms(600)), 1);

    is!(group, OWING.try_acquire_or_owe_at(ms(0), 23).is_ok(), true);
    let denied = OWING.try_acquire_or_owe_at(ms(1_999), 1).err();
    let retry = denied.map(|denied| OWING.retry_owing(denied));
    is!(group, retry, Some(Retry::At(ms(2_000))));
    is!(
        group,
        OWING.try_acquire_or_owe_at(ms(2_000), 30).is_ok(),
        true
    );
    is!(group, OWING.available_at(ms(5_099)), 0);
    is!(group, OWING.available_at(ms(5_100)), 1);

    // 4 are available, 4 come in per second, and 2 of the 6 reserved ones have yet to come in.
    let now = ms(750);
    let wait = Duration::from_millis(500);
    let Ok(reserved) = BUCKET.reserve_at(now, 4, wait) else {
        return group.check(false, format_args!("4 of 4 can be reserved"));
    };
    is!(group, reserved.due(), now);
    let Ok(later) = BUCKET.reserve_at(now, 2, wait) else {
        return group.check(false, format_args!("2 more can be reserved"));
    };
    is!(group, later.due(), ms(1_250));
    is!(group, BUCKET.reserve_at(now, 1, wait).is_err(), true);
    is!(group, BUCKET.available_at(ms(1_250)), 0);
    is!(group, later.cancel_at(now), 2);
    is!(group, BUCKET.available_at(ms(1_000)), 1);
}

fn refunds(group: &mut Group<'_>) {
    let now = ms(0);
    let Ok(mut first) = REFUNDED.try_acquire_at(now, 3) else {
        return group.check(false, format_args!("a full bucket has 3"));
    };
    is!(group, first.refund_at(now, 2), Ok(2));
    is!(group, REFUNDED.available_at(now), 4);
    is!(group, REFUNDED.try_acquire_at(now, 1).is_ok(), true);
    // A later take builds on it.
    is!(group, first.refund_at(now, 1), Ok(0));
    is!(group, REFUNDED.available_at(now), 3);

    let Ok(mut taken) = FIXED.try_acquire_at(now, 5) else {
        return group.check(false, format_args!("a new window has 5"));
    };
    is!(group, taken.refund_at(ms(999), 2), Ok(2));
    is!(group, FIXED.available_at(ms(999)), 2);
    is!(group, FIXED.try_acquire_at(ms(1_000), 1).is_ok(), true);
    is!(group, taken.refund_at(ms(1_001), 3), Ok(0));
    is!(group, FIXED.available_at(ms(1_001)), 4);
}

fn due_calls(group: &mut Group<'_>) {
    let due = [0, 0, 0, 0, 0, 0, 0].map(|now| COUNTING.is_due_at(ms(now)));
    is!(group, due, [true, true, true, false, true, false, true]);
    let due = [0, 10, 20, 1_009, 1_010, 900, 2_010].map(|now| ONE_A_SECOND.is_due_at(ms(now)));
    is!(group, due, [true, true, false, false, true, false, true]);
}

fn reports(group: &mut Group<'_>) {
    let held = COUNTED.try_acquire_at(ms(0), 2);
    is!(group, COUNTED.try_acquire_at(ms(0), 1).is_err(), true);
    let counts = COUNTED.counts();
    is!(
        group,
        (counts.granted.requests, counts.granted.permits, counts.held),
        (1, 2, 2)
    );
    let denied = (counts.denied.requests, counts.denied.permits);
    is!(group, (denied, counts.refused.requests), ((1, 1), 0));
    drop(held);
    is!(group, COUNTED.counts().held, 0);

    let held = PENALISED.try_acquire_at(ms(0), 1);
    is!(group, PENALISED.is_on_at(ms(0)), false);
    is!(group, PENALISED.try_acquire_at(ms(0), 1).is_err(), true);
    drop(held);
    let denied = PENALISED.try_acquire_at(ms(4_999), 1).err();
    is!(
        group,
        denied,
        Some(Denied::Penalized {
            now: ms(4_999),
            permits: 1
        })
    );
    PENALISED.pardon();
    is!(group, PENALISED.try_acquire_at(ms(4_999), 1).is_ok(), true);

    let half = ESCALATED.try_acquire_at(ms(0), 5);
    is!(group, ESCALATED.decision_at(ms(0)), Some(&"warn"));
    let more = ESCALATED.try_acquire_at(ms(3_000), 4);
    is!(group, ESCALATED.decision_at(ms(3_000)), Some(&"slow down"));
    drop((half, more));
    is!(group, ESCALATED.decision_at(ms(7_999)), Some(&"slow down"));
    is!(group, ESCALATED.decision_at(ms(8_000)), None);
}

fn compositions(group: &mut Group<'_>) {
    let both = BOTH.try_acquire_at(ms(0), 2);
    is!(group, both.is_ok(), true);
    is!(group, (MANY.available(), FEW.available()), (7, 0));
    is!(
        group,
        BOTH.try_acquire_at(ms(0), 1)
            .map_err(|denied| denied.index)
            .err(),
        Some(1)
    );
    is!(group, (MANY.available(), FEW.available()), (7, 0));
    drop(both);
    is!(group, (MANY.available(), FEW.available()), (9, 2));

    is!(group, TWICE.try_acquire_at(ms(0), 3).is_err(), true);
    let twice = TWICE.try_acquire_at(ms(0), 2);
    is!(group, (MANY.available(), FEW.available()), (5, 0));
    drop(twice);
    is!(group, (MANY.available(), FEW.available()), (9, 2));

    is!(
        group,
        Unlimited.try_acquire_at(ms(0), u32::MAX).is_ok(),
        true
    );
}
