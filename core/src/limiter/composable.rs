use core::mem;

use crate::{Denied, Interval, Limiter, NotGranted, Plan, Receipt, Timestamp};

/// What a composition can use of a limiter beyond the methods of [`Limiter`]. All of it is
/// optional: any limiter can be a part of an [`AllOf`](crate::AllOf).
///
/// A composition asks all its limits before it takes from any of them. A limiter that remembers the
/// state that it saw then need not judge the request a second time. A limiter that takes from
/// several others, such as a composition, has no single receipt that could undo a take. A
/// composition around such a limiter calls [`take_then`](Self::take_then).
///
/// # Implementing
///
/// Implement this trait for a wrapper that acts on each grant or denial and whose inner limiter may
/// be a composition. Its `is_composed` and `take_then` use those of the inner limiter, and
/// [`Limiter::as_composable`] returns the wrapper.
///
/// ```
/// use portcullis_core::{
///     Composable, Denied, Limiter, LimiterExt, Receipt, Refund, Retry, Timestamp,
/// };
///
/// /// Logs a grant once all limits have granted it.
/// struct Logged<L>(L);
///
/// impl<L: Limiter> Limiter for Logged<L> {
///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
///         self.0.take_at(now, n).inspect(|_| println!("{n} granted"))
///     }
///     fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
///         self.0.refund_at(now, n, receipt)
///     }
///     fn release(&self, n: u32) {
///         self.0.release(n);
///     }
///     fn available_at(&self, now: Timestamp) -> u64 {
///         self.0.available_at(now)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
///     fn as_composable(&self) -> Option<&dyn Composable> {
///         Some(self)
///     }
/// }
///
/// impl<L: Limiter> Composable for Logged<L> {
///     fn is_composed(&self) -> bool {
///         true
///     }
///     fn take_then(
///         &self,
///         now: Timestamp,
///         n: u32,
///         rest: &mut dyn FnMut() -> bool,
///     ) -> Result<bool, Denied> {
///         let granted = self.0.take_at_then(now, n, rest);
///         if granted == Ok(true) {
///             println!("{n} granted");
///         }
///         granted
///     }
/// }
/// ```
pub trait Composable: Limiter {
    /// Returns what [`peek_at`](Limiter::peek_at) returns, and on success a plan for
    /// [`take_as_planned_at`](Self::take_as_planned_at). The default is an empty plan.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request would be denied.
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.peek_at(now, n).map(|()| Plan::NONE)
    }

    /// Takes `n` permits at `now`, as [`take_at`](Limiter::take_at) does. `plan` is what
    /// [`plan_at`](Self::plan_at) returned for the same request. If the limiter's state has not
    /// changed since, it need not judge the request again.
    ///
    /// The default ignores the plan.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then nothing has changed.
    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        let _ = plan;
        self.take_at(now, n)
    }

    /// Returns what [`peek_within`](Limiter::peek_within) returns, and on success a plan for
    /// [`take_as_planned_within`](Self::take_as_planned_within). The default is an empty plan.
    ///
    /// # Errors
    ///
    /// As `peek_within`.
    #[inline]
    fn plan_within(&self, interval: Interval, n: u32) -> Option<Result<Plan, Denied>> {
        let looked = self.peek_within(interval, n)?;
        Some(looked.map(|()| Plan::NONE))
    }

    /// Takes as [`take_within`](Limiter::take_within) does. `plan` is what
    /// [`plan_within`](Self::plan_within) returned for the same request. The default ignores it.
    ///
    /// # Errors
    ///
    /// As `take_within`.
    #[inline]
    fn take_as_planned_within(
        &self,
        interval: Interval,
        n: u32,
        plan: Plan,
    ) -> Option<Result<Receipt, Denied>> {
        let _ = plan;
        self.take_within(interval, n)
    }

    /// Returns whether a composition around this limiter must take with
    /// [`take_then`](Self::take_then), because a receipt does not contain all that is needed to
    /// undo a take. The default is `false`.
    #[inline]
    fn is_composed(&self) -> bool {
        false
    }

    /// Takes `n` permits at `now` and then calls `rest`. If `rest` returns `false`, the permits are
    /// refunded and the result is `Ok(false)`.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then nothing has changed, and `rest` has not been
    /// called.
    fn take_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        take_or_undo(self, now, n, rest)
    }

    /// Takes `n` permits at `now` for a request whose denial is not final: the caller asks again,
    /// or reports the outcome to [`not_granted`](Self::not_granted). A queue calls this method for
    /// each attempt to grant a request.
    ///
    /// The default takes as [`take_as_planned_at`](Self::take_as_planned_at) does with a plan, and
    /// as [`take_at`](Limiter::take_at) without one. A wrapper that counts requests implements it,
    /// and passes the attempt on to its inner limiter. A grant is final.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is denied. Then nothing has changed.
    #[inline(always)]
    fn attempt_at(&self, now: Timestamp, n: u32, plan: Option<Plan>) -> Result<Receipt, Denied> {
        match plan {
            Some(plan) => self.take_as_planned_at(now, n, plan),
            None => self.take_at(now, n),
        }
    }

    /// Takes as [`take_within`](Limiter::take_within) does, for a request whose denial is not
    /// final: see [`attempt_at`](Self::attempt_at). The default is `take_within`.
    ///
    /// # Errors
    ///
    /// As `take_within`.
    #[inline(always)]
    fn attempt_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        self.take_within(interval, n)
    }

    /// Takes as [`take_then`](Self::take_then) does, for a request whose denial is not final: see
    /// [`attempt_at`](Self::attempt_at). The default is `take_then`.
    ///
    /// # Errors
    ///
    /// As `take_then`.
    fn attempt_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.take_then(now, n, rest)
    }

    /// Informs the limiter that a request for `n` permits has ended at `now` without a grant. A
    /// queue calls this method once for each such request, after any number of
    /// [attempts](Self::attempt_at).
    ///
    /// The default does nothing. A wrapper that counts requests implements it, and passes the call
    /// on to its inner limiter.
    #[inline]
    fn not_granted(&self, now: Timestamp, n: u32, why: NotGranted) {
        let _ = (now, n, why);
    }

    /// Informs the limiter that a request for `n` permits was cancelled before its outcome was
    /// final. A queue calls this method if a request is dropped while it waits.
    ///
    /// The default does nothing. A wrapper that counts requests implements it, and passes the call
    /// on to its inner limiter.
    #[inline]
    fn cancelled(&self, n: u32) {
        let _ = n;
    }
}

