use core::task::{Poll, Waker};

use embassy_time_driver::{TICK_HZ, now, schedule_wake};
use portcullis_core::{Clock, Timestamp};

use super::Timer;

/// Embassy's time: the clock and the alarms of whatever driver of `embassy-time` is linked in; the
/// origin is the driver's, the start of the machine as a rule. Needs the feature `embassy-time`.
///
/// A task runs [`Queue::drive`](crate::Queue::drive): the drivers wake with their alarms locked,
/// and some wake tasks of `embassy-executor` alone. It takes one place in the queue of alarms.
///
/// ```
/// # use embassy_time as _; // Brings a driver.
/// use portcullis_async::{EmbassyTimer, InterruptLock, Queue};
/// use portcullis_core::{Rate, TokenBucket};
///
/// static QUEUE: Queue<TokenBucket, EmbassyTimer, InterruptLock> =
///     Queue::new(TokenBucket::new(Rate::per_second(200), 1), EmbassyTimer, 9);
///
/// async fn work() -> Result<(), portcullis_async::Rejected> {
///     for _ in 0..3 {
///         QUEUE.acquire(1).await?;
///     }
///     QUEUE.close();
///     Ok(())
/// }
///
/// futures_executor::block_on(async { tokio::join!(QUEUE.drive(), work()).1 })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbassyTimer;

/// So many nanoseconds are so many ticks, in lowest terms: for the usual rates one of the two is a
/// power of two, or 1, and no division is left.
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
    /// The drivers wake with their queue of alarms locked.
    const IS_REENTRANT: bool = false;

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // Not before `at`: the first tick that is not.
        let (whole, rest) = (at.as_nanos() / NANOS, at.as_nanos() % NANOS);
        let tick = whole
            .saturating_mul(TICKS)
            .saturating_add((rest * TICKS).div_ceil(NANOS));
        if tick <= now() {
            return Poll::Ready(());
        }
        schedule_wake(tick, waker);
        Poll::Pending
    }
}
