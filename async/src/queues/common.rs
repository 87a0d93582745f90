//! What all queues have in common: how they are set, and how they see to their time.

/// Implements it for one of them.
macro_rules! common {
    ($queue:ident<$lists:ident: $bound:path>, $source:ty) => {
        impl<$lists: $bound, C, R, H> $queue<$lists, C, R, H> {
            /// Who is granted first. Default: [`Order::OldestFirst`].
            ///
            /// ```
            /// # use portcullis_async::{Order, Queue};
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9)
            ///     .with_order(Order::NewestFirst);
            /// ```
            #[must_use]
            pub const fn with_order(mut self, order: $crate::Order) -> Self {
                self.wait_queue.options.order = order;
                self
            }

            /// How many may wait at once, whatever they wait for. Default: 2^32 - 1, and of a
            /// [`KeyedQueue`](crate::KeyedQueue) 4,096.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> =
            ///     Queue::new(Concurrency::new(2), ManualClock::new(), 100).with_max_waiters(10);
            /// ```
            #[must_use]
            pub const fn with_max_waiters(mut self, waiters: u32) -> Self {
                self.wait_queue.options.max_waiters = waiters;
                self
            }

            /// How late a grant may be and still count as in time, up to 1 s. Default: 10 ms. So
            /// rates beyond what a timer can tell apart are granted in batches, without a loss;
            /// what a timer is later than that is lost, up to the burst. (While no request waits,
            /// permits are kept up to the burst as well. So with a burst of 1, the full rate needs
            /// as many waiting requests as permits come in between two wakes of the timer.) A queue
            /// that is served [newest first](crate::Order::NewestFirst) has none, since newcomers
            /// may have taken in the meantime; nor has one whose limiter is
            /// [shared](portcullis_core::QueueLimiter::SHARED), as behind a pointer: others may
            /// have taken from it at the present.
            ///
            /// ```
            /// # use core::time::Duration;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{ManualClock, Rate, TokenBucket};
            /// // Never two at once.
            /// let queue: Queue<_, _> = Queue::new(
            ///     TokenBucket::new(Rate::per_second(10), 1),
            ///     ManualClock::new(),
            ///     9,
            /// )
            /// .with_slack(Duration::ZERO);
            /// ```
            #[must_use]
            pub const fn with_slack(mut self, slack: core::time::Duration) -> Self {
                // Every limiter stands a time so far behind.
                let most = core::time::Duration::from_secs(1);
                self.wait_queue.options.slack = if slack.as_nanos() > most.as_nanos() {
                    most
                } else {
                    slack
                };
                self
            }

            /// How much longer than it says to wait, at most, before a limiter is asked again that
            /// only says to ask again ([`Retry::After`]): each time another part of it, so that
            /// many processes do not ask all at once. Default: none.
            ///
            /// ```
            /// # use core::time::Duration;
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9)
            ///     .with_jitter(Duration::from_millis(5));
            /// ```
            #[must_use]
            pub const fn with_jitter(mut self, jitter: core::time::Duration) -> Self {
                self.wait_queue.options.jitter = jitter;
                self
            }

            /// The clock.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{Concurrency, ManualClock, Timestamp};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
            /// queue.clock().advance(core::time::Duration::from_secs(1));
            /// ```
            pub const fn clock(&self) -> &C {
                &self.wait_queue.clock
            }
        }

        impl<$lists: $bound, C: portcullis_core::Clock, R: $crate::RawLock, H: $crate::Hook>
            $queue<$lists, C, R, H>
        {
            /// What has happened so far.
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 0);
            /// let held = futures_executor::block_on(queue.acquire(2))?;
            /// assert!(
            ///     futures_executor::block_on(queue.acquire(1)).is_err(),
            ///     "nobody may wait"
            /// );
            /// assert_eq!(queue.counts().refused, 1);
            /// # drop(held);
            /// # Ok::<(), portcullis_async::Rejected>(())
            /// ```
            pub fn counts(&self) -> $crate::QueueCounts {
                self.wait_queue.counts()
            }

            /// Grants what has become available, by time, as the clock tells it, or in whatever
            /// way, and says when to call again.
            ///
            /// # Cost
            ///
            /// A look at the gate, if nobody waits.
            ///
            /// ```
            /// # use core::time::Duration;
            /// # use portcullis_async::{Next, Queue};
            /// # use portcullis_core::{ManualClock, Rate, Timestamp, TokenBucket};
            /// # use core::future::Future;
            /// # use core::pin::pin;
            /// # use core::task::{Context, Poll, Waker};
            /// let queue: Queue<_, _> =
            ///     Queue::new(TokenBucket::new(Rate::per_second(10), 1), ManualClock::new(), 9);
            /// let mut context = Context::from_waker(Waker::noop());
            /// assert!(pin!(queue.acquire(1)).poll(&mut context).is_ready());
            ///
            /// let mut second = pin!(queue.acquire(1));
            /// assert!(second.as_mut().poll(&mut context).is_pending());
            /// assert_eq!(queue.advance(), Next::At(Timestamp::from_millis(100)));
            /// queue.clock().advance(Duration::from_millis(100));
            /// assert_eq!(queue.advance(), Next::Idle);
            /// assert!(second.poll(&mut context).is_ready());
            /// ```
            pub fn advance(&self) -> $crate::Next {
                self.wait_queue.pass_by()
            }

            /// Closes the queue: whoever waits, and whoever comes, is told
            /// [`Rejected::Closed`](crate::Rejected::Closed). Leases that are out stay what they
            /// are.
            ///
            /// ```
            /// # use portcullis_async::{Queue, Rejected};
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
            /// queue.close();
            /// assert_eq!(
            ///     futures_executor::block_on(queue.acquire(1)).unwrap_err(),
            ///     Rejected::Closed { permits: 1 }
            /// );
            /// ```
            pub fn close(&self) {
                self.wait_queue.close();
            }

            /// Whether it has been [closed](Self::close).
            ///
            /// ```
            /// # use portcullis_async::Queue;
            /// # use portcullis_core::{Concurrency, ManualClock};
            /// let queue: Queue<_, _> = Queue::new(Concurrency::new(2), ManualClock::new(), 9);
            /// assert!(!queue.is_closed());
            /// ```
            pub fn is_closed(&self) -> bool {
                self.wait_queue.is_closed()
            }
        }

        impl<$lists: $bound, C: $crate::Timer, R: $crate::RawLock, H: $crate::Hook>
            $queue<$lists, C, R, H>
        {
            /// A future that sees to the queue's time, for a task of its own, or beside those that
            /// wait: however many they are, one timer. Ready when the queue is closed.
            ///
            /// One task at a time drives a queue: the last one that was polled is told when the
            /// time changes. Until it is polled again those who wait are granted by releases alone;
            /// it does not matter whether they themselves are polled.
            ///
            /// ```
            /// use portcullis_async::{Queue, ThreadTimer};
            /// use portcullis_core::{Clock, Rate, TokenBucket};
            ///
            /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            /// let queue: Queue<_, _> =
            ///     Queue::new(TokenBucket::new(Rate::per_second(100), 1), ThreadTimer::new(), 9);
            /// let work = async {
            ///     for _ in 0..3 {
            ///         queue.acquire(1).await.unwrap();
            ///     }
            ///     queue.close();
            /// };
            /// tokio::join!(queue.drive(), work);
            /// assert!(queue.clock().now().as_nanos() > 20_000_000);
            /// # });
            /// ```
            pub const fn drive(&self) -> $crate::Drive<'_, Self> {
                $crate::Drive::new(self)
            }

            /// Has the queue see to its time by itself, from now on: by its timer, whose wake-up
            /// runs the grants. For a queue that lives for ever.
            ///
            /// ```
            /// # use std::sync::LazyLock;
            /// use portcullis_async::{Queue, ThreadTimer};
            /// use portcullis_core::{Rate, TokenBucket};
            ///
            /// static QUEUE: LazyLock<Queue<TokenBucket, ThreadTimer>> = LazyLock::new(|| {
            ///     Queue::new(
            ///         TokenBucket::new(Rate::per_second(200), 1),
            ///         ThreadTimer::new(),
            ///         9,
            ///     )
            /// });
            /// QUEUE.attend();
            /// futures_executor::block_on(async {
            ///     for _ in 0..3 {
            ///         QUEUE.acquire(1).await?;
            ///     }
            ///     Ok::<(), portcullis_async::Rejected>(())
            /// })?;
            /// # Ok::<(), portcullis_async::Rejected>(())
            /// ```
            pub fn attend(&'static self)
            where
                Self: Sync,
            {
                const {
                    assert!(
                        C::IS_REENTRANT,
                        "this timer is for a task that drives the queue"
                    )
                };
                $crate::driving::drive::attend(self);
            }

            /// The same for a queue in an `Arc`, for as long as that is there: see
            /// [`ThreadTimer`](crate::ThreadTimer) for an example.
            #[cfg(feature = "std")]
            pub fn attend_shared(self: &std::sync::Arc<Self>)
            where
                Self: Send + Sync + 'static,
            {
                const {
                    assert!(
                        C::IS_REENTRANT,
                        "this timer is for a task that drives the queue"
                    )
                };
                $crate::driving::drive::attend_shared(self);
            }
        }

        impl<$lists: $bound, C: $crate::Timer, R: $crate::RawLock, H: $crate::Hook>
            $crate::driving::drive::Drivable for $queue<$lists, C, R, H>
        {
            type Config = ($source, C, R, H);

            fn driven(&self) -> &$crate::waiting::wait_queue::WaitQueue<Self::Config> {
                &self.wait_queue
            }
        }
    };
}
pub(crate) use common;