/// Takes for a request whose denial is not final.
#[inline(always)]
pub(crate) fn attempt<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
    plan: Option<Plan>,
) -> Result<Receipt, Denied> {
    match limiter.as_composable() {
        Some(composable) => composable.attempt_at(now, n, plan),
        None => limiter.take_at(now, n),
    }
}

/// The same as `attempt`, at a time that lies in `interval`. Returns `None` if it matters where.
#[inline(always)]
pub(crate) fn attempt_within<L: Limiter + ?Sized>(
    limiter: &L,
    interval: Interval,
    n: u32,
) -> Option<Result<Receipt, Denied>> {
    match limiter.as_composable() {
        Some(composable) => composable.attempt_within(interval, n),
        None => limiter.take_within(interval, n),
    }
}

/// The same as `attempt`, then calls `rest`. If `rest` returns `false`, refunds the permits.
pub(crate) fn attempt_then<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
    rest: &mut dyn FnMut() -> bool,
) -> Result<bool, Denied> {
    match limiter.as_composable() {
        Some(composable) => composable.attempt_then(now, n, rest),
        None => take_or_undo(limiter, now, n, rest),
    }
}

/// Informs a limiter that a request has ended without a grant.
#[inline(always)]
pub(crate) fn not_granted<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
    why: NotGranted,
) {
    if let Some(composable) = limiter.as_composable() {
        composable.not_granted(now, n, why);
    }
}

