//! State: the word of a [`SlicedBucket`], whose rest all stripes share; three words for each
//! stripe, on a line of its own; and a word that all read and few write.
//!
//! ```text
//! rest:    used | lent                 lent: the room of all permits outside of the rest
//! stripe:  generation | size | have    size: the room of the stripe's permits, more than `have`. A
//!                                      power of two: its logarithm is stored
//!          until                       the last instant at which they may be taken
//!          denied until | class        requests for `2^class` permits or more are denied before
//! refunds: count | learned             learned: a stripe may have a `denied until`
//! ```
//!
//! A stripe's permits and their room are its *allotment*. The permits are used up in the rest, and
//! the room is in `lent`. During a move, the call has the allotment in its hands. Each transition
//! is one exchange of one word:
//!
//! - *take* from a stripe: `have -= n`, until `until`;
//! - *take out*: moves a stripe's allotment into the hands of the call, and starts a new
//!   generation;
//! - *trade* with the rest: returns what is in hand (`used -= have, lent -= size`), takes `n`
//!   permits as a plain bucket of `burst - lent` does, or *draws* an allotment and takes the `n` of
//!   that (`used += size, lent += size`);
//! - *deposit*: adds what was drawn to the stripe's allotment, or returns it to the rest if another
//!   call has filled the stripe in the meantime;
//! - *renew*: prolongs `until`. A draw and a renewal first *settle* the rest for the new instant:
//!   if `used` is further behind its position than the rest can hold, they move `used` up.
//!
//! Invariant: up to the newest instant at which a call has taken or may take by an `until`, `used`
//! is behind the position by at most the room of the rest, `burst - lent`. It is not ahead of the
//! position of the newest `now`. No allotment has more permits than room.
//!
//! Proof of the bound. Let a plain bucket have the same rate and burst, and `spent` as its `used`:
//! `used` less the permits of all allotments, which are at most `lent`. By the invariant, `spent`
//! is behind that newest instant by at most the burst, so nothing overflows in the plain bucket
//! before it. A take from a stripe adds `n` to `spent`; it is a take of the plain bucket, which has
//! at least the permits of that stripe. A take from the rest is one, too, of no more than the plain
//! bucket has. No other transition lowers `spent`: permits move between `used` and allotments, and
//! settling adds. The invariant stays: `used` falls only when an allotment returns, by at most as
//! much as the room of the rest grows. So each grant is one of the plain bucket, at the newest
//! `now`, in the order of the exchanges; and a call that stops, stops between two exchanges.
//!
//! A refund takes back a grant. To a stripe it only raises `have`, up to the room. The room is kept
//! for the allotment, whatever time passes, so no permits that come in fill it. To the rest a
//! refund requires that nothing is lent and that the word is as the take left it. Then no stripe
//! has settled because of that take: it would have lent something, with a take that no refund
//! returns completely, so the word could not be the same again. For this reason a refund leaves one
//! permit of each allotment used, and a renewal needs something lent.
//!
//! A receipt of a stripe has the generation of the allotment. Generations repeat, after `2^g`
//! allotments. Let `floor` be `used` less the room of all allotments. It only grows, except by
//! refunds to the rest, which move it back to where it was before their takes: a draw leaves it as
//! it is, and an allotment returns with more room than permits. So `2^g` allotments later it is
//! greater by as many permits, less one for each call that stops with an allotment in hand. By the
//! invariant it was behind the position of the take by at most a full bucket. So a refund requires
//! that `used` is ahead of that by less than `2^(g - 1)` permits. If the word has wrapped since the
//! take, it does not tell; the time of the take does.
//!
//! # Denials
//!
//! A denial that looks at the rest takes its line away from all others, and a grant takes it away
//! from the denials: on many cores each waits for all. So a denial *learns*: it computes the
//! instant before which there cannot be enough permits, and writes that to its stripe. Until then a
//! denial on the stripe reads only its own line, and `refunds`.
//!
//! Invariant: while no call is under way, a stripe's `denied until` is no later than the instant at
//! which all stripes and the rest together have `2^class` permits. Time brings permits no sooner
//! than it says, and takes make it later. Only a refund makes it sooner, so a refund removes it:
//!
//! - *learn*: reads `refunds`, looks at all stripes and the rest, writes `denied until`, and reads
//!   `refunds` again. If it has changed, removes what it wrote. While permits move, nothing is
//!   learned: what is in the hands of a call may return to the rest at any time.
//! - *refund*: returns the permits; if `learned` is set, counts, which clears it, and then removes
//!   what stripes have learned.
//!
//! There is a fence between any two of these steps. So of a `learn` and a refund at the same time,
//! `learn` sees the permits, or it sees the count, or the refund sees what was written. The first
//! denial after a refund only sets `learned`.
//!
//! What is learned never grants, so it has no part in the bound. If it is further ahead than the
//! time to fill, then the clock has been set back, and it does not count.

use core::time::Duration;

use crossbeam_utils::CachePadded;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::limiters::bucket_settings::BucketSettings;
use crate::limiters::lattice::Lattice;
use crate::limiters::slice::sealed::{Share, Source};
use crate::limiters::sliced_bucket::{SlicedBucket, bits};
use crate::limiters::stripe::{self, INDEX_BITS, LEAST, PARTS, sealed::Stripes, shares};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::const_unless_loom;
use crate::time::grid::{Grid, divide, reciprocal};
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_nanos};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::SettingsError;
use crate::word::{AtomicWord, NativeWord, Word};

