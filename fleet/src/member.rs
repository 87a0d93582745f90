//! The driver of a member: the [`Protocol`] with a store, a timer and a limiter.
//!
//! ```text
//!  Member (handles) -- orders --> Driver -- exchange --> LeaseStore
//!     ^  ^                          |
//!     |  +------ status -----------+|
//!     +-- limiter <--- share -------+
//! ```
//!
//! The driver is one future. It waits for an order, for the answer of the store or for a time,
//! tells the protocol what has happened, and does what the protocol says, in this order: the
//! limiter follows the share, then the request is sent. So a partition is released only after the
//! limiter has stopped to use it.

use core::fmt;
use core::future::{Future, poll_fn};
use core::hash::BuildHasher;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::hash_map::RandomState;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Instant;

use event_listener::{Event as Signal, EventListener, Listener};
use portcullis_async::{ThreadTimer, Timer};
use portcullis_core::{SettingsError, Timestamp};

use crate::pool::Pool;
use crate::protocol::{Actions, MemberReport, MemberShare, Protocol, ProtocolEvent};
use crate::share_limiter::{Fallback, ShareLimiter};
use crate::store::{ExchangeAnswer, LeaseError, LeaseStore, MemberId, PartitionLease};

/// A member of a fleet: the handle through which a process says what it needs, and learns what it
/// has.
///
/// [`Member::builder`] returns a member with its [`Driver`]. The driver must run, in a task or in a
/// thread. Clones are handles of the same member. When the last one is dropped, the member leaves
/// the fleet: the driver releases its leases and ends.
///
/// # Guarantees
///
/// - The [limiter](Self::limiter) admits no more than the leases that the member holds, what is
///   reserved, and what a [`Fallback`] allows.
/// - A partition is used only as long as the store has leased it to this member, whatever happens
///   to the driver, the store or the network: see [`Protocol`] and [`ShareLimiter`]. A thread that
///   is stopped in a decision may send that one request later.
/// - Time is that of a monotonic clock. On Linux, it stands still while the whole machine is
///   suspended, or a virtual machine is stopped. After that, leases that have ended in the store
///   may be used for the rest of their time.
///
/// ```
/// use core::time::Duration;
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{MonotonicClock, Rate};
/// use portcullis_fleet::{Member, MemoryLeases, Pool};
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
/// let store = MemoryLeases::new(MonotonicClock::new());
/// let (member, driver) = Member::builder(pool, store).build()?;
/// let driver = std::thread::spawn(|| driver.blocking_run());
///
/// // This process needs 100 requests a second.
/// member.want_rate(100);
/// let mut status = member.status();
/// while status.share.partitions < 4 {
///     status = member
///         .blocking_changed(status.generation, Duration::from_secs(10))
///         .expect("the store is in this process");
/// }
///
/// // Requests wait for the permits of the share.
/// let queue = Queue::new(member.limiter(), ThreadTimer::new(), 1_000).shared();
/// futures_executor::block_on(queue.acquire(1))?;
///
/// // The last handle: the leases are released.
/// drop(member);
/// driver.join().unwrap();
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Member {
    guard: Arc<Guard>,
}

/// Makes the member leave when the last handle is dropped.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.order(|orders| orders.leave = true);
    }
}

struct Shared {
    id: MemberId,
    limiter: Arc<ShareLimiter>,
    orders: Mutex<Orders>,
    /// There are new orders.
    ordered: Signal,
    known: Mutex<Known>,
    /// There is a new status.
    changed: Signal,
}

/// What the handles have ordered, and the driver has not done yet.
#[derive(Default)]
struct Orders {
    demand: Option<u32>,
    pool: Option<Pool>,
    leave: bool,
}

/// What the driver tells the handles.
struct Known {
    status: MemberStatus,
    leases: Vec<PartitionLease>,
    pool: Pool,
}

/// What a member has.
///
/// ```
/// # use portcullis_core::{MonotonicClock, Rate};
/// # use portcullis_fleet::{Member, MemberShare, MemoryLeases, Pool, Standing};
/// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
/// # let store = MemoryLeases::new(MonotonicClock::new());
/// let (member, _driver) = Member::builder(pool, store).build()?;
/// let status = member.status();
/// assert_eq!((status.share, status.standing), (MemberShare::NONE, Standing::Connected));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// How often the status has changed, which includes each renewal of the leases.
    pub generation: u64,
    /// The leases that the limiter may use.
    pub share: MemberShare,
    /// How the member stands with the store.
    pub standing: Standing,
}

