//! A concurrency limit whose permits lie in a file that processes share. [`slots`](crate::slots)
//! describes the state, and [`member`](crate::member) how a dead process is recognized.

use core::fmt;
use core::mem;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::time::Instant;

use portcullis_core::builder::Setting;
use portcullis_core::limiter::{
    Answer, Ask, Back, Hints, Idle, LimiterId, Read, Reading, Receipt, Returned,
};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Denied, Limiter, MonotonicClock, Retry, SettingsError, Timestamp};

use crate::deaths::Deaths;
use crate::error::OpenError;
use crate::futex;
use crate::granted_slots::GrantedSlots;
use crate::header::FileKind;
use crate::mapping::MappedSlots;
use crate::member::{self, ChangeLock};
use crate::process::Process;
use crate::shared_file::{Contents, Patience, SharedFile};
use crate::slots::{self, Held, Limits, MEMBERS, NEVER};

/// The largest limit: the file has as many slots, so that the limit can change.
const MOST: u32 = 65_536;
/// How often a request starts again because the limit changed during it.
const ATTEMPTS: usize = 8;
/// How often a process looks for dead processes at most, in milliseconds.
const LOOK_EVERY: u64 = 10;
/// For how long a waiter sleeps at most. A process that dies before it wakes others delays them by
/// as much. A queue is not woken by other processes: it asks again after this time.
const SLEEP: Duration = Duration::from_millis(10);

impl SharedFile {
    /// Opens the concurrency limit in the file, or creates the file with it: at most `limit`
    /// permits are in use at once, 1 to 65,536.
    ///
    /// A permit is in use until its [`SharedLease`] is dropped, or until its process is dead. With
    /// a `time`, a permit also ends that long after it was taken or [renewed](SharedLease::renew),
    /// rounded up to milliseconds: then a process that hangs does not keep it.
    ///
    /// **Changes.** If the file has another limit or time, and this process is
    /// [`changing`](Self::changing) them, they become those of this call for all processes. Permits
    /// that are in use stay in use, until the deadlines that they have. If they are more than the
    /// new limit, requests are denied until fewer are in use. A process that dies in the middle of
    /// a change has changed nothing.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind.
    /// [`OpenError::Settings`] if the limit is 0 or too large. [`OpenError::Members`] if 1,024
    /// processes have it open. See [`OpenError`] for the others.
    ///
    /// # Cost
    ///
    /// The file takes 8 bytes for each permit of the largest limit, 516 KiB. Requests read no more
    /// of it than the limit. The process takes 8 KiB of its own.
    ///
    /// ```
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-concurrency")?;
    /// // In each process.
    /// let uploads = file.concurrency(2, None)?;
    /// let one = uploads.try_acquire(1);
    /// let other = uploads.try_acquire(1);
    /// assert!(one.is_ok() && other.is_ok() && uploads.try_acquire(1).is_err());
    ///
    /// // In one of them, later.
    /// let changed = file.clone().changing().concurrency(3, None)?;
    /// assert!(uploads.try_acquire(1).is_ok());
    /// # drop((one, other));
    /// # drop((uploads, changed));
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn concurrency(
        &self,
        limit: u32,
        time: Option<Duration>,
    ) -> Result<SharedConcurrency, OpenError> {
        let setting = Setting::Limit;
        if limit == 0 {
            return Err(SettingsError::Zero { setting }.into());
        }
        if limit > MOST {
            let max = MOST.into();
            return Err(SettingsError::TooLarge { setting, max }.into());
        }
        // At least a millisecond, and no more than a deadline can tell. 0: no time.
        let millis = time.map_or(0, |time| {
            time.as_nanos()
                .div_ceil(1_000_000)
                .clamp(1, MOST_MILLIS.into()) as u64
        });
        let wanted = (limit.into(), millis);
        let contents = Contents {
            kind: FileKind::Concurrency,
            identity: String::new(),
            settings: described(wanted),
            // The gate and the number of processes come before.
            first: [0]
                .into_iter()
                .chain(Limits::first(wanted.0, millis))
                .collect(),
            bytes: MappedSlots::bytes(MOST as usize),
        };
        let (mapping, _) = self.open(&contents)?;
        let slots = MappedSlots::new(mapping, MOST as usize);
        self.agree(&slots, wanted)?;
        let joined = member::join(slots.file(), MEMBERS);
        let member = joined
            .map_err(|error| self.failed("lock a part of it", error))?
            .ok_or_else(|| OpenError::Members {
                path: self.path().to_owned(),
                most: MEMBERS,
            })?;
        let generation = slots.generation().fetch_add(1, Relaxed);
        let opened = SharedConcurrency {
            slots,
            member,
            generation,
            // Members look at different places first.
            next: AtomicU64::new(member as u64 * 61 % u64::from(limit)),
            look_at: AtomicU64::new(0),
            process: Process::this(),
            granted: GrantedSlots::new(MOST as usize),
        };
        // What the member before of this number had.
        slots::free(opened.slots.slots(), |held| held.member() == member);
        Ok(opened)
    }

