//! What all services of a layer have in common, and the one place where they judge a request.
//!
//! ```text
//! request ---> passes: the response stays as it is
//!         ---> Question ---> Decide::decide ---> Ok: Then, what follows with the response
//!                                           ---> Err: a denial, which is a response
//! ```

use std::sync::Arc;

use http::Request;
use portcullis_core::Clock;

use crate::decide::{At, Decide, Question, Taking};
use crate::denial::Denial;
use crate::head::{RequestHead, ResponseHead};
use crate::measured::Extras;
use crate::settings::Settings;

/// Who judges, by which clock, and the other settings of a layer.
pub(crate) struct Shared<D, C> {
    pub(crate) decide: D,
    pub(crate) clock: C,
    pub(crate) settings: Settings,
}

/// A request that is denied, and the fields of the response.
pub(crate) type Denied = (Denial, Extras);

/// What follows when there is a response of the inner service.
///
/// It is small: two words, or as large as the permits that a request holds.
pub(crate) enum Then<D: Decide, C> {
    /// The response stays as it is.
    Pass,
    /// The body holds the permits, and the headers state the limits.
    Keep(Option<D::Permits>, Extras),
    /// The cost is settled by the head of the response.
    Settle(Box<Settling<D, C>>),
}

/// A request whose cost is settled when there is a response.
pub(crate) struct Settling<D: Decide, C> {
    pub(crate) shared: Arc<Shared<D, C>>,
    pub(crate) held: D::Held,
    pub(crate) estimate: u32,
    pub(crate) extras: Extras,
}

impl<D: Decide, C: Clock> Settling<D, C> {
    /// Settles the cost when there is a response. Returns what its body holds.
    pub(crate) fn settle(self, head: &ResponseHead<'_>) -> (Option<D::Permits>, Extras) {
        let Self {
            shared,
            held,
            estimate,
            extras,
        } = self;
        let actual = shared.settings.actual(head, estimate);
        let permits = if actual == estimate {
            shared.decide.keep(held)
        } else {
            shared.decide.settle_at(shared.clock.now(), held, actual)
        };
        (permits, extras)
    }
}

impl<D: Decide, C> Then<D, C> {
    /// What follows for a request of which the body of the response holds these permits.
    pub(crate) fn keep(permits: Option<D::Permits>, extras: Extras) -> Self {
        match (permits, extras) {
            (None, None) => Self::Pass,
            (permits, extras) => Self::Keep(permits, extras),
        }
    }
}

impl<D: Decide, C: Clock> Shared<D, C> {
    /// Judges a request, and takes its permits.
    #[inline]
    pub(crate) fn judge<A>(self: &Arc<Self>, request: &Request<A>) -> Result<Then<D, C>, Denied> {
        let settings = &self.settings;
        let head = settings.head(request);
        if settings.passes(&head) {
            return Ok(Then::Pass);
        }
        if settings.asks_more {
            return self.judge_and_tell(&head);
        }
        let question = Question {
            clock: &self.clock,
            head: &head,
            cost: settings.cost(&head),
            taking: Taking::ForGood,
            notes: None,
        };
        match self.decide.decide(question) {
            Ok(held) => Ok(Then::keep(self.keep(held), None)),
            Err(denial) => Err((denial, None)),
        }
    }

    /// Judges a request whose response states limits, that is measured, or whose cost is settled.
    //
    // Apart from `judge`, so that a request of a plain layer makes no room for notes.
    #[inline(never)]
    fn judge_and_tell(self: &Arc<Self>, head: &RequestHead<'_>) -> Result<Then<D, C>, Denied> {
        let settings = &self.settings;
        let estimate = settings.cost(head);
        let mut notes = settings.notes();
        let question = Question {
            // The very time: a return of permits is exact, and so is what the response states.
            clock: &At(self.clock.now()),
            head,
            cost: estimate,
            taking: if settings.settles() {
                Taking::Returnable
            } else {
                Taking::ForGood
            },
            notes: notes.is_wanted().then_some(&mut notes),
        };
        let decided = self.decide.decide(question);
        let extras = settings.extras(&notes, decided.is_ok());
        match decided {
            Ok(Some(held)) if settings.settles() => Ok(Then::Settle(Box::new(Settling {
                shared: Arc::clone(self),
                held,
                estimate,
                extras,
            }))),
            Ok(held) => Ok(Then::keep(self.keep(held), extras)),
            Err(denial) => Err((denial, extras)),
        }
    }

    /// What a request keeps of what it has taken for good.
    #[inline]
    fn keep(&self, held: Option<D::Held>) -> Option<D::Permits> {
        held.and_then(|held| self.decide.keep(held))
    }
}
