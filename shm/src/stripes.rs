//! A token bucket whose permits lie in a rest and in stripes, for processes that may die at any
//! instruction.
//!
//! ```text
//! rest                a token bucket of `burst - stripes * room` permits
//! stripe              version | have       `have`: 13 bits, at most the room
//! ```
//!
//! - *take*: `have -= n`, if there are so many.
//! - *draw*: takes as many permits as a stripe has room for out of the rest, and *deposits* them in
//!   the stripe, less the `n` of the call.
//! - *refund*: undoes a take, if the stripe is as the take left it.
//!
//! Each of them counts the version up. A deposit succeeds only if the stripe is as the call saw it
//! before the draw. If it is not, the call refunds to the rest what it had not taken for itself.
//!
//! Invariant: `have` is at most the room, and so is what a deposit that can succeed would leave.
//! For a deposit adds a full room, less `n`, to less than `n` permits; and of several calls that
//! have drawn for one stripe, one deposit succeeds, and only if no permit was taken from the stripe
//! since.
//!
//! Proof of the bound. At any instant, the permits that can be granted without the rate are those
//! of the rest, and at most the room of each stripe, whether they lie in the stripe or in the hands
//! of calls: at most `burst` together. So any span of time `t` admits at most `burst + rate * t`.
//! Permits for which a call has drawn and which it grants count at the draw.
//!
//! A process that dies between a draw and its deposit leaves up to a room of permits taken. They
//! return by the rate, as all taken permits do.
//!
//! *Scarce permits stay in the rest.* A stripe draws only while the rest has as many permits as
//! four times the room of all stripes. A request that the rest denies looks at all stripes.

use portcullis_core::limiter::{Receipt, Refund};
use portcullis_core::{Denied, Limiter, Timestamp};

use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

const HAVE_BITS: u32 = 13;
const HAVE: u64 = (1 << HAVE_BITS) - 1;
/// The most permits that a stripe has room for.
pub const MOST_ROOM: u64 = 4_096;
/// A stripe with less room saves nothing.
const LEAST_ROOM: u64 = 8;
/// All stripes together have at most one of so many parts of the burst.
const PARTS: u64 = 128;
/// The rest has so many times the room of all stripes, if a stripe draws.
const PLENTY: u32 = if cfg!(any(portcullis_loom, portcullis_explore)) {
    1
} else {
    4
};

/// A stripe, on cache lines of its own.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Stripe {
    word: AtomicU64,
}

impl Stripe {
    /// An empty stripe.
    #[cfg(any(portcullis_loom, portcullis_explore))]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }
}

/// Returns the room of each of `stripes` stripes of a bucket: 0 if its burst is too small for them.
pub fn room(burst: u64, stripes: usize) -> u64 {
    let each = burst / PARTS / stripes as u64;
    if each < LEAST_ROOM {
        0
    } else {
        1 << each.min(MOST_ROOM).ilog2()
    }
}

/// The rest and the stripes of a bucket.
#[derive(Debug)]
pub struct Striped<'a, L> {
    /// The rest.
    pub rest: &'a L,
    /// The stripes.
    pub stripes: &'a [Stripe],
    /// The room of each stripe, at most [`MOST_ROOM`].
    pub room: u64,
}

const fn with(word: u64, have: u64) -> u64 {
    (word & !HAVE).wrapping_add(1 << HAVE_BITS) | have & HAVE
}

/// The receipt of a take from a stripe. No grant of the rest is at such a time.
fn receipt(index: usize, left: u64) -> Receipt {
    Receipt::dated(left, u64::MAX - index as u64)
}

