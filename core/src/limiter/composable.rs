use core::mem;

use crate::{Denied, Limiter, Plan, Receipt, Timestamp};

/// What a composition can use of a limiter beyond the methods of [`Limiter`]. All of it is
/// optional: any limiter can be a part of an [`AllOf`](crate::AllOf).
///
/// A composition looks at all its limits before it takes from any. A limiter that remembers what it
/// saw when it was looked at need not judge the request again. A limiter that takes from several
/// others, as a composition does, has no single receipt by which a take could be undone: a
/// composition around it takes by [`take_then`](Self::take_then).
///
/// # Implementing
///
/// A wrapper that does something of its own with each grant or denial, around a limiter that may be
/// a composition, implements `is_composed` and `take_then` by those of the limiter within, and
/// [`Limiter::as_composable`] returns the wrapper.
///
/// ```
/// use portcullis_core::{
///     Composable, Denied, Limiter, LimiterExt, Receipt, Retry, Timestamp,
/// };
///
/// /// Logs what is granted, once it is granted by all.
/// struct Logged<L>(L);
///
/// impl<L: Limiter> Limiter for Logged<L> {
///     fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
///         self.0.take_at(now, n).inspect(|_| println!("{n} granted"))
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
    /// As [`peek_at`](Limiter::peek_at), with what [`take_as_planned_at`](Self::take_as_planned_at)
    /// needs of it. By default nothing.
    ///
    /// # Errors
    ///
    /// [`Denied`], if the request would be denied.
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.peek_at(now, n).map(|()| Plan::NONE)
    }

    /// Takes `n` permits at `now`, as [`take_at`](Limiter::take_at) does; `plan` is what
    /// [`plan_at`](Self::plan_at) said to the same request before. A limiter that finds itself as
    /// it was then need not judge the request again.
    ///
    /// By default the plan is ignored.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        let _ = plan;
        self.take_at(now, n)
    }

    /// Whether a composition around this limiter takes by [`take_then`](Self::take_then): because
    /// a receipt does not say all that a take would have to undo. By default not.
    #[inline]
    fn is_composed(&self) -> bool {
        false
    }

    /// Takes `n` permits at `now`, and then does the `rest`: `Ok(false)` if that says no, and then
    /// what was taken has been given back as never taken.
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed and the rest has not been done.
    fn take_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        take_or_undo(self, now, n, rest)
    }
}

/// Takes, and then does the rest; if that says no, gives back by the receipt.
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

/// What a limiter says, and what it needs to take as planned.
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

/// Takes, as planned where the limiter plans.
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

/// The limiter, if a composition around it takes by `take_then`.
#[inline(always)]
pub(crate) fn as_composed<L: Limiter + ?Sized>(limiter: &L) -> Option<&dyn Composable> {
    limiter
        .as_composable()
        .filter(|composable| composable.is_composed())
}

/// A take that is given back if those after it fail or panic.
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