/// A token bucket for many cores: its permits lie in a shared rest and in `N` stripes, each on a
/// cache line of its own.
///
/// Any thread, task or interrupt may use any stripe. With `std`, each thread uses the same one for
/// all its calls, and threads use no more stripes than there are cores, but at least 8. Without,
/// calls use the first one; [`Stripe`](crate::parts::Stripe) names another. `N` is a power of two
/// up to 64; choose at least the number of cores. The default is 32. A stripe that no thread uses
/// costs only its memory.
///
/// A take from a stripe writes no line that other stripes use. A stripe with too few
/// permits *draws*: it takes more from the rest. If the rest has too few as well, the call takes
/// back what all other stripes hold. How much a stripe draws adapts:
///
/// - While few permits are available, stripes hold none, and the bucket decides as a
///   [`TokenBucket`](crate::TokenBucket). A draw is at most a quarter of what the rest has left,
///   divided by the number of stripes or by 8, whichever is less, and at least 8 permits: a bucket
///   of less than 256 permits never draws, or of less than `32 * N` with fewer stripes.
/// - While many are available, a stripe draws 64 permits. It draws twice as many, up to 4,096 (512
///   with a 32-bit word), each time that it has used up what it had, and half as many if it has not
///   been used for a while.
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits, from all stripes and
/// the rest together, exactly as for a `TokenBucket`. The bound does not depend on which stripes
/// hold permits, nor on where in a call a thread stops. `t` counts in whole [ticks](Self::timing).
///
/// **Denials.** If no calls overlap, a request is denied only if all stripes and the rest together
/// have too few permits. Permits that another call moves at that moment count as used. A request
/// may be denied because of them, and the same request succeeds after that call. Grants are
/// linearizable: each takes effect at one exchange. Such denials are not linearizable.
///
/// A denial *learns*, with a 64-bit word: it computes until when no request for about as many
/// permits can be granted, and until then such a request on its stripe is denied without a look at
/// the rest. So a limit under attack costs each core about as much as one core alone. Permits that
/// are refunded end that at once. A thread that stops forever in the middle of a denial, while
/// permits are refunded, can leave it on its stripe until the same permits would have come in by
/// time.
///
/// Stripes settle in advance: they remove from the rest the permits that it will have no room for
/// in the next moment. So while the bucket is in use and nearly full, up to a 16th of the burst may
/// be missing. At the first instant of use nothing is missing; with a 32-bit word, up to a 64th may
/// be. After a pause, the first draw removes what the rest has no room for. The rest has no room
/// for what stripes have drawn, even if these are empty and their threads are idle or gone. So up
/// to a quarter of the burst may be missing then, once, and comes back by time.
///
/// **Refunds.** A take is refunded to its stripe while the stripe still has the allotment, except
/// for one permit of each draw, which returns by time. With a 64-bit word, this holds for nearly a
/// [`horizon`](Self::timing) after the take; with a 32-bit word, at most until 2^18 permits, less
/// the burst, have come in. A take from the rest is refunded if no other take has come since and
/// stripes hold nothing, as while few permits are available.
///
/// **Cost.** A grant from a stripe is two loads and one compare-exchange on the stripe's line, and
/// with `std` one load of the thread's number. A draw exchanges up to three words, one of them
/// shared. While many permits are available, there is at most one draw for 64 permits. A denial
/// that is learned is two loads on the stripe's line, and one of a line that only refunds write.
/// Another denial loads the shared word, and all stripes if they hold permits, and writes
/// what it learns to its stripe; it writes nothing else unless another call interferes. A refund
/// loads the words of all stripes if one of them has learned. Lock-free. A stripe has 128 bytes on
/// most targets.
///
/// **Horizon.** As for a [`SlicedBucket`] in which a quarter of the burst is sliced. If the word
/// has no room for that, or a tick brings more than a 32nd of the burst, stripes hold nothing. With
/// a 32-bit word they hold nothing from some time on, at least 2^25 times the time to fill after
/// [`Timestamp::ZERO`]. The word of a stripe counts 2^48 allotments, 2^19 with 32 bits. A refund
/// that stops while its stripe gets exactly that many may exceed the bound by the refunded permits.
/// With a draw every 2 µs on a microcontroller, 2^19 draws take a second.
///
/// Source: caches per thread before a shared pool, as in tcmalloc; the sloppy counters of S.
/// Boyd-Wickizer et al., "An Analysis of Linux Scalability to Many Cores"; guided self-scheduling
/// for the sizes of draws.
///
/// ```
/// use portcullis_core::{Rate, StripedBucket, Timestamp};
///
/// static LIMIT: StripedBucket = StripedBucket::new(Rate::per_second(1_000_000), 100_000);
///
/// let now = Timestamp::from_secs(1);
/// let granted: usize = std::thread::scope(|scope| {
///     let take = || (0..50_000).filter(|_| LIMIT.try_acquire_at(now, 1).is_ok()).count();
///     let threads = [0; 3].map(|_| scope.spawn(take));
///     threads.into_iter().map(|thread| thread.join().unwrap()).sum()
/// });
/// assert!(granted <= 100_000);
/// ```
#[derive(Debug)]
pub struct StripedBucket<const N: usize = { stripe::DEFAULT }, W: Word = NativeWord> {
    stripes: [CachePadded<Held<W>>; N],
    rest: CachePadded<SlicedBucket<W>>,
    /// The most permits outside of the rest.
    most: u64,
    /// A stripe settles until the end of the next span of `2^advance` nanoseconds.
    advance: u32,
    /// A denial is learned for at most so many nanoseconds: the time to fill. 0 if none is.
    longest: u64,
    /// The reciprocal of what a tick brings: a denial does not divide.
    per_gain: u64,
    /// The burst: here it can be read while others write the rest.
    burst: u64,
    refunds: AtomicWord<W>,
}

