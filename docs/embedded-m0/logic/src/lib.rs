//! What the beacon decides. Nothing here is of the chip, so the tests run on the host.
#![no_std]

mod wide_counter;

use core::time::Duration;

use portcullis_core::{LimiterExt, Rate, Timestamp, TokenBucket};

pub use self::wide_counter::WideCounter;

/// Sends messages: 1 per second, and up to 3 at once.
pub struct Beacon {
    /// On the chip this is the type `TokenBucket`. The host's words have 64 bits, so the word is
    /// named: a test then sees the ticks and wraps of the chip.
    messages: TokenBucket<u32>,
}

impl Beacon {
    /// Creates a beacon that has not sent anything yet. It may rest for 13 years.
    pub const fn at_rest() -> Self {
        let messages = TokenBucket::builder(Rate::per_second(1), 3)
            .tick(Duration::from_millis(100))
            .staleness(Duration::from_secs(1));
        match messages.build_on() {
            Ok(messages) => Self { messages },
            Err(_) => panic!("does not fit 32 bits"),
        }
    }

    /// Returns whether a message may be sent at `now`, and counts it if so.
    pub fn may_send(&self, now: Timestamp) -> bool {
        self.messages.allow_at(now, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_messages_at_once_and_then_one_per_second() {
        let beacon = Beacon::at_rest();
        let sent = |millis| beacon.may_send(Timestamp::from_millis(millis));
        assert_eq!([0; 4].map(sent), [true, true, true, false]);
        assert_eq!(
            [999, 1_000, 1_001, 2_000].map(sent),
            [false, true, false, true]
        );
    }

    #[test]
    fn a_message_after_any_rest_of_up_to_ten_years_is_sent() {
        for hours in 1..10 * 365 * 24 {
            let beacon = Beacon::at_rest();
            assert!(beacon.may_send(Timestamp::ZERO));
            assert!(
                beacon.may_send(Timestamp::from_secs(hours * 3_600)),
                "{hours} h"
            );
        }
    }
}
