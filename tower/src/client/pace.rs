//! When the next request to a server may be sent.
//!
//! State, per server:
//!
//! - `blocked`: no request before this time, because the server has denied one.
//! - `first`: after a denial, whether one request has to try first, or is trying.
//! - `quotas`: per stated limit, the permits `left` until `reset`, and `next`, before which a paced
//!   request is not sent.
//! - `at_once`: per stated limit on concurrent requests, the most that may be in flight.
//! - `in_flight`: the requests that were granted, and have not been released.
//!
//! Transitions:
//!
//! - A **take** is granted if no part of the state forbids it. It counts as in flight, and leaves
//!   one permit less in each quota. If the quota is paced, `next` moves by an even part of the time
//!   until the reset.
//! - A **reply** with a quota sets `left` to the available permits, less the other requests in
//!   flight. A request that the server has already counted is so subtracted twice, until its reply
//!   corrects that. The reply to an earlier request than the one that told `left` can only lower
//!   it. So `left` is never more than the server would grant.
//! - A reply with a limit on concurrent requests sets its `at_once`: to the whole of the limit, or,
//!   if the reply states only what is available, to that and the requests in flight.
//! - A **denial** sets `blocked`, and `first`: the request that is granted next tries alone, until
//!   its reply.
//! - At its reset, a quota is forgotten.
//!
//! Invariant: between a reply and the reset that it states, at most as many requests start as were
//! available, including those that were on their way.

use core::cmp::Reverse;
use core::time::Duration;
use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use portcullis_core::limiter::{Answer, Ask, Back, Hints, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Denied, Limiter, Retry, Timestamp, TokenBucket};

use crate::fields::{Quota, Stated, Unit};

/// The wait after a 429 that states no time. Each one of a request that tries first doubles it, up
/// to 64 times.
const BACK_OFF: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 6;

/// The most limits of a server that are known at a time. A server may name others in each reply.
const MOST_QUOTAS: usize = 64;

/// When requests are spread evenly over the time until the reset of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pacing {
    /// Never: requests are sent at once as long as any are available.
    Off,
    /// If at most half of the quota is left. If the server does not state the quota, it is the most
    /// that was available.
    #[default]
    BelowHalf,
    /// Always.
    Always,
}

/// The limiter of the queue of one server.
pub(super) struct Pace {
    bucket: Option<TokenBucket>,
    concurrency: Option<u64>,
    pacing: Pacing,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocked: Option<Timestamp>,
    first: First,
    /// The denials since the last reply that was none.
    denials: u32,
    quotas: Vec<Known>,
    /// The limits on concurrent requests that the server has stated, by their names.
    at_once: Vec<(Option<Cow<'static, str>>, u64)>,
    in_flight: u64,
    /// The requests that were sent.
    sent: u64,
}

/// Whether a request tries alone, after a denial.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum First {
    /// Requests need not wait for one another.
    #[default]
    No,
    /// The next request has to.
    Wanted,
    /// One was granted. Its sender has yet to be told.
    Granted,
    /// One is on its way.
    Trying,
}

/// A request that is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Whether it tries alone, after a denial.
    pub(super) tries_first: bool,
    /// The requests that were sent up to it.
    number: u64,
}

/// What is known about one limit of the server.
struct Known {
    name: Option<Cow<'static, str>>,
    /// The permits of the whole window.
    quota: u64,
    left: u64,
    reset: Timestamp,
    next: Timestamp,
    /// The newest request whose reply told it.
    number: u64,
}