/// How a member stands with the store.
///
/// ```
/// # use portcullis_fleet::Standing;
/// assert_ne!(Standing::Unreachable, Standing::Alone);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The store answered the last time.
    Connected,
    /// The store does not answer. The member uses the leases that it has.
    Unreachable,
    /// The store does not answer, and the last lease has ended. The [`Fallback`] is in force.
    Alone,
    /// The driver has ended. The member holds no leases any more.
    Left,
}

/// What happens to a member, for an observer: see [`MemberBuilder::observer`].
///
/// ```
/// # use portcullis_fleet::{MemberReport, Notice};
/// let notice = Notice::Report(MemberReport::Unreachable);
/// assert_eq!(format!("{notice:?}"), "Report(Unreachable)");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The limiter follows this share from now on.
    Share(MemberShare),
    /// What the protocol reports.
    Report(MemberReport),
    /// An exchange with the store failed.
    Failed(&'a LeaseError),
    /// The limiter follows this fallback from now on.
    FallsBack(Fallback),
    /// The driver ends.
    Left,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is complete at any point.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut locked(&self.orders));
        self.ordered.notify(usize::MAX);
    }

    fn tell(&self, tell: impl FnOnce(&mut Known)) {
        let mut known = locked(&self.known);
        let before = known.status;
        tell(&mut known);
        if known.status != before {
            known.status.generation += 1;
            drop(known);
            self.changed.notify(usize::MAX);
        }
    }
}

impl Member {
    /// Returns a builder for a member of `pool`, whose leases are in `store`.
    ///
    /// ```
    /// use portcullis_core::{MonotonicClock, Rate};
    /// use portcullis_fleet::{Fallback, Member, MemoryLeases, Pool};
    ///
    /// let pool = Pool::builder("writes", Rate::per_second(500)).reserved(5).build().unwrap();
    /// let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).fallback(Fallback::Block).build()?;
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn builder(pool: Pool, store: impl LeaseStore + 'static) -> MemberBuilder {
        MemberBuilder {
            pool,
            store: Arc::new(store),
            id: None,
            fallback: Fallback::default(),
            observer: None,
        }
    }

