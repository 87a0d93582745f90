//! Blocking waits: threads wait in the same queues as tasks.

use super::{Acquiring, QueuedDecision, end_of_wait};
#[cfg(doc)]
use crate::limit::Limit;
use crate::policy::Policy;
use crate::request::Request;

impl Policy {
    /// Decides a request, and takes its permits if it is allowed. If only limits with a
    /// [queue](Limit::queue) deny it, blocks the thread until they have its permits:
    /// [`acquire`](Self::acquire) for threads. See [`Acquiring::block`]. With a timeout:
    /// `policy.acquire(&request).within(timeout).block()`.
    ///
    /// # Cost
    ///
    /// See [`Acquiring::block`].
    ///
    /// ```
    /// use portcullis_policy::{Limit, Policy, Request, Rule};
    ///
    /// let rule = Rule::new("jobs").limit("1000/s".parse::<Limit>()?.burst(1).queue(10));
    /// let policy = Policy::new([rule]).unwrap();
    /// for _ in 0..3 {
    ///     assert!(policy.blocking_acquire(&Request::new("RUN", "/job")).is_allowed());
    /// }
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn blocking_acquire<'p>(&'p self, request: &Request<'_>) -> QueuedDecision<'p> {
        self.acquire(request).block()
    }
}

impl<'p> Acquiring<'p> {
    /// Blocks the thread until the request is decided. It waits in the same queue as the requests
    /// of tasks, with the same order, bounds and deadlines, and a change of the policy treats it in
    /// the same way.
    ///
    /// Needs no runtime, and no thread of a timer: one of the blocked threads drives the queue. So
    /// a thread gets its permits also if it is the only thread of a runtime, whose timer cannot run
    /// in the meantime. But if such a thread waits for permits that a task of the same runtime has
    /// to return, it is blocked for ever: set a [deadline](Self::until).
    ///
    /// # Cost
    ///
    /// That of [`Policy::decide_at`] if the request is granted or denied at once. A wait costs what
    /// a [blocking wait](portcullis_async::Acquire::block) in a
    /// [`KeyedQueue`](portcullis_async::KeyedQueue) costs: if permits in use must be returned, the
    /// thread spins for some microseconds, and then it sleeps. The first wait of a thread
    /// allocates, later ones do not.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_policy::{Limit, Policy, Request, Rule};
    ///
    /// let policy = Policy::new([Rule::new("jobs").limit(Limit::at_once(1).queue(10))]).unwrap();
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| {
    ///             let job = Request::new("RUN", "/job");
    ///             let decision = policy.acquire(&job).within(Duration::from_secs(60)).block();
    ///             assert!(decision.is_allowed());
    ///             // One job runs at a time: the next one when the decision is dropped.
    ///         });
    ///     }
    /// });
    /// ```
    pub fn block(self) -> QueuedDecision<'p> {
        let Self {
            policy,
            decision,
            mut wait,
            deadline,
            ..
        } = self;
        let mut decision = decision.expect("a future that can be moved has not been polled");
        let since = policy.now();
        while let Some(waits) = wait.take() {
            if let Ok(end) = end_of_wait(&mut decision, waits.block(), policy.now()) {
                return QueuedDecision::after(decision, since, end);
            }
            let queue = decision.queue();
            wait = queue.map(|queue| queue.acquire(decision.cost()).until(deadline));
        }
        QueuedDecision::at_once(decision)
    }
}
