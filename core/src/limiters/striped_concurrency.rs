//! State: one word that all stripes share, the *rest*, and one word for each stripe, on a line of
//! its own.
//!
//! ```text
//!          22          31      1        6      2      1      1
//! rest:   | available | moves | parity | index | move | open | w |   of 64 bits
//! stripe: | moves | open | have |
//!           47      1      16
//! ```
//!
//! A stripe is open or closed. An open one has `have` permits; those of a closed one count as none.
//! `open` in the rest is set while a stripe is open, and `w` is its waiter bit. Most transitions
//! are one exchange of one word:
//!
//! - *take* or *release* on an open stripe: `have -= n`, `have += n`;
//! - *take* or *release* in the rest, if no move is under way: `available -= n`, `available += n`.
//!   The same exchange may begin a move;
//! - *clear* `open`, if no move is under way: a call has loaded the rest's word, then all stripes'
//!   words, and has found all stripes closed. A stripe opens only by a move. So if the rest's word
//!   is still the same, all stripes are still closed.
//!
//! A *move* opens a stripe, fills an open one, or closes one. It is two more exchanges, which any
//! call makes that finds it in the rest's word:
//!
//! - *make* it in the stripe: `moves += 1`, and a closed stripe gets `have = draw`, an open one
//!   `have += draw` or is closed. `draw` is a part of `available`, which does not change during the
//!   move;
//! - *finish* it in the rest: `available -= draw`, or `available += have` of the closed stripe,
//!   which does not change during the move. A move that opens a stripe sets `open`.
//!
//! `moves` of a stripe is even or odd. While it is as `parity` says, the move is not made. Only one
//! move is under way at a time, so both exchanges are made once, by whichever call.
//!
//! Invariant: let `total` be `available` and what open stripes have; if a move into a stripe has
//! been made and is not finished, less its `draw`; if a stripe has been closed and that is not
//! finished, with what it had. Then `limit - total` permits are in use.
//!
//! Proof of the bound. A take lowers `total` by `n` in one exchange of a word that has `n` permits,
//! a release raises it by `n`, and no move changes it. So `total` is never negative. At the
//! exchange of a grant the plain limiter has at least `n` permits, and afterwards as many as
//! `total`. A denial is a load of the rest's word that shows no move, and `open` clear: then
//! `total` is `available`, less than `n`. So grants, denials and releases are linearizable. No
//! permit is ever in the hands of a call. A call that stops leaves at most a move to others.
//!
//! A call changes the rest's word only from the value that it loaded, and a stripe's only from the
//! value that it loaded before it saw the rest's word again. `moves` makes these values differ from
//! earlier ones: that of a stripe for 2^47 of its moves, that of the rest for 2^31 moves.

use crossbeam_utils::CachePadded;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::queue_limiter::{PassedOn, QueueLimiter};
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiter::{
    Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned, Waiting,
};
use crate::limiters::stripe::{self, INDEX_BITS, LARGEST, LEAST, PARTS, sealed::Stripes, shares};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{Setting, SettingsError};
use crate::word::{AtomicWord, NativeWord, Word};

