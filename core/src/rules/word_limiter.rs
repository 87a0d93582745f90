//! State: one word, which only its [rules](crate::rules) interpret.
//!
//! Every transition is one compare-exchange, from the word that the rules have judged to the word
//! that they return. So concurrent requests are decided as if they came one after the other. All
//! accesses are `Relaxed`: the word contains the whole state, and a take publishes no data.
//! [`Concurrency`](crate::Concurrency), whose permits may guard data, has its own loop. The word is
//! in the limiter itself, or in a place of the caller's: see [`Attached`](crate::state::Attached).
//!
//! A permit is taken by one of these. They differ in what they are asked, and stand apart because
//! each is compiled into other places:
//!
//! | function | takes |
//! |---|---|
//! | `take` | at an instant, for `take_at` of a limiter: the shortest way |
//! | `take_asked` | the same, for [`decide`](WordLimiter::decide) |
//! | `take_explained` | at an instant, and tells the state |
//! | `take_within` | within an interval |
//! | `take_as_planned`, `take_as_planned_within` | what a plan has seen, and otherwise as the two above |
//! | `take_by` | what a judge of the limiter's own says: a debt, a reservation |

use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, outcome};
use crate::limiter::receipt::{Plan, Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, How, Idle, Reading, Returned, Tell, When};
use crate::rules::{Verdict, WordRules, look};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;
use crate::word::{AtomicWord, Place};

/// Exchanges the word of a limiter for the state that a step returns, and evaluates to that state.
/// A step that changes nothing returns from the function. All transitions use this loop, but that
/// of a plan, which is tried once.
///
/// It is no function of a closure, because a closure that is used twice need not be inlined.
macro_rules! exchange {
    ($limiter:expr, |$state:ident| $step:expr) => {{
        let word = $limiter.place.word();
        let mut $state = word.load(Relaxed);
        loop {
            let next: u64 = $step;
            match word.compare_exchange_weak($state, next, Relaxed, Relaxed) {
                Ok(_) => break next,
                Err(newer) => $state = newer,
            }
        }
    }};
}

/// Rules, and the place of the word: the limiter itself, or a place of the caller's.
#[derive(Debug)]
pub(crate) struct WordLimiter<R: WordRules, P = AtomicWord<<R as WordRules>::Word>> {
    place: P,
    rules: R,
}

impl<R: WordRules> WordLimiter<R> {
    const_unless_loom! {
        pub(crate) const fn new(rules: R, state: u64) -> Self {
            Self { place: AtomicWord::new(state), rules }
        }
    }

    pub(crate) fn with_state(mut self, state: u64) -> Self {
        self.place = AtomicWord::new(state);
        self
    }

    pub(crate) fn into_parts(self) -> (R, AtomicWord<R::Word>) {
        (self.rules, self.place)
    }
}

impl<R: WordRules, P> WordLimiter<R, P> {
    pub(crate) const fn at(rules: R, place: P) -> Self {
        Self { place, rules }
    }

    #[inline(always)]
    pub(crate) const fn rules(&self) -> &R {
        &self.rules
    }

    pub(crate) const fn place(&self) -> &P {
        &self.place
    }
}

impl<R: WordRules, P: Place<R::Word>> WordLimiter<R, P> {
    #[inline(always)]
    pub(crate) fn state(&self) -> u64 {
        self.place.word().load(Relaxed)
    }

