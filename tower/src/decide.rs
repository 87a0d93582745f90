//! What judges the requests of a service: policies, limiters, and several of them in order.

mod key;
mod limiter;
mod notes;
mod policy;
#[cfg(feature = "queue")]
mod queue;
#[cfg(feature = "fields")]
mod stated;

pub use self::key::{AddressKey, ByKey, HeldByKey, KeyTable, Nothing, RulesByTime};
pub use self::limiter::ByLimiter;
pub use self::notes::Notes;
#[cfg(feature = "live")]
pub use self::policy::ByLivePolicy;
pub(crate) use self::policy::Finder;
pub use self::policy::{ByPolicy, UnknownEndpoint};
#[cfg(feature = "queue")]
pub use self::queue::ByKeyedQueue;

use portcullis_core::{Clock, Timestamp};

use crate::{Denial, DenialSettings, RequestHead};

/// Judges requests, and takes their permits.
///
/// Implemented for [`ByPolicy`], `ByLivePolicy`, [`ByKey`] and [`ByLimiter`]. [`and`](Self::and)
/// joins two of them: a request takes from both or from none.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_policy::{Conditions, Policy, Rule};
/// use portcullis_tower::{ByLimiter, ByPolicy, Decide};
///
/// let login = Rule::new("login").when(Conditions::new().paths(["/login"])).limit("5/m".parse()?);
/// // First a limit for all requests of the service, then the rules for some of them.
/// let both = ByLimiter::new(TokenBucket::new(Rate::per_second(1_000), 100))
///     .and(ByPolicy::new(Policy::new([login]).unwrap()));
/// # let _ = both;
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
pub trait Decide: Send + Sync + 'static {
    /// Permits that were taken, and can be returned as if they had not been: see
    /// [`undo_at`](Self::undo_at).
    type Held: Send + 'static;

    /// What is kept while the request is in progress. Permits at once return when it is dropped.
    type Permits: Send + 'static;

    /// Makes the replies to denied requests, before the first request is judged.
    fn prepare(&mut self, settings: &DenialSettings);

    /// Takes `cost` permits for a request. `None` if nothing needs to be kept.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    fn decide_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Option<Self::Permits>, Denial>;

    /// As [`decide_at`](Self::decide_at), at the current time of a clock. The default reads the
    /// [time](Clock::now).
    ///
    /// A limiter in code first decides within the clock's [interval](Clock::interval), which costs
    /// less to read. It reads the time only if the decision depends on where in the interval it is.
    /// The time of a denial may then be the beginning of the interval, if the response to it is the
    /// same.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    #[inline]
    fn decide_by<C: Clock>(
        &self,
        clock: &C,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Option<Self::Permits>, Denial>
    where
        Self: Sized,
    {
        self.decide_at(clock.now(), head, cost)
    }

    /// As [`decide_at`](Self::decide_at), and notes the limits that the response states, whether it
    /// allows or denies, and what measures the request. The default notes nothing.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    fn decide_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Option<Self::Permits>, Denial> {
        let _ = notes;
        self.decide_at(now, head, cost)
    }

    /// As [`hold_at`](Self::hold_at), and notes what [`decide_noting_at`](Self::decide_noting_at)
    /// does. The default notes nothing.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    fn hold_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Self::Held, Denial> {
        let _ = notes;
        self.hold_at(now, head, cost)
    }

    /// As [`decide_at`](Self::decide_at), but the permits can be returned.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    fn hold_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Self::Held, Denial>;

    /// Returns permits, because the request is denied by another limit. If no other request has
    /// taken from a limit since, all its permits return at once. Otherwise some of them may return
    /// by time.
    fn undo_at(&self, now: Timestamp, held: Self::Held);

    /// Settles the cost of a request, which is known now: `actual` instead of what was taken.
    /// `None` if nothing needs to be kept.
    fn settle_at(&self, now: Timestamp, held: Self::Held, actual: u32) -> Option<Self::Permits>;

    /// Keeps permits for good. `None` if nothing needs to be kept.
    fn keep(&self, held: Self::Held) -> Option<Self::Permits>;

    /// Joins this and another one. They are asked in this order, and the first one that denies
    /// makes the reply.
    fn and<D: Decide>(self, next: D) -> And<Self, D>
    where
        Self: Sized,
    {
        And { first: self, next }
    }
}

/// Two that judge requests, as one: the result of [`Decide::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    next: B,
}

impl<A: Decide, B: Decide> Decide for And<A, B> {
    type Held = (A::Held, B::Held);
    type Permits = (Option<A::Permits>, Option<B::Permits>);

    fn prepare(&mut self, settings: &DenialSettings) {
        self.first.prepare(settings);
        self.next.prepare(settings);
    }

    #[inline]
    fn decide_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Option<Self::Permits>, Denial> {
        let first = self.first.hold_at(now, head, cost)?;
        match self.next.decide_at(now, head, cost) {
            Ok(next) => Ok(both(self.first.keep(first), next)),
            Err(denial) => {
                self.first.undo_at(now, first);
                Err(denial)
            }
        }
    }

    fn hold_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
    ) -> Result<Self::Held, Denial> {
        let first = self.first.hold_at(now, head, cost)?;
        match self.next.hold_at(now, head, cost) {
            Ok(next) => Ok((first, next)),
            Err(denial) => {
                self.first.undo_at(now, first);
                Err(denial)
            }
        }
    }

    fn decide_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Option<Self::Permits>, Denial> {
        let from = notes.len();
        let first = self.first.hold_noting_at(now, head, cost, notes)?;
        let to = notes.len();
        match self.next.decide_noting_at(now, head, cost, notes) {
            Ok(next) => Ok(both(self.first.keep(first), next)),
            Err(denial) => {
                self.first.undo_at(now, first);
                notes.forget_states(from, to);
                Err(denial)
            }
        }
    }

    fn hold_noting_at(
        &self,
        now: Timestamp,
        head: &RequestHead<'_>,
        cost: u32,
        notes: &mut Notes,
    ) -> Result<Self::Held, Denial> {
        let from = notes.len();
        let first = self.first.hold_noting_at(now, head, cost, notes)?;
        let to = notes.len();
        match self.next.hold_noting_at(now, head, cost, notes) {
            Ok(next) => Ok((first, next)),
            Err(denial) => {
                self.first.undo_at(now, first);
                notes.forget_states(from, to);
                Err(denial)
            }
        }
    }

    fn undo_at(&self, now: Timestamp, (first, next): Self::Held) {
        self.next.undo_at(now, next);
        self.first.undo_at(now, first);
    }

    fn settle_at(
        &self,
        now: Timestamp,
        (first, next): Self::Held,
        actual: u32,
    ) -> Option<Self::Permits> {
        both(
            self.first.settle_at(now, first, actual),
            self.next.settle_at(now, next, actual),
        )
    }

    fn keep(&self, (first, next): Self::Held) -> Option<Self::Permits> {
        both(self.first.keep(first), self.next.keep(next))
    }
}

/// `None` if there is neither.
fn both<A, B>(first: Option<A>, next: Option<B>) -> Option<(Option<A>, Option<B>)> {
    (first.is_some() || next.is_some()).then_some((first, next))
}
