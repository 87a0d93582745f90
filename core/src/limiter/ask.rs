//! A request as one value, and the answer to it.
//!
//! A request says *when* it is ([`When`]), for how many permits, *how* ([`How`]: look, take, or try
//! to take), and what the caller wants to be *told* beyond the answer ([`Tell`]). A wrapper that
//! passes the value on has passed on all of it, whatever a caller asks for.
//!
//! All parts but the time and the number are constants at nearly every call. The functions here are
//! inlined, so a limiter that is asked with constants is compiled as if it had a function for each
//! combination of them.

use core::cell::Cell;
use core::fmt;

use crate::limiter::undo::UndoOnDrop;
use crate::{Denied, Detail, Interval, Limiter, Plan, Receipt, Receipts, Timestamp};

/// The time of a request.
///
/// ```
/// # use portcullis_core::{Timestamp, When};
/// let now = Timestamp::from_secs(7);
/// assert_eq!(When::from(now).earliest(), now);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a limiter must act on each")]
pub enum When {
    /// At this instant.
    At(Timestamp),
    /// At an instant that lies in the interval. A limiter grants or denies only if
    /// it would do the same at each of them, and would be in the same state afterwards. Otherwise
    /// it answers [`Answer::TimeMatters`].
    ///
    /// Only limiters whose [`Hints`](crate::Hints) say that they decide within intervals are asked
    /// so.
    Within(Interval),
}

impl When {
    /// Returns the instant, or the earliest one of the interval.
    ///
    /// ```
    /// # use portcullis_core::{Interval, Timestamp, When};
    /// let now = Timestamp::from_secs(7);
    /// let interval = Interval::new(now, Timestamp::from_millis(7_010)).unwrap();
    /// assert_eq!(When::from(interval).earliest(), now);
    /// ```
    #[inline(always)]
    #[must_use]
    pub const fn earliest(self) -> Timestamp {
        match self {
            Self::At(now) => now,
            Self::Within(interval) => interval.earliest(),
        }
    }
}

impl From<Timestamp> for When {
    #[inline(always)]
    fn from(now: Timestamp) -> Self {
        Self::At(now)
    }
}

impl From<Interval> for When {
    #[inline(always)]
    fn from(interval: Interval) -> Self {
        Self::Within(interval)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a limiter must act on each")]
pub enum How {
    /// It asks what would be decided. It takes nothing, and has no effect at all: a denial that a
    /// limiter records is not recorded. The answer is not [`Answer::Granted`].
    Look,
    /// It takes the permits. A denial ends the request.
    Take,
    /// It takes the permits, and a denial does not end the request: the caller asks again, or says
    /// that it ends without a grant ([`Back::NotGranted`](crate::Back::NotGranted)). So a limiter
    /// that counts requests or records denials does not do so for this one. A queue asks so for the
    /// requests that wait. A grant is final.
    Attempt,
}

/// What a caller wants to be told beyond the answer.
///
/// A limiter that cannot tell it ignores this: the caller then finds out in another way.
#[non_exhaustive]
pub enum Tell<'a> {
    /// Nothing more.
    Nothing,
    /// The numbers of the decision, such as the permits that are left. A limiter sets the cell to
    /// what its state was when it decided: see [`LimiterExt::take_explained_at`]. If it does not,
    /// the caller asks it again.
    ///
    /// [`LimiterExt::take_explained_at`]: crate::LimiterExt::take_explained_at
    Detail(&'a Cell<Option<Detail>>),
    /// The receipts of all limits that the permits come from. A limiter that takes from one limit
    /// leaves them empty, because the receipt in its answer is enough. With the receipts
    /// [`Back::Refund`](crate::Back::Refund) refunds to each limit.
    Receipts(&'a mut Receipts),
    /// That the permits are taken, before the answer. The function returns whether the
    /// caller keeps them. If not, or if it panics, the limiter returns all of them, and answers
    /// [`Answer::Undone`].
    ///
    /// A limiter that takes from several limits calls it, because one receipt cannot undo its
    /// take. If a limiter does not call it, its receipt undoes the take: see [`Ask::put_to`].
    Grant(&'a mut dyn FnMut() -> bool),
}

impl fmt::Debug for Tell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Detail(_) => "Detail",
            Self::Receipts(_) => "Receipts",
            Self::Grant(_) => "Grant",
        })
    }
}

