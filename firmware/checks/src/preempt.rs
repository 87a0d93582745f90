//! Interrupt safety, with real interrupts: a timer fires at each instruction of a call in turn, and
//! its handler uses the same limiter or queue as the call.
//!
//! A scenario runs repeatedly, with the timer one instruction earlier each time: from after the end
//! of the call to before its beginning.
#![allow(unsafe_code)]

use core::cell::{Cell, RefCell};
use core::mem::ManuallyDrop;
use core::pin::{Pin, pin};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, compiler_fence};
use core::task::{Context, Poll};
use core::time::Duration;

use critical_section::Mutex;
use portcullis_async::{InterruptLock, NoTimer, Queue};
use portcullis_core::leases::LeaseId;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, AllOf, Clock, Concurrency, Counted, Lease, LeasePool, Limiter, Penalty, Rate,
    SlicedBucket, SlidingWindow, Timestamp, TokenBucket,
};

use crate::Board;
use crate::executor::waker;
use crate::tally::Group;

/// A board whose timer can be set to an instruction.
pub trait Preempting: Board {
    /// Runs `work`, and `handler` in an interrupt some instructions after the beginning: one fewer
    /// for each step of `sooner`. Returns, when both are done, the address at which the interrupt
    /// came.
    ///
    /// With `sooner = 0` it comes after a call of some thousand instructions.
    fn preempt(&self, sooner: u32, work: &mut dyn FnMut(), handler: fn()) -> usize;
}

/// The phase of the call when the interrupt comes. Only loads and stores: some targets have no
/// other atomic operations.
static PHASE: AtomicU32 = AtomicU32::new(0);
static CAME_IN: AtomicU32 = AtomicU32::new(0);

const BEFORE: u32 = 1;
const WITHIN: u32 = 2;
const AFTER: u32 = 3;

/// The time for the handler and for the interrupted call, in milliseconds.
static NOW: AtomicU32 = AtomicU32::new(0);
/// What the handler was granted.
static GRANTED: AtomicU32 = AtomicU32::new(0);

fn now() -> Timestamp {
    Timestamp::from_millis(NOW.load(Relaxed).into())
}

/// What the call was granted, plus what the handler was.
fn both(own: bool) -> u32 {
    u32::from(own) + GRANTED.load(Relaxed)
}

fn note(granted: bool) {
    GRANTED.store(granted.into(), Relaxed);
}

/// The step in which the end of a call is searched.
const STEP: u32 = 64;

/// One run of a scenario.
struct Point<'b> {
    board: &'b dyn Preempting,
    sooner: u32,
    handler: fn(),
    at: usize,
}

impl Point<'_> {
    /// Makes the call that is interrupted.
    fn interrupted<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (mut call, mut outcome) = (Some(call), None);
        NOTED.set(self.handler);
        PHASE.store(BEFORE, Relaxed);
        let mut work = || {
            PHASE.store(WITHIN, Relaxed);
            compiler_fence(SeqCst);
            outcome = call.take().map(|call| call());
            compiler_fence(SeqCst);
            PHASE.store(AFTER, Relaxed);
        };
        self.at = self.board.preempt(self.sooner, &mut work, || {
            CAME_IN.store(PHASE.load(Relaxed), Relaxed);
            NOTED.run();
        });
        outcome.expect("a call is made once")
    }
}

/// The handler of the scenario: written while no timer runs.
struct Noted(Mutex<Cell<fn()>>);

static NOTED: Noted = Noted(Mutex::new(Cell::new(|| ())));

impl Noted {
    fn set(&self, handler: fn()) {
        critical_section::with(|section| self.0.borrow(section).set(handler));
    }

    fn run(&self) {
        critical_section::with(|section| self.0.borrow(section).get())();
    }
}

/// Addresses of code, each once; two that are 64 KiB apart count as one.
struct Places([u32; 1024]);

impl Places {
    fn add(&mut self, address: usize) {
        let halfword = (address >> 1) % (u32::BITS as usize * self.0.len());
        self.0[halfword / 32] |= 1 << (halfword % 32);
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|bits| bits.count_ones()).sum()
    }
}

