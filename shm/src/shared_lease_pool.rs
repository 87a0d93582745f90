//! A pool of leases that ids name, in a file that processes share.
//! [`pool_slots`](crate::pool_slots) describes the state, and [`member`](crate::member) how a dead
//! process is recognized.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use portcullis_core::leases::{ClaimError, LeaseId, StaleId};
use portcullis_core::{Clock, Denied, MonotonicClock, Timestamp};

use crate::deaths::Deaths;
use crate::error::OpenError;
use crate::header::FileKind;
use crate::mapping::MappedPool;
use crate::member;
use crate::pool_slots::{NEVER, Slot};
use crate::shared_file::{Contents, SharedFile};
use crate::slots::MEMBERS;

/// The most leases: a slot has 16 bits of an id.
const MOST: u32 = 65_536;
const SLOT_BITS: u32 = 16;
/// How often a process looks for dead processes at most, in milliseconds.
const LOOK_EVERY: u64 = 10;

impl SharedFile {
    /// Opens the pool in the file, or creates the file with an empty pool of `leases` leases, 1 to
    /// 65,536.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind.
    /// [`OpenError::Count`] if `leases` is 0 or too large. [`OpenError::Members`] if 1,024
    /// processes have it open. See [`OpenError`] for the others.
    ///
    /// # Cost
    ///
    /// The file takes 16 bytes per lease, and 4 KiB.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_core::leases::StaleId;
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-lease-pool")?;
    /// // In each process.
    /// let pool = file.lease_pool(2)?;
    /// let id = pool.claim(Some(Duration::from_secs(30)))?;
    /// // Any process can release it.
    /// assert_eq!(pool.release(id), Ok(()));
    /// assert_eq!(pool.release(id), Err(StaleId));
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn lease_pool(&self, leases: u32) -> Result<SharedLeasePool, OpenError> {
        if leases == 0 || leases > MOST {
            return Err(OpenError::Count {
                what: "leases",
                most: MOST as usize,
            });
        }
        let settings = format!("lease pool of {leases} leases");
        let contents = Contents {
            kind: FileKind::LeasePool,
            identity: settings.clone(),
            settings,
            first: Vec::new(),
            bytes: MappedPool::bytes(leases as usize),
        };
        let (mapping, _) = self.open(&contents)?;
        let joined = member::join(mapping.file(), MEMBERS);
        let member = joined
            .map_err(|error| self.failed("lock a part of it", error))?
            .ok_or_else(|| OpenError::Members {
                path: self.path().to_owned(),
                most: MEMBERS,
            })?;
        let slots = MappedPool::new(mapping, leases as usize);
        // What the process before of this number had.
        for slot in slots.slots() {
            let state = slot.state();
            if !state.is_free() && state.member() == member {
                slot.free(state);
            }
        }
        Ok(SharedLeasePool {
            slots,
            member,
            next: AtomicU64::new(member as u64 * 61 % u64::from(leases)),
            look_at: AtomicU64::new(0),
        })
    }
}

/// A pool of leases in a file: one pool for all processes that open it. A small id names each
/// lease, as in a [`LeasePool`](portcullis_core::LeasePool).
///
/// Created by [`SharedFile::lease_pool`]. An id is `Copy`, and has a number
/// ([`LeaseId::to_bits`]). So it can pass through a queue or a table, and another process can renew
/// or release the lease. If no id must be passed on, a
/// [`SharedConcurrency`](crate::SharedConcurrency) limit has guards, and waits.
///
/// **Bound.** At most as many leases as the pool has are held at once, by all processes together.
/// A lease that has ended is not held, although its holder may go on.
///
/// **End of a lease.** It ends when it is [released](Self::release), at its deadline, or when the
/// process that claimed or [adopted](Self::adopt) it is dead, however it died. A claim that finds
/// no free lease takes over one that has ended: at once after a deadline, and at most 10 ms after a
/// death.
///
/// **Ids** are stale after the lease has ended. An id names another lease only after its place was
/// claimed 2^32 times. A pool accepts the id of another pool if a lease of that place and number
/// exists in it.
///
/// **Cost.** A claim is two compare-exchanges, and up to one load per lease in a nearly full pool.
/// A renewal, a release and an adoption are one compare-exchange. A claim that finds the pool full
/// asks the kernel, every 10 ms, which holders are alive. No call waits.
///
/// **A process that forks** shares its leases with its child: they end when both are dead.
///
/// **A file that is truncated** while it is used: claims fail with [`Denied::Closed`].
pub struct SharedLeasePool {
    slots: MappedPool,
    member: usize,
    /// Where to look first.
    next: AtomicU64,
    /// When to look for dead processes next, in milliseconds.
    look_at: AtomicU64,
}