/// A concurrency limit for many cores: at most `limit` permits are in use at once. Its permits lie
/// in a shared rest and in `N` stripes, each on a cache line of its own.
///
/// Any thread, task or interrupt may use any stripe. With `std`, each thread uses the same one for
/// all its calls, and threads use no more stripes than there are cores, but at least 8. Without,
/// calls use the first one; [`Stripe`](crate::parts::Stripe) names another. `N` is a power of two
/// up to 64; choose at least the number of cores. The default is 32. Permits return when their
/// [`Lease`] is dropped, to the stripe of the thread that drops it.
///
/// A take from a stripe and a release to it write no line that other stripes use. A stripe with too
/// few permits *draws*: it takes more from the rest. If the rest has too few as well, the call
/// takes back what other stripes hold, one after the other. How much a stripe draws adapts to what
/// the rest has left:
///
/// - While few permits are available, stripes hold none. A draw is a quarter of what the rest has
///   left, divided by the number of stripes or by 8, whichever is less, and at least 8 permits: a
///   limit of less than 256 never draws, or of less than `32 * N` with fewer stripes. A denial
///   closes all stripes: it takes back what they hold.
/// - While many are available, a stripe draws up to 4,096 permits. More permits may return to a
///   stripe than are taken from it. When it holds half of the limit divided by that number, or
///   16,384 permits, it closes, and they return to the rest.
///
/// **Bound.** At most `limit` permits are in use. This does not depend on which stripes hold
/// permits, nor on where in a call a thread stops. The bound requires that only permits that were
/// taken are released: leases and lease pools ensure this.
///
/// **Decisions.** Grants, denials and releases are linearizable: each takes effect at one instant
/// during its call, and is what a [`Concurrency`](crate::Concurrency) limit decides. So a request
/// is denied only if the rest and all stripes together have too few permits at one instant. The
/// methods that only look, [`available`](Self::available) and those that report it, are exact if no
/// calls overlap.
///
/// **Cost.** A take from a stripe is one load and one compare-exchange on the stripe's line, and so
/// is a release. With `std`, each loads the thread's number. A draw, and the return of what a
/// stripe holds, are two exchanges of the shared word and one of the stripe's. While stripes hold
/// none, a take and a release exchange the shared word, and a denial writes nothing. A denial that
/// finds open stripes closes them first, and the first denial after the last stripe has closed
/// writes that to the shared word. Lock-free: a call that finds an unfinished move of another call
/// finishes it. A stripe has 128 bytes on most targets.
///
/// **Ordering.** A take that follows a release sees what was written before that release, whichever
/// stripes they use.
///
/// **Limit.** 1 to [`max_limit`](Self::max_limit), 4,194,303. With a 32-bit word, stripes hold
/// nothing.
///
/// **Horizon.** The word counts 2^31 moves between the rest and stripes. Permits may be lost or
/// granted twice if all of this happens: a thread stops in the middle of a move, other threads make
/// a multiple of 2^31 moves, and the word then has the same number of permits as when the thread
/// stopped. A move is three exchanges. With a move every 10 ns, 2^31 moves take 21 seconds.
///
/// Source: caches per thread before a shared pool, as in tcmalloc; helping, as in T. L. Harris, K.
/// Fraser, I. A. Pratt, "A Practical Multi-Word Compare-and-Swap Operation"; guided self-scheduling
/// for the sizes of draws.
///
/// ```
/// use portcullis_core::StripedConcurrency;
///
/// static LIMIT: StripedConcurrency = StripedConcurrency::new(10_000);
///
/// let granted: usize = std::thread::scope(|scope| {
///     let take = |_: &u32| LIMIT.try_acquire(1).is_ok_and(|lease| lease.forget() == 1);
///     let threads = [0; 3].map(|_| scope.spawn(move || (0..5_000).filter(take).count()));
///     threads.into_iter().map(|thread| thread.join().unwrap()).sum()
/// });
/// assert_eq!((granted, LIMIT.in_use()), (10_000, 10_000));
/// ```
#[derive(Debug)]
pub struct StripedConcurrency<const N: usize = { stripe::DEFAULT }, W: Word = NativeWord> {
    stripes: [CachePadded<AtomicWord<W>>; N],
    shared: CachePadded<Shared<W>>,
    limit: u32,
    /// The most permits that a release leaves in a stripe.
    most: u32,
}

/// The words that all stripes share.
#[derive(Debug)]
struct Shared<W: Word> {
    rest: AtomicWord<W>,
    /// The number of calls that close all stripes. While it is not 0, no call opens one, so that
    /// these calls come to an end.
    closing: AtomicWord<W>,
}

/// The waiter bit of the rest.
const WATCHED: u64 = 1;
/// Set in the rest while a stripe is open, and until a call has found all closed.
const ANY_OPEN: u64 = 2;
const MOVE_AT: u32 = 2;
const MOVE_BITS: u32 = 2;
const INDEX_AT: u32 = MOVE_AT + MOVE_BITS;
const PARITY_AT: u32 = INDEX_AT + INDEX_BITS;
const MOVES_AT: u32 = PARITY_AT + 1;
/// The width of `available`, in bits.
const LIMIT_BITS: u32 = 22;

/// The bits of a stripe's permits; above them is the bit of an open one.
const HAVE_BITS: u32 = 16;
const OPEN: u64 = 1 << HAVE_BITS;
const OPEN_AND_HAVE: u64 = 2 * OPEN - 1;
/// One move of a stripe.
const ONE_MOVE: u64 = 2 * OPEN;
/// The most permits that a release leaves in a stripe of a large limit. With a draw, it fits.
const MOST: u64 = 4 * LARGEST;