    /// Says that the member wants so many partitions in all, from now on. At first it wants none.
    ///
    /// # Cost
    ///
    /// A lock, and a wake-up of the driver.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool, store).build()?;
    /// member.want(4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn want(&self, partitions: u32) {
        let shared = &self.guard.0;
        shared.order(|orders| orders.demand = Some(partitions));
    }

    /// Says that the member wants `target` permits in each period of the pool's rate, what is
    /// reserved included: see [`Pool::wanted`].
    ///
    /// # Cost
    ///
    /// Two locks, and a wake-up of the driver.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool, store).build()?;
    /// member.want_rate(100);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn want_rate(&self, target: u64) {
        let wanted = locked(&self.guard.0.known).pool.wanted(target);
        self.want(wanted);
    }

    /// Changes the settings of the pool. Its name stays, whatever that of `pool` is.
    ///
    /// Change all members. Until then, those with other settings use other rates. If the number of
    /// partitions changes, say again what this member [wants](Self::want).
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the limiter cannot have the settings. Then nothing changes.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool.clone(), store).build()?;
    /// member.change(pool.to_builder().shared(Rate::per_second(1_000)).build().unwrap())?;
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn change(&self, pool: Pool) -> Result<(), SettingsError> {
        let shared = &self.guard.0;
        shared.limiter.check(&pool, Timestamp::ZERO)?;
        // Of two calls at once, both have the pool of the same one.
        let mut known = locked(&shared.known);
        known.pool = pool.named(known.pool.name());
        shared.order(|orders| orders.pool = Some(known.pool.clone()));
        Ok(())
    }

    /// Returns the limiter that follows the share of this member.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool, store).build()?;
    /// let now = MonotonicClock::new().now();
    /// assert!(member.limiter().try_acquire_at(now, 1).is_err(), "it has no leases");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn limiter(&self) -> Arc<ShareLimiter> {
        Arc::clone(&self.guard.0.limiter)
    }

    /// Returns the name of this member in the store.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemberId, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, _driver) = Member::builder(pool, store).id(MemberId(7)).build()?;
    /// assert_eq!(member.id(), MemberId(7));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn id(&self) -> MemberId {
        self.guard.0.id
    }

    /// Returns what the member has.
    ///
    /// A share ends at its [`until`](MemberShare::until), also if the status has not changed yet.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool, store).build()?;
    /// assert_eq!(member.status().share.partitions, 0);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn status(&self) -> MemberStatus {
        locked(&self.guard.0.known).status
    }

    /// Returns the leases of the share, with their fences, for a service that checks them.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// # let (member, _driver) = Member::builder(pool, store).build()?;
    /// assert_eq!(member.leases(), []);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn leases(&self) -> Vec<PartitionLease> {
        locked(&self.guard.0.known).leases.clone()
    }

    /// Waits until the generation of the status is later than `after`, and returns the status. Pass
    /// the generation of the last status that was seen, so that no change is missed. A task that
    /// waits sees the newest status, not each one.
    ///
    /// **Cancellation.** Nothing is lost if the future is dropped.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).build()?;
    /// let driver = std::thread::spawn(|| driver.blocking_run());
    /// member.want(3);
    /// let status = futures_executor::block_on(member.changed(0));
    /// assert_eq!(status.share.partitions, 3);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub async fn changed(&self, after: u64) -> MemberStatus {
        loop {
            let listener = self.guard.0.changed.listen();
            // A change after this is heard.
            let status = self.status();
            if status.generation > after {
                return status;
            }
            listener.await;
        }
    }

    /// Blocks until the generation of the status is later than `after`, and returns the status, or
    /// `None` after `timeout`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, _driver) = Member::builder(pool, store).build()?;
    /// assert_eq!(member.blocking_changed(0, Duration::from_millis(1)), None);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    #[must_use]
    pub fn blocking_changed(&self, after: u64, timeout: Duration) -> Option<MemberStatus> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let listener = self.guard.0.changed.listen();
            let status = self.status();
            if status.generation > after {
                return Some(status);
            }
            match until {
                Some(until) => {
                    listener.wait_deadline(until)?;
                }
                None => listener.wait(),
            }
        }
    }

    /// Leaves the fleet: stops to use the leases, and releases them. The limiter has only what is
    /// reserved from then on. [`Standing::Left`] tells that the driver has ended.
    ///
    /// If the store does not answer, the driver ends after one lease time, when the leases have
    /// ended by themselves.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool, Standing};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).build()?;
    /// member.leave();
    /// driver.blocking_run();
    /// assert_eq!(member.status().standing, Standing::Left);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn leave(&self) {
        self.guard.0.order(|orders| orders.leave = true);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("id", &self.id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Called with what happens to a member.
type Observer = Box<dyn FnMut(&Notice<'_>) + Send>;

/// Builds a [`Member`] and its [`Driver`]. Created by [`Member::builder`].
///
/// ```
/// use portcullis_core::{MonotonicClock, Rate};
/// use portcullis_fleet::{Member, MemoryLeases, Pool};
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
/// let builder = Member::builder(pool, MemoryLeases::new(MonotonicClock::new()));
/// let (member, driver) = builder.observer(|notice| println!("{notice:?}")).build()?;
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[must_use]
pub struct MemberBuilder {
    pool: Pool,
    store: Arc<dyn LeaseStore>,
    id: Option<MemberId>,
    fallback: Fallback,
    observer: Option<Observer>,
}

impl MemberBuilder {
    /// Sets the name of the member. It must be unique among all members that ever use the pool.
    /// Default: random.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemberId, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let _ = Member::builder(pool, store).id(MemberId(7));
    /// ```
    pub const fn id(mut self, id: MemberId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets what the member uses while the store does not answer and its leases have ended. Default
    /// [`Fallback::Reserved`].
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Fallback, Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let _ = Member::builder(pool, store).fallback(Fallback::Safe(5));
    /// ```
    pub const fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Sets what is called with each [`Notice`], from the driver. It must not block.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let _ = Member::builder(pool, store).observer(|notice| eprintln!("{notice:?}"));
    /// ```
    pub fn observer(mut self, observer: impl FnMut(&Notice<'_>) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Returns the member, and the driver with a [`ThreadTimer`].
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the limiter cannot have the rate or the burst of the pool.
    pub fn build(self) -> Result<(Member, Driver), SettingsError> {
        self.build_with(ThreadTimer::new())
    }

    /// Returns the member, and the driver with another timer. The clock of the limiter's callers
    /// must agree with it, as all monotonic clocks do.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    ///
    /// ```
    /// # use portcullis_async::ThreadTimer;
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).build_with(ThreadTimer::new())?;
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn build_with<T: Timer>(self, timer: T) -> Result<(Member, Driver<T>), SettingsError> {
        let now = timer.now();
        let id = self
            .id
            .unwrap_or_else(|| MemberId(u128::from(random()) << 64 | u128::from(random())));
        let shared = Arc::new(Shared {
            id,
            limiter: Arc::new(ShareLimiter::new(&self.pool, now)?),
            orders: Mutex::default(),
            ordered: Signal::new(),
            known: Mutex::new(Known {
                status: MemberStatus {
                    generation: 0,
                    share: MemberShare::NONE,
                    standing: Standing::Connected,
                },
                leases: Vec::new(),
                pool: self.pool.clone(),
            }),
            changed: Signal::new(),
        });
        let driver = Driver {
            shared: Arc::clone(&shared),
            protocol: Protocol::new(&self.pool, id, random(), now),
            pool: self.pool,
            store: self.store,
            timer,
            fallback: self.fallback,
            observer: self.observer,
        };
        let guard = Arc::new(Guard(shared));
        Ok((Member { guard }, driver))
    }
}

impl fmt::Debug for MemberBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberBuilder")
            .field("pool", &self.pool)
            .field("id", &self.id)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

/// A number from the seeds of the hash tables of the standard library, which the operating system
/// chooses at random. A process that was forked has the seeds of the other one, but not its number.
fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), Instant::now()))
}

