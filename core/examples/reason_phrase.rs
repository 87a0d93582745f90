//! A custom wrapper: it adds a reason phrase to the denials of any limiter, and forwards everything
//! else.
//!
//! `cargo run --example reason_phrase` shows what a service could reply.

use core::time::Duration;

use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::metadata::{REASON_PHRASE, RETRY_AFTER};
use portcullis_core::{
    Concurrency, Denied, FixedWindow, Limiter, LimiterExt, Retry, Timestamp, TokenBucket,
};

/// A limiter whose denials carry `phrase`.
struct Reason<L> {
    phrase: &'static str,
    limiter: L,
}

impl<L> Reason<L> {
    const fn new(phrase: &'static str, limiter: L) -> Self {
        Self { phrase, limiter }
    }
}

impl<L: Limiter> Limiter for Reason<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.limiter.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.limiter.give_back(back)
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        let denied = read.denied();
        // Offered first, so that it takes precedence over the inner limiter's phrase.
        if denied.is_some() {
            read.offer(REASON_PHRASE, || self.phrase);
        }
        self.limiter.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }
}

/// Returns what a service replies to a request that `limiter` decides.
fn reply(limiter: &dyn Limiter, now: Timestamp) -> String {
    match limiter.try_acquire_at(now, 1) {
        Ok(_) => "200 OK".to_owned(),
        Err(denied) => {
            let reason = REASON_PHRASE
                .of_denied(limiter, now, denied)
                .unwrap_or(denied.reason());
            match RETRY_AFTER
                .of_denied(limiter, now, denied)
                .and_then(|retry| retry.wait_from(now))
            {
                Some(wait) => format!(
                    "429 {reason}; retry after {} s",
                    wait.as_millis().div_ceil(1_000)
                ),
                None => format!("503 {reason}"),
            }
        }
    }
}

static PLAN: Reason<FixedWindow> = Reason::new(
    "the free plan has 2 requests a minute",
    FixedWindow::new(2, Duration::from_mins(1)),
);
static WORKERS: Reason<Concurrency> = Reason::new("all workers are busy", Concurrency::new(1));
static PLAIN: TokenBucket = TokenBucket::new(portcullis_core::Rate::per_second(1), 1);

fn main() {
    for second in [0, 20, 40, 60] {
        println!(
            "at {second:2} s, by plan:    {}",
            reply(&PLAN, Timestamp::from_secs(second))
        );
    }
    let _working = WORKERS.try_acquire_at(Timestamp::ZERO, 1);
    println!("at  0 s, by workers: {}", reply(&WORKERS, Timestamp::ZERO));
    for _ in 0..2 {
        println!("at  0 s, unwrapped:  {}", reply(&PLAIN, Timestamp::ZERO));
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::metadata::{self, USED_SHARE};
    use portcullis_core::{AllOf, LeasePool, Rate};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1);

    #[test]
    fn a_denial_carries_the_phrase_and_a_grant_does_not() {
        let limiter = Reason::new("too much", TokenBucket::new(Rate::per_second(1), 1));
        assert!(limiter.try_acquire_at(NOW, 1).is_ok());
        assert_eq!(REASON_PHRASE.of_granted(&limiter, NOW), None);
        let denied = limiter.try_acquire_at(NOW, 1).unwrap_err();
        assert_eq!(
            REASON_PHRASE.of_denied(&limiter, NOW, denied),
            Some("too much")
        );
    }

    #[test]
    fn everything_else_is_forwarded_to_the_limiter() {
        let bare = TokenBucket::new(Rate::per_second(1), 3);
        let limiter = Reason::new("too much", &bare);
        assert_eq!(limiter.capacity(), 3);
        assert_eq!(limiter.idle_at(NOW), bare.idle_at(NOW));
        drop(limiter.try_acquire_at(NOW, 3).unwrap());
        assert_eq!((limiter.available_at(NOW), bare.available_at(NOW)), (0, 0));
        let denied = limiter.try_acquire_at(NOW, 2).unwrap_err();
        assert_eq!(denied.retry(&limiter), Retry::At(Timestamp::from_secs(3)));
        assert_eq!(
            RETRY_AFTER.of_denied(&limiter, NOW, denied),
            Some(denied.retry(&bare))
        );
        assert_eq!(
            USED_SHARE.of_denied(&limiter, NOW, denied),
            USED_SHARE.of_denied(&bare, NOW, denied)
        );
        let names = ["REASON_PHRASE", "RETRY_AFTER", "USED_SHARE"];
        assert!(
            metadata::names(&limiter, NOW, Some(denied)).eq(names),
            "each name is offered once"
        );
    }

    #[test]
    fn a_refund_returns_what_the_limiter_can_take_back() {
        let limiter = Reason::new("too much", TokenBucket::new(Rate::per_second(1), 5));
        let receipt = limiter.take_at(NOW, 5).unwrap();
        assert_eq!(limiter.refund_at(NOW, 5, receipt).permits, 5);
        assert_eq!(limiter.available_at(NOW), 5);
    }

    #[test]
    fn a_request_that_another_limit_denies_takes_nothing() {
        // Denies although it has said that it would grant, so that the first limit must refund.
        let raced = Raced(TokenBucket::new(Rate::per_second(1), 5));
        let limiter = Reason::new("too much", TokenBucket::new(Rate::per_second(1), 10));
        let both = AllOf::new((&limiter, &raced));
        assert!(both.try_acquire_at(NOW, 5).is_err());
        assert_eq!(limiter.available_at(NOW), 10);
    }

    /// A bucket whose permits another thread takes between the look and the take of a composition.
    struct Raced(TokenBucket);

    impl Limiter for Raced {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.take(now, n).into()
        }

        fn give_back(&self, back: Back<'_>) -> Returned {
            self.0.give_back(back)
        }

        fn read(&self, read: Read<'_>) -> Reading {
            self.0.read(read)
        }

        fn retry(&self, denied: Denied) -> Retry {
            self.0.retry(denied)
        }
    }

    impl Raced {
        fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            self.0.take_at(now, n)?;
            self.0.take_at(now, n)
        }
    }

    #[test]
    fn releases_are_forwarded_to_the_limiter() {
        let pool: LeasePool<_, 2> = LeasePool::new(Reason::new("busy", Concurrency::new(2)));
        let lease = pool.limiter().try_acquire_at(NOW, 1).unwrap();
        let id = pool.claim_at(NOW, 1, None).unwrap();
        assert_eq!(reply(pool.limiter(), NOW), "503 busy");
        drop(lease);
        assert_eq!(pool.release(id), Ok(1));
        assert_eq!(pool.limiter().available_at(NOW), 2);
    }

    #[test]
    fn the_outer_of_two_phrases_takes_precedence() {
        let limiter = Reason::new("outer", Reason::new("inner", Concurrency::new(1)));
        let _lease = limiter.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(reply(&limiter, NOW), "503 outer");
    }

    #[test]
    fn replies_round_up_to_whole_seconds() {
        let limiter = Reason::new(
            "slow down",
            TokenBucket::new(Rate::new(2, Duration::from_secs(3)), 1),
        );
        assert_eq!(reply(&limiter, NOW), "200 OK");
        assert_eq!(reply(&limiter, NOW), "429 slow down; retry after 2 s");
    }
}