/// A request for permits: the argument of [`Limiter::decide`].
///
/// A wrapper passes it on as it is. Callers of limiters rarely make one, because
/// [`take_at`](Limiter::take_at) and the other methods do.
///
/// ```
/// use portcullis_core::{Answer, Ask, Concurrency, Limiter, Timestamp};
///
/// let limit = Concurrency::new(2);
/// let answer = limit.decide(Ask::take(Timestamp::ZERO, 2));
/// assert!(matches!(answer, Answer::Granted(_)));
/// let answer = limit.decide(Ask::look(Timestamp::ZERO, 1));
/// assert!(matches!(answer, Answer::Denied(_)));
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is put to a limiter"]
pub struct Ask<'a> {
    pub(crate) when: When,
    pub(crate) permits: u32,
    pub(crate) how: How,
    pub(crate) plan: Option<Plan>,
    pub(crate) tell: Tell<'a>,
}

impl<'a> Ask<'a> {
    /// A request for `permits` permits. With 0 permits it takes nothing, and is granted or denied
    /// as a request for 1 would be.
    ///
    /// ```
    /// # use portcullis_core::{Ask, How, Timestamp};
    /// let ask = Ask::new(Timestamp::ZERO, 3, How::Attempt);
    /// assert_eq!((ask.permits(), ask.how()), (3, How::Attempt));
    /// ```
    #[inline(always)]
    pub fn new(when: impl Into<When>, permits: u32, how: How) -> Self {
        Self {
            when: when.into(),
            permits,
            how,
            plan: None,
            tell: Tell::Nothing,
        }
    }

    /// A request that takes: [`How::Take`].
    ///
    /// ```
    /// # use portcullis_core::{Ask, How, Timestamp};
    /// assert_eq!(Ask::take(Timestamp::ZERO, 3).how(), How::Take);
    /// ```
    #[inline(always)]
    pub fn take(when: impl Into<When>, permits: u32) -> Self {
        Self::new(when, permits, How::Take)
    }

    /// A request that only looks: [`How::Look`].
    ///
    /// ```
    /// # use portcullis_core::{Ask, Timestamp};
    /// assert!(Ask::look(Timestamp::ZERO, 3).is_look());
    /// ```
    #[inline(always)]
    pub fn look(when: impl Into<When>, permits: u32) -> Self {
        Self::new(when, permits, How::Look)
    }

    /// Sets the plan that a look at the same limiter has returned for the same request. If the
    /// state of the limiter has not changed since, it need not judge the request again.
    ///
    /// ```
    /// use portcullis_core::{Answer, Ask, Limiter, Rate, Timestamp, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(1), 5);
    /// let now = Timestamp::from_secs(9);
    /// let Answer::Possible(plan) = bucket.decide(Ask::look(now, 3)) else {
    ///     panic!("it is full");
    /// };
    /// let answer = bucket.decide(Ask::take(now, 3).as_planned(plan));
    /// assert!(matches!(answer, Answer::Granted(_)));
    /// ```
    #[inline(always)]
    pub const fn as_planned(mut self, plan: Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Removes the plan, for a limiter that knows that it no longer holds.
    ///
    /// ```
    /// # use portcullis_core::{Ask, Plan, Timestamp};
    /// let ask = Ask::take(Timestamp::ZERO, 3).as_planned(Plan::NONE).without_plan();
    /// ```
    #[inline(always)]
    pub const fn without_plan(mut self) -> Self {
        self.plan = None;
        self
    }

    /// Sets what the caller wants to be told.
    ///
    /// ```
    /// use core::cell::Cell;
    /// use portcullis_core::{Ask, Concurrency, Limiter, Tell, Timestamp};
    ///
    /// let detail = Cell::new(None);
    /// let ask = Ask::look(Timestamp::ZERO, 3).telling(Tell::Detail(&detail));
    /// let _ = Concurrency::new(2).decide(ask);
    /// assert_eq!(detail.get().map(|detail| detail.available), Some(2));
    /// ```
    #[inline(always)]
    pub fn telling(self, tell: Tell<'_>) -> Ask<'_> {
        Ask {
            when: self.when,
            permits: self.permits,
            how: self.how,
            plan: self.plan,
            tell,
        }
    }

    /// Sets the number of permits, for a limiter that takes more or fewer from the limiter that it
    /// wraps. A plan is not of that request, so it is removed.
    ///
    /// ```
    /// # use portcullis_core::{Ask, Timestamp};
    /// assert_eq!(Ask::take(Timestamp::ZERO, 3).with_permits(6).permits(), 6);
    /// ```
    #[inline(always)]
    pub fn with_permits(self, permits: u32) -> Self {
        Self {
            permits,
            plan: None,
            ..self
        }
    }

    /// Returns the same request, to put it to another limiter, or to the same one again.
    ///
    /// ```
    /// # use portcullis_core::{Ask, Concurrency, Limiter, Timestamp};
    /// let mut ask = Ask::take(Timestamp::ZERO, 1);
    /// for limit in [Concurrency::new(1), Concurrency::new(2)] {
    ///     let _ = limit.decide(ask.by_ref());
    /// }
    /// ```
    #[inline(always)]
    pub fn by_ref(&mut self) -> Ask<'_> {
        Ask {
            when: self.when,
            permits: self.permits,
            how: self.how,
            plan: self.plan,
            tell: match &mut self.tell {
                Tell::Nothing => Tell::Nothing,
                Tell::Detail(seen) => Tell::Detail(seen),
                Tell::Receipts(receipts) => Tell::Receipts(receipts),
                Tell::Grant(keep) => Tell::Grant(keep),
            },
        }
    }

    /// Returns the time of the request.
    #[inline(always)]
    pub const fn when(&self) -> When {
        self.when
    }

    /// Returns the time of the request, or the earliest one of its interval.
    #[inline(always)]
    pub const fn now(&self) -> Timestamp {
        self.when.earliest()
    }

    /// Returns the number of permits requested; 0 for a probe.
    #[inline(always)]
    pub const fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns what the request does.
    #[inline(always)]
    pub const fn how(&self) -> How {
        self.how
    }

    /// Returns whether the request takes nothing and has no effect.
    #[inline(always)]
    pub const fn is_look(&self) -> bool {
        matches!(self.how, How::Look)
    }

    /// Returns whether a denial ends the request: see [`How`].
    #[inline(always)]
    pub const fn is_final(&self) -> bool {
        matches!(self.how, How::Take)
    }

    /// Returns the cell for the numbers of the decision, if the caller wants them. A limiter that
    /// changes what the limiter in it tells uses it after that one has answered.
    #[inline(always)]
    pub const fn detail(&self) -> Option<&'a Cell<Option<Detail>>> {
        match &self.tell {
            Tell::Detail(seen) => Some(seen),
            _ => None,
        }
    }