/// Runs all scenarios at every point.
pub(crate) fn sweep(board: &dyn Preempting, group: &mut Group<'_>) {
    let (mut points, mut places) = (0, 0);
    let mut addresses = Places([0; 1024]);
    for scenarios in ALL {
        for (name, handler, body) in *scenarios {
            addresses.0.fill(0);
            points += sweep_one(board, group, &mut addresses, name, *handler, *body);
            places += addresses.count();
        }
    }
    let calls: usize = ALL.iter().map(|scenarios| scenarios.len()).sum();
    board.print(format_args!(
        "{calls} calls interrupted at {points} points, {places} places\n"
    ));
}

/// By how many instructions the length of a call differs at most from one time to another: a board
/// without a division divides in a loop, whose length depends on the numbers.
const WOBBLE: u32 = 8;

fn sweep_one(
    board: &dyn Preempting,
    group: &mut Group<'_>,
    places: &mut Places,
    name: &str,
    handler: fn(),
    body: fn(&mut Point<'_>) -> bool,
) -> u32 {
    let mut wrong = 0;
    let mut run = |sooner| {
        GRANTED.store(0, Relaxed);
        // Idle since the previous run.
        NOW.store(NOW.load(Relaxed) + 10_000, Relaxed);
        let mut point = Point {
            board,
            sooner,
            handler,
            at: 0,
        };
        let holds = body(&mut point);
        wrong += u32::from(!holds);
        let at = point.at;
        group.check(
            holds,
            format_args!("{name}, interrupted at {at:#x}, {sooner} instructions sooner"),
        );
        (CAME_IN.load(Relaxed), at)
    };
    // In large steps to the end of the call, and then in single ones, leaving none out, to before
    // its beginning.
    let mut sooner = 0;
    while run(sooner).0 == AFTER {
        sooner += STEP;
    }
    let (mut points, mut before, mut last, mut misses) = (0, 0, AFTER, u32::from(sooner == 0));
    sooner = sooner.saturating_sub(STEP);
    while before < 4 {
        let (came_in, at) = run(sooner);
        // A call at a later time may be some instructions shorter, and over where the one before
        // was at its end. No point of either is left out then.
        let is_over = (last, came_in) == (WITHIN, AFTER) && points <= WOBBLE;
        let follows =
            came_in == last || came_in + 1 == last && (came_in == WITHIN || points > 0) || is_over;
        misses += u32::from(!follows);
        if came_in == WITHIN {
            points += 1;
            places.add(at);
        }
        before += u32::from(came_in == BEFORE);
        (last, sooner) = (came_in, sooner + 1);
    }
    group.check(
        misses == 0 && points > 10,
        format_args!("{name}: not all points were hit"),
    );
    board.print(format_args!(
        "  {name}: {points} points, {} places, {wrong} wrong\n",
        places.count()
    ));
    points
}

/// A name, the action of the handler, and the interrupted call, which returns whether everything is
/// as expected afterwards.
type Scenario = (&'static str, fn(), fn(&mut Point<'_>) -> bool);

macro_rules! built {
    ($builder:expr) => {
        match $builder {
            Ok(limiter) => limiter,
            Err(_) => panic!("does not fit 32 bits"),
        }
    };
}

mod stripes;

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(1);

const fn bucket(burst: u64) -> TokenBucket<u32> {
    built!(
        TokenBucket::builder(Rate::per_second(1), burst)
            .tick(TICK)
            .build_on()
    )
}

static BUCKET_OF_2: TokenBucket<u32> = bucket(2);
static ADJUSTABLE: AdjustableBucket<u32> = built!(
    AdjustableBucket::builder(Rate::per_second(1), 2)
        .tick(TICK)
        .build_on()
);
/// Changed at the same time in each run: the duration of a division depends on it.
static CHANGED: AdjustableBucket<u32> = built!(
    AdjustableBucket::builder(Rate::per_second(1), 2)
        .tick(TICK)
        .build_on()
);
const ALWAYS: Timestamp = Timestamp::from_secs(10);
static SLIDING_OF_2: SlidingWindow<4, u32> =
    built!(SlidingWindow::builder(2, SECOND, 4).build_on());
static SLIDING_OF_3: SlidingWindow<4, u32> =
    built!(SlidingWindow::builder(3, SECOND, 4).build_on());
static COUNTED: Counted<TokenBucket<u32>> = Counted::new(bucket(1));
static PENALISED: Penalty<TokenBucket<u32>, u32> =
    built!(Penalty::builder(SECOND).tick(TICK).build_on()).around(bucket(1));