/// What a move does with its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Open = 1,
    Fill = 2,
    Close = 3,
}

/// A move that is under way.
#[derive(Clone, Copy, Debug)]
struct Underway {
    what: Move,
    stripe: usize,
    parity: u64,
}

impl Underway {
    #[inline]
    fn of(rest: u64) -> Option<Self> {
        let what = match rest >> MOVE_AT & ((1 << MOVE_BITS) - 1) {
            0 => return None,
            1 => Move::Open,
            2 => Move::Fill,
            _ => Move::Close,
        };
        Some(Self {
            what,
            stripe: (rest >> INDEX_AT & ((1 << INDEX_BITS) - 1)) as usize,
            parity: rest >> PARITY_AT & 1,
        })
    }
}

/// Counts a call that closes all stripes.
struct Closing<'a, W: Word>(&'a AtomicWord<W>);

impl<'a, W: Word> Closing<'a, W> {
    fn new(closing: &'a AtomicWord<W>) -> Self {
        closing.fetch_add(1, Relaxed);
        Self(closing)
    }
}

impl<W: Word> Drop for Closing<'_, W> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Returns the permits that can be taken from a stripe: none from a closed one.
#[inline(always)]
fn have(stripe: u64) -> u64 {
    (stripe & OPEN_AND_HAVE).saturating_sub(OPEN)
}

#[inline(always)]
fn is_open(stripe: u64) -> bool {
    stripe & OPEN != 0
}

/// Returns whether the number of moves of a stripe is odd.
fn parity(stripe: u64) -> u64 {
    stripe >> (HAVE_BITS + 1) & 1
}

/// Returns whether a stripe may be open, if no move is under way.
fn any_open(rest: u64) -> bool {
    rest & ANY_OPEN != 0
}

impl<const N: usize> StripedConcurrency<N> {
    const_unless_loom! {
        /// Creates a limiter that allows at most `limit` permits in use, 1 to
        /// [`max_limit`](Self::max_limit).
        ///
        /// # Panics
        ///
        /// If [`StripedConcurrencyBuilder::build`] would return an error. In a constant or a
        /// static, this is a compile error.
        ///
        /// ```
        /// use portcullis_core::StripedConcurrency;
        /// static LIMIT: StripedConcurrency = StripedConcurrency::new(10_000);
        /// static OF_64: StripedConcurrency<64> = StripedConcurrency::new(10_000);
        /// ```
        ///
        /// The number of stripes is a power of two.
        ///
        /// ```compile_fail
        /// use portcullis_core::StripedConcurrency;
        /// static LIMIT: StripedConcurrency<6> = StripedConcurrency::new(10_000);
        /// ```
        pub const fn new(limit: u32) -> Self {
            match StripedConcurrency::builder(limit).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }
}

impl StripedConcurrency {
    /// Returns a builder for a limiter that allows at most `limit` permits in use, 1 to
    /// [`max_limit`](Self::max_limit).
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// let limit: StripedConcurrency<4> = StripedConcurrency::builder(5).build()?;
    /// assert_eq!(limit.available(), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u32) -> StripedConcurrencyBuilder {
        StripedConcurrencyBuilder { limit }
    }
}

impl<const N: usize, W: Word> StripedConcurrency<N, W> {
    const VALID: () = stripe::check(N);
    /// Whether the word has room for moves.
    const MOVES: bool = W::BITS == u64::BITS;
    const AVAILABLE_AT: u32 = W::BITS - LIMIT_BITS;
    const MOVES_MASK: u64 = (1 << (Self::AVAILABLE_AT.saturating_sub(MOVES_AT))) - 1;

    /// Returns the largest limit: 4,194,303.
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// assert_eq!(<StripedConcurrency>::max_limit(), 4_194_303);
    /// ```
    pub const fn max_limit() -> u32 {
        (1 << LIMIT_BITS) - 1
    }