/// The part of a [`Member`] that does the work: it talks with the store and sets the limiter.
///
/// It is needed once, and must run: [`run`](Self::run) in a task, or
/// [`blocking_run`](Self::blocking_run) in a thread. If it is dropped, the leases that the member
/// had are used no longer, and end in the store by themselves.
///
/// A store on etcd or Redis needs a runtime of tokio, so run it there:
///
/// ```no_run
/// # #[cfg(feature = "redis")]
/// # async fn example() -> Result<(), Box<dyn core::error::Error>> {
/// use portcullis_core::Rate;
/// use portcullis_fleet::{Member, Pool, RedisLeases, RedisSettings};
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
/// let store = RedisLeases::new(&RedisSettings::new("redis://127.0.0.1/"))?;
/// let (member, driver) = Member::builder(pool, store).build()?;
/// tokio::spawn(driver.run());
/// member.want_rate(100);
/// # Ok(()) }
/// ```
pub struct Driver<T: Timer = ThreadTimer> {
    shared: Arc<Shared>,
    protocol: Protocol,
    pool: Pool,
    store: Arc<dyn LeaseStore>,
    timer: T,
    fallback: Fallback,
    observer: Option<Observer>,
}

/// An exchange in flight: its number, and the answer to come.
type Flight = (
    u64,
    Pin<Box<dyn Future<Output = Result<ExchangeAnswer, LeaseError>> + Send>>,
);

/// The event that the driver has waited for.
enum Happened {
    Ordered,
    Answered(u64, Result<ExchangeAnswer, LeaseError>),
    Passed,
}