impl SharedLeasePool {
    /// Claims a lease, until it is released, until `time` has passed, or until this process is
    /// dead. The lease lasts for at least `time`, and less than a millisecond longer.
    ///
    /// # Errors
    ///
    /// [`ClaimError::PoolFull`] if all leases are held; [`ClaimError::Denied`] with
    /// [`Denied::Closed`] if the file was truncated.
    ///
    /// ```
    /// # use portcullis_core::leases::ClaimError;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-claim")?;
    /// let pool = file.lease_pool(1)?;
    /// let id = pool.claim(None)?;
    /// assert_eq!(pool.claim(None), Err(ClaimError::PoolFull { slots: 1 }));
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn claim(&self, time: Option<Duration>) -> Result<LeaseId, ClaimError> {
        let now = time_now();
        let claimed = self.find(now, time).or_else(|| {
            let is_due = in_millis(now) >= self.look_at.load(Relaxed);
            (is_due && self.recover_at(in_millis(now)) > 0).then(|| self.find(now, time))?
        });
        if self.is_lost() {
            return Err(Denied::Closed { permits: 1 }.into());
        }
        let slots = self.slots.slots().len() as u32;
        claimed.ok_or(ClaimError::PoolFull { slots })
    }

    fn find(&self, now: Timestamp, time: Option<Duration>) -> Option<LeaseId> {
        let slots = self.slots.slots();
        let (now, end) = (in_millis(now), end(now, time));
        let from = (self.next.load(Relaxed) as usize).min(slots.len());
        let (before, after) = slots.split_at(from);
        let mut indices = (from..).zip(after).chain((0..).zip(before));
        let (index, generation) = indices.find_map(|(index, slot)| {
            let generation = slot.claim(slot.state(), self.member, now, end)?;
            Some((index, generation))
        })?;
        self.next.store(index as u64 + 1, Relaxed);
        Some(id(index, generation))
    }

    /// Lets a lease last for `time` from now on, or without a deadline. Any process may, and one
    /// that dies in this call has renewed the lease or not.
    ///
    /// # Errors
    ///
    /// [`StaleId`] if the lease has ended, or if other calls renew it 16 times during this one.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-renew")?;
    /// let pool = file.lease_pool(1)?;
    /// let id = pool.claim(Some(Duration::from_secs(30)))?;
    /// assert!(pool.renew(id, Some(Duration::from_secs(30))).is_ok());
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn renew(&self, id: LeaseId, time: Option<Duration>) -> Result<(), StaleId> {
        let now = time_now();
        let (now, end) = (in_millis(now), end(now, time));
        let is_renewed = |slot: &Slot, generation| slot.renew(generation, now, end);
        self.slot(id, is_renewed)
    }