    /// Takes `n` permits on this thread's stripe, and holds them until the lease is dropped.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if fewer than `n` permits are available, in the rest and all stripes
    /// together. [`Denied::ExceedsCapacity`] if `n` is more than the limit. A denial carries
    /// [`Timestamp::ZERO`], since no clock is involved.
    ///
    /// # Cost
    ///
    /// See the type's documentation. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{Retry, StripedConcurrency};
    /// let limit: StripedConcurrency = StripedConcurrency::new(1_000);
    /// let lease = limit.try_acquire(998)?;
    /// let denied = limit.try_acquire(3).unwrap_err();
    /// assert_eq!(denied.retry(&limit), Retry::OnRelease);
    /// drop(lease);
    /// assert!(limit.try_acquire(3).is_ok());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, Timestamp::ZERO, n)
    }

    /// Returns the permits that can be taken now, in the rest and all stripes together. It is exact
    /// if no calls overlap.
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// let limit: StripedConcurrency = StripedConcurrency::new(1_000);
    /// let _lease = limit.try_acquire(1)?;
    /// assert_eq!(limit.available(), 999);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn available(&self) -> u32 {
        let rest = self.settled();
        let all = Self::in_rest(rest) + if any_open(rest) { self.held_now() } else { 0 };
        // A permit that is taken from one stripe and released to another during the sum counts
        // twice.
        (all as u32).min(self.limit)
    }

    /// Returns the permits in use. Unlike [`available`](Self::available), the number is exact at
    /// one instant: the call takes back what stripes hold.
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// let limit: StripedConcurrency = StripedConcurrency::new(1_000);
    /// let _lease = limit.try_acquire(2)?;
    /// assert_eq!(limit.in_use(), 2);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn in_use(&self) -> u32 {
        self.limit - Self::in_rest(self.taken_back()) as u32
    }

    /// Returns the permits that all stripes together hold. It is exact if no calls overlap.
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// let limit: StripedConcurrency<2> = StripedConcurrency::new(801);
    /// assert_eq!(limit.held(), 0);
    /// let lease = limit.try_acquire(1)?;
    /// assert_eq!(limit.held(), 100, "a draw is a quarter of the rest for each two stripes");
    /// drop(lease);
    /// assert_eq!(limit.held(), 101);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn held(&self) -> u64 {
        self.settled();
        self.held_now()
    }

    /// Returns the limit.
    ///
    /// ```
    /// # use portcullis_core::StripedConcurrency;
    /// assert_eq!(<StripedConcurrency>::new(3).limit(), 3);
    /// ```
    pub fn limit(&self) -> u32 {
        self.limit
    }

    #[inline(always)]
    fn stripe(&self, index: usize) -> &AtomicWord<W> {
        &self.stripes[index & (N - 1)]
    }

    fn held_now(&self) -> u64 {
        let words = self.stripes.iter().map(|stripe| stripe.load(Relaxed));
        words.map(have).sum()
    }

    fn in_rest(rest: u64) -> u64 {
        rest >> Self::AVAILABLE_AT
    }

    fn many(n: u64) -> u64 {
        n << Self::AVAILABLE_AT
    }

    /// Returns what a stripe draws on this rest.
    fn draw(rest: u64) -> u64 {
        (Self::in_rest(rest) / (PARTS * shares(N))).min(LARGEST)
    }

    /// Returns whether a stripe may draw at least `n` permits on this rest.
    fn is_drawn_on(&self, rest: u64, n: u64) -> bool {
        Self::MOVES
            && rest & WATCHED == 0
            && Self::draw(rest) >= LEAST.max(n)
            && self.shared.closing.load(Relaxed) == 0
    }

    /// Returns the rest with a move under way, of a stripe whose word is `stripe`.
    fn begun(rest: u64, what: Move, index: usize, stripe: u64) -> u64 {
        let moves = (rest >> MOVES_AT).wrapping_add(1) & Self::MOVES_MASK;
        rest & !(Self::MOVES_MASK << MOVES_AT)
            | moves << MOVES_AT
            | parity(stripe) << PARITY_AT
            | (index as u64) << INDEX_AT
            | (what as u64) << MOVE_AT
    }

    /// Returns the rest's word without a move under way. Finishes moves of other calls.
    fn settled(&self) -> u64 {
        loop {
            // Acquire: what is loaded from stripes afterwards is not older than the moves that this
            // word counts. Pairs with `finish`.
            let rest = self.shared.rest.load(Acquire);
            match Underway::of(rest) {
                None => return rest,
                Some(underway) => self.finish(rest, underway),
            }
        }
    }

    /// Makes and finishes a move, unless another call is faster.
    #[cold]
    fn finish(&self, rest: u64, underway: Underway) {
        let stripe = self.stripe(underway.stripe);
        // Acquire: pairs with the exchange below. If another call has made a later move, the load
        // of the rest sees that.
        let mut word = stripe.load(Acquire);
        if parity(word) == underway.parity {
            // Not made, if the move is still under way.
            if self.shared.rest.load(Relaxed) != rest {
                return;
            }
            let moved = word.wrapping_add(ONE_MOVE);
            let made = match underway.what {
                Move::Open => (moved & !OPEN_AND_HAVE) + OPEN + Self::draw(rest),
                Move::Fill => moved + Self::draw(rest),
                Move::Close => moved - OPEN,
            };
            // Acquire and release: what was written before a release moves with the permit.
            if stripe
                .compare_exchange_weak(word, made, AcqRel, Relaxed)
                .is_err()
            {
                return;
            }
            word = made;
        }
        let begun = ((1 << MOVE_BITS) - 1) << MOVE_AT
            | ((1 << INDEX_BITS) - 1) << INDEX_AT
            | 1 << PARITY_AT;
        let settled = rest & !begun;
        let next = match underway.what {
            Move::Open => (settled - Self::many(Self::draw(rest))) | ANY_OPEN,
            Move::Fill => settled - Self::many(Self::draw(rest)),
            // A closed stripe keeps the number of what it had. If it is open again, the exchange
            // fails.
            Move::Close => settled.wrapping_add(Self::many(word & (OPEN - 1))),
        };
        // Release: pairs with `settled`, and with takes from the rest. If this fails, another call
        // has finished the move, or has changed the waiter bit.
        let _ = self
            .shared
            .rest
            .compare_exchange_weak(rest, next, Release, Relaxed);
    }

    /// Begins to close one of the open stripes: that of this call last. If all are closed, says so
    /// in the rest.
    fn close_one(&self, rest: u64, index: usize) {
        let mut next = rest & !ANY_OPEN;
        for i in 1..=N {
            let other = (index + i) & (N - 1);
            // Acquire: if another call has closed the stripe since, the next load of the rest sees
            // that.
            let word = self.stripe(other).load(Acquire);
            if is_open(word) {
                next = Self::begun(rest, Move::Close, other, word);
                break;
            }
        }
        // Relaxed: it publishes nothing, and continues the release sequence of earlier exchanges.
        let _ = self
            .shared
            .rest
            .compare_exchange_weak(rest, next, Relaxed, Relaxed);
    }

    /// Returns the rest's word at an instant at which all stripes are closed and no move is under
    /// way.
    fn taken_back(&self) -> u64 {
        let mut closing = None;
        loop {
            let rest = self.settled();
            if !any_open(rest) {
                return rest;
            }
            closing.get_or_insert_with(|| Closing::new(&self.shared.closing));
            self.close_one(rest, 0);
        }
    }

    #[inline(always)]
    fn take(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let stripe = self.stripe(index);
        let mut word = stripe.load(Relaxed);
        // One comparison: a closed stripe has less than `OPEN`, and no permits are the most.
        let most = OPEN.saturating_add(u64::from(n).wrapping_sub(1));
        while word & OPEN_AND_HAVE > most {
            // Acquire: pairs with a release, so that the next holder sees what a former one wrote.
            match stripe.compare_exchange_weak(word, word - u64::from(n), Acquire, Relaxed) {
                Ok(_) => return Ok(Receipt::NONE),
                Err(newer) => word = newer,
            }
        }
        self.take_slowly(index & (N - 1), now, n)
    }

    /// Takes from the rest, draws, and takes back.
    #[cold]
    #[inline(never)]
    fn take_slowly(&self, index: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if n > self.limit {
            return Err(Denied::exceeding(n, self.limit.into()));
        }
        let (stripe, wanted) = (self.stripe(index), u64::from(n.max(1)));
        let (mut has_closed, mut closing) = (false, None);
        loop {
            let rest = self.settled();
            let word = stripe.load(Relaxed);
            if have(word) >= wanted {
                let left = word - u64::from(n);
                if n == 0
                    || stripe
                        .compare_exchange_weak(word, left, Acquire, Relaxed)
                        .is_ok()
                {
                    return Ok(Receipt::NONE);
                }
            } else if Self::in_rest(rest) >= wanted {
                let left = rest - Self::many(n.into());
                let next = match is_open(word) {
                    _ if !self.is_drawn_on(left, wanted) => left,
                    true => Self::begun(left, Move::Fill, index, word),
                    false => Self::begun(left, Move::Open, index, word),
                };
                if n == 0 {
                    return Ok(Receipt::NONE);
                }
                // Acquire: as for a stripe.
                if self
                    .shared
                    .rest
                    .compare_exchange_weak(rest, next, Acquire, Relaxed)
                    .is_ok()
                {
                    if next != left {
                        self.settled();
                    }
                    return Ok(Receipt::NONE);
                }
            } else if !any_open(rest) {
                return Err(Denied::Exhausted { now, permits: n });
            } else {
                // One stripe is often enough, and then this one may draw.
                if has_closed {
                    closing.get_or_insert_with(|| Closing::new(&self.shared.closing));
                }
                has_closed = true;
                self.close_one(rest, index);
            }
        }
    }

    /// Releases `n` permits. Returns whether the waiter bit is set.
    #[inline(always)]
    fn put_back(&self, index: usize, n: u32) -> bool {
        let stripe = self.stripe(index);
        loop {
            let mut word = stripe.load(Relaxed);
            while self.has_room(word, n) {
                // Release: pairs with takes, and with the closing of the stripe.
                match stripe.compare_exchange_weak(word, word + u64::from(n), Release, Relaxed) {
                    // A queue closes all stripes when it sets the waiter bit. So it sees this
                    // release.
                    Ok(_) => return false,
                    Err(newer) => word = newer,
                }
            }
            if let Some(is_waited_for) = self.give_back_slowly(index & (N - 1), n) {
                return is_waited_for;
            }
        }
    }

    /// Returns whether `n` permits may return to a stripe: not to a closed one.
    #[inline(always)]
    fn has_room(&self, stripe: u64, n: u32) -> bool {
        let beyond = (stripe & OPEN_AND_HAVE).wrapping_sub(OPEN);
        n <= self.most && beyond <= u64::from(self.most - n)
    }

    /// Releases to the rest, and opens a stripe or closes one that is full. Returns whether the
    /// waiter bit is set, or `None` if the stripe has room.
    #[cold]
    #[inline(never)]
    fn give_back_slowly(&self, index: usize, n: u32) -> Option<bool> {
        let stripe = self.stripe(index);
        loop {
            let rest = self.settled();
            let word = stripe.load(Relaxed);
            if self.has_room(word, n) {
                return None;
            }
            let back = rest + Self::many(n.into());
            let next = match is_open(word) {
                true if n <= self.most => Self::begun(back, Move::Close, index, word),
                false if self.is_drawn_on(back, 0) => Self::begun(back, Move::Open, index, word),
                _ => back,
            };
            // Release: pairs with takes from the rest, and with `settled` before a move.
            if self
                .shared
                .rest
                .compare_exchange_weak(rest, next, Release, Relaxed)
                .is_ok()
            {
                debug_assert!(
                    Self::in_rest(rest) + u64::from(n) <= self.limit.into(),
                    "permits were released that had not been taken"
                );
                if next != back {
                    self.settled();
                }
                return Some(rest & WATCHED != 0);
            }
        }
    }

    /// Returns the answer of a take, without taking.
    fn look_for(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if n > self.limit {
            return Err(Denied::exceeding(n, self.limit.into()));
        }
        // What a look does not see may be in a stripe that it has passed.
        let wanted = n.max(1);
        if self.available() >= wanted || Self::in_rest(self.taken_back()) >= wanted.into() {
            Ok(())
        } else {
            Err(Denied::Exhausted { now, permits: n })
        }
    }
}