/// The words of a stripe.
#[derive(Debug)]
struct Held<W: Word> {
    /// The last instant at which a call may take from the stripe, in units.
    until: AtomicWord<W>,
    allotment: AtomicWord<W>,
    /// The instant before which requests of a class are denied, and the class.
    denied: AtomicWord<W>,
}

impl<W: Word> Held<W> {
    const_unless_loom! {
        const fn new() -> CachePadded<Self> {
            CachePadded::new(Self {
                until: AtomicWord::new(0),
                allotment: AtomicWord::new(0),
                denied: AtomicWord::new(0),
            })
        }
    }
}

/// Permits outside of the rest, and the room that they have there.
#[derive(Clone, Copy, Debug, Default)]
struct Allotment {
    size: u64,
    have: u64,
}

impl Allotment {
    fn and(self, other: Self) -> Self {
        Self {
            size: self.size + other.size,
            have: self.have + other.have,
        }
    }
}

/// An exchange of the rest's word.
#[derive(Clone, Copy, Debug)]
struct Trade {
    next: u64,
    /// What the stripe gets.
    drawn: Allotment,
    /// The new `until`, in units.
    until: u64,
}

/// Until when a stripe may take.
#[derive(Clone, Copy, Debug)]
struct Until {
    /// In units of its word.
    units: u64,
    instant: Timestamp,
    /// Whether it may already.
    is_due: bool,
    /// Whether it was used a moment ago.
    is_ahead: bool,
}

/// The width of an allotment's `size`, in bits: 0, or one more than the logarithm of its quotient
/// and [`LEAST`].
const SIZE_BITS: u32 = 4;
/// The first draw of a stripe.
const FIRST: u64 = if cfg!(portcullis_loom) { 2 } else { 64 };
/// A span is at most one of so many parts of the time to fill. A stripe settles for two spans.
const SPANS: u64 = 64;
/// Set in the note of a receipt for permits of a stripe. While nothing is lent, which a refund to
/// the rest requires, this bit of the rest's word is clear.
const OF_A_STRIPE: u64 = 1;
/// The bits of `denied` that have the class: the logarithm of a number of permits.
const CLASS: u64 = u32::BITS as u64 - 1;
/// The bit of `refunds` that is set while a stripe may have learned something.
const LEARNED: u64 = 1;
/// A denial is learned if it holds for so many nanoseconds: as long as it takes to learn it.
const WORTH: u64 = if cfg!(any(portcullis_loom, portcullis_explore)) {
    1
} else {
    128
};
/// The receipt of a take that cannot be refunded: of a generation that no stripe reaches.
const NOT_REFUNDED: Receipt = Receipt::new(u64::MAX);
/// The finest tick that is chosen by default, if it fits, and the coarsest but one. In nanoseconds.
const FINE: u64 = 1_000;
const COARSEST: u64 = 100_000_000;

impl<const N: usize> StripedBucket<N> {
    const_unless_loom! {
        /// Creates a bucket that gains permits at `rate` and holds at most `burst` permits (at
        /// least 1). The bucket starts full.
        ///
        /// # Panics
        ///
        /// If [`StripedBucketBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// use portcullis_core::{Rate, StripedBucket};
        /// static LIMIT: StripedBucket = StripedBucket::new(Rate::per_second(1_000), 100);
        /// static OF_64: StripedBucket<64> = StripedBucket::new(Rate::per_second(1_000), 100);
        /// ```
        ///
        /// The number of stripes is a power of two.
        ///
        /// ```compile_fail
        /// use portcullis_core::{Rate, StripedBucket};
        /// static LIMIT: StripedBucket<6> = StripedBucket::new(Rate::per_second(1_000), 100);
        /// ```
        pub const fn new(rate: Rate, burst: u64) -> Self {
            match StripedBucket::builder(rate, burst).build() {
                Ok(bucket) => bucket,
                Err(error) => error.refuse(),
            }
        }
    }
}

impl StripedBucket {
    /// Returns a builder for a bucket that gains permits at `rate` and holds at most `burst`
    /// permits (at least 1).
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// let bucket: StripedBucket<4> = StripedBucket::builder(Rate::per_second(5), 10).build()?;
    /// assert_eq!(bucket.burst(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64) -> StripedBucketBuilder {
        Builder::new(BucketSettings::new(rate, burst))
    }
}

impl<const N: usize, W: Word> StripedBucket<N, W> {
    const VALID: () = stripe::check(N);
    /// The width of `have`, in bits.
    const HAVE_BITS: u32 = if W::BITS == u64::BITS { 12 } else { 9 };
    const HAVE: u64 = (1 << Self::HAVE_BITS) - 1;
    /// The width of `have` and `size` together, in bits.
    const ALLOTMENT_BITS: u32 = Self::HAVE_BITS + SIZE_BITS;
    /// The largest allotment, and the largest draw. It has one permit less.
    const LARGEST: u64 = Self::HAVE + 1;

    /// Returns the most permits that can be outside of the rest.
    const fn most(burst: u64) -> u64 {
        let (part, all) = (burst / PARTS, N as u64 * Self::LARGEST);
        if part < shares(N) * LEAST {
            0
        } else if part < all {
            part
        } else {
            all
        }
    }

