//! Two limiters of your own. `LoadLimit` watches the machine instead of counting permits, and
//! `Reason` wraps any limiter and gives its denials a text. Four functions each, and both work
//! alone, in a composition, in a table and in a queue.
//!
//! ```sh
//! cargo run -p portcullis-core --features std --example own_limiter
//! ```

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use core::time::Duration;

use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::metadata::{Name, REASON_PHRASE, RETRY_AFTER};
use portcullis_core::{AllOf, Concurrency, Denied, Limiter, LimiterExt, Retry, Timestamp};

/// The load at a denial, in percent.
pub(crate) const LOAD: Name<u8> = Name::new("LOAD");

/// Denies while the load of the machine is above 90 %. Another part of the program measures the
/// load, and stores it here.
pub(crate) struct LoadLimit {
    pub(crate) percent: AtomicU8,
}

impl LoadLimit {
    fn has_room(&self) -> bool {
        self.percent.load(Relaxed) <= 90
    }
}

impl Limiter for LoadLimit {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        if self.has_room() {
            return ask.granted(Receipt::NONE);
        }
        Answer::Denied(Denied::Refused {
            now: ask.now(),
            permits: ask.permits(),
        })
    }

    /// It counts no permits, so none return.
    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        if read.denied().is_some() {
            read.offer(LOAD, || self.percent.load(Relaxed));
        }
        Reading {
            available: if self.has_room() { u64::MAX } else { 0 },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    /// When the load will fall is unknown, so a caller asks again after a while.
    fn retry(&self, _: Denied) -> Retry {
        Retry::After(Duration::from_millis(500))
    }
}

/// A limiter whose denials carry `phrase`. It passes everything else on.
pub(crate) struct Reason<L> {
    pub(crate) phrase: &'static str,
    pub(crate) limiter: L,
}

impl<L: Limiter> Limiter for Reason<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.limiter.decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.limiter.give_back(back)
    }

    fn read(&self, mut read: Read<'_>) -> Reading {
        // Offered first, so that it takes precedence over a phrase of the inner limiter.
        if read.denied().is_some() {
            read.offer(REASON_PHRASE, || self.phrase);
        }
        self.limiter.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }
}

/// Returns what a service replies to a request that `limiter` decides.
pub(crate) fn reply(limiter: &dyn Limiter, now: Timestamp) -> String {
    let Err(denied) = limiter.try_acquire_at(now, 1) else {
        return "200 OK".to_owned();
    };
    let phrase = REASON_PHRASE.of_denied(limiter, now, denied);
    let retry = RETRY_AFTER.of_denied(limiter, now, denied);
    let wait = retry.unwrap_or(denied.retry(limiter)).wait_from(now);
    format!("503 {}; {wait:?}", phrase.unwrap_or(denied.reason()))
}

fn main() {
    let load = LoadLimit {
        percent: AtomicU8::new(20),
    };
    let busy = Reason {
        phrase: "the machine is busy",
        limiter: &load,
    };
    let workers = Concurrency::new(2);
    // A request needs a worker and a machine that is not busy, or takes neither.
    let both = AllOf::new((&workers, &busy));
    for percent in [20, 95, 60] {
        load.percent.store(percent, Relaxed);
        let now = Timestamp::from_secs(1);
        println!("load {percent} %: {}", reply(&busy, now));
        // Holds the worker until the end of this block.
        let lease = both.try_acquire_at(now, 1);
        println!("with a worker: {}", lease.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::{KeyedArray, Rate, TokenBucket};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1);

    fn load(percent: u8) -> LoadLimit {
        LoadLimit {
            percent: AtomicU8::new(percent),
        }
    }

    #[test]
    fn it_denies_while_the_load_is_above_the_limit_and_says_why_and_when_to_ask_again() {
        assert_eq!(reply(&load(90), NOW), "200 OK");
        let busy = load(91);
        let denied = busy.try_acquire_at(NOW, 3).unwrap_err();
        let retry = Retry::After(Duration::from_millis(500));
        assert_eq!(denied.retry(&busy), retry);
        assert_eq!(LOAD.of_denied(&busy, NOW, denied), Some(91));
        let busy = Reason {
            phrase: "the machine is busy",
            limiter: busy,
        };
        assert_eq!(
            reply(&busy, NOW),
            "503 the machine is busy; Some(500ms)",
            "its own retry time, and the phrase of the wrapper"
        );
    }

    #[test]
    fn a_composition_takes_from_both_or_from_neither() {
        let (workers, busy) = (Concurrency::new(2), load(95));
        let both = AllOf::new((&workers, &busy));
        assert!(both.try_acquire_at(NOW, 1).is_err());
        assert_eq!(workers.in_use(), 0);
        busy.percent.store(10, Relaxed);
        let _lease = both.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(workers.in_use(), 1);
    }

    #[test]
    fn the_wrapper_passes_refunds_and_readings_on_also_in_a_table() {
        let of_three = || Reason {
            phrase: "too much",
            limiter: TokenBucket::new(Rate::per_second(1), 3),
        };
        let users = KeyedArray::for_keys(of_three, 10);
        let alice = users.key("alice");
        let receipt = alice.take_at(NOW, 3).unwrap();
        assert_eq!(alice.refund_at(NOW, 2, receipt).permits, 2);
        assert_eq!(alice.available_at(NOW), 2);
        assert_eq!(users.key("bob").available_at(NOW), 3);
    }
}