impl Pace {
    pub(super) const fn new(
        bucket: Option<TokenBucket>,
        concurrency: Option<u64>,
        pacing: Pacing,
    ) -> Self {
        Self {
            bucket,
            concurrency,
            pacing,
            state: Mutex::new(State {
                blocked: None,
                first: First::No,
                denials: 0,
                quotas: Vec::new(),
                at_once: Vec::new(),
                in_flight: 0,
                sent: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is complete at any point, so poisoning does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a request that was granted is sent now.
    pub(super) fn started(&self) -> Sent {
        let mut state = self.state();
        let tries_first = state.first == First::Granted;
        if tries_first {
            state.first = First::Trying;
        }
        state.sent += 1;
        Sent {
            tries_first,
            number: state.sent,
        }
    }

    /// The request that tried first is over. Without a reply that was no denial, the next one
    /// tries.
    pub(super) fn tried(&self) {
        let mut state = self.state();
        if state.first == First::Trying {
            state.first = First::Wanted;
        }
    }

    /// Learns from the reply to a request, which is still in flight. Returns whether it is a
    /// denial.
    pub(super) fn replied(
        &self,
        now: Timestamp,
        status: StatusCode,
        stated: &Stated,
        sent: Sent,
    ) -> bool {
        let mut state = self.state();
        let others = state.in_flight.saturating_sub(1);
        for quota in &stated.quotas {
            state.learn(now, quota, others, sent.number);
        }
        let denied = status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::SERVICE_UNAVAILABLE && stated.retry_after.is_some();
        if !denied {
            // After a denial, only the request that tries first tells that the server grants again.
            // The others were sent before.
            let tried = sent.tries_first && state.first == First::Trying;
            if tried || state.first == First::No {
                state.first = First::No;
                state.denials = 0;
            }
            return false;
        }
        let quotas = &stated.quotas;
        let exhausted = || {
            let empty = quotas.iter().filter(|quota| quota.available == Some(0));
            empty.filter_map(|quota| quota.reset).max()
        };
        // The requests that were on their way at the first denial say nothing more.
        if sent.tries_first || state.first == First::No {
            state.denials += 1;
        }
        let doublings = state.denials.saturating_sub(1).min(MOST_DOUBLINGS);
        let is_time = |wait: &Duration| !wait.is_zero();
        let stated = stated.retry_after.filter(is_time);
        let stated = stated.or_else(|| exhausted().filter(is_time));
        let wait = stated.unwrap_or(BACK_OFF * 2_u32.pow(doublings));
        state.first = First::Wanted;
        state.blocked = state.blocked.max(Some(now + wait));
        true
    }

    /// Learns from the reply to a request that was never granted here.
    #[cfg(feature = "reqwest")]
    pub(super) fn replied_unasked(&self, now: Timestamp, status: StatusCode, stated: &Stated) {
        // It was in flight as well.
        self.state().in_flight += 1;
        self.replied(now, status, stated, Sent::default());
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// The most requests that may be in flight: the own limit, or a smaller one of the server.
    fn at_once(&self, state: &State) -> Option<u64> {
        let stated = state.at_once.iter().map(|&(_, most)| most);
        stated.chain(self.concurrency).min()
    }

    /// Returns when a request would be granted, or nothing if it would be granted now.
    fn refusal(&self, state: &State, now: Timestamp) -> Option<Retry> {
        let full = self
            .at_once(state)
            .is_some_and(|most| state.in_flight >= most);
        if full || matches!(state.first, First::Granted | First::Trying) {
            return Some(Retry::OnRelease);
        }
        let quotas = state.quotas.iter().filter_map(|known| known.refuses(now));
        let latest = quotas.chain(state.blocked).max();
        latest.filter(|&at| at > now).map(Retry::At)
    }
}

impl State {
    fn learn(&mut self, now: Timestamp, stated: &Quota<'static>, others: u64, number: u64) {
        if stated.unit == Unit::ConcurrentRequests {
            self.learn_at_once(stated);
            return;
        }
        let time = stated.reset.or(stated.window);
        let (Some(available), Some(time)) = (stated.available, time) else {
            return;
        };
        if stated.unit != Unit::Requests {
            return;
        }
        self.quotas.retain(|known| known.reset > now);
        let place = self
            .quotas
            .iter()
            .position(|known| known.name == stated.name);
        let place = place.unwrap_or_else(|| {
            if self.quotas.len() >= MOST_QUOTAS {
                // The one that forbids least.
                let loosest = self.quotas.iter().enumerate();
                let loosest = loosest.max_by_key(|(_, known)| (known.left, Reverse(known.reset)));
                self.quotas
                    .swap_remove(loosest.map_or(0, |(place, _)| place));
            }
            self.quotas.push(Known {
                name: stated.name.clone(),
                quota: 0,
                left: 0,
                reset: now,
                next: now,
                number,
            });
            self.quotas.len() - 1
        });
        let known = &mut self.quotas[place];
        known.quota = stated.quota.unwrap_or(known.quota).max(available);
        let left = available.saturating_sub(others);
        if number < known.number {
            // The server has counted requests since then that are not in flight any more.
            known.left = known.left.min(left);
            return;
        }
        (known.left, known.reset, known.number) = (left, now + time, number);
    }
}

impl State {
    /// Learns a limit on concurrent requests. It holds until a reply states another number for it.
    fn learn_at_once(&mut self, stated: &Quota<'static>) {
        let available = stated
            .available
            .map(|left| left.saturating_add(self.in_flight));
        // With 0, no request would be sent that could learn of a larger limit.
        let Some(most) = stated.quota.or(available).map(|most| most.max(1)) else {
            return;
        };
        let mut known = self.at_once.iter_mut();
        if let Some(known) = known.find(|(name, _)| *name == stated.name) {
            known.1 = most;
        } else if self.at_once.len() < MOST_QUOTAS {
            self.at_once.push((stated.name.clone(), most));
        }
    }
}

impl Known {
    /// Returns the time before which a request is not sent.
    fn refuses(&self, now: Timestamp) -> Option<Timestamp> {
        if self.reset <= now {
            None
        } else if self.left == 0 {
            Some(self.reset)
        } else {
            Some(self.next)
        }
    }

    fn take(&mut self, now: Timestamp, pacing: Pacing) {
        if self.reset <= now {
            return;
        }
        self.left = self.left.saturating_sub(1);
        let paced = match pacing {
            Pacing::Off => false,
            Pacing::BelowHalf => self.left <= self.quota / 2,
            Pacing::Always => true,
        };
        if paced {
            let rest = self.reset.saturating_since(now);
            let parts = u32::try_from(self.left)
                .unwrap_or(u32::MAX)
                .saturating_add(1);
            self.next = now + rest / parts;
        }
    }
}

impl Limiter for Pace {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if !ask.is_look() {
            return self.take(now, n).into();
        }
        if u64::from(n.max(1)) <= self.available(now) {
            ask.granted(Receipt::NONE)
        } else {
            Answer::Denied(Denied::Exhausted { now, permits: n })
        }
    }

    /// Refunds what the request took from the bucket. The server has its own count, which its next
    /// response tells.
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                self.end(permits);
                Returned::NOTHING
            }
            Back::Refund {
                now,
                permits,
                receipt,
                ..
            } => {
                self.end(permits);
                match &self.bucket {
                    Some(bucket) => bucket.refund_at(now, permits, receipt).into(),
                    None => receipt.refunded(0).into(),
                }
            }
            _ => Returned::NOTHING,
        }
    }

    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available(read.now()),
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: self.state().in_flight,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let refusal = self.refusal(&self.state(), now);
        let bucket = self.bucket.as_ref().map(|bucket| {
            bucket
                .peek_at(now, permits)
                .map_or_else(|denied| bucket.retry(denied), |()| Retry::At(now))
        });
        match (refusal, bucket) {
            (Some(one), Some(other)) => one.longer(other, now),
            (one, other) => one.or(other).unwrap_or(Retry::At(now)),
        }
    }

    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl Pace {
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let mut state = self.state();
        if self.refusal(&state, now).is_some() {
            return Err(Denied::Exhausted { now, permits: n });
        }
        let receipt = match &self.bucket {
            Some(bucket) => bucket.take_at(now, n)?,
            None => Receipt::NONE,
        };
        if n > 0 {
            for known in &mut state.quotas {
                known.take(now, self.pacing);
            }
            state.in_flight += u64::from(n);
            if state.first == First::Wanted {
                state.first = First::Granted;
            }
        }
        Ok(receipt)
    }

