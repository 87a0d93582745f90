//! The parts of a queue, each in a form that panics, and admits other contexts, at random.

use core::cell::RefCell;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::task::{Poll, RawWaker, RawWakerVTable, Waker};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_async::{Hook, RawLock, ReentrantTimer, Timer, WaitEnd, Waited};

use portcullis_core::limiter::{Answer, Ask, Back, Hints, LimiterId, Read, Reading, Returned};
use portcullis_core::queue::{PassedOn, QueueLimiter};
use portcullis_core::{Clock, Denied, Limiter, LimiterExt, Retry, Timestamp};

use crate::chance::{self, Site, fail, moment, strike};
use crate::fairness;

/// A lock for one thread that plays several contexts.
pub(crate) struct Single;

impl Single {
    fn run<T>(work: impl FnOnce() -> T) -> T {
        struct Held;
        impl Drop for Held {
            fn drop(&mut self) {
                chance::set_held(false);
            }
        }
        chance::set_held(true);
        let _held = Held;
        let outcome = work();
        // Releases by others at this moment are left to the holder.
        moment();
        outcome
    }
}

// SAFETY: used by one thread only, and its own flag excludes a second entry.
unsafe impl RawLock for Single {
    const IS_SEQUENTIAL: bool = true;

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        moment();
        if chance::is_held() {
            fail("a context waits for a lock that it holds itself");
            panic!("a deadlock");
        }
        chance::count_lock();
        let outcome = Self::run(work);
        moment();
        outcome
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        moment();
        if chance::is_held() {
            return None;
        }
        let outcome = Self::run(work);
        moment();
        Some(outcome)
    }
}

/// The target of a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Wait(u64),
    Driver(u64),
    Drained(u64),
}

/// One waker, with all of its clones.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) owner: Owner,
    woken: AtomicBool,
    /// Whether it uses the queue when it wakes.
    uses: bool,
}

impl Token {
    pub(crate) fn new(owner: Owner, uses: bool) -> Arc<Self> {
        Arc::new(Self {
            owner,
            woken: AtomicBool::new(false),
            uses,
        })
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Relaxed)
    }

    /// It counts as not woken.
    pub(crate) fn reset(&self) {
        self.woken.store(false, Relaxed);
    }

    fn ring(&self) {
        outside_of_the_lock("woken");
        self.woken.store(true, Relaxed);
        if self.uses {
            chance::meddle();
        }
        strike(Site::WakerWakes);
    }
}

fn outside_of_the_lock(what: &str) {
    if chance::is_held() {
        fail(format!("a waker is {what} under the lock"));
    }
}

/// A clone of a waker. Each has an address of its own, so that `will_wake` is false for any two.
type Handle = Box<Arc<Token>>;

static APART: RawWakerVTable = RawWakerVTable::new(
    |data| {
        outside_of_the_lock("cloned");
        strike(Site::WakerIsCloned);
        // SAFETY: an existing `Handle`.
        raw_apart(unsafe { &*data.cast::<Arc<Token>>() })
    },
    |data| {
        // SAFETY: a `Handle` that this call owns.
        let token = unsafe { Handle::from_raw(data.cast_mut().cast()) };
        token.ring();
    },
    |data| {
        // SAFETY: an existing `Handle`.
        let token = Arc::clone(unsafe { &*data.cast::<Arc<Token>>() });
        token.ring();
    },
    |data| {
        // SAFETY: a `Handle` that this call owns.
        drop(unsafe { Handle::from_raw(data.cast_mut().cast()) });
        outside_of_the_lock("dropped");
        strike(Site::WakerIsDropped);
    },
);

/// The table of wakers whose clones are alike.
static ALIKE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        outside_of_the_lock("cloned");
        strike(Site::WakerIsCloned);
        // SAFETY: an existing token.
        raw_alike(&ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) }))
    },
    |data| {
        // SAFETY: a token, and this call owns one reference to it.
        let token: Arc<Token> = unsafe { Arc::from_raw(data.cast()) };
        token.ring();
    },
    |data| {
        // SAFETY: an existing token.
        let token: Arc<Token> =
            Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) }));
        token.ring();
    },
    |data| {
        // SAFETY: a token, and this call owns one reference to it.
        drop(unsafe { Arc::<Token>::from_raw(data.cast()) });
        outside_of_the_lock("dropped");
        strike(Site::WakerIsDropped);
    },
);