    /// The answer of a limiter that grants the request: a look takes nothing.
    ///
    /// ```
    /// # use portcullis_core::{Answer, Ask, Plan, Receipt, Timestamp};
    /// let answer = Ask::look(Timestamp::ZERO, 1).granted(Receipt::NONE);
    /// assert_eq!(answer, Answer::Possible(Plan::NONE));
    /// ```
    #[inline(always)]
    pub const fn granted(&self, receipt: Receipt) -> Answer {
        match self.how {
            How::Look => Answer::Possible(Plan::NONE),
            How::Take | How::Attempt => Answer::Granted(receipt),
        }
    }

    /// The answer to a look of a limiter that has `available` permits, of at most `capacity`.
    ///
    /// ```
    /// # use portcullis_core::{Answer, Ask, Denied, Timestamp};
    /// let now = Timestamp::ZERO;
    /// let answer = Ask::look(now, 3).looked(2, || 5);
    /// assert_eq!(answer, Answer::Denied(Denied::Exhausted { now, permits: 3 }));
    /// ```
    #[inline(always)]
    pub fn looked(&self, available: u64, capacity: impl FnOnce() -> u64) -> Answer {
        if u64::from(self.permits.max(1)) <= available {
            Answer::Possible(Plan::NONE)
        } else {
            let denied = super::detail::denied(self.now(), self.permits, capacity());
            Answer::Denied(denied)
        }
    }

    /// Puts the request to `limiter`, as [`Limiter::decide`] does, and makes sure that the function
    /// of [`Tell::Grant`] has been called if the permits are taken.
    ///
    /// A wrapper that acts on a grant calls this method, if it must not act on one that is undone
    /// because another limit of a composition denies.
    ///
    /// ```
    /// use portcullis_core::{Answer, Ask, Concurrency, Limiter, Tell, Timestamp};
    ///
    /// let limit = Concurrency::new(2);
    /// let ask = Ask::take(Timestamp::ZERO, 2);
    /// let answer = ask.telling(Tell::Grant(&mut || false)).put_to(&limit);
    /// assert_eq!(answer, Answer::Undone);
    /// assert_eq!(limit.available(), 2);
    /// ```
    #[inline(always)]
    pub fn put_to<L: Limiter + ?Sized>(self, limiter: &L) -> Answer {
        match self.tell {
            Tell::Grant(keep) => {
                let (when, permits, how) = (self.when, self.permits, self.how);
                grant_then(limiter, (when, permits, how), keep)
            }
            _ => limiter.decide(self),
        }
    }
}

impl Ask<'_> {
    /// Puts the request to `limiter`, and calls `rest` if the permits are taken. If it returns
    /// `false`, they are refunded. Returns what it returned.
    pub(crate) fn put_then<L: Limiter + ?Sized>(
        self,
        limiter: &L,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        let (now, n) = (self.now(), self.permits);
        match self.telling(Tell::Grant(rest)).put_to(limiter) {
            Answer::Undone => Ok(false),
            answer => answer.taken(now, n).map(|_| true),
        }
    }
}