static SLICED: SlicedBucket<u32> = built!(
    SlicedBucket::builder(Rate::per_second(10), 40)
        .tick(TICK)
        .build_on()
);
static LIMIT: Concurrency = Concurrency::new(1);
static LIMIT_OF_2: Concurrency = Concurrency::new(2);
static POOL: LeasePool<Concurrency, 2> = LeasePool::new(Concurrency::new(2));
static PAIR: AllOf<(&Concurrency, &TokenBucket<u32>)> =
    AllOf::new((&LIMIT_OF_2, &one::token_bucket));

/// What the handler keeps, or has to release.
static KEPT: Mutex<Cell<Option<Lease<&'static Concurrency>>>> = Mutex::new(Cell::new(None));
static KEPT_ID: Mutex<Cell<Option<LeaseId>>> = Mutex::new(Cell::new(None));

fn keep(lease: Option<Lease<&'static Concurrency>>) {
    critical_section::with(|section| KEPT.borrow(section).set(lease));
}

fn let_go() {
    drop(critical_section::with(|section| {
        KEPT.borrow(section).take()
    }));
}

fn keep_id(id: Option<LeaseId>) {
    critical_section::with(|section| KEPT_ID.borrow(section).set(id));
}

fn kept_id() -> Option<LeaseId> {
    critical_section::with(|section| KEPT_ID.borrow(section).take())
}

/// One of the call and the handler gets it, and no permit is granted twice.
macro_rules! one_of_two {
    ($name:expr, $limiter:expr) => {
        (
            concat!("one for two, ", $name),
            || note($limiter.take_at(now(), 1).is_ok()),
            |point: &mut Point<'_>| {
                let own = point.interrupted(|| $limiter.take_at(now(), 1).is_ok());
                both(own) == 1
                    && $limiter.available_at(now()) == 0
                    && $limiter.take_at(now(), 1).is_err()
            },
        )
    };
}

/// The scenarios of a limiter, unless it has others. The boards have no room for more of these two,
/// and permits that return by release do so by their lease.
macro_rules! scenarios {
    (by_time, adjustable_bucket) => {
        &[]
    };
    (by_time, sliced_bucket) => {
        &[]
    };
    (by_time, $name:ident) => {
        &[one_of_two!(stringify!($name), one::$name)]
    };
    ($_back:ident, $_name:ident) => {
        &[]
    };
}

macro_rules! all_preempted {
    ($($name:ident: $type:ty {
        on: $_on:tt,
        new: $_new:tt,
        on_board: (|$limit:ident, $time:ident| $new:expr),
        back: $back:ident,
        $($_rest:tt)*
    })*) => {
        /// Limiters of one permit per second each.
        #[allow(dead_code, non_upper_case_globals, reason = "named as their modules are")]
        mod one {
            use core::time::Duration;
            use portcullis_core::SettingsError;

            type W = u32;

            $(pub(super) static $name: $type = {
                const fn new($limit: u64, $time: Duration) -> Result<$type, SettingsError> {
                    $new
                }
                built!(new(1, super::SECOND))
            };)*
        }

        /// The scenarios of all limiters, and the others.
        static ALL: &[&[Scenario]] = &[
            stripes::SCENARIOS,
            $(scenarios!($back, $name),)*
            SCENARIOS,
        ];
    };
}

for_each_limiter!(all_preempted);

/// Both get what they request, and nothing is left.
macro_rules! two_of_two {
    ($limiter:ident) => {
        (
            concat!("two for two, ", stringify!($limiter)),
            || note($limiter.take_at(now(), 1).is_ok()),
            |point: &mut Point<'_>| {
                let own = point.interrupted(|| $limiter.take_at(now(), 1).is_ok());
                both(own) == 2
                    && $limiter.available_at(now()) == 0
                    && $limiter.take_at(now(), 1).is_err()
            },
        )
    };
}

/// The time of a queue, which the scenarios advance.
struct Time;

impl Clock for Time {
    fn now(&self) -> Timestamp {
        now()
    }
}

type Limited<L> = Queue<L, NoTimer<Time>, InterruptLock>;

static QUEUE: Limited<Concurrency> =
    Queue::with_lock(Concurrency::new(1), NoTimer(Time), 9, InterruptLock::new());
