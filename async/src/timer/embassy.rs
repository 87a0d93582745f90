use core::task::{Poll, Waker};

use embassy_time_driver::{TICK_HZ, now, schedule_wake};
use portcullis_core::{Clock, Timestamp};

use super::Timer;

/// Embassy's time: the clock and the alarms of whatever driver of `embassy-time` is linked in; the origin is the driver's, the start of the machine as a rule. Needs the feature `embassy-time`.
///
/// A driver whose alarm queue is part of `embassy-executor` can only wake tasks of that: there a task runs [`Queue::drive`](crate::Queue::drive), with this timer. With one of the
/// `generic-queue` features of `embassy-time` the queue can see to itself ([`Queue::attend`](crate::Queue::attend)). It takes one place in the alarm queue.
///
/// ```
/// use portcullis_async::{EmbassyTimer, InterruptLock, Queue};
/// use portcullis_core::{Rate, TokenBucket};
///
/// static QUEUE: Queue<TokenBucket, EmbassyTimer, InterruptLock> =
///     Queue::new(TokenBucket::new(Rate::per_second(200), 1), EmbassyTimer, 9);
/// QUEUE.attend();
/// futures_executor::block_on(async {
///     for _ in 0..3 {
///         QUEUE.acquire(1).await?;
///     }
///     Ok::<(), portcullis_async::Rejected>(())
/// })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbassyTimer;

/// So many nanoseconds are so many ticks, in lowest terms: for the usual rates one of the two is a power of two, or 1, and no division is left.
const NANOS: u64 = 1_000_000_000 / gcd(1_000_000_000, TICK_HZ);
const TICKS: u64 = TICK_HZ / gcd(1_000_000_000, TICK_HZ);

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Clock for EmbassyTimer {
    /// Reads the driver's ticks: rounded down to whole nanoseconds.
    fn now(&self) -> Timestamp {
        let ticks = now();
        let whole = ticks / TICKS;
        let rest = (ticks - whole * TICKS) * NANOS / TICKS;
        Timestamp::from_nanos(whole.saturating_mul(NANOS).saturating_add(rest))
    }
}

impl Timer for EmbassyTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // Not before `at`: the first tick that is not.
        let (whole, rest) = (at.as_nanos() / NANOS, at.as_nanos() % NANOS);
        let tick = whole.saturating_mul(TICKS).saturating_add((rest * TICKS).div_ceil(NANOS));
        if tick <= now() {
            return Poll::Ready(());
        }
        schedule_wake(tick, waker);
        Poll::Pending
    }
}
