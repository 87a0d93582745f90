//! Random numbers, injected panics, and moments at which another context interferes: all drawn from
//! the seed of the run.

use core::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::thread::panicking;

/// A place where a panic can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Site {
    WakerWakes,
    WakerIsCloned,
    WakerIsDropped,
    /// A limiter's take.
    LimiterTakes,
    /// A limiter's query that changes nothing.
    LimiterIsAsked,
    /// A limiter's release or refund, which panics after it took effect.
    LimiterIsGivenBack,
    Hook,
    Clock,
    /// The arming of a timer.
    Timer,
}

impl Site {
    pub(crate) const ALL: [Self; 9] = [
        Self::WakerWakes,
        Self::WakerIsCloned,
        Self::WakerIsDropped,
        Self::LimiterTakes,
        Self::LimiterIsAsked,
        Self::LimiterIsGivenBack,
        Self::Hook,
        Self::Clock,
        Self::Timer,
    ];

    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The sites whose panic cuts short what a queue does; the next caller continues it.
    ///
    /// After a panic at the other sites, nothing is left to be done.
    pub(crate) const CUT_SHORT: u32 = Self::LimiterTakes.bit()
        | Self::LimiterIsAsked.bit()
        | Self::LimiterIsGivenBack.bit()
        | Self::Clock.bit()
        | Self::Timer.bit();
}

/// The payload of an injected panic.
pub(crate) struct Injected;

/// The action of another context at a moment in between.
pub(crate) trait Meddles {
    /// Interferes; if `under_lock`, waiting for the queue's lock would never end.
    fn meddle(&self, under_lock: bool);
}

struct Chance {
    random: Cell<u64>,
    /// The panic to come: where, after how many calls, and how many in a row.
    site: Cell<Option<Site>>,
    calls: Cell<u32>,
    times: Cell<u32>,
    /// Sites that panicked, and sites that would have panicked during another panic.
    struck: Cell<u32>,
    doubled: Cell<u32>,
    panics: Cell<u64>,
    /// One in N moments is used by another context; 0 for none.
    meddling: Cell<u32>,
    depth: Cell<u32>,
    meddled: Cell<bool>,
    held: Cell<bool>,
    locks: Cell<u64>,
    failures: RefCell<Vec<String>>,
}

thread_local! {
    static CHANCE: Chance = const {
        Chance {
            random: Cell::new(1),
            site: Cell::new(None),
            calls: Cell::new(0),
            times: Cell::new(0),
            struck: Cell::new(0),
            doubled: Cell::new(0),
            panics: Cell::new(0),
            meddling: Cell::new(0),
            depth: Cell::new(0),
            meddled: Cell::new(false),
            held: Cell::new(false),
            locks: Cell::new(0),
            failures: RefCell::new(Vec::new()),
        }
    };
    static OTHERS: RefCell<Option<Rc<dyn Meddles>>> = const { RefCell::new(None) };
}

pub(crate) fn seed(seed: u64) {
    // Neighbouring seeds must give unrelated numbers (splitmix64).
    let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    CHANCE.with(|chance| {
        chance.random.set((mixed ^ mixed >> 31) | 1);
        chance.site.set(None);
        chance.meddling.set(0);
        chance.depth.set(0);
        chance.held.set(false);
        chance.failures.borrow_mut().clear();
    });
}

/// Returns a number below `bound` (xorshift64*).
pub(crate) fn below(bound: u64) -> u64 {
    CHANCE.with(|chance| {
        let mut random = chance.random.get();
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        chance.random.set(random);
        let drawn = random.wrapping_mul(0x2545_F491_4F6C_DD1D);
        ((u128::from(drawn) * u128::from(bound)) >> 64) as u64
    })
}

pub(crate) fn index(len: usize) -> usize {
    below(len as u64) as usize
}

pub(crate) fn one_in(n: u64) -> bool {
    below(n) == 0
}

/// Makes `site` panic at one of its next calls, `times` times in a row.
pub(crate) fn arm(site: Site, times: u32) {
    CHANCE.with(|chance| {
        chance
            .calls
            .set(if one_in(2) { 1 } else { 1 + below(6) as u32 });
        chance.times.set(times);
        chance.site.set(Some(site));
    });
}