    /// Takes. Only `take_at` of a limiter calls it, once. So the compiler optimises the closure by
    /// itself and then inlines it. Without the closure, or with it but without a function that
    /// takes it, a take of a 32-bit word has 66 instructions in place of 56.
    #[inline(always)]
    pub(crate) fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let request = self.rules.request(now, n)?;
        self.take_by(now, |state| self.rules.judge(state, request))
    }

    /// Takes as [`take`](Self::take) does, wherever else permits are taken.
    /// [`decide`](Self::decide) is compiled into many places, and a closure that is used in many
    /// is not inlined.
    #[inline(always)]
    fn take_asked(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let request = self.rules.request(now, n)?;
        let left = exchange!(self, |state| match self.rules.judge(state, request) {
            Verdict::Granted(left) => left,
            other => return self.outcome(now, other),
        });
        Ok(self.rules.receipt(left, now))
    }

    /// Takes as [`take`](Self::take) does, and returns what the rules tell about the state that the
    /// decision wrote or read.
    pub(crate) fn take_explained(
        &self,
        now: Timestamp,
        n: u32,
    ) -> (Result<Receipt, Denied>, Detail) {
        let rules = &self.rules;
        let told = |state, taken| {
            let detail = rules.detail(state, now, outcome(&taken));
            (taken, detail)
        };
        let request = match rules.request(now, n) {
            Ok(request) => request,
            Err(denied) => return told(self.state(), Err(denied)),
        };
        let left = exchange!(self, |state| match rules.judge(state, request) {
            Verdict::Granted(left) => left,
            other => return told(state, self.outcome(now, other)),
        });
        told(left, Ok(rules.receipt(left, now)))
    }

    pub(crate) fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let state = self.state();
        self.rules
            .detail(state, now, look(&self.rules, state, now, n))
    }

    /// Answers a request: see [`Limiter::decide`](crate::Limiter::decide).
    #[inline(always)]
    pub(crate) fn decide(&self, ask: Ask<'_>) -> Answer {
        let Ask {
            when,
            permits: n,
            how,
            plan,
            tell,
        } = ask;
        let is_look = how == How::Look;
        let seen = match tell {
            Tell::Detail(seen) => Some(seen),
            _ => None,
        };
        match (when, seen) {
            (When::At(now), Some(seen)) if is_look => {
                let detail = self.explain(now, n);
                seen.set(Some(detail));
                detail.decision.into()
            }
            (When::At(now), None) if is_look => self.plan(now, n).into(),
            (When::Within(interval), _) if is_look => self.plan_within(interval, n).into(),
            (When::At(now), Some(seen)) => {
                let (taken, detail) = self.take_explained(now, n);
                seen.set(Some(detail));
                taken.into()
            }
            (When::At(now), None) => match plan {
                Some(plan) => self.take_as_planned(now, n, plan).into(),
                None => self.take_asked(now, n).into(),
            },
            (When::Within(interval), _) => match plan {
                Some(plan) => self.take_as_planned_within(interval, n, plan).into(),
                None => self.take_within(interval, n).into(),
            },
        }
    }

    /// Refunds. All permits return by time, so there is nothing else to do.
    #[inline(always)]
    pub(crate) fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| self.refund(now, n, receipt))
    }

    /// Reads the word once.
    #[inline(always)]
    pub(crate) fn read(&self, now: Timestamp) -> Reading {
        let (state, rules) = (self.state(), &self.rules);
        Reading {
            available: rules.available(state, now),
            capacity: rules.capacity(),
            idle: rules.idle(state, now),
            held: 0,
        }
    }

    /// Takes what the verdict of `judge` on the state says.
    #[inline(always)]
    pub(crate) fn take_by(
        &self,
        now: Timestamp,
        judge: impl Fn(u64) -> Verdict,
    ) -> Result<Receipt, Denied> {
        let left = exchange!(self, |state| match judge(state) {
            Verdict::Granted(left) => left,
            other => return self.outcome(now, other),
        });
        Ok(self.rules.receipt(left, now))
    }

    #[inline(always)]
    fn outcome(&self, now: Timestamp, verdict: Verdict) -> Result<Receipt, Denied> {
        match verdict {
            Verdict::Granted(left) => Ok(self.rules.receipt(left, now)),
            Verdict::Allowed => Ok(Receipt::NONE),
            Verdict::Denied(denied) => Err(denied),
        }
    }

    /// Takes at a time that lies in `interval`, if it does not matter where.
    ///
    /// The receipt has the earliest time. So it is never taken for younger than it is.
    #[inline(always)]
    pub(crate) fn take_within(
        &self,
        interval: Interval,
        n: u32,
    ) -> Option<Result<Receipt, Denied>> {
        let ends = match self.rules.requests_within(interval, n) {
            Ok(ends) => ends,
            Err(denied) => return Some(Err(denied)),
        };
        let now = interval.earliest();
        let left = exchange!(self, |state| match self.rules.judge_within(state, ends)? {
            Verdict::Granted(left) => left,
            other => return Some(self.outcome(now, other)),
        });
        Some(Ok(self.rules.receipt(left, now)))
    }

    /// Returns the plan of a take at a time that lies in `interval`, if it does not matter where.
    #[inline(always)]
    pub(crate) fn plan_within(&self, interval: Interval, n: u32) -> Option<Result<Plan, Denied>> {
        let ends = match self.rules.requests_within(interval, n) {
            Ok(ends) => ends,
            Err(denied) => return Some(Err(denied)),
        };
        let seen = self.state();
        Some(match self.rules.judge_within(seen, ends)? {
            Verdict::Granted(left) => Ok(Plan { seen, left }),
            Verdict::Allowed => Ok(Plan { seen, left: seen }),
            Verdict::Denied(denied) => Err(denied),
        })
    }

    #[inline(always)]
    pub(crate) fn take_as_planned_within(
        &self,
        interval: Interval,
        n: u32,
        plan: Plan,
    ) -> Option<Result<Receipt, Denied>> {
        if self.is_done(plan) {
            return Some(Ok(self.rules.receipt(plan.left, interval.earliest())));
        }
        self.take_again_within(interval, n)
    }

    #[cold]
    #[inline(never)]
    fn take_again_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        self.take_within(interval, n)
    }

    /// Returns the plan of a take: the state seen, and the state that the take would leave.
    #[inline(always)]
    pub(crate) fn plan(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        let request = self.rules.request(now, n)?;
        let seen = self.state();
        match self.rules.judge(seen, request) {
            Verdict::Granted(left) => Ok(Plan { seen, left }),
            Verdict::Allowed => Ok(Plan { seen, left: seen }),
            Verdict::Denied(denied) => Err(denied),
        }
    }

    #[inline(always)]
    pub(crate) fn take_as_planned(
        &self,
        now: Timestamp,
        n: u32,
        plan: Plan,
    ) -> Result<Receipt, Denied> {
        if self.is_done(plan) {
            return Ok(self.rules.receipt(plan.left, now));
        }
        self.take_again(now, n)
    }

    /// Exchanges the word that the plan has seen for the one that it leaves, if there is something
    /// to exchange: otherwise the request is a probe, or there is no limit.
    #[inline(always)]
    fn is_done(&self, plan: Plan) -> bool {
        plan.left != plan.seen
            && self
                .place
                .word()
                .compare_exchange_weak(plan.seen, plan.left, Relaxed, Relaxed)
                .is_ok()
    }

    #[cold]
    #[inline(never)]
    fn take_again(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take_asked(now, n)
    }

    /// Refunds `n` permits if they can count as never taken.
    #[inline(always)]
    pub(crate) fn refund(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        if n == 0 {
            return receipt.refunded(0);
        }
        let restored = exchange!(self, |state| {
            match self.rules.refund(state, now, n, &receipt) {
                Some(restored) => restored,
                None => return receipt.refunded(0),
            }
        });
        self.rules.rest(restored, receipt).refunded(n)
    }

    #[inline(always)]
    pub(crate) fn available(&self, now: Timestamp) -> u64 {
        self.rules.available(self.state(), now)
    }

    #[inline(always)]
    pub(crate) fn idle(&self, now: Timestamp) -> Idle {
        self.rules.idle(self.state(), now)
    }

    pub(crate) fn retry(&self, denied: Denied) -> Retry {
        self.rules.retry(self.state(), denied)
    }
}