    /// Checks that the file has the settings that this process wants, or changes them.
    fn agree(&self, slots: &MappedSlots, wanted: (u64, u64)) -> Result<(), OpenError> {
        let mut patience = Patience::new();
        let limits = slots.limits();
        loop {
            let limit = limits.get();
            let found = (limit.permits(), limits.millis(limit));
            if limits.get() != limit {
                continue;
            }
            if found == wanted {
                return Ok(());
            }
            if !(1..=MOST.into()).contains(&found.0) || found.1 > MOST_MILLIS {
                return Err(OpenError::Damaged {
                    path: self.path().to_owned(),
                    what: "its limit is one that no process can set",
                });
            }
            if !self.changing {
                return Err(OpenError::OtherSettings {
                    path: self.path().to_owned(),
                    found: described(found),
                    wanted: described(wanted),
                });
            }
            let lock = ChangeLock::take(slots.own_file());
            if let Some(_lock) = lock.map_err(|error| self.failed("lock a part of it", error))? {
                limits.change(wanted.0, wanted.1);
                if slots::open(slots.gate()) {
                    futex::wake(slots.gate());
                }
                return Ok(());
            }
            patience.wait(self)?;
        }
    }
}

/// The longest time of a permit, in milliseconds.
const MOST_MILLIS: u64 = 1 << 41;

/// A limit, and the time of its permits in milliseconds, as text.
fn described((limit, millis): (u64, u64)) -> String {
    let ends = match millis {
        0 => "end with their process".to_owned(),
        _ => format!("end after {:?}", Duration::from_millis(millis)),
    };
    format!("concurrency, limit {limit}, permits {ends}")
}

/// The text of the settings in the words of a file.
pub(crate) fn described_in(words: &[u64]) -> Option<String> {
    slots::settings_in(words.get(1..)?).map(described)
}

/// A concurrency limit in a file: one limit for all processes that open it.
///
/// Created by [`SharedFile::concurrency`].
///
/// **Bound.** At most `limit` permits are in use at once, by all processes together. A permit that
/// has ended by its time, but whose holder goes on, is not in use: see [`SharedLease::is_held`].
///
/// **A process that dies**, at any instruction and in any way, holds no permit any more. Another
/// process takes its permits over when it finds no others, at most 10 ms later.
///
/// **A process that forks** and its child hold permits together: those of both end when both are
/// dead, or by their time. A child that opens the limit itself has its own. A lease that exists at
/// the fork stays with the parent: its copy in the child holds and releases nothing.
///
/// **Denials.** A request may be denied although there are permits, if other requests are under
/// way: it has looked at each permit once. A request for several permits takes them one after
/// another, so two such requests may deny each other.
///
/// **Waiting** is in no order, and takes no turn. If the tasks of a process must be served in
/// order, give the limit to a queue of `portcullis-async` in each process: it is a [`Limiter`],
/// alone or in an [`AllOf`](portcullis_core::AllOf) with others. A queue learns at once of a
/// release by its own process. For those of others it asks again every 10 ms, so while permits are
/// short, a process that uses many keeps many.
///
/// **As a `Limiter`** it grants permits that end when they are released, or when the process is
/// dead. If the file sets a time for permits, these have none: a lease of a limiter cannot be
/// renewed. Only the process that opened the limit takes and releases permits in this way. In a
/// process that it has forked since, every request is denied with [`Denied::Closed`], and a lease
/// that existed at the fork releases nothing: let that process open the limit itself.
///
/// **The limit** may [change](SharedFile::changing) while processes use it.
///
/// **Cost.** A grant and a release write one word each, and read it from the position of the last
/// one on. With a time, a grant reads the clock. A request for several permits, and a denial, read
/// all slots, 8 bytes per permit. So do grants after the limit was lowered, as long as permits
/// beyond it are in use. A denial asks the kernel every 10 ms which holders are alive.
///
/// **A file that is truncated** while it is used: the limit is lost for this process, and denies
/// all requests with [`Denied::Closed`].
pub struct SharedConcurrency {
    slots: MappedSlots,
    member: usize,
    generation: u32,
    /// Where to look first.
    next: AtomicU64,
    /// When to look for dead processes next, in milliseconds.
    look_at: AtomicU64,
    /// The process that opened the limit.
    process: Process,
    /// What that process was granted by [`Limiter::decide`].
    granted: GrantedSlots,
}

