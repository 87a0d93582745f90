//! Limiters in statics, on 32-bit words, and their expected answers, by [`TABLES`].

use core::time::Duration;

use portcullis_core::builder::EscalationThreshold;
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, AllOf, CooldownWindow, Counted, Escalation, FixedWindow,
    Limiter, Penalty, Rate, Retry, SlicedBucket, SlidingWindow, Timestamp, TokenBucket,
};

use crate::tables::{Row, TABLES};
use crate::tally::Group;

const SECOND: Duration = Duration::from_secs(1);

/// Unwraps in a constant, where a method cannot be called.
macro_rules! built {
    ($builder:expr) => {
        match $builder {
            Ok(limiter) => limiter,
            Err(_) => panic!("does not fit 32 bits"),
        }
    };
}

const fn bucket() -> TokenBucket<u32> {
    built!(
        TokenBucket::builder(Rate::per_second(10), 5)
            .tick(Duration::from_micros(1))
            .build_on()
    )
}

static BUCKET: TokenBucket<u32> = bucket();
static SLOW_BUCKET: TokenBucket<u32> = built!(
    TokenBucket::builder(Rate::new(7, Duration::from_secs(3)), 20)
        .initial(3)
        .tick(Duration::from_millis(1))
        .build_on()
);
static STEPWISE: TokenBucket<u32> = built!(
    TokenBucket::builder(Rate::new(3, SECOND), 8)
        .initial(0)
        .stepwise()
        .build_on()
);
static ADJUSTABLE_BUCKET: AdjustableBucket<u32> = built!(
    AdjustableBucket::builder(Rate::per_second(10), 5)
        .tick(Duration::from_millis(1))
        .build_on()
);
static SLICED: SlicedBucket<u32> = built!(
    SlicedBucket::builder(Rate::per_second(10), 5)
        .tick(Duration::from_millis(1))
        .build_on()
);
static FIXED: FixedWindow<u32> = built!(FixedWindow::builder(5, SECOND).build_on());
static STARTED: FixedWindow<u32> = built!(
    FixedWindow::builder(5, SECOND)
        .started_by_first_request()
        .tick(Duration::from_millis(10))
        .build_on()
);
static ADJUSTABLE_WINDOW: AdjustableWindow<u32> =
    built!(AdjustableWindow::builder(5, SECOND).build_on());
static SLIDING: SlidingWindow<8, u32> = built!(SlidingWindow::builder(10, SECOND, 8).build_on());
static STRICT: SlidingWindow<5, u32> =
    built!(SlidingWindow::builder(10, SECOND, 4).strict().build_on());
static COOLDOWN: CooldownWindow<u32> = built!(
    CooldownWindow::builder(5, SECOND)
        .wait(Duration::from_millis(1_500))
        .tick(Duration::from_millis(1))
        .build_on()
);
static COUNTED: Counted<TokenBucket<u32>> = Counted::new(bucket());
static ESCALATED: Escalation<TokenBucket<u32>, &str, 1> = Escalation::new(
    bucket(),
    [EscalationThreshold {
        used: 4,
        hold: SECOND,
        decision: "warn",
    }],
);
static PENALISED: Penalty<FixedWindow<u32>, u32> = built!(
    Penalty::builder(Duration::from_millis(1_500))
        .tick(Duration::from_millis(1))
        .build_on()
)
.around(built!(FixedWindow::builder(5, SECOND).build_on()));
static BOTH: AllOf<(TokenBucket<u32>, FixedWindow<u32>)> =
    AllOf::new((bucket(), built!(FixedWindow::builder(7, SECOND).build_on())));

/// The limiters, in the order of [`TABLES`].
pub fn all() -> [(&'static str, &'static dyn Limiter); 15] {
    [
        ("token bucket", &BUCKET),
        ("slow token bucket", &SLOW_BUCKET),
        ("stepwise token bucket", &STEPWISE),
        ("adjustable bucket", &ADJUSTABLE_BUCKET),
        ("sliced bucket", &SLICED),
        ("fixed window", &FIXED),
        ("window from the first request on", &STARTED),
        ("adjustable window", &ADJUSTABLE_WINDOW),
        ("sliding window", &SLIDING),
        ("strict sliding window", &STRICT),
        ("cooldown window", &COOLDOWN),
        ("counted bucket", &COUNTED),
        ("escalated bucket", &ESCALATED),
        ("penalised window", &PENALISED),
        ("bucket and window", &BOTH),
    ]
}

pub(crate) fn check(group: &mut Group<'_>) {
    for ((name, limiter), (described, rows)) in all().into_iter().zip(TABLES) {
        group.check(
            name == *described,
            format_args!("the table of the {name} is of the {described}"),
        );
        for row in *rows {
            agrees(group, name, limiter, *row);
        }
    }
    let counts = COUNTED.counts();
    let (_, rows) = TABLES[11];
    let granted = rows
        .iter()
        .filter(|row| matches!(row, Row::Granted(..)))
        .count();
    group.check(
        counts.granted.requests == granted as u64,
        format_args!("{granted} granted, counted {counts:?}"),
    );
}

/// Sends a limiter the request of a row, and compares.
fn agrees(group: &mut Group<'_>, name: &str, limiter: &dyn Limiter, row: Row) {
    let (at, n, most) = match row {
        Row::Granted(at, n, has)
        | Row::Denied(at, n, has, _)
        | Row::Never(at, n, has)
        | Row::Late(at, n, has) => (Timestamp::from_nanos(at), n, has),
    };
    let has = limiter.available_at(at);
    let fits = if matches!(row, Row::Late(..)) {
        has <= most.into()
    } else {
        has == u64::from(most)
    };
    group.check(fits, format_args!("{name}, {row:?}: {has} available"));
    let peeked = limiter.peek_at(at, n).is_ok();
    let taken = limiter.take_at(at, n);
    let is_granted = matches!(row, Row::Granted(..));
    group.check(
        peeked == is_granted,
        format_args!("{name}, {row:?}: a look says {peeked}"),
    );
    group.check(
        taken.is_ok() == is_granted,
        format_args!("{name}, {row:?}: {taken:?}"),
    );
    let Err(denied) = taken else { return };
    let expected = match row {
        Row::Denied(.., retry) => Retry::At(Timestamp::from_nanos(retry)),
        Row::Never(..) => Retry::Never,
        Row::Granted(..) | Row::Late(..) => return,
    };
    let retry = limiter.retry(denied);
    group.check(
        retry == expected,
        format_args!("{name}, {row:?}: {retry:?}"),
    );
}