/// Implements [`Limiter`](crate::Limiter) for limiters around a [`WordLimiter`], their field
/// `limiter`. Before each limiter stands what it refunds, after it whose identity it has.
macro_rules! around_word {
    ($($(#[$refund:meta])* [$($generics:tt)*] $limiter:ty => |$this:ident| $itself:expr;)+) => {$(
        impl<$($generics)*> $crate::Limiter for $limiter {
            #[inline(always)]
            fn decide(&self, ask: $crate::limiter::Ask<'_>) -> $crate::limiter::Answer {
                self.limiter.decide(ask)
            }

            $(#[$refund])*
            #[inline(always)]
            fn give_back(&self, back: $crate::limiter::Back<'_>) -> $crate::limiter::Returned {
                self.limiter.give_back(back)
            }

            #[inline(always)]
            fn read(&self, read: $crate::limiter::Read<'_>) -> $crate::limiter::Reading {
                self.limiter.read(read.now())
            }

            fn retry(&self, denied: $crate::Denied) -> $crate::Retry {
                self.limiter.retry(denied)
            }

            #[inline(always)]
            fn id(&self) -> Option<$crate::limiter::LimiterId> {
                let $this = self;
                $crate::limiter::LimiterId::of($itself)
            }

            #[inline(always)]
            fn hints(&self) -> $crate::limiter::Hints {
                $crate::limiter::Hints::ONE_RECEIPT.within_intervals()
            }

            /// Beside [`decide`]($crate::Limiter::decide) for its cost: the answer is not
            /// converted.
            #[inline]
            fn take_at(&self, now: $crate::Timestamp, n: u32) -> Result<$crate::limiter::Receipt, $crate::Denied> {
                self.limiter.take(now, n)
            }
        }
    )+};
}
pub(crate) use around_word;