impl SharedConcurrency {
    /// Takes `n` permits, and holds them until the lease is dropped. With `n = 0` it takes nothing,
    /// and is granted or denied as a request for 1 permit would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if there are fewer than `n` permits, [`Denied::ExceedsCapacity`] if
    /// `n` is more than the limit, or [`Denied::Closed`] if the file was truncated.
    ///
    /// # Memory ordering
    ///
    /// Acquire on success: the caller sees what former holders wrote to memory that they share.
    ///
    /// ```
    /// # use portcullis_core::Denied;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-try")?;
    /// let uploads = file.concurrency(3, None)?;
    /// let lease = uploads.try_acquire(2).unwrap();
    /// assert!(matches!(uploads.try_acquire(2), Err(Denied::Exhausted { .. })));
    /// drop(lease);
    /// assert!(uploads.try_acquire(3).is_ok());
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn try_acquire(&self, n: u32) -> Result<SharedLease<'_>, Denied> {
        self.request(n, |millis, now| SharedLease {
            limit: self,
            process: Process::this(),
            held: Held::new(self.member, self.generation, deadline(now, millis)),
            first: None,
            others: Vec::new(),
        })
    }

    /// Takes `n` permits for a holder, which `holder` makes from the time of permits and the time
    /// now, both in milliseconds.
    fn request<H: Holder>(&self, n: u32, holder: impl Fn(u64, u64) -> H) -> Result<H, Denied> {
        let capacity = self.limit();
        if n > capacity && !self.is_lost() {
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity,
            });
        }
        // Without deadlines, only a denial needs the time.
        let taken = self.take(n, None, &holder).or_else(|| {
            let now = self.recover_if_due()?;
            self.take(n, Some(now), &holder)
        });
        if self.is_lost() {
            // The drop gives back what was taken from pages that are not the file's.
            return Err(Denied::Closed { permits: n });
        }
        taken.ok_or_else(|| Denied::Exhausted {
            now: MonotonicClock::new().now(),
            permits: n,
        })
    }

    /// Takes `n` permits, and waits for them for at most `time`.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), at the end of the time. [`Denied::ExceedsCapacity`]
    /// and [`Denied::Closed`] at once.
    ///
    /// # Fairness
    ///
    /// None: a permit goes to the process that takes it first. A request for several permits needs
    /// them at one moment.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-wait")?;
    /// let uploads = file.concurrency(1, None)?;
    /// std::thread::scope(|scope| {
    ///     let lease = uploads.try_acquire(1).unwrap();
    ///     let waiter = scope.spawn(|| uploads.acquire_timeout(1, Duration::from_secs(9)).is_ok());
    ///     drop(lease);
    ///     assert!(waiter.join().unwrap());
    /// });
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn acquire_timeout(&self, n: u32, time: Duration) -> Result<SharedLease<'_>, Denied> {
        let begun = Instant::now();
        let mut outcome = self.try_acquire(n);
        loop {
            let left = time.saturating_sub(begun.elapsed());
            if !matches!(outcome, Err(Denied::Exhausted { .. })) || left.is_zero() {
                return outcome;
            }
            let gate = self.slots.gate();
            let seen = slots::watch(gate);
            outcome = self.try_acquire(n);
            if matches!(outcome, Err(Denied::Exhausted { .. })) {
                futex::sleep(gate, seen, left.min(SLEEP));
            }
        }
    }

    /// Returns the limit in force.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-limit")?;
    /// assert_eq!(file.concurrency(3, None)?.limit(), 3);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn limit(&self) -> u32 {
        self.slots.limits().get().permits() as u32
    }

    /// Returns the permits in use. Those of a process that is dead count until they are
    /// [recovered](Self::recover).
    ///
    /// # Cost
    ///
    /// Reads all slots.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-in-use")?;
    /// let uploads = file.concurrency(3, None)?;
    /// let _lease = uploads.try_acquire(2).unwrap();
    /// assert_eq!(uploads.in_use(), 2);
    /// # drop(_lease);
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn in_use(&self) -> u32 {
        let now = millis_now();
        slots::count(self.reached(), |held| held.has_ended(now)) as u32
    }

    /// Frees the permits of processes that are dead, and those that have ended by their time.
    /// Returns their number. Requests do this when they find no permit, so a program need not.
    ///
    /// # Cost
    ///
    /// Reads all slots, and makes one system call for each process that holds permits, and one for
    /// each permit of a dead one.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-recover")?;
    /// let uploads = file.concurrency(3, None)?;
    /// let _lease = uploads.try_acquire(2).unwrap();
    /// assert_eq!(uploads.recover(), 0, "this process lives");
    /// # drop(_lease);
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn recover(&self) -> u32 {
        self.recover_at(millis_now())
    }

    /// Recovers permits, unless that was tried lately. Returns the time if it has freed some.
    fn recover_if_due(&self) -> Option<u64> {
        let now = millis_now();
        let is_due = now >= self.look_at.load(Relaxed);
        (is_due && self.recover_at(now) > 0).then_some(now)
    }

    fn recover_at(&self, now: u64) -> u32 {
        self.look_at.store(now + LOOK_EVERY, Relaxed);
        let is_alive = |member| member::is_alive(self.slots.file(), member);
        let mut deaths = Deaths::new(self.member, is_alive);
        let freed = slots::free(self.reached(), |held| {
            held.has_ended(now) || deaths.is_dead(held.member())
        });
        if freed > 0 {
            self.wake();
        }
        freed as u32
    }

    /// Returns whether this process has found the file truncated. All requests are denied then.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-concurrency-lost")?;
    /// assert!(!file.concurrency(3, None)?.is_lost());
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.slots.is_lost()
    }

    /// The slots that may be held.
    fn reached(&self) -> &[AtomicU64] {
        let slots = self.slots.slots();
        let reach = self.slots.limits().get().reach();
        slots.get(..reach).unwrap_or(slots)
    }

    /// The free permits, as a request for `n` would find them.
    fn free_for(&self, n: u32) -> u32 {
        let free = || self.limit().saturating_sub(self.in_use());
        let found = free();
        if found < n.max(1) && self.recover_if_due().is_some() {
            return free();
        }
        found
    }

    /// Whether this process opened the limit: not one that it has forked since.
    fn is_of_this_process(&self) -> bool {
        self.process.is_this()
    }

    /// Gives back `n` of the permits that were granted by [`Limiter::decide`].
    fn put_back(&self, n: u32) {
        if !self.is_of_this_process() {
            return;
        }
        let reserved = self.granted.reserve(n.into());
        debug_assert_eq!(
            reserved,
            u64::from(n),
            "permits were released that had not been taken"
        );
        for _ in 0..reserved {
            let at = self.granted.pick(self.next.load(Relaxed) as usize);
            self.give_back_slot(at, self.endless());
        }
        self.wake();
    }

    /// The word of a permit that ends with this process alone.
    fn endless(&self) -> Held {
        Held::new(self.member, self.generation, NEVER)
    }

    fn give_back_slot(&self, at: usize, held: Held) {
        if slots::give_back(self.slots.slots(), at, held) {
            self.next.store(at as u64, Relaxed);
        }
    }

    /// Wakes those that wait. Call it after giving back.
    fn wake(&self) {
        if slots::open(self.slots.gate()) {
            futex::wake(self.slots.gate());
        }
    }

    /// Takes `n` slots, or none. `now` is in milliseconds. Without it, only the slots of permits
    /// that have a deadline under the present settings are taken over.
    fn take<H: Holder>(
        &self,
        n: u32,
        now: Option<u64>,
        holder: impl Fn(u64, u64) -> H,
    ) -> Option<H> {
        let (slots, limits) = (self.slots.slots(), self.slots.limits());
        for _ in 0..ATTEMPTS {
            let limit = limits.get();
            let permits = limit.permits() as usize;
            let millis = limits.millis(limit);
            let now = now.unwrap_or_else(|| if millis == 0 { 0 } else { millis_now() });
            let is_over = |held: Held| held.has_ended(now);
            let mut holder = holder(millis, now);
            // Not one after another, if there are too few: that would wake those that wait.
            if n != 1 || limit.reach() > permits {
                let reached = slots.get(..limit.reach()).unwrap_or(slots);
                let in_use = slots::count(reached, is_over);
                if in_use.saturating_add(n.max(1) as usize) > permits {
                    return None;
                }
            }
            if n == 0 {
                return Some(holder);
            }
            let within = slots.get(..permits).unwrap_or(slots);
            for _ in 0..n {
                let from = self.next.load(Relaxed) as usize;
                // If there are too few, the drop of the holder gives back what it has.
                let at = slots::take(within, from, holder.held(), is_over)?;
                self.next.store(at as u64 + 1, Relaxed);
                holder.add(at);
            }
            if limits.has_granted(slots, limit, is_over) {
                return Some(holder);
            }
            drop(holder);
            if limits.get() == limit {
                return None;
            }
        }
        None
    }
}