/// Takes `n` permits and then calls `rest`. If `rest` returns `false` or panics, refunds them by
/// the receipt.
pub(crate) fn take_or_undo<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
    rest: &mut dyn FnMut() -> bool,
) -> Result<bool, Denied> {
    let receipt = limiter.take_at(now, n)?;
    let undo = UndoOnDrop::new(limiter, now, n, receipt);
    let done = rest();
    if done {
        undo.keep();
    }
    Ok(done)
}

/// Asks a limiter about a request, and returns the plan to take as planned.
#[inline(always)]
pub(crate) fn plan<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
) -> Result<Plan, Denied> {
    match limiter.as_composable() {
        Some(composable) => composable.plan_at(now, n),
        None => limiter.peek_at(now, n).map(|()| Plan::NONE),
    }
}

/// Takes by the plan if the limiter supports plans.
#[inline(always)]
pub(crate) fn take_as_planned<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    n: u32,
    plan: Plan,
) -> Result<Receipt, Denied> {
    match limiter.as_composable() {
        Some(composable) => composable.take_as_planned_at(now, n, plan),
        None => limiter.take_at(now, n),
    }
}

/// Asks a limiter about a request within an interval.
#[inline(always)]
pub(crate) fn plan_within<L: Limiter + ?Sized>(
    limiter: &L,
    interval: Interval,
    n: u32,
) -> Option<Result<Plan, Denied>> {
    match limiter.as_composable() {
        // A composition has no receipt that could undo its take.
        Some(composable) if composable.is_composed() => None,
        Some(composable) => composable.plan_within(interval, n),
        None => {
            let looked = limiter.peek_within(interval, n)?;
            Some(looked.map(|()| Plan::NONE))
        }
    }
}

/// Takes by the plan, within an interval.
#[inline(always)]
pub(crate) fn take_as_planned_within<L: Limiter + ?Sized>(
    limiter: &L,
    interval: Interval,
    n: u32,
    plan: Plan,
) -> Option<Result<Receipt, Denied>> {
    match limiter.as_composable() {
        Some(composable) => composable.take_as_planned_within(interval, n, plan),
        None => limiter.take_within(interval, n),
    }
}

/// Returns the limiter if a composition around it must take with `take_then`.
#[inline(always)]
pub(crate) fn as_composed<L: Limiter + ?Sized>(limiter: &L) -> Option<&dyn Composable> {
    limiter
        .as_composable()
        .filter(|composable| composable.is_composed())
}

/// A take that is refunded on drop, if a later take fails or panics.
pub(crate) struct UndoOnDrop<'a, L: Limiter + ?Sized> {
    limiter: &'a L,
    now: Timestamp,
    n: u32,
    receipt: Receipt,
}

impl<'a, L: Limiter + ?Sized> UndoOnDrop<'a, L> {
    #[inline(always)]
    pub(crate) const fn new(limiter: &'a L, now: Timestamp, n: u32, receipt: Receipt) -> Self {
        Self {
            limiter,
            now,
            n,
            receipt,
        }
    }

    #[inline(always)]
    pub(crate) fn keep(self) {
        mem::forget(self);
    }

    /// Keeps the take, and returns its receipt.
    pub(crate) fn into_receipt(mut self) -> Receipt {
        let receipt = mem::replace(&mut self.receipt, Receipt::NONE);
        self.keep();
        receipt
    }
}

impl<L: Limiter + ?Sized> Drop for UndoOnDrop<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        let receipt = mem::replace(&mut self.receipt, Receipt::NONE);
        undo(self.limiter, self.now, self.n, receipt);
    }
}

#[cold]
#[inline(never)]
fn undo<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, n: u32, receipt: Receipt) {
    let _ = limiter.refund_at(now, n, receipt);
}

/// Informs a limiter that a request was cancelled.
#[inline(always)]
pub(crate) fn cancelled<L: Limiter + ?Sized>(limiter: &L, n: u32) {
    if let Some(composable) = limiter.as_composable() {
        composable.cancelled(n);
    }
}