fn raw_apart(token: &Arc<Token>) -> RawWaker {
    RawWaker::new(Box::into_raw(Handle::new(Arc::clone(token))).cast(), &APART)
}

fn raw_alike(token: &Arc<Token>) -> RawWaker {
    RawWaker::new(Arc::into_raw(Arc::clone(token)).cast(), &ALIKE)
}

/// Returns a waker that wakes `token`; if `apart`, its clones are not alike.
pub(crate) fn waker(token: &Arc<Token>, apart: bool) -> Waker {
    // SAFETY: the functions uphold the contract of a waker, in one thread and in several.
    unsafe {
        Waker::from_raw(if apart {
            raw_apart(token)
        } else {
            raw_alike(token)
        })
    }
}

/// The token that a waker wakes, if it is one of this module.
pub(crate) fn token_of(waker: &Waker) -> Option<Arc<Token>> {
    if core::ptr::eq(waker.vtable(), &raw const APART) {
        // SAFETY: the table says what is behind the pointer.
        Some(Arc::clone(unsafe { &*waker.data().cast::<Arc<Token>>() }))
    } else if core::ptr::eq(waker.vtable(), &raw const ALIKE) {
        // SAFETY: the same.
        Some(Arc::clone(&ManuallyDrop::new(unsafe {
            Arc::from_raw(waker.data().cast())
        })))
    } else {
        None
    }
}

/// A timer with a manual clock, which wakes when the driver says so.
#[derive(Clone, Default)]
pub(crate) struct Sim(Arc<Alarm>);

#[derive(Default)]
struct Alarm {
    now: AtomicU64,
    newest: AtomicU64,
    set: Mutex<Option<(Timestamp, Waker)>>,
}

/// The target of the timer.
pub(crate) enum Wakes {
    Token(Arc<Token>),
    Queue,
}

impl Sim {
    /// The time, as the driver sees it.
    pub(crate) fn time(&self) -> u64 {
        self.0.now.load(Relaxed)
    }

    /// The latest time that it has returned.
    pub(crate) fn newest(&self) -> u64 {
        self.0.newest.load(Relaxed)
    }