/// Who holds the slots that a request takes. When dropped, it gives them back.
trait Holder {
    /// The word of each slot.
    fn held(&self) -> Held;

    /// Holds a slot that was taken.
    fn add(&mut self, at: usize);
}

/// Permits that a request takes as of a [`Limiter`], until it is granted.
struct Grant<'l> {
    limit: &'l SharedConcurrency,
    permits: u32,
}

impl Holder for Grant<'_> {
    fn held(&self) -> Held {
        self.limit.endless()
    }

    fn add(&mut self, at: usize) {
        self.limit.granted.add(at);
        self.permits += 1;
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.limit.put_back(self.permits);
        }
    }
}

impl Limiter for SharedConcurrency {
    /// A look, too, takes back the permits of processes that are dead, if it finds too few.
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if !self.is_of_this_process() || self.is_lost() {
            return Answer::Denied(Denied::Closed { permits });
        }
        if ask.is_look() {
            return ask.looked(self.free_for(permits).into(), || self.limit().into());
        }
        let grant = |_, _| Grant {
            limit: self,
            permits: 0,
        };
        match self.request(permits, grant) {
            Ok(grant) => {
                mem::forget(grant);
                ask.granted(Receipt::NONE)
            }
            Err(Denied::Exhausted { .. }) => Answer::Denied(Denied::Exhausted { now, permits }),
            Err(denied) => Answer::Denied(denied),
        }
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                self.put_back(permits);
                Returned::NOTHING
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.put_back(permits);
                receipt.refunded(permits).into()
            }
            _ => Returned::NOTHING,
        }
    }

    /// Those of all processes, except for the permits held: those that this one was granted as a
    /// `Limiter`.
    fn read(&self, _: Read<'_>) -> Reading {
        let in_use = self.in_use();
        Reading {
            available: self.limit().saturating_sub(in_use).into(),
            capacity: self.limit().into(),
            idle: if in_use == 0 { Idle::Now } else { Idle::InUse },
            held: if self.is_of_this_process() {
                self.granted.held()
            } else {
                0
            },
        }
    }

    /// Another process may release a permit, or die, at any time.
    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::After(SLEEP),
            _ => Retry::Never,
        }
    }

    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl QueueLimiter for SharedConcurrency {
    /// Other processes take from it, besides the queue.
    const SHARED: bool = true;
}