/// Disables panics and interference until the next step.
pub(crate) fn disarm() {
    CHANCE.with(|chance| {
        chance.site.set(None);
        chance.meddling.set(0);
    });
}

/// Panics, if `site` is due to.
pub(crate) fn strike(site: Site) {
    CHANCE.with(|chance| {
        if chance.site.get() != Some(site) {
            return;
        }
        chance.calls.set(chance.calls.get().saturating_sub(1));
        if chance.calls.get() > 0 {
            return;
        }
        if panicking() && site != Site::WakerWakes {
            // If it were not caught on the way, it would abort the program. Only for wakers the
            // queue promises to catch it.
            chance.doubled.set(chance.doubled.get() | site.bit());
            chance.site.set(None);
            return;
        }
        chance.times.set(chance.times.get() - 1);
        if chance.times.get() == 0 {
            chance.site.set(None);
        }
        chance.struck.set(chance.struck.get() | site.bit());
        chance.panics.set(chance.panics.get() + 1);
        if std::env::var_os("PORTCULLIS_RANDOM").is_some() {
            eprintln!("{site:?} panics");
        }
        resume_unwind(Box::new(Injected));
    });
}

/// Returns the sites that have panicked since the last call, those that would have panicked during
/// another panic, and the number of panics.
pub(crate) fn take_struck() -> (u32, u32, u64) {
    CHANCE.with(|chance| {
        (
            chance.struck.replace(0),
            chance.doubled.replace(0),
            chance.panics.replace(0),
        )
    })
}

pub(crate) fn has_struck() -> bool {
    CHANCE.with(|chance| chance.struck.get() != 0)
}

pub(crate) fn set_others(others: Option<Rc<dyn Meddles>>) {
    OTHERS.with_borrow_mut(|place| *place = others);
}

pub(crate) fn set_meddling(one_in: u32) {
    CHANCE.with(|chance| {
        chance.meddling.set(one_in);
        chance.meddled.set(false);
    });
}

/// Whether another context, or a waker, has used the queue in this step.
pub(crate) fn has_meddled() -> bool {
    CHANCE.with(|chance| chance.meddled.get())
}

/// The number of nested calls.
pub(crate) fn depth() -> u32 {
    CHANCE.with(|chance| chance.depth.get())
}

/// A moment at which another context may interfere.
pub(crate) fn moment() {
    let now = CHANCE.with(|chance| {
        chance.meddling.get() > 0 && chance.depth.get() < 3 && one_in(chance.meddling.get().into())
    });
    if now && !panicking() {
        meddle();
    }
}

/// Lets another context, or a waker, use the queue.
pub(crate) fn meddle() {
    let (others, held) = (OTHERS.with_borrow(Clone::clone), is_held());
    let Some(others) = others.filter(|_| depth() < 3) else {
        return;
    };
    CHANCE.with(|chance| {
        chance.depth.set(chance.depth.get() + 1);
        chance.meddled.set(true);
    });
    // It catches all panics.
    others.meddle(held);
    CHANCE.with(|chance| chance.depth.set(chance.depth.get() - 1));
}

/// Whether the queue's lock is held.
pub(crate) fn is_held() -> bool {
    CHANCE.with(|chance| chance.held.get())
}

pub(crate) fn set_held(held: bool) {
    CHANCE.with(|chance| chance.held.set(held));
}

/// How often a waiting call took the lock.
pub(crate) fn locks() -> u64 {
    CHANCE.with(|chance| chance.locks.get())
}

pub(crate) fn count_lock() {
    CHANCE.with(|chance| chance.locks.set(chance.locks.get() + 1));
}

/// Records a failure. It is reported at the end of the step, because panics within a call may be
/// caught.
pub(crate) fn fail(what: impl Into<String>) {
    CHANCE.with(|chance| chance.failures.borrow_mut().push(what.into()));
}

pub(crate) fn take_failures() -> Vec<String> {
    CHANCE.with(|chance| chance.failures.take())
}

/// Runs `work` without panics and without interference.
pub(crate) fn paused<T>(work: impl FnOnce() -> T) -> T {
    CHANCE.with(|chance| {
        let (site, meddling) = (chance.site.take(), chance.meddling.take());
        let outcome = work();
        chance.site.set(site);
        chance.meddling.set(meddling);
        outcome
    })
}
