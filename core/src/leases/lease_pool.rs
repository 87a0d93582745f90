//! State: one word per slot, with its generation and its stage.
//!
//! ```text
//! bits 31                          2 1     0
//! +---------------------------------+-------+      free --claim--> busy --denied--> free
//! |           generation            | stage |                      busy --granted-> held, or due at a deadline
//! +---------------------------------+-------+      held, due --release--> free, next generation
//!                                                        due --sweep----> free, next generation
//! ```
//!
//! Invariant: only the call that made a slot busy writes its permits and deadline. If the exchange
//! that ends a generation succeeds, the permits and deadline read before it belong to that
//! generation. The same exchange decides between a release and a sweep: one returns the permits,
//! the other finds the id stale. A slot becomes busy before the limiter is asked, so a full pool
//! takes no permits.

use core::fmt;
use core::mem;

use crossbeam_utils::CachePadded;

use crate::limiter::Limiter;
use crate::limiter::denied::Denied;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;

/// A pool of at most `N` leases of one limiter. A small `Copy` id names each lease, instead of a
/// guard.
///
/// An id can pass through an interrupt, a queue, a foreign function or the bookkeeping of a
/// process, where a guard with a lifetime cannot. Releasing an id twice, or after its slot was used
/// again, returns an error and changes nothing (with the exceptions below). A lease may have a
/// deadline. After it, [`sweep`](Self::sweep) takes the permits back, for example from a holder
/// that died.
///
/// **Memory.** `N` is 1 to 65,536. The pool takes 16 bytes per slot and two cache lines. It never
/// allocates.
///
/// **Ids.** An id consists of a slot and the slot's generation, which counts in 30 bits how often
/// the slot was used. There are two limits:
///
/// - A released or swept id is stale until its slot has been used 2^30 times since. Then it names
///   the lease that is in the slot at that time.
/// - An id does not contain its pool. Use each id with its own pool. A pool rejects the id of
///   another pool only if it has no such slot, or if the slot holds no lease of that generation.
///   The generations of all pools start at 0. So if two pools have made the same claims and
///   releases, each accepts the ids of the other, and then releases a lease of its own.
///
/// **Cost.** A claim costs what the limiter costs and one compare-exchange; so does a release. A
/// claim that the limiter denies takes a slot and frees it. One that finds no slot writes nothing.
/// Finding a free slot is one load if leases are released about as often as they are claimed, and
/// up to N loads in a nearly full pool. Claims and releases are lock-free. They may pre-empt each
/// other and a sweep in an interrupt handler. (A thread that is terminated, not just paused, in the
/// middle of a claim keeps its slot.)
///
/// ```
/// use portcullis_core::{Concurrency, LeasePool, Timestamp};
/// use portcullis_core::leases::{ClaimError, StaleId};
///
/// static POOL: LeasePool<Concurrency, 16> = LeasePool::new(Concurrency::new(3));
///
/// let now = Timestamp::from_secs(1);
/// let id = POOL.claim_at(now, 2, None)?;
/// assert_eq!(POOL.release(id), Ok(2));
/// assert_eq!(POOL.release(id), Err(StaleId));
///
/// // A holder dies without releasing its lease.
/// let lost = POOL.claim_at(now, 3, Some(Timestamp::from_secs(5)))?;
/// assert_eq!(POOL.sweep(Timestamp::from_secs(5)), 3);
/// assert_eq!(POOL.release(lost), Err(StaleId));
/// # Ok::<(), ClaimError>(())
/// ```
///
/// The slots of a pool whose size is known only at run time lie in memory that the caller provides:
/// see [`within`](Self::within).
pub struct LeasePool<L, const N: usize, M = [LeaseSlot; N]> {
    limiter: L,
    /// The index of a slot that is probably free.
    hint: CachePadded<AtomicU32>,
    slots: M,
}