impl fmt::Debug for SharedConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConcurrency")
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

/// The time in milliseconds, rounded down.
fn millis_now() -> u64 {
    in_millis(MonotonicClock::new().now())
}

/// The deadline of a permit that lasts for a time, both in milliseconds; 0: for ever.
fn deadline(now: u64, millis: u64) -> u64 {
    match millis {
        0 => NEVER,
        _ => now.saturating_add(millis).min(NEVER - 1),
    }
}

const fn in_millis(now: Timestamp) -> u64 {
    now.as_nanos() / 1_000_000
}

/// Permits of a [`SharedConcurrency`] limit, which are released when the lease is dropped.
///
/// A lease allocates if it has more than one permit.
#[must_use = "dropping a lease releases its permits"]
pub struct SharedLease<'l> {
    limit: &'l SharedConcurrency,
    /// The process that took the permits.
    process: Process,
    held: Held,
    first: Option<usize>,
    others: Vec<usize>,
}

/// The error of [`SharedLease::renew`]: at least one of the permits had ended, and may belong to
/// another holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an error with one cause")]
pub struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a permit of the lease has ended: renew a lease before its time is over")
    }
}

impl core::error::Error for Ended {}

impl SharedLease<'_> {
    /// Returns the number of permits. 0 after [`renew`](Self::renew) has failed.
    ///
    /// ```
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-lease-permits")?;
    /// let uploads = file.concurrency(3, None)?;
    /// assert_eq!(uploads.try_acquire(2).unwrap().permits(), 2);
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.all().count() as u32
    }

    /// Returns whether the permits have not ended yet. A permit without a time does not end before
    /// the lease.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-lease-held")?;
    /// let uploads = file.concurrency(1, Some(Duration::from_millis(1)))?;
    /// let lease = uploads.try_acquire(1).unwrap();
    /// std::thread::sleep(Duration::from_millis(3));
    /// assert!(!lease.is_held());
    /// assert!(uploads.try_acquire(1).is_ok());
    /// # drop(lease);
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        let slots = self.limit.slots.slots();
        let mut all = self.all();
        self.is_mine()
            && !self.held.has_ended(millis_now())
            && all.all(|at| slots::holds(slots, at, self.held))
    }

    /// Lets the time of the permits start again.
    ///
    /// # Errors
    ///
    /// [`Ended`] if a permit has ended, or in a process that was forked since the permits were
    /// taken. The lease then has none any more, and releases those that had not ended.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-lease-renew")?;
    /// let uploads = file.concurrency(1, Some(Duration::from_secs(60)))?;
    /// let mut lease = uploads.try_acquire(1).unwrap();
    /// assert!(lease.renew().is_ok());
    /// # drop(lease);
    /// # drop(uploads);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn renew(&mut self) -> Result<(), Ended> {
        let limits = self.limit.slots.limits();
        let millis = limits.millis(limits.get());
        let (now, before) = (millis_now(), self.held);
        let renewed = before.until(deadline(now, millis));
        let slots = self.limit.slots.slots();
        // Not a permit that has ended, even if no request has taken it yet.
        let permits = if before.has_ended(now) || !self.is_mine() {
            0
        } else {
            self.all().count()
        };
        let is_renewed = |&at: &usize| slots::renew(slots, at, before, renewed);
        let count = self.all().take(permits).take_while(is_renewed).count();
        if count == permits && !before.has_ended(now) && self.is_mine() {
            self.held = renewed;
            return Ok(());
        }
        // Only those that this call renewed: a new holder may have the same word elsewhere.
        for at in self.all().take(count) {
            slots::give_back(slots, at, renewed);
        }
        self.release();
        Err(Ended)
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.first.into_iter().chain(self.others.iter().copied())
    }

    /// Whether this process took the permits: not one that it has forked since, which has a copy of
    /// the lease.
    fn is_mine(&self) -> bool {
        self.process.is_this()
    }

    fn release(&mut self) {
        if !self.is_mine() {
            self.first = None;
            self.others.clear();
        }
        for at in self.all() {
            self.limit.give_back_slot(at, self.held);
        }
        if self.first.is_some() {
            self.limit.wake();
        }
        self.first = None;
        self.others.clear();
    }
}

impl Holder for SharedLease<'_> {
    fn held(&self) -> Held {
        self.held
    }

    fn add(&mut self, at: usize) {
        match self.first {
            None => self.first = Some(at),
            Some(_) => self.others.push(at),
        }
    }
}

impl Drop for SharedLease<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for SharedLease<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLease")
            .field("permits", &self.permits())
            .finish_non_exhaustive()
    }
}