    fn end(&self, n: u32) {
        // A request for none tries nothing.
        if n == 0 {
            return;
        }
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(u64::from(n));
        // A grant that no task received has no sender that could be told.
        if state.first == First::Granted {
            state.first = First::Wanted;
        }
    }

    fn available(&self, now: Timestamp) -> u64 {
        let state = self.state();
        if self.refusal(&state, now).is_some() {
            return 0;
        }
        let alive = state.quotas.iter().filter(|known| known.reset > now);
        let quotas = alive.map(|known| known.left).min();
        let bucket = self.bucket.as_ref().map(|bucket| bucket.available_at(now));
        let at_once = self.at_once(&state);
        let at_once = at_once.map(|most| most.saturating_sub(state.in_flight));
        [quotas, bucket, at_once]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(u64::MAX)
    }
}

impl QueueLimiter for Pace {
    const SHARED: bool = false;
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::fields::ReadOptions;

    const OK: StatusCode = StatusCode::OK;
    const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

    fn secs(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn stated(lines: &[(&'static str, &str)]) -> Stated {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().expect("a value"));
        }
        Stated::read(&headers, &ReadOptions::new())
    }

    /// How many requests start at once.
    fn grants(pace: &Pace, now: Timestamp) -> usize {
        (0..1000)
            .take_while(|_| pace.take_at(now, 1).is_ok())
            .count()
    }

    fn retry(pace: &Pace, now: Timestamp) -> Retry {
        pace.retry(Denied::Exhausted { now, permits: 1 })
    }

    fn quota(state: &str) -> Stated {
        stated(&[("ratelimit", &format!("\"a\";{state}"))])
    }

    #[test]
    fn no_more_requests_start_than_are_available_until_the_reset() {
        let pace = Pace::new(None, None, Pacing::Off);
        assert_eq!(grants(&pace, secs(0)), 1000);
        pace.release(999);
        pace.replied(secs(0), OK, &quota("r=5;t=10"), Sent::default());
        pace.release(1);
        assert_eq!(grants(&pace, secs(1)), 5);
        assert_eq!(retry(&pace, secs(1)), Retry::At(secs(10)));
        assert_eq!(pace.available_at(secs(1)), 0);
        assert_eq!(grants(&pace, Timestamp::from_millis(9_999)), 0);
        assert_eq!(grants(&pace, secs(10)), 1000);
    }

    #[test]
    fn requests_on_their_way_count_until_their_replies_tell() {
        let pace = Pace::new(None, None, Pacing::Off);
        for _ in 0..4 {
            pace.take_at(secs(0), 1).expect("nothing is known");
        }
        pace.replied(secs(0), OK, &quota("r=5;t=10"), Sent::default());
        pace.release(1);
        // The server may have counted the other three, or not.
        assert_eq!(grants(&pace, secs(0)), 2);
        pace.release(2);
        pace.replied(secs(1), OK, &quota("r=3;t=9"), Sent::default());
        pace.release(1);
        assert_eq!(grants(&pace, secs(1)), 1);
    }

    #[test]
    fn the_second_half_of_a_quota_is_spread_over_the_time_until_the_reset() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        pace.take_at(secs(0), 1).expect("nothing is known");
        let policy = ("ratelimit-policy", "\"a\";q=10;w=60");
        pace.replied(
            secs(0),
            OK,
            &stated(&[policy, ("ratelimit", "\"a\";r=9;t=60")]),
            Sent::default(),
        );
        pace.release(1);
        assert_eq!(grants(&pace, secs(0)), 4);
        // Five are left for a minute.
        let mut times = vec![];
        while let Retry::At(at) = retry(&pace, times.last().copied().unwrap_or(secs(0))) {
            times.push(at);
            if at >= secs(60) {
                break;
            }
            assert_eq!(grants(&pace, at), 1);
        }
        assert_eq!(times, [10, 20, 30, 40, 50, 60].map(secs));
    }

    #[test]
    fn after_a_denial_all_wait_and_then_one_tries_first() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        for _ in 0..3 {
            pace.take_at(secs(0), 1).expect("nothing is known");
        }
        pace.replied(
            secs(0),
            DENIED,
            &stated(&[("retry-after", "20")]),
            Sent::default(),
        );
        pace.release(1);
        assert_eq!(retry(&pace, secs(0)), Retry::At(secs(20)));
        assert_eq!(grants(&pace, Timestamp::from_millis(19_999)), 0);
        // An earlier request was granted before the denial: that says nothing about later ones.
        pace.replied(secs(20), OK, &Stated::default(), Sent::default());
        pace.release(1);
        assert_eq!(grants(&pace, secs(20)), 1);
        let first = pace.started();
        assert!(first.tries_first);
        pace.replied(secs(20), OK, &Stated::default(), Sent::default());
        pace.release(1);
        assert_eq!(retry(&pace, secs(20)), Retry::OnRelease);
        pace.replied(secs(21), OK, &Stated::default(), first);
        pace.tried();
        pace.release(1);
        assert_eq!(grants(&pace, secs(21)), 1000);
    }

