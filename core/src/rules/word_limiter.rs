//! State: one word, which its [rules](crate::rules) read and nobody else.
//!
//! Every transition is one compare-exchange, from the very word that the rules have judged to the
//! one that they say. So whatever races, the limiter decides as if one request came after the
//! other. All accesses are `Relaxed`: all state is in this word, and what is taken carries no data.
//! A limit whose permits may guard data is [`Concurrency`](crate::Concurrency), which has a loop of
//! its own.

use crate::rules::{Verdict, WordRules};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::word::AtomicWord;
use crate::{Denied, Idle, Plan, Receipt, Refund, Retry, Timestamp};

/// A word, and the rules that it is judged by.
#[derive(Debug)]
pub(crate) struct WordLimiter<R: WordRules> {
    word: AtomicWord<R::Word>,
    rules: R,
}

impl<R: WordRules> WordLimiter<R> {
    const_unless_loom! {
        pub(crate) const fn new(rules: R, state: u64) -> Self {
            Self { word: AtomicWord::new(state), rules }
        }
    }

    #[inline(always)]
    pub(crate) const fn rules(&self) -> &R {
        &self.rules
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> u64 {
        self.word.load(Relaxed)
    }

    pub(crate) fn with_state(mut self, state: u64) -> Self {
        self.word = AtomicWord::new(state);
        self
    }

    /// The one loop: exchanges the word for what `step` makes of it, if anything, and returns what
    /// `step` says to the word that was exchanged.
    #[inline(always)]
    pub(crate) fn exchange<T>(&self, step: impl Fn(u64) -> (Option<u64>, T)) -> T {
        let mut state = self.state();
        loop {
            let (next, outcome) = step(state);
            let Some(next) = next else {
                return outcome;
            };
            match self
                .word
                .compare_exchange_weak(state, next, Relaxed, Relaxed)
            {
                Ok(_) => return outcome,
                Err(newer) => state = newer,
            }
        }
    }

    #[inline(always)]
    pub(crate) fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let request = self.rules.request(now, n)?;
        self.decide(now, |state| self.rules.judge(state, request))
    }

    /// Does as `judge` says of the state.
    #[inline(always)]
    pub(crate) fn decide(
        &self,
        now: Timestamp,
        judge: impl Fn(u64) -> Verdict,
    ) -> Result<Receipt, Denied> {
        let verdict = self.exchange(|state| match judge(state) {
            granted @ Verdict::Granted(left) => (Some(left), granted),
            other => (None, other),
        });
        match verdict {
            Verdict::Granted(left) => Ok(self.rules.receipt(left, now)),
            Verdict::Allowed => Ok(Receipt::NONE),
            Verdict::Denied(denied) => Err(denied),
        }
    }

    /// What a take would do.
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
        // A plan that changes nothing is for a probe, or there is no limit.
        if plan.left != plan.seen
            && self
                .word
                .compare_exchange_weak(plan.seen, plan.left, Relaxed, Relaxed)
                .is_ok()
        {
            return Ok(self.rules.receipt(plan.left, now));
        }
        self.take_anew(now, n)
    }

    #[cold]
    #[inline(never)]
    fn take_anew(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// Gives `n` permits back, if they can count as never taken.
    #[inline(always)]
    pub(crate) fn refund(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        if n == 0 {
            return receipt.refunded(0);
        }
        let restored = self.exchange(|state| {
            let restored = self.rules.refund(state, now, n, &receipt);
            (restored, restored)
        });
        match restored {
            Some(restored) => self.rules.rest(restored, receipt).refunded(n),
            None => receipt.refunded(0),
        }
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