static PAIRED: Limited<Concurrency> =
    Queue::with_lock(Concurrency::new(2), NoTimer(Time), 9, InterruptLock::new());
static PACE: Limited<TokenBucket<u32>> =
    Queue::with_lock(bucket(1), NoTimer(Time), 9, InterruptLock::new());

/// In the handler: takes from a queue and releases, if no waiter is before it.
fn take_and_release() {
    note(QUEUE.try_acquire(1).is_ok());
}

/// Held for the handler.
static HELD: Mutex<RefCell<Option<Lease<&'static Limited<Concurrency>>>>> =
    Mutex::new(RefCell::new(None));

fn hold(queue: &'static Limited<Concurrency>) -> bool {
    let lease = queue.try_acquire(1).ok();
    let is_held = lease.is_some();
    critical_section::with(|section| HELD.replace(section, lease));
    is_held
}

/// In the handler: releases what was held for it.
fn release() {
    drop(critical_section::with(|section| HELD.take(section)));
}

fn release_later() {
    if let Some(lease) = critical_section::with(|section| HELD.take(section)) {
        Queue::release_later(lease);
    }
}

/// Checks that there is no waiter, and that nothing is held.
fn is_as_new() -> bool {
    QUEUE.counts().waiters == 0 && QUEUE.available() == 1
}

