//! Waits until a time, by the timers of a policy.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use portcullis_async::Timer;
use portcullis_core::Timestamp;

use crate::policy::Policy;
use crate::timers::QueueTimer;

impl Policy {
    /// Waits until a time of the policy's [timers](Self::with_timer). For a request that was denied
    /// and is to be decided again, for example at the time that
    /// [`Decision::retry`](crate::Decision::retry) returns. Does not borrow the policy.
    ///
    /// Requests that wait in this way have no order. To wait in order, give the limit a
    /// [queue](crate::Limit::queue).
    ///
    /// # Cost
    ///
    /// Allocates a timer.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Policy;
    /// # futures_executor::block_on(async {
    /// let policy = Policy::new([]).unwrap();
    /// let at = policy.now() + Duration::from_millis(2);
    /// policy.sleep_until(at).await;
    /// assert!(policy.now() >= at);
    /// # });
    /// ```
    pub fn sleep_until(&self, at: Timestamp) -> Sleep {
        let timer = self.timers.create();
        Sleep { timer, at }
    }
}

/// A wait until a time: the result of [`Policy::sleep_until`].
///
/// ```
/// # use portcullis_policy::Policy;
/// let policy = Policy::new([]).unwrap();
/// futures_executor::block_on(policy.sleep_until(policy.now()));
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Sleep {
    timer: QueueTimer,
    at: Timestamp,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.timer.wake_at(self.at, context.waker())
    }
}

shows!([] Sleep, "Sleep", self: "at" => self.at);
