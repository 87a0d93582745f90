//! Settings at the ends of their ranges: refused with an error, or used without a panic.

use core::time::Duration;

use portcullis_core::{Limiter, Rate, Timestamp};
use portcullis_fleet::{
    Fallback, LeaseTable, MemberId, MemberShare, Pool, Protocol, ProtocolEvent, ShareLimiter,
};

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from[((z ^ (z >> 31)) % from.len() as u64) as usize]
    }
}

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);
const CENTURIES: Duration = Duration::from_nanos(u64::MAX);

fn random_pool(random: &mut Random) -> Option<Pool> {
    let permits = random.pick(&[0, 1, 7, 500, 1 << 20, u32::MAX - 1, u32::MAX]);
    let period = random.pick(&[NANO, SECOND, 86_400 * SECOND, CENTURIES, Duration::MAX]);
    let mut pool = Pool::builder("extreme", Rate::new(permits, period))
        .partitions(random.pick(&[0, 1, 3, 20, 500, 501, u32::MAX]))
        .reserved(random.pick(&[0, 0, 1, u32::MAX]))
        .lease(random.pick(&[SECOND / 5, 15 * SECOND, CENTURIES, Duration::MAX]))
        .interval(random.pick(&[NANO * 1_000_000, SECOND, CENTURIES, Duration::MAX]))
        .linger(random.pick(&[Duration::ZERO, SECOND, Duration::MAX]))
        .fair(random.pick(&[false, true]));
    if random.pick(&[false, true]) {
        pool = pool.burst(random.pick(&[0, 1, 1_000, u32::MAX]));
    }
    if random.pick(&[false, true]) {
        pool = pool.margin(random.pick(&[Duration::ZERO, SECOND, CENTURIES, Duration::MAX]));
    }
    if random.pick(&[0; 9]) == 1 {
        pool = pool.partition_of(random.pick(&[0, 1, u32::MAX]));
    }
    pool.build().ok()
}

/// What a limiter with these settings admits in a second with all partitions.
fn try_limiter(pool: &Pool) -> bool {
    let at = Timestamp::from_secs;
    let Ok(limiter) = ShareLimiter::new(pool, at(1)) else {
        return false;
    };
    for partitions in [1, pool.partitions(), 0, pool.partitions()] {
        let share = MemberShare {
            partitions,
            until: Timestamp::from_nanos(u64::MAX),
        };
        limiter.follow_at(
            at(2),
            if partitions == 0 {
                MemberShare::NONE
            } else {
                share
            },
        );
        let available = limiter.available_at(at(3));
        assert!(available <= limiter.capacity(), "{pool:?}");
        if let Ok(n @ 1..) = u32::try_from(available) {
            assert!(limiter.try_acquire_at(at(3), n).is_ok(), "{pool:?}");
            assert!(limiter.available_at(at(3)) < available.max(2), "{pool:?}");
        }
    }
    for safe in [0, 1, u32::MAX] {
        limiter.fall_back_at(at(4), Fallback::Safe(safe));
        let _ = limiter.available_at(at(5));
    }
    true
}

/// A member with these settings takes what it wants, and leaves.
fn try_member(pool: &Pool, seed: u64) {
    let mut now = Timestamp::from_secs(1);
    let mut member = Protocol::new(pool, MemberId(1), seed, now);
    let mut store = LeaseTable::new();
    let events = [
        ProtocolEvent::Demand(u32::MAX),
        ProtocolEvent::Demand(1),
        ProtocolEvent::Changed(pool),
        ProtocolEvent::Leave,
    ];
    for event in events {
        let mut actions = member.on(event, now);
        for _ in 0..20 {
            if let Some((exchange, request)) = actions.send {
                let answer = store.exchange(&request, now);
                let answer = &answer;
                actions = member.on(ProtocolEvent::Answered { exchange, answer }, now);
            } else {
                now = now.max(actions.wake_at.min(now.saturating_add(SECOND)));
                actions = member.on(ProtocolEvent::Wake, now);
            }
        }
        store.forget(now);
    }
    assert!(member.has_left(), "{pool:?}");
}

#[test]
fn extreme_settings_are_refused_or_work() {
    let mut random = Random(1);
    let (mut built, mut limited) = (0, 0);
    for seed in 0..20_000 {
        if let Some(pool) = random_pool(&mut random) {
            built += 1;
            assert!(pool.wanted(u64::MAX) <= pool.partitions());
            let _ = pool.capacity(u32::MAX);
            try_member(&pool, seed);
            // All numbers of partitions are tried, which takes long.
            limited += u32::from(built % 20 == 0 && try_limiter(&pool));
        }
    }
    assert!(built > 2_000 && limited > 50, "{built} {limited}");
}