    pub(crate) fn set(&self, now: u64) {
        self.0.now.store(now, Relaxed);
        self.0.newest.fetch_max(now, Relaxed);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Option<(Timestamp, Waker)>> {
        self.0.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alarm(&self) -> Option<(u64, Wakes)> {
        let set = self.locked();
        let (at, waker) = set.as_ref()?;
        Some((
            at.as_nanos(),
            token_of(waker).map_or(Wakes::Queue, Wakes::Token),
        ))
    }

    /// Takes the waker to wake; the timer is then no longer armed.
    pub(crate) fn take(&self) -> Option<Waker> {
        self.locked().take().map(|(_, waker)| waker)
    }
}

impl Clock for Sim {
    fn now(&self) -> Timestamp {
        moment();
        strike(Site::Clock);
        Timestamp::from_nanos(self.time())
    }
}

impl ReentrantTimer for Sim {}

impl Timer for Sim {
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Poll<()> {
        outside_of_the_lock("passed to the timer");
        moment();
        strike(Site::Timer);
        if at.as_nanos() <= self.time() {
            return Poll::Ready(());
        }
        let waker = waker.clone();
        let old = self.locked().replace((at, waker));
        drop(old);
        Poll::Pending
    }
}

thread_local! {
    static LEFT: RefCell<Vec<Waited>> = const { RefCell::new(Vec::new()) };
}

/// Records the outcome of each wait.
pub(crate) struct Told;

impl Told {
    pub(crate) fn len() -> usize {
        LEFT.with_borrow(Vec::len)
    }

    /// The outcome of the only wait that ended since there were `len`.
    pub(crate) fn since(len: usize) -> Option<WaitEnd> {
        LEFT.with_borrow_mut(|left| {
            if left.len() > len + 1 {
                fail("a hook is called twice for one wait");
            }
            let outcome = left.get(len).map(|waited| waited.outcome);
            left.truncate(len);
            outcome
        })
    }
}

impl Hook for Told {
    fn left(&self, waited: &Waited) {
        outside_of_the_lock("told");
        LEFT.with_borrow_mut(|left| left.push(*waited));
        strike(Site::Hook);
    }
}

/// The bound of a limiter, in exact arithmetic, at the later of an admission's time and the newest
/// time before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Promise {
    /// At most `limit` held at once.
    Held,
    /// At most `burst`, and `permits` for each `period` of nanoseconds; `missing` of them are
    /// missing at first.
    Bucket {
        permits: u64,
        period: u64,
        burst: u64,
        missing: u64,
    },
    /// At most `limit` in each window of `period` nanoseconds.
    Window { limit: u64, period: u64 },
}

#[derive(Debug)]
struct Admission {
    at: u64,
    permits: u64,
}

/// The admissions of a limiter.
#[derive(Debug)]
struct Ledger {
    promise: Promise,
    newest: u64,
    /// The last ones, which may be refunded.
    admissions: VecDeque<Admission>,
    /// What earlier admissions left of a bucket's level, and when; in units of which a permit has
    /// `period`.
    level: u128,
    since: u64,
    /// Permits taken and not returned.
    net: u64,
    takes: u64,
    refunded: u64,
}

impl Ledger {
    fn fold(level: u128, since: u64, at: u64, permits: u64, promise: Promise) -> u128 {
        let Promise::Bucket {
            permits: rate,
            period,
            ..
        } = promise
        else {
            return 0;
        };
        level.saturating_sub(u128::from(at - since) * u128::from(rate))
            + u128::from(permits) * u128::from(period)
    }

    fn admit(&mut self, now: u64, n: u64) {
        self.newest = self.newest.max(now);
        self.net += n;
        self.takes += 1;
        self.admissions.push_back(Admission {
            at: self.newest,
            permits: n,
        });
        if self.admissions.len() > 40
            && let Some(old) = self.admissions.pop_front()
        {
            self.level = Self::fold(self.level, self.since, old.at, old.permits, self.promise);
            self.since = old.at;
        }
        match self.promise {
            Promise::Held => {}
            Promise::Bucket { period, burst, .. } => {
                let (mut level, mut since) = (self.level, self.since);
                for admission in &self.admissions {
                    level = Self::fold(level, since, admission.at, admission.permits, self.promise);
                    since = admission.at;
                }
                if level > u128::from(burst) * u128::from(period) {
                    fail(format!(
                        "law 1: more than {:?} at {}: {:?}",
                        self.promise, self.newest, self.admissions
                    ));
                }
            }
            Promise::Window { limit, period } => {
                let window = self.newest / period;
                let admitted: u64 = self
                    .admissions
                    .iter()
                    .filter(|admission| admission.at / period == window)
                    .map(|admission| admission.permits)
                    .sum();
                if admitted > limit {
                    fail(format!(
                        "law 1: more than {:?}: {:?}",
                        self.promise, self.admissions
                    ));
                }
            }
        }
    }