    /// Makes this process the holder of a lease: it ends when this process is dead, and not when
    /// the one is that had it.
    ///
    /// # Errors
    ///
    /// [`StaleId`] if the lease has ended, or if another call adopts it at this moment.
    ///
    /// ```
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-adopt")?;
    /// // In one process.
    /// let pool = file.lease_pool(1)?;
    /// let id = pool.claim(None)?;
    /// // In another one, to which the id was sent.
    /// let other = file.lease_pool(1)?;
    /// assert!(other.adopt(id).is_ok());
    /// # drop(pool);
    /// assert!(other.is_held(id));
    /// # drop(other);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn adopt(&self, id: LeaseId) -> Result<(), StaleId> {
        let now = in_millis(time_now());
        let is_adopted = |slot: &Slot, generation| slot.adopt(generation, now, self.member);
        self.slot(id, is_adopted)
    }

    /// Releases a lease. Any process may.
    ///
    /// # Errors
    ///
    /// [`StaleId`] if the lease was released before, or taken over after its end. A lease that is
    /// past its deadline, and that no other claim has taken over, is released.
    ///
    /// ```
    /// # use portcullis_core::leases::StaleId;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-release")?;
    /// let pool = file.lease_pool(1)?;
    /// let old = pool.claim(None)?;
    /// assert_eq!(pool.release(old), Ok(()));
    /// let new = pool.claim(None)?;
    /// assert_eq!(pool.release(old), Err(StaleId), "another lease has its place");
    /// assert_eq!(pool.release(new), Ok(()));
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn release(&self, id: LeaseId) -> Result<(), StaleId> {
        self.slot(id, Slot::release)
    }

    /// Returns whether a lease has not ended yet, as far as time and releases tell: the lease of a
    /// dead process is held until a claim or [`recover`](Self::recover) finds it.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-held")?;
    /// let pool = file.lease_pool(1)?;
    /// let id = pool.claim(Some(Duration::from_millis(1)))?;
    /// std::thread::sleep(Duration::from_millis(2));
    /// assert!(!pool.is_held(id));
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_held(&self, id: LeaseId) -> bool {
        let now = in_millis(time_now());
        let is_held = |slot: &Slot, generation| slot.holds(generation, now);
        self.slot(id, is_held).is_ok()
    }

    /// Returns the number of leases that are held, as [`is_held`](Self::is_held) says. Reads all of
    /// them.
    ///
    /// ```
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-leases")?;
    /// let pool = file.lease_pool(3)?;
    /// let _id = pool.claim(None)?;
    /// assert_eq!(pool.leases(), 1);
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn leases(&self) -> usize {
        let now = in_millis(time_now());
        let held = self.slots.slots().iter().filter(|slot| {
            let state = slot.state();
            !state.is_free() && !slot.is_past(state, now)
        });
        held.count()
    }

    /// Frees the leases of dead processes, and those past their deadline. Returns their number.
    /// Claims do this when they find no lease, so a program need not.
    ///
    /// # Cost
    ///
    /// Reads all leases, and makes one system call for each process that holds one, and one for
    /// each lease of a dead one.
    ///
    /// ```
    /// # use portcullis_shm::SharedFile;
    /// # let file = SharedFile::named("doc-pool-recover")?;
    /// let pool = file.lease_pool(3)?;
    /// let _id = pool.claim(None)?;
    /// assert_eq!(pool.recover(), 0, "this process lives");
    /// # drop(pool);
    /// # file.remove()?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn recover(&self) -> usize {
        self.recover_at(in_millis(time_now()))
    }

    fn recover_at(&self, now: u64) -> usize {
        self.look_at.store(now.saturating_add(LOOK_EVERY), Relaxed);
        let is_alive = |member| member::is_alive(self.slots.file(), member);
        let mut deaths = Deaths::new(self.member, is_alive);
        let freed = self.slots.slots().iter().filter(|slot| {
            let state = slot.state();
            let mut is_dead = || !state.is_free() && deaths.is_dead(state.member());
            slot.free_past(state, now) || is_dead() && slot.free(state)
        });
        freed.count()
    }

    /// Returns whether this process has found the file truncated.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-pool-lost")?;
    /// assert!(!file.lease_pool(3)?.is_lost());
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.slots.is_lost()
    }

    fn slot(&self, id: LeaseId, act: impl FnOnce(&Slot, u32) -> bool) -> Result<(), StaleId> {
        let bits = id.to_bits();
        let (index, generation) = (bits & u64::from(MOST - 1), bits >> SLOT_BITS);
        let slot = self.slots.slots().get(index as usize).ok_or(StaleId)?;
        let generation = u32::try_from(generation).map_err(|_| StaleId)?;
        let is_done = act(slot, generation) && !self.is_lost();
        is_done.then_some(()).ok_or(StaleId)
    }
}

fn id(index: usize, generation: u32) -> LeaseId {
    LeaseId::from_bits(u64::from(generation) << SLOT_BITS | index as u64)
}

fn time_now() -> Timestamp {
    MonotonicClock::new().now()
}

/// The time in milliseconds, rounded down.
const fn in_millis(now: Timestamp) -> u64 {
    now.as_nanos() / 1_000_000
}

/// The end of a lease that lasts for a time, in milliseconds, rounded up.
fn end(now: Timestamp, time: Option<Duration>) -> u64 {
    time.map_or(NEVER, |time| {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let nanos = now.as_nanos().saturating_add(nanos);
        nanos.div_ceil(1_000_000).min(NEVER - 1)
    })
}

impl fmt::Debug for SharedLeasePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLeasePool")
            .field("slots", &self.slots.slots().len())
            .finish_non_exhaustive()
    }
}