    /// Takes `n` permits at `now`, on this thread's stripe.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the stripes and the rest hold fewer than `n` permits together, see
    /// **Denials** in the type's documentation. [`Denied::ExceedsCapacity`] if `n` is more than the
    /// burst.
    ///
    /// # Cost
    ///
    /// See the type's documentation. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{Denied, Rate, StripedBucket, Timestamp};
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(5), 10);
    /// let now = Timestamp::ZERO;
    /// assert_eq!(bucket.try_acquire_at(now, 7)?.permits(), 7);
    /// let denied = bucket.try_acquire_at(now, 4).unwrap_err();
    /// assert_eq!(denied.retry(&bucket).wait_from(now).unwrap().as_millis(), 200);
    /// # Ok::<(), Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the most permits that one request of this thread can take at `now`; `u64::MAX` at an
    /// unlimited rate. Permits that a call moves at that moment are missing. Divides.
    ///
    /// These are the whole permits in the stripes and the rest together. For a stale `now` they may
    /// be none, because they came in later. A stripe hands out what it holds also then, so that is
    /// the answer for its own threads if it is more. A [`Stripe`](crate::parts::Stripe) answers for
    /// requests on that stripe.
    ///
    /// ```
    /// # use portcullis_core::{Limiter, Rate, StripedBucket, Timestamp};
    /// # use portcullis_core::parts::Stripe;
    /// let bucket: StripedBucket<2> = StripedBucket::new(Rate::per_second(1_000), 1_000);
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 1_000);
    ///
    /// let (one, other) = (Stripe::of(&bucket, 0), Stripe::of(&bucket, 1));
    /// let (early, late) = (Timestamp::from_secs(5), Timestamp::from_secs(6));
    /// let _ = one.try_acquire_at(early, 1)?;
    /// let _ = other.try_acquire_at(late, 800)?;
    /// assert_eq!((one.available_at(late), other.available_at(late)), (199, 199));
    /// assert_eq!((one.available_at(early), other.available_at(early)), (63, 0));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.available_on(stripe::of_this_thread(), now)
    }

    /// Returns whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(5), 10);
    /// bucket.try_acquire_at(Timestamp::from_secs(1), 1).unwrap();
    /// assert_eq!(bucket.idle_at(Timestamp::from_secs(1)), Idle::InUse);
    /// assert_eq!(
    ///     bucket.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::from_millis(1_200))
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let (rest, used) = self.all_returned(now);
        if rest.burst < self.burst() {
            return Idle::InUse;
        }
        rest.idle(&self.rest.ticks, used, now)
    }

    /// Returns the permits that all stripes together hold.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket, Timestamp};
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(1_000), 10_000);
    /// assert_eq!(bucket.held(), 0);
    /// let _ = bucket.try_acquire_at(Timestamp::ZERO, 1)?;
    /// assert_eq!(bucket.held(), 63, "the first draw is of 64 permits");
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn held(&self) -> u64 {
        self.look().1.have
    }

    /// Returns the rate at which the bucket gains permits: exactly the rate that it was built with,
    /// in lowest terms. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.rate(), Rate::per_second(5));
    /// ```
    pub fn rate(&self) -> Rate {
        self.rest.rate()
    }

    /// Returns the most permits that the bucket holds. At an unlimited rate, this is the most that
    /// the word can count.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.rest.burst()
    }

    /// Returns how the bucket counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, StripedBucket};
    /// let bucket: StripedBucket = StripedBucket::new(Rate::per_second(1_000), 1_000);
    /// assert!(bucket.timing().staleness >= Duration::from_secs(1));
    /// ```
    pub fn timing(&self) -> Timing {
        self.rest.timing()
    }

    /// The stripe's unit of time: a nanosecond where the word counts them for centuries.
    #[inline(always)]
    fn units(&self, nanos: u64) -> u64 {
        if W::BITS == u64::BITS {
            nanos
        } else {
            nanos >> self.advance
        }
    }

    #[inline(always)]
    fn allotment(word: u64) -> Allotment {
        let size = word >> Self::HAVE_BITS & ((1 << SIZE_BITS) - 1);
        Allotment {
            // None for 0: half of the smallest is no multiple of it.
            size: ((LEAST << size) / 2) & !(LEAST - 1),
            have: word & Self::HAVE,
        }
    }

    #[inline(always)]
    fn generation(word: u64) -> u64 {
        word >> Self::ALLOTMENT_BITS
    }

    #[inline(always)]
    fn packed(generation: u64, allotment: Allotment) -> u64 {
        let size = (2 * allotment.size / LEAST).checked_ilog2().unwrap_or(0);
        (generation << Self::ALLOTMENT_BITS
            | u64::from(size) << Self::HAVE_BITS
            | allotment.have & Self::HAVE)
            & W::MASK
    }

    /// A receipt for permits that were taken from a stripe at `now`.
    #[inline(always)]
    fn receipt(stripe: usize, word: u64, now: Timestamp) -> Receipt {
        let of = Self::generation(word) << INDEX_BITS | stripe as u64;
        Receipt::dated(of << 1 | OF_A_STRIPE, now.as_nanos())
    }

    #[inline(always)]
    fn take(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let stripe = &self.stripes[index & (N - 1)];
        if self.units(now.as_nanos()) <= stripe.until.load(Relaxed) {
            let mut word = stripe.allotment.load(Relaxed);
            // One comparison: no permit is `u64::MAX` before the subtraction.
            while u64::from(n).wrapping_sub(1) < word & Self::HAVE {
                match stripe.allotment.compare_exchange_weak(
                    word,
                    word - u64::from(n),
                    Relaxed,
                    Relaxed,
                ) {
                    Ok(_) => return Ok(Self::receipt(index & (N - 1), word, now)),
                    Err(newer) => word = newer,
                }
            }
        }
        self.take_slowly(index & (N - 1), now, n)
    }

    /// Takes from the rest, and draws. Learns from a denial.
    #[cold]
    #[inline(never)]
    fn take_slowly(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if self.has_learned(index, now, n) {
            return Err(Denied::Exhausted { now, permits: n });
        }
        let taken = self.take_from_all(index, now, n);
        if let Err(Denied::Exhausted { .. }) = taken {
            self.learn(index, now, n);
        }
        taken
    }

    fn take_from_all(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if self.most == 0 {
            return self.rest.take_at(now, n);
        }
        let lattice = self.rest.rest(0);
        if n == 0 || lattice.is_unlimited() || u64::from(n) > lattice.burst {
            return self.look_for(index, now, n).map(|()| Receipt::NONE);
        }
        let stripe = &self.stripes[index & (N - 1)];
        let mut hand = Allotment::default();
        loop {
            let word = self.rest.word.load(Relaxed);
            let seen = stripe.allotment.load(Relaxed);
            let own = Self::allotment(seen);
            if own.have >= u64::from(n) && self.renew(index, word, now) {
                let left = seen - u64::from(n);
                let taken = stripe
                    .allotment
                    .compare_exchange_weak(seen, left, Relaxed, Relaxed);
                if taken.is_ok() {
                    self.put_back(hand);
                    return Ok(Self::receipt(index, left, now));
                }
                continue;
            }
            let draw = Self::draw_of(own, n);
            let with_own = hand.and(own);
            if own.size > 0 && self.trade(index, word, with_own, now, n, 0).is_some() {
                hand = hand.and(self.take_out(index));
            }
            if let Some(trade) = self.trade(index, word, hand, now, n, draw) {
                let exchanged = self
                    .rest
                    .word
                    .compare_exchange_weak(word, trade.next, Relaxed, Relaxed);
                if exchanged.is_ok() {
                    return Ok(self.deposit(index, now, trade));
                }
                continue;
            }
            let (word, held) = self.look();
            if self.trade(index, word, hand.and(held), now, n, 0).is_none() {
                self.put_back(hand);
                return Err(Denied::Exhausted { now, permits: n });
            }
            for other in 0..N {
                hand = hand.and(self.take_out(other));
            }
        }
    }

    /// Returns whether the stripe has learned that a request for `n` permits is denied at `now`.
    #[inline]
    fn has_learned(&self, index: usize, now: Timestamp, n: u32) -> bool {
        let denied = self.stripes[index & (N - 1)].denied.load(Relaxed);
        let ahead = (denied & !CLASS).saturating_sub(now.as_nanos());
        0 < ahead
            && ahead <= self.longest
            && n.max(1) >> (denied & CLASS) > 0
            && u64::from(n) <= self.burst
    }

    /// Learns from a denial until when all requests for about as many permits are denied.
    fn learn(&self, index: usize, now: Timestamp, n: u32) {
        if self.longest == 0 {
            return;
        }
        let refunds = self.refunds.load(Relaxed);
        if refunds & LEARNED == 0 {
            let _ =
                self.refunds
                    .compare_exchange_weak(refunds, refunds | LEARNED, Relaxed, Relaxed);
            return;
        }
        // See **Denials** in the module's documentation for this fence and the next.
        fence(SeqCst);
        let class = n.max(1).ilog2();
        let (word, held) = self.look();
        if held.size != self.rest.sliced_in(word) {
            return;
        }
        let (position, all) = (self.position(now), self.rest.rest(0));
        let (_, used) = self.returned(word, held, position);
        let balance = all.balance(position, used);
        let missing = (all.cost << class).saturating_sub(balance.available);
        // To an old timestamp, and to one a horizon later, the bucket looks as if it owed permits.
        if balance.owed > 0 || missing == 0 {
            return;
        }
        let (ticks, _) = divide(missing - 1, all.gain, self.per_gain);
        let come_in = self.rest.ticks.index(now).saturating_add(ticks + 1);
        let Some(until) = self.rest.ticks.start(come_in) else {
            return;
        };
        let until = until.as_nanos() & !CLASS;
        if until < now.as_nanos().saturating_add(WORTH) {
            return;
        }
        let denied = &self.stripes[index & (N - 1)].denied;
        denied.store(until | u64::from(class), Relaxed);
        fence(SeqCst);
        if self.refunds.load(Relaxed) != refunds {
            denied.store(0, Relaxed);
        }
    }

    /// Removes what stripes have learned, because permits have returned.
    fn forget(&self) {
        if self.longest == 0 {
            return;
        }
        // See **Denials** in the module's documentation for this fence and the next.
        fence(SeqCst);
        let mut refunds = self.refunds.load(Relaxed);
        while refunds & LEARNED != 0 {
            // Carries into the count.
            let next = refunds.wrapping_add(LEARNED) & W::MASK;
            match self
                .refunds
                .compare_exchange_weak(refunds, next, Relaxed, Relaxed)
            {
                Ok(_) => {
                    fence(SeqCst);
                    for stripe in &self.stripes {
                        if stripe.denied.load(Relaxed) != 0 {
                            stripe.denied.store(0, Relaxed);
                        }
                    }
                    return;
                }
                Err(newer) => refunds = newer,
            }
        }
    }

    /// Settles the rest, whose word is `word`, for a stripe that holds permits and was used a
    /// moment ago. Returns whether it did: the stripe may then take at `now`. Most often another
    /// stripe has settled already, and there is nothing to write.
    fn renew(&self, index: usize, word: u64, now: Timestamp) -> bool {
        let Some(until) = self.until(index, now) else {
            return false;
        };
        if until.is_due {
            return true;
        }
        let rest = self.rest.rest(word);
        let used = word >> self.rest.low;
        let balance = rest.balance(rest.position(self.rest.ticks.index(now)), used);
        // If nothing is lent in `word`, a refund could take back what the rest was found settled
        // by.
        if !until.is_ahead || balance.owed > 0 || self.rest.sliced_in(word) == 0 {
            return false;
        }
        let position = rest.position(self.rest.ticks.index(until.instant));
        let settled = rest.balance(position, balance.from).from;
        let next = self.rest.pack(settled, self.rest.sliced_in(word));
        let is_settled = next == word
            || self
                .rest
                .word
                .compare_exchange_weak(word, next, Relaxed, Relaxed)
                .is_ok();
        if is_settled {
            self.stripes[index & (N - 1)]
                .until
                .store(until.units, Relaxed);
        }
        is_settled
    }

    /// Returns the size of the draw that follows an allotment.
    fn draw_of(own: Allotment, n: u32) -> u64 {
        match own {
            Allotment { size: 0, .. } => FIRST.min(Self::LARGEST),
            Allotment { size, have } if have < u64::from(n) => (2 * size).min(Self::LARGEST),
            Allotment { size, .. } => (size / 2).max(FIRST.min(Self::LARGEST)),
        }
    }

    /// The position of `now`.
    fn position(&self, now: Timestamp) -> u64 {
        // The same for each size of the rest.
        self.rest.rest(0).position(self.rest.ticks.index(now))
    }

    /// Returns the rest after `hand` is returned, and its `used`, for a decision at `position`.
    ///
    /// The word alone decides whether the timestamp is stale. After nearly a horizon without a
    /// call, the permits in hand could move `used` so far back that the timestamp would seem to be
    /// stale. `used` then moves back by less: the rest is full in both cases.
    #[inline]
    fn returned(&self, word: u64, hand: Allotment, position: u64) -> (Lattice, u64) {
        let rest = self
            .rest
            .rest(self.rest.sliced_in(word).saturating_sub(hand.size));
        let used = word >> self.rest.low;
        let distance = position.wrapping_sub(used) & rest.mask;
        let units = hand.have.wrapping_mul(rest.cost);
        let back = match (rest.behind - 1).checked_sub(distance) {
            Some(most) => units.min(most),
            None => units,
        };
        (rest, used.wrapping_sub(back) & rest.mask)
    }

    /// Returns the exchange that takes `n` permits of the rest, returns `hand`, and draws up to
    /// `draw` permits. `None` if there are too few permits.
    fn trade(
        &self,
        index: usize,
        word: u64,
        hand: Allotment,
        now: Timestamp,
        n: u32,
        mut draw: u64,
    ) -> Option<Trade> {
        let position = self.position(now);
        let (rest, used) = self.returned(word, hand, position);
        let (lent, n) = (self.burst() - rest.burst, u64::from(n));
        let price = n * rest.cost;
        let balance = rest.balance(position, used);
        if price > balance.available {
            return None;
        }
        let part = (balance.available - price) / (PARTS * shares(N));
        while draw * rest.cost > part || lent + draw > self.most {
            draw /= 2;
        }
        // A request for more is a take from the rest, which can be refunded.
        let until = if draw < LEAST.max(n) {
            None
        } else {
            self.until(index, now)
        };
        let Some(until) = until else {
            let used = balance.from.wrapping_add(price) & rest.mask;
            return Some(Trade {
                next: self.rest.pack(used, lent),
                drawn: Allotment::default(),
                until: 0,
            });
        };
        let used = balance.from.wrapping_add(draw * rest.cost) & rest.mask;
        let after = self.rest.rest(lent + draw);
        let settled = after.balance(after.position(self.rest.ticks.index(until.instant)), used);
        Some(Trade {
            next: self.rest.pack(settled.from, lent + draw),
            drawn: Allotment {
                size: draw,
                have: draw - n,
            },
            until: until.units,
        })
    }

    /// Returns until when a stripe that is used at `now` may take. `None` if its word cannot count
    /// it.
    ///
    /// A stripe that was used a moment ago settles in advance. Another one settles for `now` only,
    /// so a bucket that is used at one instant misses nothing.
    fn until(&self, index: usize, now: Timestamp) -> Option<Until> {
        let (span, nanos) = (1 << self.advance, now.as_nanos());
        let promised = self.stripes[index & (N - 1)].until.load(Relaxed);
        let unit = if W::BITS == u64::BITS { 1 } else { span };
        let end = promised.saturating_mul(unit).saturating_add(unit - 1);
        let gap = nanos.saturating_sub(end);
        let (is_due, is_ahead) = (nanos <= end, promised > 0 && gap / 4 <= span);
        let instant = if is_due {
            end
        } else if is_ahead {
            (nanos | (span - 1)).saturating_add(span)
        } else {
            nanos | (unit - 1)
        };
        let units = self.units(instant);
        (units <= W::MASK).then_some(Until {
            units,
            instant: Timestamp::from_nanos(instant),
            is_due,
            is_ahead,
        })
    }

    /// Empties a stripe, and returns what it had.
    fn take_out(&self, index: usize) -> Allotment {
        let stripe = &self.stripes[index & (N - 1)].allotment;
        let mut word = stripe.load(Relaxed);
        loop {
            let allotment = Self::allotment(word);
            if allotment.size == 0 {
                return allotment;
            }
            let empty = Self::packed(Self::generation(word) + 1, Allotment::default());
            match stripe.compare_exchange_weak(word, empty, Relaxed, Relaxed) {
                Ok(_) => return allotment,
                Err(newer) => word = newer,
            }
        }
    }

    /// Adds what was drawn to the stripe.
    fn deposit(&self, index: usize, now: Timestamp, trade: Trade) -> Receipt {
        let stripe = &self.stripes[index & (N - 1)];
        if trade.drawn.size == 0 {
            return match self.rest.sliced_in(trade.next) {
                0 => Receipt::dated(trade.next, now.as_nanos()),
                _ => NOT_REFUNDED,
            };
        }
        // The rest has settled for this instant, so it may replace any other.
        stripe.until.store(trade.until, Relaxed);
        let mut word = stripe.allotment.load(Relaxed);
        loop {
            let both = Self::allotment(word).and(trade.drawn);
            if both.size > Self::LARGEST || !both.size.is_power_of_two() {
                self.put_back(trade.drawn);
                return NOT_REFUNDED;
            }
            let next = Self::packed(Self::generation(word), both);
            // Release: pairs with `look`.
            match stripe
                .allotment
                .compare_exchange_weak(word, next, Release, Relaxed)
            {
                Ok(_) => return Self::receipt(index, next, now),
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns an allotment to the rest.
    fn put_back(&self, hand: Allotment) {
        if hand.size == 0 {
            return;
        }
        // Neither is more than `most`, which fits.
        self.rest.end(Share {
            size: hand.size as u32,
            have: hand.have as u32,
            ..Share::EMPTY
        });
    }

    /// Returns the rest's word and the allotments of all stripes, as they were at one moment.
    fn look(&self) -> (u64, Allotment) {
        let mut word = self.rest.word.load(Relaxed);
        loop {
            let mut held = Allotment::default();
            if self.rest.sliced_in(word) == 0 {
                return (word, held);
            }
            for stripe in &self.stripes {
                // Acquire: pairs with `deposit`. The second load of the rest sees the draw of what
                // was deposited.
                held = held.and(Self::allotment(stripe.allotment.load(Acquire)));
            }
            let again = self.rest.word.load(Relaxed);
            if again == word {
                return (word, held);
            }
            word = again;
        }
    }

    /// Returns the rest as it would be if all stripes returned what they hold, and its `used`, for
    /// a decision at `now`.
    fn all_returned(&self, now: Timestamp) -> (Lattice, u64) {
        let (word, held) = self.look();
        self.returned(word, held, self.position(now))
    }

    /// Returns the permits that a stripe hands out at `now` by itself.
    fn own(&self, index: usize, now: Timestamp) -> u64 {
        let stripe = &self.stripes[index & (N - 1)];
        if self.units(now.as_nanos()) <= stripe.until.load(Relaxed) {
            Self::allotment(stripe.allotment.load(Relaxed)).have
        } else {
            0
        }
    }

    /// Returns the answer of a take, without taking.
    #[inline(always)]
    fn look_for(&self, index: usize, now: Timestamp, n: u32) -> Result<(), Denied> {
        if u64::from(n) > self.burst() {
            return Err(Denied::exceeding(n, self.burst()));
        }
        if u64::from(n.max(1)) <= self.own(index, now) {
            return Ok(());
        }
        let (rest, used) = self.all_returned(now);
        let available = rest.judge(self.position(now), used);
        if u64::from(n.max(1)) * rest.cost <= available {
            Ok(())
        } else {
            Err(Denied::Exhausted { now, permits: n })
        }
    }

    /// Refunds permits to the stripe that they were taken from, if it still has the allotment.
    fn undo(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let of = receipt.note() >> 1;
        let stripe = &self.stripes[of as usize & (N - 1)].allotment;
        // Acquire: pairs with `deposit`. The load of the rest sees the draw of this allotment.
        let mut word = stripe.load(Acquire);
        loop {
            let Allotment { size, have } = Self::allotment(word);
            let is_the_same = Self::generation(word) == of >> INDEX_BITS;
            // The first permit of a draw stays used: see the proof.
            let back = u64::from(n).min(size.saturating_sub(have + 1));
            if !is_the_same || back == 0 || self.may_have_repeated(now, &receipt) {
                return receipt.refunded(0);
            }
            match stripe.compare_exchange_weak(word, word + back, Relaxed, Acquire) {
                Ok(_) => return receipt.refunded(back as u32),
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns whether the generations of a stripe may have repeated since the take of a receipt.
    fn may_have_repeated(&self, now: Timestamp, receipt: &Receipt) -> bool {
        let full = self.rest.rest(0);
        let taken_in = self.rest.ticks.index(Timestamp::from_nanos(receipt.time()));
        if full.is_outlived(taken_in, self.rest.ticks.index(now)) {
            return true;
        }
        let floor = full.position(taken_in).wrapping_sub(full.full);
        let used = self.rest.word.load(Relaxed) >> self.rest.low;
        let ahead = used.wrapping_sub(floor) & full.mask;
        ahead >> (W::BITS - Self::ALLOTMENT_BITS - 1) >= full.cost
    }
}

impl<const N: usize, W: Word> Limiter for StripedBucket<N, W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if !ask.is_look() {
            return self.take(stripe::of_this_thread(), now, n).into();
        }
        let stripe = stripe::of_this_thread();
        if let Some(seen) = ask.detail() {
            seen.set(Some(self.explain_on(stripe, now, n)));
        }
        self.look_for(stripe, now, n).into()
    }

    /// See **Refunds** in the type's documentation.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| {
            let refund = if self.most > 0 && receipt.note() & OF_A_STRIPE != 0 {
                self.undo(now, n, receipt)
            } else {
                self.rest.refund_at(now, n, receipt)
            };
            if refund.permits > 0 {
                self.forget();
            }
            refund
        })
    }

    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available_at(read.now()),
            capacity: self.burst(),
            idle: self.idle_at(read.now()),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, .. } = denied else {
            return Retry::Never;
        };
        let (_, used) = self.all_returned(now);
        // Permits that other calls move return to the rest.
        self.rest.rest(0).retry(&self.rest.ticks, used, denied)
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl<const N: usize, W: Word> Stripes for StripedBucket<N, W> {
    const STRIPES: usize = N;

    #[inline]
    fn take_on(&self, stripe: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(stripe, now, n)
    }

    fn peek_on(&self, stripe: usize, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.look_for(stripe, now, n)
    }

    // A take gets the permits of its own stripe, or those of all stripes together: this returns the
    // larger number. At the newest `now` that is the second one, which includes the first. So a
    // stale `now` is told no more than the newest one.
    fn available_on(&self, stripe: usize, now: Timestamp) -> u64 {
        let own = self.own(stripe, now);
        let (rest, used) = self.all_returned(now);
        rest.available(self.position(now), used).max(own)
    }

    fn explain_on(&self, stripe: usize, now: Timestamp, n: u32) -> Detail {
        let own = self.own(stripe, now);
        let (_, used) = self.all_returned(now);
        let (whole, peeked) = (self.rest.rest(0), self.look_for(stripe, now, n));
        let detail = whole.detail(&self.rest.ticks, used, now, peeked);
        Detail {
            available: detail.available.max(own),
            ..detail
        }
    }
}