    /// A limiter accepts a refund if nothing was taken after it, or if it was taken in the same
    /// window.
    fn refunded(&mut self, mut n: u64) {
        self.net = self.net.saturating_sub(n);
        self.refunded += n;
        for admission in self.admissions.iter_mut().rev() {
            let part = admission.permits.min(n);
            admission.permits -= part;
            n -= part;
        }
        if let Promise::Window { .. } = self.promise {
            return;
        }
        // For a bucket, an undone admission has not been, and its time neither.
        while self
            .admissions
            .pop_back_if(|last| last.permits == 0)
            .is_some()
        {}
        self.newest = self.admissions.back().map_or(self.since, |last| last.at);
    }
}

struct Watched<L> {
    limiter: L,
    ledger: Mutex<Ledger>,
}

/// An observed limiter that panics at random.
pub(crate) struct Spy<L>(Arc<Watched<L>>);

impl<L> Clone for Spy<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// What the driver knows of a limiter.
pub(crate) trait Part {
    /// The held permits, if permits are released to it.
    fn held(&self) -> Option<u64>;
    /// The permits taken and not returned, if they return by time.
    fn net(&self) -> Option<u64>;
    /// The number of takes.
    fn takes(&self) -> u64;
    /// The number of permits refunded by a receipt.
    fn refunded(&self) -> u64;
}

impl<L: Limiter> Spy<L> {
    pub(crate) fn new(limiter: L, promise: Promise) -> Self {
        let (level, since) = match promise {
            Promise::Bucket {
                period, missing, ..
            } => (u128::from(missing) * u128::from(period), 0),
            _ => (0, 0),
        };
        let ledger = Ledger {
            promise,
            newest: 0,
            admissions: VecDeque::new(),
            level,
            since,
            net: 0,
            takes: 0,
            refunded: 0,
        };
        Self(Arc::new(Watched {
            limiter,
            ledger: Mutex::new(ledger),
        }))
    }

    pub(crate) fn limiter(&self) -> &L {
        &self.0.limiter
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: QueueLimiter> Part for Spy<L> {
    fn held(&self) -> Option<u64> {
        matches!(self.ledger().promise, Promise::Held).then(|| self.limiter().held())
    }

    fn net(&self) -> Option<u64> {
        let ledger = self.ledger();
        (!matches!(ledger.promise, Promise::Held)).then_some(ledger.net)
    }

    fn takes(&self) -> u64 {
        self.ledger().takes
    }

    fn refunded(&self) -> u64 {
        self.ledger().refunded
    }
}

impl<L: Limiter> Limiter for Spy<L> {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            strike(Site::LimiterIsAsked);
            return self.limiter().decide(ask);
        }
        moment();
        strike(Site::LimiterTakes);
        let answer = self.limiter().decide(ask);
        match answer {
            Answer::Granted(_) => {
                fairness::granted(n);
                if n > 0 {
                    self.ledger().admit(now.as_nanos(), n.into());
                }
            }
            // Another context may release in between.
            _ => moment(),
        }
        answer
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        let is_ended = matches!(back, Back::NotGranted { .. });
        let is_refund = matches!(back, Back::Refund { .. });
        let is_given_back = is_refund || matches!(back, Back::Release { .. });
        if is_ended {
            strike(Site::LimiterIsAsked);
        }
        let returned = self.limiter().give_back(back);
        if is_refund {
            self.ledger().refunded(returned.refund.permits.into());
        }
        if is_given_back {
            strike(Site::LimiterIsGivenBack);
        }
        returned
    }

    /// Without a panic: the checks between the steps ask this, too.
    fn read(&self, read: Read<'_>) -> Reading {
        self.limiter().read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        strike(Site::LimiterIsAsked);
        self.limiter().retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        self.limiter().id()
    }

    fn hints(&self) -> Hints {
        if self.limiter().hints().one_receipt {
            Hints::ONE_RECEIPT
        } else {
            Hints::NONE
        }
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        strike(Site::LimiterIsAsked);
        self.limiter().available_at(now)
    }
}

impl<L: QueueLimiter> QueueLimiter for Spy<L> {
    const SHARED: bool = false;

    fn pass_on(&self, n: u32) -> PassedOn {
        strike(Site::LimiterIsAsked);
        self.limiter().pass_on(n)
    }
}

/// Runs `call`; returns `None` after an injected panic.
pub(crate) fn call<T>(call: impl FnOnce() -> T) -> Option<T> {
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => Some(outcome),
        Err(panic) => {
            if !panic.is::<chance::Injected>() {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied());
                fail(format!(
                    "a panic that was not injected: {}",
                    text.unwrap_or("without a message")
                ));
            }
            None
        }
    }
}