impl<T: Timer> Driver<T> {
    /// Runs until the member has left.
    ///
    /// **Cancellation.** If the future is dropped, the leases are used no longer, and end in the
    /// store by themselves.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).build()?;
    /// drop(member);
    /// futures_executor::block_on(driver.run());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub async fn run(mut self) {
        let mut flight: Option<Flight> = None;
        let mut actions = self.on(ProtocolEvent::Wake);
        // After that, the leases have ended by themselves.
        let mut last = None;
        while !self.protocol.has_left() && last.is_none_or(|last| self.timer.now() < last) {
            let listener = self.shared.ordered.listen();
            // An order after this is heard.
            let orders = core::mem::take(&mut *locked(&self.shared.orders));
            let is_ordered = orders.demand.is_some() || orders.pool.is_some() || orders.leave;
            if orders.leave {
                last = last.or(Some(self.timer.now().saturating_add(self.pool.lease())));
            }
            if is_ordered {
                actions = self.obey(orders);
            } else {
                let wake_at = last.map_or(actions.wake_at, |last| actions.wake_at.min(last));
                actions = match self.next(&mut flight, listener, wake_at).await {
                    Happened::Ordered => continue,
                    Happened::Answered(exchange, Ok(answer)) => {
                        let answer = &answer;
                        self.on(ProtocolEvent::Answered { exchange, answer })
                    }
                    Happened::Answered(exchange, Err(error)) => {
                        self.notice(&Notice::Failed(&error));
                        self.on(ProtocolEvent::Failed { exchange })
                    }
                    Happened::Passed => self.on(ProtocolEvent::Wake),
                };
            }
            if let Some((exchange, request)) = actions.send.take() {
                let (store, pool) = (Arc::clone(&self.store), self.pool.name().to_owned());
                let answer = async move { store.exchange(&pool, &request).await };
                flight = Some((exchange, Box::pin(answer)));
            }
        }
    }

    /// Runs until the member has left, and blocks the thread. For stores that need no runtime.
    ///
    /// ```
    /// # use portcullis_core::{MonotonicClock, Rate};
    /// # use portcullis_fleet::{Member, MemoryLeases, Pool};
    /// # let pool = Pool::builder("writes", Rate::per_second(500)).build().unwrap();
    /// # let store = MemoryLeases::new(MonotonicClock::new());
    /// let (member, driver) = Member::builder(pool, store).build()?;
    /// let driver = std::thread::spawn(|| driver.blocking_run());
    /// drop(member);
    /// driver.join().unwrap();
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn blocking_run(self) {
        /// Unparks a thread.
        struct Unpark(Thread);

        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }

        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut run = core::pin::pin!(self.run());
        while run
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            thread::park();
        }
    }

    /// Waits for an order, for the answer, or until `wake_at`.
    async fn next(
        // Exclusive, so that the future may move between threads although an observer may not.
        &mut self,
        flight: &mut Option<Flight>,
        mut listener: EventListener,
        wake_at: Timestamp,
    ) -> Happened {
        poll_fn(|context| {
            if Pin::new(&mut listener).poll(context).is_ready() {
                return Poll::Ready(Happened::Ordered);
            }
            if let Some((exchange, answer)) = flight
                && let Poll::Ready(answer) = answer.as_mut().poll(context)
            {
                let exchange = *exchange;
                *flight = None;
                return Poll::Ready(Happened::Answered(exchange, answer));
            }
            let timer = self.timer.wake_at(wake_at, context.waker());
            timer.map(|()| Happened::Passed)
        })
        .await
    }

    fn obey(&mut self, orders: Orders) -> Actions {
        let mut actions = Actions::default();
        let mut also = |next: Actions| {
            // Only the last event can start an exchange if the first one does not.
            let send = actions.send.take();
            actions = next;
            actions.send = actions.send.take().or(send);
        };
        if let Some(pool) = orders.pool {
            self.pool = pool;
            let pool = self.pool.clone();
            also(self.on(ProtocolEvent::Changed(&pool)));
        }
        if let Some(partitions) = orders.demand {
            also(self.on(ProtocolEvent::Demand(partitions)));
        }
        if orders.leave {
            also(self.on(ProtocolEvent::Leave));
        }
        actions
    }

    /// Tells the protocol what happened, and makes the limiter follow.
    fn on(&mut self, event: ProtocolEvent<'_>) -> Actions {
        let changed = matches!(event, ProtocolEvent::Changed(_));
        let now = self.timer.now();
        let mut actions = self.protocol.on(event, now);
        let before = locked(&self.shared.known).status;
        let mut status = before;
        if let Some(share) = actions.share {
            status.share = share;
        }
        for report in &actions.reports {
            status.standing = match report {
                MemberReport::Unreachable => Standing::Unreachable,
                MemberReport::Alone => Standing::Alone,
                MemberReport::Reachable => Standing::Connected,
                _ => status.standing,
            };
        }
        // Before anything else: the request may release what the limiter uses.
        let is_alone = status.standing == Standing::Alone;
        let follows = changed || status != before;
        if changed {
            // It was checked when it was ordered.
            let _ = self.shared.limiter.change_at(now, &self.pool, status.share);
        }
        if follows && is_alone {
            self.shared.limiter.fall_back_at(now, self.fallback);
        } else if follows {
            self.shared.limiter.follow_at(now, status.share);
        }
        let leases = self.protocol.leases().map(|(held, _)| held).collect();
        self.shared.tell(|known| {
            known.status = status;
            known.leases = leases;
        });
        for report in core::mem::take(&mut actions.reports) {
            self.notice(&Notice::Report(report));
            if report == MemberReport::Alone {
                self.notice(&Notice::FallsBack(self.fallback));
            }
        }
        if status.share != before.share {
            self.notice(&Notice::Share(status.share));
        }
        actions
    }
}

impl<T: Timer> Driver<T> {
    fn notice(&mut self, notice: &Notice<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(notice);
        }
    }
}

impl<T: Timer> Drop for Driver<T> {
    fn drop(&mut self) {
        // Also in place of a fallback.
        self.shared
            .limiter
            .follow_at(self.timer.now(), MemberShare::NONE);
        self.shared.tell(|known| {
            known.status.share = MemberShare::NONE;
            known.status.standing = Standing::Left;
            known.leases.clear();
        });
        if !thread::panicking() {
            self.notice(&Notice::Left);
        }
    }
}

impl<T: Timer> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("pool", &self.pool)
            .field("protocol", &self.protocol)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}
