//! Timestamps are moved by durations. They stop at the first and the last instant.

use core::time::Duration;

use portcullis_core::Timestamp;

const NANO: Duration = Duration::from_nanos(1);
/// The longest duration between two timestamps, and a shorter one.
const ALL: Duration = Duration::from_nanos(u64::MAX);
const NEARLY_ALL: Duration = Duration::from_nanos(u64::MAX - 1);

/// Instants and durations at the edges, and the sum and the difference of each pair.
#[test]
fn sums_and_differences_stop_at_the_ends_of_time() {
    let instants = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let durations = [
        Duration::ZERO,
        NANO,
        NEARLY_ALL,
        ALL,
        ALL + NANO,
        Duration::MAX,
    ];
    for nanos in instants {
        for duration in durations {
            let instant = Timestamp::from_nanos(nanos);
            let exact = i128::try_from(duration.as_nanos()).unwrap();
            let stopped = |nanos: i128| {
                Timestamp::from_nanos(nanos.clamp(0, u64::MAX.into()).try_into().unwrap())
            };
            let (later, earlier) = (
                stopped(i128::from(nanos) + exact),
                stopped(i128::from(nanos) - exact),
            );
            assert_eq!(instant + duration, later, "{instant} + {duration:?}");
            assert_eq!(instant - duration, earlier, "{instant} - {duration:?}");
            assert_eq!(instant.saturating_add(duration), later);
            assert_eq!(instant.saturating_sub(duration), earlier);
            let (mut up, mut down) = (instant, instant);
            up += duration;
            down -= duration;
            assert_eq!((up, down), (later, earlier));
        }
    }
}

#[test]
fn sums_and_differences_are_known_in_constants() {
    const LATER: Timestamp = Timestamp::ZERO.saturating_add(NANO);
    const EARLIER: Timestamp = Timestamp::MAX.saturating_sub(ALL);
    assert_eq!((LATER.as_nanos(), EARLIER), (1, Timestamp::ZERO));
}