replenishing!([const N: usize, W: Word] StripedBucket<N, W>);

/// Builds a [`StripedBucket`]. Created by [`StripedBucket::builder`].
///
/// ```
/// use portcullis_core::{Rate, StripedBucket, Timestamp};
///
/// let bucket: StripedBucket = StripedBucket::builder(Rate::per_second(10), 10)
///     .initial(9)
///     .build()?;
/// assert_eq!(bucket.available_at(Timestamp::ZERO), 9);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type StripedBucketBuilder = Builder<StripedBucket>;

impl Sealed for StripedBucket {
    type Settings = BucketSettings;
}

impl Ticks for StripedBucket {}

impl Builder<StripedBucket> {
    const_unless_loom! {
        /// Builds the bucket on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound, as
        /// [`TokenBucketBuilder::build`](crate::builder::TokenBucketBuilder::build) does.
        ///
        /// ```
        /// # use portcullis_core::{Rate, SettingsError, StripedBucket};
        /// # use portcullis_core::builder::Setting;
        /// let settings = StripedBucket::builder(Rate::per_second(5), 10).initial(11);
        /// let refused = settings.build::<8>().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build<const N: usize>(self) -> Result<StripedBucket<N>, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the bucket on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, StripedBucket};
        /// let bucket: StripedBucket<2, u32> =
        ///     StripedBucket::builder(Rate::per_second(5), 10).build_on()?;
        /// assert_eq!(bucket.burst(), 10);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<const N: usize, W: Word>(
            self,
        ) -> Result<StripedBucket<N, W>, SettingsError> {
            let () = StripedBucket::<N, W>::VALID;
            let settings = self.bucket();
            // What does not fit a bucket that never draws does not fit any.
            let plain = match settings.start(W::BITS) {
                Ok(plain) => plain,
                Err(error) => return Err(error),
            };
            let most = if plain.0.is_unlimited() {
                0
            } else {
                StripedBucket::<N, W>::most(plain.0.burst)
            };
            let (most, advance, (lattice, ticks, used)) = match lending(settings, most, W::BITS) {
                Some((advance, start)) => (most, advance, start),
                None => (0, 0, plain),
            };
            let longest = match lattice.time_to_fill(&ticks) {
                Some(time) if W::BITS == u64::BITS => saturating_nanos(time),
                _ => 0,
            };
            let per_gain = if longest > 0 { reciprocal(lattice.gain) } else { 0 };
            let burst = lattice.burst;
            let rest = CachePadded::new(SlicedBucket::on(&lattice, ticks, used, most));
            #[cfg(not(portcullis_loom))]
            let stripes = [const { Held::new() }; N];
            #[cfg(portcullis_loom)]
            let stripes = core::array::from_fn(|_| Held::new());
            let refunds = AtomicWord::new(0);
            Ok(StripedBucket { stripes, rest, most, advance, longest, per_gain, burst, refunds })
        }
    }
}