/// The id of a lease in a [`LeasePool`]: its [slot](Self::slot) and the slot's generation. 8 bytes.
///
/// ```
/// use portcullis_core::{Concurrency, LeasePool, Timestamp};
/// use portcullis_core::leases::{LeaseId, StaleId};
///
/// let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(1));
/// let id = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
/// // As a number, for example for a foreign function.
/// let handle: u64 = id.to_bits();
/// assert_eq!(pool.release(LeaseId::from_bits(handle)), Ok(1));
/// assert_eq!(
///     pool.release(LeaseId::from_bits(u64::MAX)),
///     Err(StaleId),
///     "no such lease"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LeaseId(u64);

impl LeaseId {
    /// Returns the id as a number.
    ///
    /// ```
    /// # use portcullis_core::{LeasePool, Timestamp, Unlimited};
    /// # use portcullis_core::leases::LeaseId;
    /// let pool: LeasePool<_, 4> = LeasePool::new(Unlimited);
    /// let id = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// assert_eq!(LeaseId::from_bits(id.to_bits()), id);
    /// ```
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Converts a number from [`to_bits`](Self::to_bits) back to the id. Any other number names no
    /// lease, or whichever lease it happens to match.
    ///
    /// ```
    /// # use portcullis_core::{LeasePool, Timestamp, Unlimited};
    /// # use portcullis_core::leases::LeaseId;
    /// let pool: LeasePool<_, 4> = LeasePool::new(Unlimited);
    /// let id = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// assert_eq!(LeaseId::from_bits(id.to_bits()), id);
    /// ```
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn new(slot: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    /// Returns the index of the lease's slot in its pool, from 0 to N - 1. No two leases that a
    /// pool holds at the same time have the same slot, so it is an index into an array of N buffers
    /// or devices. A later lease may have it again: compare or release the id, not the slot.
    ///
    /// For a number that is not the id of a lease, any index up to `u32::MAX` is possible.
    ///
    /// ```
    /// use portcullis_core::{Concurrency, LeasePool, Timestamp};
    ///
    /// static POOL: LeasePool<Concurrency, 4> = LeasePool::new(Concurrency::new(4));
    /// let mut buffers = [[0; 64]; 4];
    ///
    /// let id = POOL.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// buffers[id.slot()].fill(7);
    /// ```
    #[inline]
    pub const fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A place for one lease in a [`LeasePool`]. 16 bytes.
///
/// ```
/// use portcullis_core::leases::LeaseSlot;
/// static SLOTS: [LeaseSlot; 8] = [const { LeaseSlot::new() }; 8];
/// assert_eq!(size_of_val(&SLOTS), 128);
/// ```
#[derive(Debug)]
pub struct LeaseSlot {
    state: AtomicU32,
    permits: AtomicU32,
    /// The nanoseconds of the deadline, low half first: 32-bit words on every target.
    deadline: [AtomicU32; 2],
}

/// The most slots of a pool.
const MOST: usize = 1 << 16;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const HELD: u32 = 2;
const DUE: u32 = 3;
const STAGE: u32 = 3;
/// The difference between two generations.
const NEXT: u32 = STAGE + 1;

impl<L: Limiter, const N: usize> LeasePool<L, N> {
    const_unless_loom! {
        /// Creates an empty pool of leases of `limiter`.
        ///
        /// ```
        /// # use portcullis_core::{Concurrency, LeasePool};
        /// static POOL: LeasePool<Concurrency, 8> = LeasePool::new(Concurrency::new(4));
        /// ```
        ///
        /// ```compile_fail
        /// # use portcullis_core::{Concurrency, LeasePool};
        /// static NONE: LeasePool<Concurrency, 0> = LeasePool::new(Concurrency::new(4));
        /// ```
        pub const fn new(limiter: L) -> Self {
            const { assert!(N >= 1 && N <= MOST, "a lease pool must have 1 to 65,536 slots") };
            Self {
                limiter,
                hint: CachePadded::new(AtomicU32::new(0)),
                #[cfg(not(portcullis_loom))]
                slots: [const { LeaseSlot::new() }; N],
                #[cfg(portcullis_loom)]
                slots: core::array::from_fn(|_| LeaseSlot::new()),
            }
        }
    }
}

impl<L: Limiter, M: AsRef<[LeaseSlot]>> LeasePool<L, 0, M> {
    const_unless_loom! {
        /// Creates an empty pool of leases of `limiter`, whose slots are `slots`. The slots must be
        /// new, and of no other pool: with the slots of another pool, each accepts the ids of the
        /// other. `as_ref` must always return the same ones. The pool uses the first 65,536 slots.
        /// Without any, each claim finds it full.
        ///
        /// ```
        /// use portcullis_core::{Concurrency, LeasePool, Timestamp};
        /// use portcullis_core::leases::LeaseSlot;
        ///
        /// // The number of slots comes from a file of settings.
        /// let slots: Vec<_> = (0..12).map(|_| LeaseSlot::new()).collect();
        /// let pool = LeasePool::within(Concurrency::new(4), slots);
        /// let id = pool.claim_at(Timestamp::ZERO, 3, None)?;
        /// assert_eq!((pool.slots(), pool.leases(), pool.release(id)), (12, 1, Ok(3)));
        /// # Ok::<(), portcullis_core::leases::ClaimError>(())
        /// ```
        pub const fn within(limiter: L, slots: M) -> Self {
            Self { limiter, hint: CachePadded::new(AtomicU32::new(0)), slots }
        }
    }
}

impl<L: Limiter, const N: usize, M: AsRef<[LeaseSlot]>> LeasePool<L, N, M> {
    /// The slots that the pool uses.
    #[inline(always)]
    fn all(&self) -> &[LeaseSlot] {
        let slots = self.slots.as_ref();
        slots.get(..MOST).unwrap_or(slots)
    }

    /// Returns the number of slots: the most leases at once.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LeasePool};
    /// let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(9));
    /// assert_eq!(pool.slots(), 4);
    /// ```
    pub fn slots(&self) -> usize {
        self.all().len()
    }

    /// Takes `n` permits at `now`, until the id is released, or swept at or after `deadline`. With
    /// `n = 0`, takes no permits, and succeeds if a request for 1 would.
    ///
    /// # Errors
    ///
    /// Returns [`ClaimError::PoolFull`] if no slot is free, or [`ClaimError::Denied`] if the
    /// limiter denies the request. No permit has been taken then.
    ///
    /// ```
    /// # use portcullis_core::{LeasePool, Timestamp, Unlimited};
    /// # use portcullis_core::leases::ClaimError;
    /// let pool: LeasePool<_, 1> = LeasePool::new(Unlimited);
    /// let id = pool.claim_at(Timestamp::ZERO, 1, None)?;
    /// assert_eq!(
    ///     pool.claim_at(Timestamp::ZERO, 1, None),
    ///     Err(ClaimError::PoolFull { slots: 1 })
    /// );
    /// # Ok::<(), ClaimError>(())
    /// ```
    #[inline]
    pub fn claim_at(
        &self,
        now: Timestamp,
        n: u32,
        deadline: Option<Timestamp>,
    ) -> Result<LeaseId, ClaimError> {
        let Some((id, slot)) = self.reserve() else {
            return Err(ClaimError::PoolFull {
                slots: self.slots() as u32,
            });
        };
        let generation = id.generation();
        // If the limiter panics, the slot becomes free again.
        let undo = FreeOnDrop { slot, generation };
        let _receipt = self.limiter.take_at(now, n)?;
        mem::forget(undo);
        slot.permits.store(n, Relaxed);
        let stage = match deadline {
            None => HELD,
            Some(deadline) => {
                slot.set_deadline(deadline);
                DUE
            }
        };
        // Release: pairs with the acquire of a release or a sweep, which reads the permits and the
        // deadline.
        slot.state.store(generation | stage, Release);
        Ok(id)
    }

    /// Releases the permits of `id`, and returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StaleId`] if `id` was released or swept before, or names no lease of this pool.
    /// Nothing has changed then. Two kinds of stale ids are not detected: an id whose slot has been
    /// used 2^30 times since, and an id of another pool whose slot and generation also hold a lease
    /// here.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LeasePool, Timestamp};
    /// # use portcullis_core::leases::StaleId;
    /// let pool: LeasePool<_, 1> = LeasePool::new(Concurrency::new(1));
    /// let old = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// pool.release(old).unwrap();
    /// let new = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// assert_eq!(
    ///     pool.release(old),
    ///     Err(StaleId),
    ///     "the slot now holds another lease"
    /// );
    /// assert_eq!(pool.release(new), Ok(1));
    /// ```
    #[inline]
    pub fn release(&self, id: LeaseId) -> Result<u32, StaleId> {
        let (slot, generation) = (self.all().get(id.slot()).ok_or(StaleId)?, id.generation());
        // Acquire: pairs with the release in `claim_at`.
        let state = slot.state.load(Acquire);
        if state != generation | HELD && state != generation | DUE || generation & STAGE != 0 {
            return Err(StaleId);
        }
        let permits = slot.permits.load(Relaxed);
        self.end(slot, id.slot() as u32, state, permits)
            .ok_or(StaleId)
    }

    /// Takes back the permits of all leases whose deadline is at or before `now`, and returns their
    /// number.
    ///
    /// # Cost
    ///
    /// Reads all N slots. May be called at any time, in any context, and concurrently.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LeasePool, Timestamp};
    /// let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(9));
    /// let at = Timestamp::from_secs;
    /// pool.claim_at(at(0), 2, Some(at(10))).unwrap();
    /// pool.claim_at(at(0), 3, Some(at(20))).unwrap();
    /// assert_eq!(pool.sweep(at(9)), 0);
    /// assert_eq!(pool.sweep(at(10)), 2);
    /// assert_eq!(pool.limiter().in_use(), 3);
    /// ```
    pub fn sweep(&self, now: Timestamp) -> u64 {
        let mut swept = 0;
        for (slot, index) in self.all().iter().zip(0..) {
            // Acquire: pairs with the release in `claim_at`.
            let state = slot.state.load(Acquire);
            if state & STAGE == DUE && slot.deadline() <= now {
                let permits = slot.permits.load(Relaxed);
                swept += self.end(slot, index, state, permits).map_or(0, u64::from);
            }
        }
        swept
    }

    /// Returns the number of current leases. The N slots are read one after the other, not as one
    /// snapshot.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LeasePool, Timestamp};
    /// let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(9));
    /// let _id = pool.claim_at(Timestamp::ZERO, 1, None).unwrap();
    /// assert_eq!(pool.leases(), 1);
    /// ```
    pub fn leases(&self) -> usize {
        self.all()
            .iter()
            .filter(|slot| slot.state.load(Relaxed) & STAGE >= HELD)
            .count()
    }

    /// Returns the limiter that the permits come from. Permits can also be taken from it directly.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LeasePool};
    /// let pool: LeasePool<_, 4> = LeasePool::new(Concurrency::new(9));
    /// assert_eq!(pool.limiter().limit(), 9);
    /// ```
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// Makes a free slot busy, and returns the id of the lease that it will hold. Tries the slot of
    /// the hint first, then the slots after it.
    #[inline]
    fn reserve(&self) -> Option<(LeaseId, &LeaseSlot)> {
        let hint = self.hint.load(Relaxed);
        let slot = self.all().get(hint as usize);
        if let Some((generation, slot)) = slot.and_then(|slot| Some((slot.reserve()?, slot))) {
            return Some((LeaseId::new(hint, generation), slot));
        }
        let found = self.search(hint)?;
        Some((found, self.all().get(found.slot())?))
    }

    /// Looks for a free slot, once around from `hint` on.
    #[cold]
    #[inline(never)]
    fn search(&self, hint: u32) -> Option<LeaseId> {
        let mut index = hint as usize;
        for _ in self.all() {
            let reserved = self.all().get(index)?.reserve();
            let next = if index + 1 < self.slots() {
                index + 1
            } else {
                0
            };
            if let Some(generation) = reserved {
                // The next slot is likely to be free as well.
                self.hint.store(next as u32, Relaxed);
                return Some(LeaseId::new(index as u32, generation));
            }
            index = next;
        }
        None
    }

    /// Ends the lease that `slot` holds in the state `held`, if it still holds it.
    fn end(&self, slot: &LeaseSlot, index: u32, held: u32, permits: u32) -> Option<u32> {
        let free = (held & !STAGE).wrapping_add(NEXT) | FREE;
        // Release: pairs with the acquire in `reserve`.
        slot.state
            .compare_exchange(held, free, Release, Relaxed)
            .ok()?;
        self.hint.store(index, Relaxed);
        if permits > 0 {
            self.limiter.release(permits);
        }
        Some(permits)
    }
}

impl LeaseSlot {
    const_unless_loom! {
        /// Creates a free slot.
        ///
        /// ```
        /// # use portcullis_core::leases::LeaseSlot;
        /// let slots = [const { LeaseSlot::new() }; 8];
        /// # assert_eq!(slots.len(), 8);
        /// ```
        #[must_use]
        pub const fn new() -> Self {
            Self {
                state: AtomicU32::new(FREE),
                permits: AtomicU32::new(0),
                deadline: [AtomicU32::new(0), AtomicU32::new(0)],
            }
        }
    }

    /// Makes the slot busy if it is free, and returns its generation.
    #[inline]
    fn reserve(&self) -> Option<u32> {
        let state = self.state.load(Relaxed);
        // Acquire: pairs with the release in `end`, after which the previous user no longer reads
        // the slot.
        let reserved = state & STAGE == FREE
            && self
                .state
                .compare_exchange(state, state | BUSY, Acquire, Relaxed)
                .is_ok();
        reserved.then_some(state)
    }

    fn deadline(&self) -> Timestamp {
        let [low, high] = &self.deadline;
        Timestamp::from_nanos(u64::from(high.load(Relaxed)) << 32 | u64::from(low.load(Relaxed)))
    }

    #[inline]
    fn set_deadline(&self, deadline: Timestamp) {
        let [low, high] = &self.deadline;
        low.store(deadline.as_nanos() as u32, Relaxed);
        high.store((deadline.as_nanos() >> 32) as u32, Relaxed);
    }
}

/// Frees a busy slot without a new generation: no id of this generation was returned.
struct FreeOnDrop<'a> {
    slot: &'a LeaseSlot,
    generation: u32,
}

impl Drop for FreeOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.state.store(self.generation | FREE, Release);
    }
}