    #[test]
    fn a_request_that_tries_first_and_gets_no_reply_makes_place_for_the_next() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        pace.take_at(secs(0), 1).expect("nothing is known");
        pace.replied(
            secs(0),
            DENIED,
            &stated(&[("retry-after", "1")]),
            Sent::default(),
        );
        pace.release(1);
        // Dropped before its task received it.
        assert_eq!(grants(&pace, secs(1)), 1);
        pace.release(1);
        // Sent, and dropped.
        assert_eq!(grants(&pace, secs(1)), 1);
        assert!(pace.started().tries_first);
        pace.tried();
        pace.release(1);
        assert_eq!(grants(&pace, secs(1)), 1);
    }

    #[test]
    fn a_request_for_none_does_not_try_first() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        pace.take_at(secs(0), 1).expect("nothing is known");
        let headers = [("retry-after", "1")];
        pace.replied(secs(0), DENIED, &stated(&headers), Sent::default());
        pace.release(1);
        assert!(pace.take_at(secs(0), 0).is_err());
        // Many of them end at once, before or after one is granted that tries first.
        assert!(pace.take_at(secs(1), 0).is_ok() && pace.take_at(secs(1), 0).is_ok());
        pace.release(0);
        assert_eq!(grants(&pace, secs(1)), 1);
        pace.release(0);
        assert_eq!(grants(&pace, secs(1)), 0);
        assert!(pace.started().tries_first);
        assert!(pace.take_at(secs(1), 0).is_err());
    }

    #[test]
    fn denials_without_a_time_double_the_wait() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        let mut now = secs(0);
        let mut waits = vec![];
        for _ in 0..8 {
            pace.take_at(now, 1).expect("the wait is over");
            let first = pace.started();
            pace.replied(now, DENIED, &Stated::default(), first);
            pace.release(1);
            let Retry::At(at) = retry(&pace, now) else {
                panic!("no time");
            };
            waits.push(at.saturating_since(now).as_secs());
            now = at;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64]);
        // An exhausted quota states a time.
        pace.take_at(now, 1).expect("the wait is over");
        pace.replied(now, DENIED, &quota("r=0;t=5"), pace.started());
        pace.release(1);
        assert_eq!(retry(&pace, now), Retry::At(now + Duration::from_secs(5)));
    }

    /// As 0 s, as a time that has passed, or as an exhausted quota that is reset at once.
    #[test]
    fn a_denial_that_states_no_wait_is_one_without_a_time() {
        for headers in [
            &[("retry-after", "0")][..],
            &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")],
            &[("ratelimit", "\"a\";r=0;t=0")],
            &[("retry-after", "0"), ("ratelimit", "\"a\";r=0;t=0")],
        ] {
            let pace = Pace::new(None, None, Pacing::Off);
            pace.take_at(secs(9), 1).expect("nothing is known");
            pace.replied(secs(9), DENIED, &stated(headers), pace.started());
            pace.release(1);
            assert_eq!(retry(&pace, secs(9)), Retry::At(secs(10)), "{headers:?}");
            pace.take_at(secs(10), 1).expect("the wait is over");
            pace.replied(secs(10), DENIED, &stated(headers), pace.started());
            pace.release(1);
            assert_eq!(retry(&pace, secs(10)), Retry::At(secs(12)), "{headers:?}");
        }
    }

    #[test]
    fn the_denials_of_one_burst_double_nothing() {
        let pace = Pace::new(None, None, Pacing::Off);
        let sent: Vec<_> = (0..50)
            .map(|_| {
                pace.take_at(secs(0), 1).expect("nothing is known");
                pace.started()
            })
            .collect();
        for sent in sent {
            pace.replied(secs(0), DENIED, &Stated::default(), sent);
            pace.release(1);
        }
        assert_eq!(retry(&pace, secs(0)), Retry::At(secs(1)));
    }

    /// Replies over HTTP/2 can come in another order than the server has counted the requests.
    #[test]
    fn a_reply_that_is_overtaken_raises_nothing() {
        let pace = Pace::new(None, None, Pacing::Off);
        let sent = [(); 3].map(|()| {
            pace.take_at(secs(0), 1).expect("nothing is known");
            pace.started()
        });
        // The third is counted last, and two are left.
        for (sent, left) in [(sent[2], 2), (sent[1], 3), (sent[0], 4)] {
            pace.replied(secs(0), OK, &quota(&format!("r={left};t=10")), sent);
            pace.release(1);
        }
        assert!(grants(&pace, secs(0)) <= 2);
        // The next window is learnt from any reply.
        pace.release(2);
        pace.take_at(secs(10), 1).expect("the window is over");
        pace.replied(secs(10), OK, &quota("r=7;t=10"), pace.started());
        pace.release(1);
        assert_eq!(grants(&pace, secs(10)), 7);
    }

    #[test]
    fn a_busy_server_denies_with_retry_after_only() {
        let pace = Pace::new(None, None, Pacing::BelowHalf);
        pace.take_at(secs(0), 1).expect("nothing is known");
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        pace.replied(secs(0), unavailable, &Stated::default(), Sent::default());
        assert_eq!(retry(&pace, secs(0)), Retry::At(secs(0)));
        pace.replied(
            secs(0),
            unavailable,
            &stated(&[("retry-after", "3")]),
            Sent::default(),
        );
        assert_eq!(retry(&pace, secs(0)), Retry::At(secs(3)));
    }

    #[test]
    fn a_server_that_names_other_limits_in_each_reply_takes_no_more_memory() {
        let pace = Pace::new(None, None, Pacing::Off);
        for n in 0..1_000 {
            pace.take_at(secs(0), 1).expect("the limits are large");
            let left = if n == 500 { 10_000 } else { 20_000 + n };
            let state = format!("\"{n}\";r={left};t=3600");
            let stated = stated(&[("ratelimit", &state)]);
            pace.replied(secs(0), OK, &stated, Sent::default());
            pace.release(1);
            assert!(pace.state().quotas.len() <= MOST_QUOTAS);
        }
        // The tightest one is still known, and was counted on.
        assert_eq!(pace.available_at(secs(0)), 10_000 - 499);
    }

    #[test]
    fn own_limits_hold_too() {
        let bucket = TokenBucket::new(portcullis_core::Rate::per_second(1), 3);
        let pace = Pace::new(Some(bucket), Some(2), Pacing::Off);
        assert_eq!(grants(&pace, secs(0)), 2);
        assert_eq!(retry(&pace, secs(0)), Retry::OnRelease);
        pace.release(2);
        assert_eq!(grants(&pace, secs(0)), 1);
        pace.release(1);
        assert_eq!(retry(&pace, secs(0)), Retry::At(secs(1)));
    }

    #[test]
    fn no_more_requests_are_in_flight_than_the_server_handles_at_once() {
        let pace = Pace::new(None, None, Pacing::Off);
        let policy = (
            "ratelimit-policy",
            "\"uploads\";q=3;qu=\"concurrent-requests\"",
        );
        pace.take_at(secs(0), 1).expect("nothing is known");
        let state = ("ratelimit", "\"uploads\";r=2");
        pace.replied(secs(0), OK, &stated(&[policy, state]), pace.started());
        pace.release(1);
        assert_eq!(pace.available_at(secs(0)), 3);
        assert_eq!(grants(&pace, secs(0)), 3);
        assert_eq!(retry(&pace, secs(0)), Retry::OnRelease);
        pace.release(1);
        assert_eq!(grants(&pace, secs(0)), 1);
        // The server handles fewer from now on, but at least one.
        let policy = (
            "ratelimit-policy",
            "\"uploads\";q=0;qu=\"concurrent-requests\"",
        );
        pace.replied(secs(1), OK, &stated(&[policy]), pace.started());
        pace.release(3);
        assert_eq!(grants(&pace, secs(1)), 1);
    }

    #[test]
    fn several_quotas_hold_together_and_bytes_are_not_requests() {
        let pace = Pace::new(None, None, Pacing::Off);
        pace.take_at(secs(0), 1).expect("nothing is known");
        let policy = ("ratelimit-policy", "\"c\";q=9;qu=\"content-bytes\"");
        let state = ("ratelimit", "\"a\";r=3;t=5, \"b\";r=4;t=60, \"c\";r=0;t=9");
        pace.replied(secs(0), OK, &stated(&[policy, state]), Sent::default());
        pace.release(1);
        assert_eq!(grants(&pace, secs(0)), 3);
        assert_eq!(grants(&pace, secs(5)), 1);
        assert_eq!(retry(&pace, secs(5)), Retry::At(secs(60)));
    }
}