impl<const N: usize, W: Word> StripedConcurrency<N, W> {
    /// Takes back what stripes hold. While requests wait, stripes hold none.
    fn watch(&self, waits: bool) {
        // Relaxed: only the order of this word's changes matters. No later exchange opens a stripe.
        // A release to a stripe comes before the exchange that closes it, so its permits are in the
        // rest now; a later one is to the rest, and sees the bit.
        if waits {
            self.shared.rest.set(WATCHED, Relaxed);
            self.taken_back();
        } else {
            self.shared.rest.clear(WATCHED, Relaxed);
        }
    }
}

impl<const N: usize, W: Word> Limiter for StripedConcurrency<N, W> {
    /// The time does not matter, so it decides within all intervals.
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            self.look_for(now, n).into()
        } else {
            self.take(stripe::of_this_thread(), now, n).into()
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                let waits = self.put_back(stripe::of_this_thread(), permits);
                Waiting::known(waits).into()
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.put_back(stripe::of_this_thread(), permits);
                receipt.refunded(permits).into()
            }
            Back::Watch(waits) => {
                self.watch(waits);
                Returned::NOTHING
            }
            _ => Returned::NOTHING,
        }
    }

    /// If no permit seems to be in use, takes all back from the stripes, to know.
    fn read(&self, _: Read<'_>) -> Reading {
        let available = self.available();
        let held = match self.limit - available {
            // A permit that moves between stripes counts as available twice.
            0 => self.in_use(),
            held => held,
        };
        Reading {
            available: available.into(),
            capacity: self.limit.into(),
            idle: if held == 0 { Idle::Now } else { Idle::InUse },
            held: held.into(),
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::OnRelease,
            _ => Retry::Never,
        }
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }

    /// Takes nothing back from the stripes, unlike [`read`](Limiter::read).
    fn available_at(&self, _: Timestamp) -> u64 {
        self.available().into()
    }

    /// As [`available_at`](Limiter::available_at).
    fn capacity(&self) -> u64 {
        self.limit.into()
    }
}

