//! What a layer asks of the one that judges.

use core::fmt;

use portcullis_core::{Clock, Timestamp};

use super::notes::Notes;
use crate::head::RequestHead;

/// What a layer asks about a request: see [`Decide::decide`](super::Decide::decide).
///
/// One that wraps another passes its question on, as it is or with other values:
///
/// ```
/// use portcullis_core::{Clock, Timestamp};
/// use portcullis_tower::{Decide, Denial, DenialSettings, Question};
///
/// /// Charges each request twice what it costs.
/// struct Doubled<D>(D);
///
/// impl<D: Decide> Decide for Doubled<D> {
///     type Held = D::Held;
///     type Permits = D::Permits;
///
///     fn prepare(&mut self, settings: &DenialSettings) {
///         self.0.prepare(settings);
///     }
///     fn decide<C: Clock>(
///         &self,
///         mut question: Question<'_, C>,
///     ) -> Result<Option<D::Held>, Denial> {
///         question.cost = question.cost.saturating_mul(2);
///         self.0.decide(question)
///     }
///     fn undo_at(&self, now: Timestamp, held: D::Held) {
///         self.0.undo_at(now, held);
///     }
///     fn settle_at(&self, now: Timestamp, held: D::Held, actual: u32) -> Option<D::Permits> {
///         self.0.settle_at(now, held, actual.saturating_mul(2))
///     }
///     fn keep(&self, held: D::Held) -> Option<D::Permits> {
///         self.0.keep(held)
///     }
/// }
/// ```
#[non_exhaustive]
pub struct Question<'q, C> {
    /// The clock that tells the time of the decision.
    ///
    /// A limiter in code first decides within the clock's [interval](Clock::interval), which costs
    /// less to read. It reads the [time](Clock::now) only if the decision depends on where in the
    /// interval it is. The time of a denial may then be the beginning of the interval, if the
    /// response to it is the same.
    pub clock: &'q C,
    /// The head of the request.
    pub head: &'q RequestHead<'q>,
    /// The permits that the request takes.
    pub cost: u32,
    /// For how long they are taken.
    pub taking: Taking,
    /// Where the limits that the response states are noted, whether it allows or denies, and what
    /// measures the request. `None` if neither is wanted.
    pub notes: Option<&'q mut Notes>,
}

/// For how long permits are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a judge must act on each")]
pub enum Taking {
    /// They are not returned before the response has ended.
    ForGood,
    /// They may be returned, as if they had not been taken: another limit may deny the request, or
    /// its response may tell another cost. A policy then notes what a return needs.
    Returnable,
}

impl<'q, C> Question<'q, C> {
    /// Asks about a request of `cost` permits, which are taken [for good](Taking::ForGood), without
    /// notes. For the tests of a [`Decide`](super::Decide) of your own.
    ///
    /// ```
    /// use portcullis_core::{Concurrency, ManualClock};
    /// use portcullis_tower::{ByLimiter, Decide, Question, RequestHead};
    ///
    /// let judge = ByLimiter::new(Concurrency::new(1)).by_cost();
    /// let (clock, request) = (ManualClock::new(), http::Request::new(()));
    /// let head = RequestHead::new(&request);
    /// assert!(judge.decide(Question::new(&clock, &head, 2)).is_err());
    /// assert!(judge.decide(Question::new(&clock, &head, 1)).is_ok());
    /// ```
    pub const fn new(clock: &'q C, head: &'q RequestHead<'q>, cost: u32) -> Self {
        Self {
            clock,
            head,
            cost,
            taking: Taking::ForGood,
            notes: None,
        }
    }

    /// Asks the same by another clock, such as a [`ManualClock`](portcullis_core::ManualClock) that
    /// tells the time of a decision before.
    pub fn by<N: Clock>(self, clock: &'q N) -> Question<'q, N> {
        Question {
            clock,
            head: self.head,
            cost: self.cost,
            taking: self.taking,
            notes: self.notes,
        }
    }

    /// Asks the same again, with the same notes.
    pub fn reborrow(&mut self) -> Question<'_, C> {
        Question {
            clock: self.clock,
            head: self.head,
            cost: self.cost,
            taking: self.taking,
            notes: self.notes.as_deref_mut(),
        }
    }

    /// The number of limits that are noted.
    pub(super) fn noted(&self) -> usize {
        self.notes.as_ref().map_or(0, |notes| notes.len())
    }

    /// Forgets what is left of limits whose permits were given back: see [`Notes::forget_states`].
    pub(super) fn forget_states(&mut self, from: usize, to: usize) {
        if let Some(notes) = &mut self.notes {
            notes.forget_states(from, to);
        }
    }
}

impl<C> fmt::Debug for Question<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("head", self.head)
            .field("cost", &self.cost)
            .field("taking", &self.taking)
            .finish_non_exhaustive()
    }
}

/// A clock that always tells the same time.
pub(crate) struct At(pub(crate) Timestamp);

impl Clock for At {
    #[inline]
    fn now(&self) -> Timestamp {
        self.0
    }
}