const SCENARIOS: &[Scenario] = &[
    two_of_two!(BUCKET_OF_2),
    (
        "two in a segment that is rolled to, sliding window",
        || note(SLIDING_OF_2.take_at(now(), 1).is_ok()),
        |point| {
            let own = point.interrupted(|| SLIDING_OF_2.take_at(now(), 1).is_ok());
            // While a roll is under way another request may be denied; the permits it did not get
            // are left.
            let left = 2 - both(own);
            let is_kept = SLIDING_OF_2.available_at(now()) == left.into();
            is_kept
                && (left == 0 || SLIDING_OF_2.take_at(now(), left).is_ok())
                && SLIDING_OF_2.take_at(now(), 1).is_err()
        },
    ),
    (
        "two in a segment that is on, sliding window",
        || note(SLIDING_OF_3.take_at(now(), 1).is_ok()),
        |point| {
            let first = SLIDING_OF_3.take_at(now(), 1).is_ok();
            let own = point.interrupted(|| SLIDING_OF_3.take_at(now(), 1).is_ok());
            first && both(own) == 2 && SLIDING_OF_3.available_at(now()) == 0
        },
    ),
    two_of_two!(ADJUSTABLE),
    one_of_two!("counted bucket", COUNTED),
    (
        "a take of a limiter that is being changed",
        || note(CHANGED.take_at(ALWAYS, 1).is_ok()),
        |point| {
            let full = CHANGED
                .adjust_at(ALWAYS, Rate::per_second(1), 2, Carry::Reset)
                .is_ok();
            let changed = point
                .interrupted(|| CHANGED.adjust_at(ALWAYS, Rate::per_second(1), 2, Carry::Keep));
            full && changed.is_ok()
                && GRANTED.load(Relaxed) == 1
                && CHANGED.available_at(ALWAYS) == 1
        },
    ),
    (
        "a change of a limiter that is being taken from",
        || {
            note(
                CHANGED
                    .adjust_at(ALWAYS, Rate::per_second(1), 3, Carry::Additive)
                    .is_ok(),
            );
        },
        |point| {
            let full = CHANGED
                .adjust_at(ALWAYS, Rate::per_second(1), 2, Carry::Reset)
                .is_ok();
            let own = point.interrupted(|| CHANGED.take_at(ALWAYS, 1).is_ok());
            full && both(own) == 2 && CHANGED.burst() == 3 && CHANGED.available_at(ALWAYS) == 2
        },
    ),
    one_of_two!("penalised bucket", PENALISED),
    (
        "a take of the rest within the cut of a slice",
        || note(SLICED.take_at(now(), 10).is_ok()),
        |point| {
            let slice = point.interrupted(|| SLICED.slice_at(now(), 2));
            let rest = SLICED.available_at(now());
            slice.is_ok_and(|slice| {
                let has = u64::from(slice.held()) + 10 + rest;
                GRANTED.load(Relaxed) == 1 && has <= 40 && slice.try_acquire_at(now(), 2).is_ok()
            }) && SLICED.sliced() == 0
        },
    ),
    (
        "a lease within a lease",
        || note(LIMIT.try_acquire(1).is_ok()),
        |point| {
            let own = point.interrupted(|| LIMIT.try_acquire(1).is_ok());
            own && LIMIT.available() == 1
        },
    ),
    (
        "a lease that is kept within a lease",
        || keep(LIMIT_OF_2.try_acquire(1).ok()),
        |point| {
            let own = point.interrupted(|| LIMIT_OF_2.try_acquire(1));
            let is_out = own.is_ok() && LIMIT_OF_2.in_use() == 2 && LIMIT_OF_2.available() == 0;
            drop(own);
            let_go();
            is_out && LIMIT_OF_2.available() == 2
        },
    ),
    ("a release within a release", let_go, |point| {
        keep(LIMIT_OF_2.try_acquire(1).ok());
        let own = LIMIT_OF_2.try_acquire(1);
        let is_out = LIMIT_OF_2.in_use() == 2;
        point.interrupted(|| drop(own));
        is_out && LIMIT_OF_2.available() == 2
    }),
    (
        "a lease that is kept within a release",
        || keep(LIMIT_OF_2.try_acquire(1).ok()),
        |point| {
            let own = LIMIT_OF_2.try_acquire(1);
            point.interrupted(|| drop(own));
            let is_out = LIMIT_OF_2.in_use() == 1;
            let_go();
            is_out && LIMIT_OF_2.available() == 2
        },
    ),
    (
        "a limit that is changed within a lease",
        || note(LIMIT_OF_2.set_limit(3).is_ok()),
        |point| {
            let own = point.interrupted(|| LIMIT_OF_2.try_acquire(2));
            let is_out = own.is_ok() && LIMIT_OF_2.limit() == 3 && LIMIT_OF_2.available() == 1;
            drop(own);
            is_out && LIMIT_OF_2.set_limit(2) == Ok(3) && LIMIT_OF_2.available() == 2
        },
    ),
    (
        "a lease by id that is kept within another one",
        || keep_id(POOL.claim_at(now(), 1, None).ok()),
        |point| {
            let own = point.interrupted(|| POOL.claim_at(now(), 1, None));
            let (own, other) = (own.ok(), kept_id());
            let is_out = own != other && POOL.leases() == 2 && POOL.limiter().in_use() == 2;
            let released = [own, other].map(|id| id.map(|id| POOL.release(id)));
            is_out
                && released == [Some(Ok(1)); 2]
                && POOL.leases() == 0
                && POOL.limiter().available() == 2
        },
    ),
    (
        "the release of a lease by id within that of another one",
        || note(kept_id().is_some_and(|id| POOL.release(id) == Ok(1))),
        |point| {
            let (own, other) = (POOL.claim_at(now(), 1, None), POOL.claim_at(now(), 1, None));
            keep_id(other.ok());
            let released = point.interrupted(|| own.map(|id| POOL.release(id)));
            both(released == Ok(Ok(1))) == 2
                && POOL.leases() == 0
                && POOL.limiter().available() == 2
        },
    ),
    (
        "the release of a lease by id within its own",
        || note(kept_id().is_some_and(|id| POOL.release(id) == Ok(1))),
        |point| {
            let own = POOL.claim_at(now(), 1, None);
            keep_id(own.ok());
            let released = point.interrupted(|| own.map(|id| POOL.release(id)));
            both(released == Ok(Ok(1))) == 1
                && POOL.leases() == 0
                && POOL.limiter().available() == 2
        },
    ),
    (
        "a sweep within the claim of what is due",
        || note(POOL.sweep(now()) == 1),
        |point| {
            let claimed = point.interrupted(|| POOL.claim_at(now(), 1, Some(now())));
            let swept = GRANTED.load(Relaxed) == 1 || POOL.sweep(now()) == 1;
            claimed.is_ok() && swept && POOL.leases() == 0 && POOL.limiter().available() == 2
        },
    ),
    (
        "a part taken within a take of all",
        || note(one::token_bucket.take_at(now(), 1).is_ok()),
        |point| {
            let own = point.interrupted(|| PAIR.try_acquire_at(now(), 1).is_ok());
            both(own) == 1 && LIMIT_OF_2.available() == 2
        },
    ),
    ("a release within a release of a queue", release, |point| {
        let held = hold(&PAIRED);
        let own = PAIRED.try_acquire(1);
        let is_out = held && PAIRED.available() == 0;
        point.interrupted(|| drop(own));
        is_out && PAIRED.available() == 2
    }),
    (
        "a take within a release that hands over to a wait",
        take_and_release,
        |point| {
            let held = QUEUE.try_acquire(1).ok();
            let (waker, mut wait) = (waker(), pin!(QUEUE.acquire(1)));
            let mut context = Context::from_waker(&waker);
            let waits = wait.as_mut().poll(&mut context).is_pending();
            point.interrupted(|| drop(held));
            // The wait was first; the handler could only get it after that was granted, which never
            // happens.
            let granted = matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(_)));
            waits && granted && GRANTED.load(Relaxed) == 0 && is_as_new()
        },
    ),
    (
        "a release within a poll that begins to wait",
        release,
        |point| {
            let held = hold(&QUEUE);
            let (waker, mut wait) = (waker(), pin!(QUEUE.acquire(1)));
            let mut context = Context::from_waker(&waker);
            let first =
                point.interrupted(|| wait.as_mut().poll(&mut context).map(|lease| lease.is_ok()));
            // Granted by now, at once or by the release: no wake-up is lost.
            let granted = match first {
                Poll::Ready(granted) => granted,
                Poll::Pending => matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(_))),
            };
            held && granted && is_as_new()
        },
    ),
    (
        "a release for later within a poll that begins to wait",
        release_later,
        |point| {
            let held = hold(&QUEUE);
            let (waker, mut wait) = (waker(), pin!(QUEUE.acquire(1)));
            let mut context = Context::from_waker(&waker);
            let first =
                point.interrupted(|| wait.as_mut().poll(&mut context).map(|lease| lease.is_ok()));
            QUEUE.advance();
            let granted = match first {
                Poll::Ready(granted) => granted,
                Poll::Pending => matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(_))),
            };
            held && granted && is_as_new()
        },
    ),
    (
        "a release within the second poll of a wait",
        release,
        |point| {
            let held = hold(&QUEUE);
            let (waker, mut wait) = (waker(), pin!(QUEUE.acquire(1)));
            let mut context = Context::from_waker(&waker);
            let waits = wait.as_mut().poll(&mut context).is_pending();
            let second =
                point.interrupted(|| wait.as_mut().poll(&mut context).map(|lease| lease.is_ok()));
            let granted = match second {
                Poll::Ready(granted) => granted,
                Poll::Pending => matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(_))),
            };
            held && waits && granted && is_as_new()
        },
    ),
    ("a release within the drop of a wait", release, |point| {
        let held = hold(&QUEUE);
        let waker = waker();
        let mut wait = ManuallyDrop::new(QUEUE.acquire(1));
        // SAFETY: it stays here, and is dropped here.
        let waits = unsafe { Pin::new_unchecked(&mut *wait) }
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        // SAFETY: dropped once, and not used afterwards.
        point.interrupted(|| unsafe { ManuallyDrop::drop(&mut wait) });
        held && waits && is_as_new()
    }),
    (
        "a wait that begins and ends within a release",
        || {
            let waker = waker();
            let mut wait = pin!(QUEUE.acquire(1));
            note(
                wait.as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready(),
            );
        },
        |point| {
            let held = QUEUE.try_acquire(1).ok();
            let had = held.is_some();
            point.interrupted(|| drop(held));
            had && is_as_new()
        },
    ),
    (
        "an advance within a poll that begins to wait",
        || {
            NOW.store(NOW.load(Relaxed) + 1_000, Relaxed);
            PACE.advance();
        },
        |point| {
            let first = PACE.try_acquire(1).is_ok();
            let (waker, mut wait) = (waker(), pin!(PACE.acquire(1)));
            let mut context = Context::from_waker(&waker);
            let polled =
                point.interrupted(|| wait.as_mut().poll(&mut context).map(|lease| lease.is_ok()));
            // The handler may have advanced the time before the wait was queued: the driver of a
            // queue asks again.
            PACE.advance();
            let granted = match polled {
                Poll::Ready(granted) => granted,
                Poll::Pending => matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(_))),
            };
            first && granted && PACE.counts().waiters == 0 && PACE.available() == 0
        },
    ),
];