impl<const N: usize, W: Word> QueueLimiter for StripedConcurrency<N, W> {
    const SHARED: bool = false;

    /// Costs one load while requests wait.
    #[inline]
    fn pass_on(&self, _: u32) -> PassedOn {
        let rest = self.settled();
        if Self::in_rest(rest) > 0 || any_open(rest) {
            PassedOn::OthersAreFree
        } else {
            PassedOn::NoneAreFree
        }
    }
}

impl<const N: usize, W: Word> Stripes for StripedConcurrency<N, W> {
    const STRIPES: usize = N;

    #[inline]
    fn take_on(&self, stripe: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(stripe, now, n)
    }

    fn peek_on(&self, _: usize, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.look_for(now, n)
    }

    #[inline]
    fn release_on(&self, stripe: usize, n: u32) {
        self.put_back(stripe, n);
    }

    fn refund_on(&self, stripe: usize, _: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.put_back(stripe, n);
        receipt.refunded(n)
    }
}

/// Builds a [`StripedConcurrency`] limit. Created by [`StripedConcurrency::builder`].
///
/// ```
/// use portcullis_core::StripedConcurrency;
///
/// // From a configuration file, for example.
/// let configured = 0;
/// let refused = StripedConcurrency::builder(configured).build::<8>().unwrap_err();
/// assert_eq!(refused.to_string(), "limit must be at least 1");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct StripedConcurrencyBuilder {
    limit: u32,
}