impl Default for LeaseSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: fmt::Debug, const N: usize, M: AsRef<[LeaseSlot]>> fmt::Debug for LeasePool<L, N, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasePool")
            .field("limiter", &self.limiter)
            .field("slots", &self.slots.as_ref().len())
            .finish_non_exhaustive()
    }
}

/// The error of a claim in a [`LeasePool`].
///
/// ```
/// use portcullis_core::leases::ClaimError;
/// assert_eq!(
///     ClaimError::PoolFull { slots: 8 }.to_string(),
///     "all 8 slots of the pool hold leases"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ClaimError {
    /// All slots held a lease or were about to, each at the moment it was read. A slot that became
    /// free during the search may have been missed.
    PoolFull {
        /// The number of slots in the pool.
        slots: u32,
    },
    /// The limiter denied the permits.
    Denied(Denied),
}

impl From<Denied> for ClaimError {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoolFull { slots } => write!(f, "all {slots} slots of the pool hold leases"),
            Self::Denied(denied) => denied.fmt(f),
        }
    }
}

impl core::error::Error for ClaimError {}

/// The error of a [`LeaseId`] that names no lease of the pool: it was released or swept before. An
/// id of another pool may go undetected: see [`LeasePool`].
///
/// ```
/// assert_eq!(
///     portcullis_core::leases::StaleId.to_string(),
///     "the lease has already been released or swept"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[expect(clippy::exhaustive_structs, reason = "an error with one cause")]
pub struct StaleId;

impl fmt::Display for StaleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease has already been released or swept")
    }
}

impl core::error::Error for StaleId {}