impl<L: Limiter> Striped<'_, L> {
    /// Takes `n` permits at `now`, on a stripe.
    #[inline]
    pub fn take(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let permits = u64::from(n);
        if permits == 0 || permits > self.room {
            return self
                .rest
                .take_at(now, n)
                .or_else(|denied| self.probe(n, denied));
        }
        let Some(stripe) = self.stripes.get(index) else {
            return self.rest.take_at(now, n);
        };
        // Relaxed, here and below: a word carries no data besides its permits.
        let mut word = stripe.word.load(Relaxed);
        while word & HAVE >= permits {
            let left = with(word, (word & HAVE) - permits);
            match stripe.word.compare_exchange(word, left, Relaxed, Relaxed) {
                Ok(_) => return Ok(receipt(index, left)),
                Err(newer) => word = newer,
            }
        }
        self.draw(index, word, now, n)
    }

    #[cold]
    #[inline(never)]
    fn draw(&self, index: usize, word: u64, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let room = self.room as u32;
        let plenty = room * self.stripes.len() as u32 * PLENTY;
        if self.rest.peek_at(now, plenty).is_ok()
            && let Ok(drawn) = self.rest.take_at(now, room)
        {
            let left = with(word, (word & HAVE) + u64::from(room - n));
            let stripe = &self.stripes[index].word;
            return match stripe.compare_exchange(word, left, Relaxed, Relaxed) {
                Ok(_) => Ok(receipt(index, left)),
                Err(_) => Ok(self.rest.refund_at(now, room - n, drawn).rest),
            };
        }
        let taken = self.rest.take_at(now, n);
        taken.or_else(|denied| self.search(n).ok_or(denied))
    }

    /// Takes `n` permits from any stripe.
    fn search(&self, n: u32) -> Option<Receipt> {
        let permits = u64::from(n);
        self.stripes.iter().enumerate().find_map(|(index, stripe)| {
            let mut word = stripe.word.load(Relaxed);
            for _ in 0..4 {
                if word & HAVE < permits {
                    break;
                }
                let left = with(word, (word & HAVE) - permits);
                match stripe.word.compare_exchange(word, left, Relaxed, Relaxed) {
                    Ok(_) => return Some(receipt(index, left)),
                    Err(newer) => word = newer,
                }
            }
            None
        })
    }

    /// The verdict on a request for 0 permits that the rest denies: that on a request for 1.
    fn probe(&self, n: u32, denied: Denied) -> Result<Receipt, Denied> {
        if n == 0 && self.most() > 0 {
            return Ok(Receipt::NONE);
        }
        Err(denied)
    }

    /// The most permits that a stripe has.
    pub fn most(&self) -> u64 {
        let have = self
            .stripes
            .iter()
            .map(|stripe| stripe.word.load(Relaxed) & HAVE);
        have.max().unwrap_or(0).min(self.room)
    }

    /// The permits in all stripes, each at most its room.
    pub fn have(&self) -> u64 {
        let have = self
            .stripes
            .iter()
            .map(|stripe| stripe.word.load(Relaxed) & HAVE);
        have.map(|have| have.min(self.room)).sum()
    }

    /// Refunds `n` permits of a grant: all to a stripe that is as the take left it, otherwise none;
    /// to the rest, what it takes back.
    pub fn refund(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let index = u64::MAX - receipt.time();
        let stripe = usize::try_from(index)
            .ok()
            .and_then(|index| self.stripes.get(index));
        let Some(stripe) = stripe else {
            return self.rest.refund_at(now, n, receipt);
        };
        let left = receipt.note();
        let have = (left & HAVE) + u64::from(n);
        let back = with(left, have);
        let is_back = have <= self.room
            && stripe
                .word
                .compare_exchange(left, back, Relaxed, Relaxed)
                .is_ok();
        if is_back {
            Receipt::dated(back, receipt.time()).refunded(n)
        } else {
            receipt.refunded(0)
        }
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn stripes_have_a_small_part_of_the_burst() {
        assert_eq!(room(1_000, 8), 0);
        assert_eq!(room(8_191, 8), 0);
        assert_eq!(room(8_192, 8), 8);
        assert_eq!(room(1 << 20, 8), 1_024);
        assert_eq!(room(u64::MAX, 8), MOST_ROOM);
        for burst in [8_192, 100_000, 1 << 40] {
            assert!(room(burst, 8) * 8 <= burst / 128);
        }
    }
}