#[cold]
fn grant_then<L: Limiter + ?Sized>(
    limiter: &L,
    (when, permits, how): (When, u32, How),
    keep: &mut dyn FnMut() -> bool,
) -> Answer {
    let mut is_told = false;
    let mut tell = || {
        is_told = true;
        keep()
    };
    let ask = Ask::new(when, permits, how);
    match limiter.decide(ask.telling(Tell::Grant(&mut tell))) {
        Answer::Granted(receipt) if !is_told => {
            let undo = UndoOnDrop::new(limiter, when.earliest(), permits, receipt);
            if keep() {
                Answer::Granted(undo.into_receipt())
            } else {
                Answer::Undone
            }
        }
        answer => answer,
    }
}

/// The answer to a request: the result of [`Limiter::decide`].
///
/// A wrapper acts on the answers that it is made for, and returns every other one as it is.
///
/// ```
/// # use portcullis_core::{Answer, Denied, Receipt, Timestamp};
/// let denied = Denied::Refused { now: Timestamp::ZERO, permits: 1 };
/// assert_eq!(Answer::from(Err::<Receipt, _>(denied)), Answer::Denied(denied));
/// ```
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "permits may have been taken"]
pub enum Answer {
    /// The permits are taken. The receipt identifies them for a refund.
    Granted(Receipt),
    /// A look: a take would be granted. The plan is for [`Ask::as_planned`].
    Possible(Plan),
    /// The request is denied, or a take would be. No permit has been taken.
    Denied(Denied),
    /// It matters where in the interval of the request ([`When::Within`]) the time is. Nothing has
    /// changed.
    TimeMatters,
    /// The caller did not keep the permits ([`Tell::Grant`]), and they have been returned.
    Undone,
}

impl Answer {
    /// Returns the answer to a request for `permits` that takes at an instant. Any other answer
    /// than a grant or a denial is none to such a request, so it counts as a denial.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request is not granted.
    ///
    /// ```
    /// # use portcullis_core::{Ask, Concurrency, Limiter, Receipt, Timestamp};
    /// let now = Timestamp::ZERO;
    /// let answer = Concurrency::new(2).decide(Ask::take(now, 2));
    /// assert_eq!(answer.taken(now, 2), Ok(Receipt::NONE));
    /// ```
    #[inline(always)]
    pub fn taken(self, now: Timestamp, permits: u32) -> Result<Receipt, Denied> {
        match self {
            Self::Granted(receipt) => Ok(receipt),
            Self::Denied(denied) => Err(denied),
            _ => Err(Denied::Refused { now, permits }),
        }
    }

    /// Returns the answer to a request for `permits` that looks at an instant.
    ///
    /// # Errors
    ///
    /// [`Denied`] if the request would not be granted.
    ///
    /// ```
    /// # use portcullis_core::{Ask, Concurrency, Limiter, Plan, Timestamp};
    /// let now = Timestamp::ZERO;
    /// let answer = Concurrency::new(2).decide(Ask::look(now, 2));
    /// assert_eq!(answer.planned(now, 2), Ok(Plan::NONE));
    /// ```
    #[inline(always)]
    pub fn planned(self, now: Timestamp, permits: u32) -> Result<Plan, Denied> {
        match self {
            Self::Possible(plan) => Ok(plan),
            Self::Denied(denied) => Err(denied),
            _ => Err(Denied::Refused { now, permits }),
        }
    }
}

impl From<Result<Receipt, Denied>> for Answer {
    #[inline(always)]
    fn from(taken: Result<Receipt, Denied>) -> Self {
        match taken {
            Ok(receipt) => Self::Granted(receipt),
            Err(denied) => Self::Denied(denied),
        }
    }
}

impl From<Result<Plan, Denied>> for Answer {
    #[inline(always)]
    fn from(looked: Result<Plan, Denied>) -> Self {
        match looked {
            Ok(plan) => Self::Possible(plan),
            Err(denied) => Self::Denied(denied),
        }
    }
}

impl From<Result<(), Denied>> for Answer {
    #[inline(always)]
    fn from(looked: Result<(), Denied>) -> Self {
        looked.map(|()| Plan::NONE).into()
    }
}

/// An interval in which the time matters is [`Answer::TimeMatters`].
impl<T> From<Option<Result<T, Denied>>> for Answer
where
    Self: From<Result<T, Denied>>,
{
    #[inline(always)]
    fn from(within: Option<Result<T, Denied>>) -> Self {
        within.map_or(Self::TimeMatters, Self::from)
    }
}
