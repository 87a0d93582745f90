//! The timer of Embassy: the clock and the alarms of the time driver in the program.
//!
//! No state of its own. The driver counts in ticks; this file converts between ticks and
//! nanoseconds, exactly, and rounds an alarm up to the next tick, so that it never comes early.

use core::task::{Poll, Waker};

use embassy_time_driver::{TICK_HZ, now, schedule_wake};
use portcullis_core::{Clock, Timestamp};

use crate::waiting::timer::Timer;

/// The time of Embassy: the clock and the alarms of the `embassy-time` driver that is linked into
/// the program. The origin is that of the driver, usually the start of the machine. Needs the
/// feature `embassy-time`.
///
/// Works with [`Queue::drive`](crate::Queue::drive) in a task, but not with `Queue::attend`: the
/// drivers hold the lock of their alarms while they wake, and some of them wake only tasks of
/// `embassy-executor`. The queue takes one place in the driver's queue of alarms.
///
/// ```
/// # use embassy_time as _; // Brings a driver.
/// use portcullis_async::{EmbassyTimer, InterruptLock, Queue};
/// use portcullis_core::{Rate, TokenBucket};
///
/// static QUEUE: Queue<TokenBucket, EmbassyTimer, InterruptLock> =
///     Queue::with_lock(
///         TokenBucket::new(Rate::per_second(200), 1),
///         EmbassyTimer,
///         9,
///         InterruptLock::new(),
///     );
///
/// async fn work() -> Result<(), portcullis_async::Rejected> {
///     for _ in 0..3 {
///         let _permit = QUEUE.acquire(1).await?;
///     }
///     QUEUE.close();
///     Ok(())
/// }
///
/// futures_executor::block_on(async { tokio::join!(QUEUE.drive(), work()).1 })?;
/// # Ok::<(), portcullis_async::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct EmbassyTimer;

/// `NANOS` nanoseconds are `TICKS` ticks, in lowest terms. For the usual tick rates one of the two
/// is 1 or a power of two, so that the compiler needs no division.
const NANOS: u64 = 1_000_000_000 / gcd(1_000_000_000, TICK_HZ);
const TICKS: u64 = TICK_HZ / gcd(1_000_000_000, TICK_HZ);

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Clock for EmbassyTimer {
    /// Returns the driver's time, rounded down to whole nanoseconds.
    fn now(&self) -> Timestamp {
        let ticks = now();
        let whole = ticks / TICKS;
        let rest = (ticks - whole * TICKS) * NANOS / TICKS;
        Timestamp::from_nanos(whole.saturating_mul(NANOS).saturating_add(rest))
    }
}

impl Timer for EmbassyTimer {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        // The first tick that is not before `at`.
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