impl StripedConcurrencyBuilder {
    const_unless_loom! {
        /// Builds the limit on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] if the limit is 0, or more than
        /// [`max_limit`](StripedConcurrency::max_limit).
        ///
        /// ```
        /// # use portcullis_core::{SettingsError, StripedConcurrency};
        /// # use portcullis_core::builder::Setting;
        /// let refused = StripedConcurrency::builder(0).build::<8>().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Limit });
        /// ```
        pub const fn build<const N: usize>(self) -> Result<StripedConcurrency<N>, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the limit on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::StripedConcurrency;
        /// let limit: StripedConcurrency<2, u32> = StripedConcurrency::builder(16).build_on()?;
        /// assert_eq!(limit.limit(), 16);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<const N: usize, W: Word>(
            self,
        ) -> Result<StripedConcurrency<N, W>, SettingsError> {
            let () = StripedConcurrency::<N, W>::VALID;
            let (limit, setting) = (self.limit, Setting::Limit);
            let max = StripedConcurrency::<N, W>::max_limit();
            if limit == 0 {
                return Err(SettingsError::Zero { setting });
            }
            if limit > max {
                return Err(SettingsError::TooLarge { setting, max: max as u64 });
            }
            let part = limit as u64 / (2 * shares(N));
            let most = if part < MOST { part } else { MOST } as u32;
            let rest = (limit as u64) << StripedConcurrency::<N, W>::AVAILABLE_AT;
            let shared = CachePadded::new(Shared {
                rest: AtomicWord::new(rest),
                closing: AtomicWord::new(0),
            });
            #[cfg(not(portcullis_loom))]
            let stripes = [const { CachePadded::new(AtomicWord::new(0)) }; N];
            #[cfg(portcullis_loom)]
            let stripes = core::array::from_fn(|_| CachePadded::new(AtomicWord::new(0)));
            Ok(StripedConcurrency { stripes, shared, limit, most })
        }
    }
}
