//! No limit: a limiter that never runs out.

use portcullis_core::metadata::{USED_SHARE, Used};
use portcullis_core::{LimiterExt, Timestamp, Unlimited};

const NOW: Timestamp = Timestamp::from_secs(100);

#[test]
fn without_a_limit_nothing_is_used() {
    assert_eq!(
        USED_SHARE.of_granted(&Unlimited, NOW),
        Some(Used {
            permits: 0,
            capacity: u64::MAX
        })
    );
}

#[test]
fn a_drain_takes_as_many_permits_as_a_lease_can_hold() {
    assert_eq!(Unlimited.drain_at(NOW).unwrap().permits(), u32::MAX);
    assert!(Unlimited.try_acquire_at(NOW, u32::MAX).is_ok());
}