/// Returns the start of a bucket in the bits that `most` leaves, and how far its stripes settle in
/// advance. `None` if it does not fit, or stripes must hold nothing.
const fn lending(
    mut settings: BucketSettings,
    most: u64,
    bits_of_word: u32,
) -> Option<(u32, (Lattice, Grid, u64))> {
    if most == 0 || bits(most) >= bits_of_word {
        return None;
    }
    let is_chosen = settings.terms.stepwise || settings.terms.tick.is_some();
    let (mut best, mut tick) = (None, FINE);
    loop {
        if !is_chosen {
            settings.terms.tick = Some(Duration::from_nanos(tick));
        }
        let mut is_far = false;
        let mut is_coarse = false;
        if let Ok(start) = settings.start(bits_of_word - bits(most)) {
            match advance(&start.0, start.1.step()) {
                Some(advance) => best = Some((advance, start)),
                None => is_coarse = true,
            }
            is_far = start.0.is_enough(start.1.step());
        }
        if is_chosen || is_far && best.is_some() {
            return best;
        }
        // As for other buckets, the finest of 1 µs and more whose horizon is far enough. If these
        // bring too much, the coarsest finer one.
        tick = match (is_coarse, tick) {
            (true, tick) if tick > FINE => return best,
            (true, 1) => return best,
            (true, tick) => tick / 10,
            (false, tick) if tick < FINE || tick > COARSEST => return best,
            (false, tick) => 10 * tick,
        };
    }
}

/// Returns how many bits of nanoseconds a stripe may settle in advance: two spans of so many, and a
/// tick, bring at most a 16th of the burst. `None` if a tick brings too much.
const fn advance(lattice: &Lattice, tick: u64) -> Option<u32> {
    const LONGEST: u32 = u64::BITS - 2;
    let ticks = match lattice.full.checked_div(lattice.gain) {
        None => return Some(LONGEST),
        Some(ticks) if ticks < SPANS / 2 => return None,
        Some(ticks) => ticks,
    };
    match (ticks as u128 * tick as u128 / SPANS as u128).checked_ilog2() {
        Some(bits) if bits > LONGEST => Some(LONGEST),
        bits => bits,
    }
}
