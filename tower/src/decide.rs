//! What judges the requests of a service: policies, limiters, and several of them in order.
//!
//! A layer asks one [`Question`] about each request. Its values say when the request is decided, of
//! what, for how long the permits are taken, and what is noted besides the answer.
//!
//! ```text
//! Question ---> Decide::decide ---> Ok(Some(held)) ---> keep: until the response has ended
//!                              |                   ---> settle_at: the cost is another one
//!                              |                   ---> undo_at: another one denies the request
//!                              ---> Ok(None): nothing is kept
//!                              ---> Err(Denial): nothing is taken
//! ```

mod handle;
mod key;
mod limiter;
mod notes;
mod policy;
mod question;
#[cfg(feature = "queue")]
mod queue;
#[cfg(feature = "fields")]
mod stated;

use portcullis_core::{Clock, Timestamp};

pub use self::handle::{IntoHandle, PolicyHandle};
pub use self::key::{AddressKey, ByKey, HeldByKey, KeyTable, Nothing, RulesByTime};
pub use self::limiter::ByLimiter;
pub use self::notes::Notes;
#[cfg(feature = "live")]
pub use self::policy::ByLivePolicy;
pub(crate) use self::policy::Finder;
pub use self::policy::{ByPolicy, HeldByPolicy, UnknownEndpoint, Watched};
pub(crate) use self::question::At;
pub use self::question::{Question, Taking};
#[cfg(feature = "queue")]
pub use self::queue::ByKeyedQueue;
use crate::denial::{Denial, DenialSettings};

/// Judges requests, and takes their permits.
///
/// Implemented for [`ByPolicy`], `ByLivePolicy`, [`ByKey`] and [`ByLimiter`]. [`and`](Self::and)
/// joins two of them: a request takes from both or from none. Implement it to judge in another way,
/// or around one of these: see [`Question`].
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
    /// Permits that were taken. If they may have to be [returned](Taking::Returnable), as if they
    /// had not been taken: see [`undo_at`](Self::undo_at).
    type Held: Send + 'static;

    /// What is kept while the request is in progress. Permits at once return when it is dropped.
    type Permits: Send + 'static;

    /// Makes the replies to denied requests, before the first request is judged.
    fn prepare(&mut self, settings: &DenialSettings);

    /// Takes the [cost](Question::cost) of a request. Returns what was taken, or `None` if nothing
    /// of it needs to be kept.
    ///
    /// Permits that may have to be [returned](Taking::Returnable) are always kept. Permits taken
    /// [for good](Taking::ForGood) only if they return by release.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<Self::Held>, Denial>;

    /// Returns permits, because the request is denied by another limit. If no other request has
    /// taken from a limit since, all its permits return at once. Otherwise some of them may return
    /// by time.
    fn undo_at(&self, now: Timestamp, held: Self::Held);

    /// Settles the cost of a request, which is known now: `actual` instead of what was taken.
    /// `None` if nothing needs to be kept.
    fn settle_at(&self, now: Timestamp, held: Self::Held, actual: u32) -> Option<Self::Permits>;

    /// Keeps permits for good. `None` if nothing needs to be kept.
    fn keep(&self, held: Self::Held) -> Option<Self::Permits>;

    /// Joins this and another one, such as a policy and a limiter in code. They are asked in this
    /// order, and the first one that denies makes the reply. What the first one took is
    /// [returned](Self::undo_at) then, which a token bucket does only in time if other requests
    /// have taken from it since. Rules of one policy need no `and`: see
    /// [`Rule::continuing`](portcullis_policy::Rule::continuing).
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
    type Held = (Option<A::Held>, Option<B::Held>);
    type Permits = (Option<A::Permits>, Option<B::Permits>);

    fn prepare(&mut self, settings: &DenialSettings) {
        self.first.prepare(settings);
        self.next.prepare(settings);
    }

    #[inline]
    fn decide<C: Clock>(&self, question: Question<'_, C>) -> Result<Option<Self::Held>, Denial> {
        // Both decide at one instant, so that both responses and both states are of the same one.
        let now = At(question.clock.now());
        let mut question = question.by(&now);
        let from = question.noted();
        let first = self.first.decide(Question {
            // Whatever follows, a denial by the next one returns them.
            taking: Taking::Returnable,
            ..question.reborrow()
        })?;
        let to = question.noted();
        match self.next.decide(question.reborrow()) {
            Ok(next) => Ok(both(first, next)),
            Err(denial) => {
                if let Some(first) = first {
                    self.first.undo_at(now.0, first);
                }
                question.forget_states(from, to);
                Err(denial)
            }
        }
    }

    fn undo_at(&self, now: Timestamp, (first, next): Self::Held) {
        // The last permits first: a token bucket takes back only its last take.
        if let Some(next) = next {
            self.next.undo_at(now, next);
        }
        if let Some(first) = first {
            self.first.undo_at(now, first);
        }
    }

    fn settle_at(
        &self,
        now: Timestamp,
        (first, next): Self::Held,
        actual: u32,
    ) -> Option<Self::Permits> {
        both(
            first.and_then(|first| self.first.settle_at(now, first, actual)),
            next.and_then(|next| self.next.settle_at(now, next, actual)),
        )
    }

    #[inline]
    fn keep(&self, (first, next): Self::Held) -> Option<Self::Permits> {
        both(
            first.and_then(|first| self.first.keep(first)),
            next.and_then(|next| self.next.keep(next)),
        )
    }
}

/// What two have taken, or keep. `None` if there is neither.
#[inline]
fn both<A, B>(first: Option<A>, next: Option<B>) -> Option<(Option<A>, Option<B>)> {
    (first.is_some() || next.is_some()).then_some((first, next))
}
