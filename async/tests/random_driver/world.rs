//! One run: a queue, its users, and the invariants after each step.

use core::cell::{Cell, RefCell};
use core::cmp::Ordering;
use core::fmt::Write as _;
use core::mem::ManuallyDrop;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_async::{Next, Order, Priority, Rejected, Shedding, WaitEnd};
use portcullis_core::Denied;
use portcullis_core::counts::Total;

use crate::chance::{self, Meddles, Site, below, fail, index, one_in};
use crate::fairness::{Fairness, grants};
use crate::parts::{Owner, Sim, Token, Told, Wakes, call, token_of, waker};
use crate::subject::{Boxed, BoxedRequest, Leased, Line1, Plain, Settings, Subject};

/// The settings of a run, besides its limiters.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each one is drawn for itself"
)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The sites that panic, and how often.
    pub(crate) sites: Vec<Site>,
    pub(crate) panics_one_in: u64,
    /// Whether two calls in a row panic.
    pub(crate) doubles: bool,
    /// One in N wakers uses the queue, and how often another context interferes.
    pub(crate) uses_one_in: u64,
    pub(crate) meddles_one_in: u32,
    /// Whether clones of a waker are not alike.
    pub(crate) apart: bool,
    pub(crate) drivers: usize,
    pub(crate) attends: bool,
    pub(crate) drains: bool,
    pub(crate) leaks: bool,
    pub(crate) changes: bool,
    pub(crate) leaves_later: bool,
    pub(crate) deadlines: bool,
    pub(crate) priorities: bool,
    pub(crate) steps_back: bool,
    /// The maximum of waits at once, and of permits of one.
    pub(crate) waits: usize,
    pub(crate) most: u32,
    pub(crate) steps: u64,
    pub(crate) closes_at: Option<u64>,
    /// How many of the last events a failure shows.
    pub(crate) shows: usize,
    /// The weight of each operation.
    weights: [u64; 23],
}

/// Kinds that are not driven, by name, to look beyond a known defect.
const WITHOUT: &[&str] = &[];

/// Whether a kind is driven.
fn drives(kind: &str) -> bool {
    thread_local! {
        static MORE: String = std::env::var("PORTCULLIS_RANDOM_WITHOUT").unwrap_or_default();
    }
    !WITHOUT.contains(&kind) && !MORE.with(|more| more.split(',').any(|without| without == kind))
}

impl Config {
    pub(crate) fn draw() -> Self {
        let order = match below(6) {
            0 | 1 => Order::NewestFirst,
            2 if drives("overload") => Order::NewestWhileOverloaded,
            _ => Order::OldestFirst,
        };
        let waits = [3, 8, 12, 45][index(4)];
        let settings = Settings {
            order,
            max_permits: [u64::MAX, 40, 12, 6][index(4)],
            max_waiters: [u32::MAX, 30, 7, 3][index(4)],
            slack: Duration::from_millis([0, 10, 10, 200][index(4)]),
            shedding: (one_in(3) && drives("shedding")).then(|| {
                let target = Duration::from_millis([0, 5, 50][index(3)]);
                let interval = Duration::from_millis([20, 100, 500][index(3)]);
                Shedding::controlled_delay(target, interval)
            }),
        };
        let mut sites: Vec<_> = Site::ALL
            .into_iter()
            .filter(|site| drives(&format!("{site:?}")))
            .collect();
        match below(10) {
            0..3 => sites.clear(),
            3..8 => {
                while sites.len() > 1 {
                    sites.swap_remove(index(sites.len()));
                }
            }
            _ => sites.retain(|_| one_in(2)),
        }
        let steps = 100 + below(500);
        // Some operations often, some rarely.
        let weights = World::<Line1<Plain>>::OPERATIONS
            .map(|(weight, _)| weight * [1, 4, 4, 4, 16][index(5)]);
        Self {
            settings,
            sites,
            panics_one_in: [3, 10, 40][index(3)],
            doubles: one_in(4) && drives("doubles"),
            uses_one_in: if drives("uses") {
                [0, 0, 20, 3][index(4)]
            } else {
                0
            },
            meddles_one_in: if drives("meddling") {
                [0, 0, 200, 20][index(4)]
            } else {
                0
            },
            apart: one_in(2),
            drivers: if drives("drivers") {
                [0, 0, 1, 1, 3][index(if drives("several") { 5 } else { 4 })]
            } else {
                0
            },
            attends: one_in(2) && drives("attend"),
            drains: one_in(2) && drives("drained"),
            leaks: one_in(3) && drives("leaks"),
            changes: one_in(3) && drives("changes"),
            leaves_later: one_in(2) && drives("later"),
            deadlines: one_in(2) && drives("deadlines"),
            priorities: one_in(3) && drives("priorities"),
            steps_back: one_in(3) && drives("back"),
            waits,
            most: [1, 3, 6][index(3)],
            steps,
            closes_at: (one_in(4) && drives("close")).then(|| below(steps)),
            shows: 60,
            weights,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not polled yet.
    Fresh,
    Waiting,
    Settled,
}

#[allow(clippy::struct_excessive_bools, reason = "each one is seen for itself")]
struct Wait<L> {
    id: u64,
    key: usize,
    min: u32,
    max: u32,
    priority: Priority,
    /// Its own deadline, and the bound of the shedding.
    until: Option<u64>,
    bound: Bound,
    /// Whether it entered before the waits of its key; `None` if that is unknown.
    goes_first: Option<bool>,
    phase: Phase,
    /// `None` while it is polled.
    future: Option<BoxedRequest<L>>,
    tokens: Vec<Arc<Token>>,
    /// It queued between these times.
    start: u64,
    end: u64,
    is_leaked: bool,
    /// Whether its last poll panicked. An executor would have dropped it.
    has_panicked: bool,
    /// For a head: when its limiter will grant, as of the last time that the queue was at rest.
    predicted: Option<u64>,
    /// Whether it was one of several that might be the head of their list.
    has_rival: bool,
    /// For a settled wait: whether a wait before it was still waiting then, one behind it too, and
    /// how late it was.
    overtook: bool,
    left_later: bool,
    newest: u64,
    granted_in_time: bool,
    granted_late: bool,
    /// Whether, after a change, its permits would come after its end. Then it may end early.
    is_hopeless: bool,
    /// If it was the only grant in its step: the number of takes before it, and its time.
    sole: Option<(u64, u64)>,
}

impl<L> Wait<L> {
    fn is_woken(&self) -> bool {
        self.tokens.iter().any(|token| token.is_woken())
    }

    /// Whether it is granted or rejected. While it is polled, only its wakes tell.
    fn is_settled(&self) -> bool {
        match &self.future {
            Some(future) => future.is_settled(),
            None => self.is_woken(),
        }
    }

    /// Whether it was woken and still waits: it is to drive the queue.
    fn is_told(&self) -> bool {
        self.is_woken() && !self.is_settled()
    }

    /// When its wait ends at the earliest, and at the latest.
    fn ends(&self) -> (u64, u64) {
        let own = self.until.unwrap_or(u64::MAX);
        (own.min(self.bound.least), own.min(self.bound.most))
    }

    /// Whether its wait can end at its own deadline, or at the bound of the shedding: at the
    /// earlier of the two.
    fn can_end(&self, outcome: WaitEnd) -> bool {
        let own = self.until.unwrap_or(u64::MAX);
        match outcome {
            WaitEnd::Deadline => own < u64::MAX && own <= self.bound.most,
            WaitEnd::Shed => self.bound.least < own,
            _ => true,
        }
    }

    /// Whether it is served before another wait of its key. If not known, `false`.
    fn is_before(&self, other: &Self) -> bool {
        match self.priority.cmp(&other.priority) {
            Ordering::Greater => return true,
            Ordering::Less => return false,
            Ordering::Equal => {}
        }
        if self.end < other.start {
            other.goes_first == Some(false)
        } else {
            other.end < self.start && self.goes_first == Some(true)
        }
    }

    fn has(&self, token: &Arc<Token>) -> bool {
        self.tokens.iter().any(|own| Arc::ptr_eq(own, token))
    }
}

/// Until when the shedding lets a request wait: exactly, if no other context has come in while it
/// entered.
#[derive(Clone, Copy, Debug)]
struct Bound {
    least: u64,
    most: u64,
}

impl Bound {
    const NONE: Self = Self {
        least: u64::MAX,
        most: u64::MAX,
    };
}

/// Since when a key has had waits without a break: exactly, if no other context has come in.
#[derive(Clone, Copy, Debug)]
struct Since {
    earliest: u64,
    latest: u64,
}

/// A wait that is granted at once.
struct Newcomer {
    id: u64,
    key: usize,
    priority: Priority,
    goes_first: Option<bool>,
    start: u64,
}

impl Newcomer {
    fn of<L>(wait: &Wait<L>) -> Self {
        Self {
            id: wait.id,
            key: wait.key,
            priority: wait.priority,
            goes_first: wait.goes_first,
            start: wait.start,
        }
    }

    /// Whether a wait that queued earlier comes before it.
    fn is_behind<L>(&self, other: &Wait<L>) -> bool {
        let is_before = self.goes_first == Some(false) && other.priority >= self.priority;
        is_before && other.key == self.key && other.end < self.start
    }
}

/// A future that exists as long as it is not ready.
struct Other {
    id: u64,
    future: Option<Boxed<()>>,
    token: Option<Arc<Token>>,
}

/// What the driver has counted.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    entered: u64,
    granted: u64,
    refused: u64,
    evicted: u64,
    late: u64,
    shed: u64,
    cancelled: u64,
    closed: u64,
    oversized: u64,
    /// A call that panicked may have counted one more.
    unsure: u64,
}

/// The requests whose outcome the driver has learnt, and the fewest and the most permits of them.
#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    requests: u64,
    least: u64,
    most: u64,
}

impl Sum {
    fn add(&mut self, least: u32, most: u32) {
        self.requests += 1;
        self.least += u64::from(least);
        self.most += u64::from(most);
    }

    /// Whether a total of the limiter can be this one, if it knows up to `more` requests more.
    fn can_be(self, total: Total, more: u64, permits: u64) -> bool {
        (self.requests..=self.requests + more).contains(&total.requests)
            && (self.least..=self.most + permits).contains(&total.permits)
    }
}

/// All requests that have ended, by their outcomes.
#[derive(Clone, Copy, Default, Debug)]
struct Ended {
    granted: Sum,
    denied: Sum,
    refused: Sum,
    cancelled: Sum,
}

impl Ended {
    /// By the words of `NotGranted`, written out once more.
    fn rejected(&mut self, rejected: Rejected) -> &mut Sum {
        match rejected {
            Rejected::Deadline { .. } | Rejected::Shed { .. } => &mut self.denied,
            _ => &mut self.refused,
        }
    }

    fn waited(&mut self, outcome: WaitEnd) -> &mut Sum {
        match outcome {
            WaitEnd::Granted => &mut self.granted,
            WaitEnd::Deadline | WaitEnd::Shed => &mut self.denied,
            WaitEnd::Cancelled => &mut self.cancelled,
            _ => &mut self.refused,
        }
    }

    fn tried(&mut self, denied: Denied) -> &mut Sum {
        match denied {
            Denied::Exhausted { .. } | Denied::Crowded { .. } => &mut self.denied,
            _ => &mut self.refused,
        }
    }

    fn requests(self) -> u64 {
        let Self {
            granted,
            denied,
            refused,
            cancelled,
        } = self;
        granted.requests + denied.requests + refused.requests + cancelled.requests
    }
}

/// The results of a run.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) runs: u64,
    pub(crate) steps: u64,
    pub(crate) granted_at_once: u64,
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) evicted: u64,
    pub(crate) late: u64,
    pub(crate) shed: u64,
    pub(crate) cancelled: u64,
    pub(crate) panics: u64,
    pub(crate) doubled: u64,
    pub(crate) meddled: u64,
    pub(crate) fired: u64,
    /// Of two keys that wait for a limit of all keys, in per cent of its bound.
    pub(crate) largest_lead: i64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.granted_at_once += other.granted_at_once;
        self.granted += other.granted;
        self.refused += other.refused;
        self.evicted += other.evicted;
        self.late += other.late;
        self.shed += other.shed;
        self.cancelled += other.cancelled;
        self.panics += other.panics;
        self.doubled += other.doubled;
        self.meddled += other.meddled;
        self.fired += other.fired;
        self.largest_lead = self.largest_lead.max(other.largest_lead);
    }
}

/// The permits of waits that are never polled nor dropped again.
#[derive(Clone, Copy, Default)]
struct Leaked {
    wanted: u64,
    /// Granted at least, and at most: a wait settled by a close or a change of the limit may have
    /// been granted.
    least: u64,
    most: u64,
}

/// The weight of an operation, and its function.
type Operation<W> = (u64, fn(&W));

type Line = (u32, &'static str, u64, u64, u64);

pub(crate) struct World<S: Subject> {
    subject: S,
    config: Config,
    waits: RefCell<Vec<Wait<S::Lease>>>,
    leases: RefCell<Vec<(usize, S::Lease)>>,
    forgotten_leases: RefCell<Vec<ManuallyDrop<S::Lease>>>,
    /// The permits by key that never return, and those of leaked waits.
    forgotten: RefCell<Vec<u64>>,
    leaked: RefCell<Vec<Leaked>>,
    drivers: RefCell<Vec<Other>>,
    drained: RefCell<Vec<Other>>,
    gone: RefCell<Vec<Arc<Token>>>,
    /// The waits granted at once in this step.
    newcomers: RefCell<Vec<Newcomer>>,
    fired: RefCell<Option<Waker>>,
    ids: Cell<u64>,
    sequence: Cell<u64>,
    step: Cell<u64>,
    /// The state at the start of the step.
    started: Cell<u64>,
    takes: Cell<u64>,
    closed: Cell<bool>,
    closed_in: Cell<u64>,
    changed_in: Cell<u64>,
    ever_changed: Cell<bool>,
    attended: Cell<bool>,
    /// When a pending release was left for the next call of the queue; 0 if there is none.
    later: Cell<u64>,
    advanced: Cell<Option<Next>>,
    released: Cell<bool>,
    /// Whether permits were refunded by a receipt in this step, as of its time.
    gave_back: Cell<bool>,
    /// The sites that have panicked in this step.
    struck: Cell<u32>,
    /// Permits in leases of limiters whose permits return by time.
    handed: Cell<u64>,
    tally: Cell<Tally>,
    ended: Cell<Ended>,
    seen: Cell<Seen>,
    /// Of each key that has waits, since when.
    since: RefCell<Vec<Option<Since>>>,
    /// How far the keys are apart, and the waits and their keys at the start of the step.
    fairness: RefCell<Option<Fairness>>,
    waited: RefCell<Vec<(u64, usize)>>,
    trace: RefCell<VecDeque<Line>>,
}

const MILLI: u64 = 1_000_000;

impl<S: Subject> Meddles for World<S> {
    fn meddle(&self, under_lock: bool) {
        if self.step.get() == self.config.steps {
            // Everything is dropped, and nothing new is created.
            return;
        }
        let mut seen = self.seen.get();
        seen.meddled += 1;
        self.seen.set(seen);
        if under_lock {
            self.act_under_lock();
        } else {
            self.act_within();
        }
    }
}

/// A run in progress. If it ends early, something dropped may still be in use: then nothing is
/// dropped.
struct On<S: Subject>(Rc<World<S>>, bool);

impl<S: Subject> Drop for On<S> {
    fn drop(&mut self) {
        if !self.1 {
            core::mem::forget(Rc::clone(&self.0));
        }
        chance::set_others(None);
    }
}

/// Runs one configuration to its end; returns the failure, if any.
pub(crate) fn run<S: Subject>(
    make: impl FnOnce(&Settings) -> S,
    config: Config,
) -> Result<Seen, String> {
    let subject = make(&config.settings);
    let keys = subject.keys();
    let fairness = subject.fairness(config.most);
    // Those of the run before.
    drop(grants());
    let world = Rc::new(World {
        subject,
        config,
        waits: RefCell::default(),
        leases: RefCell::default(),
        forgotten_leases: RefCell::default(),
        forgotten: RefCell::new(vec![0; keys]),
        leaked: RefCell::new(vec![Leaked::default(); keys]),
        drivers: RefCell::default(),
        drained: RefCell::default(),
        gone: RefCell::default(),
        newcomers: RefCell::default(),
        fired: RefCell::default(),
        ids: Cell::new(0),
        sequence: Cell::new(0),
        step: Cell::new(0),
        started: Cell::new(0),
        takes: Cell::new(0),
        closed: Cell::new(false),
        closed_in: Cell::new(u64::MAX),
        changed_in: Cell::new(u64::MAX),
        ever_changed: Cell::new(false),
        attended: Cell::new(false),
        later: Cell::new(0),
        advanced: Cell::new(None),
        released: Cell::new(false),
        gave_back: Cell::new(false),
        struck: Cell::new(0),
        handed: Cell::new(0),
        tally: Cell::default(),
        ended: Cell::default(),
        seen: Cell::default(),
        since: RefCell::new(vec![None; keys]),
        fairness: RefCell::new(fairness),
        waited: RefCell::default(),
        trace: RefCell::default(),
    });
    let mut on = On(world, false);
    chance::set_others(Some(Rc::clone(&on.0) as Rc<dyn Meddles>));
    on.0.run()?;
    on.1 = true;
    Ok(on.0.seen.get())
}

impl<S: Subject> World<S> {
    fn run(&self) -> Result<(), String> {
        self.subject
            .clock()
            .set(below(3) * 500 * MILLI + 1_000 * MILLI);
        for step in 0..self.config.steps {
            self.begin(step);
            let times = if self.config.doubles { 2 } else { 1 };
            // A pending release makes the other operations more interesting.
            let one = if self.later.get() > 0 {
                2
            } else {
                self.config.panics_one_in
            };
            if !self.config.sites.is_empty() && one_in(one) {
                chance::arm(self.config.sites[index(self.config.sites.len())], times);
            }
            chance::set_meddling(self.config.meddles_one_in);
            let locks = chance::locks();
            self.act();
            if self.released.get()
                && !chance::has_meddled()
                && chance::locks() > locks
                && drives("release-locks")
            {
                fail("a release would have waited for the lock");
            }
            chance::disarm();
            self.end()?;
        }
        self.begin(self.config.steps);
        self.wind_up();
        self.report()
    }

    fn begin(&self, step: u64) {
        self.step.set(step);
        self.started.set(self.next());
        self.takes.set(self.subject.takes());
        self.advanced.set(None);
        self.released.set(false);
        // A pending release is seen in this step, or in a later one.
        self.gave_back.set(self.later.get() > 0);
        *self.waited.borrow_mut() = self.waiting().collect();
    }

    /// The waits that are not settled, and their keys.
    fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        let waits = self.waits.borrow();
        let waiting = waits.iter().filter(|wait| wait.phase == Phase::Waiting);
        let waiting: Vec<_> = waiting.map(|wait| (wait.id, wait.key)).collect();
        waiting.into_iter()
    }

    /// No key is before another by more than the bound, over any span of steps in which both wait,
    /// and their requests end by grants only.
    fn is_fair(&self) {
        let grants = self.subject.grants_by_key();
        let mut fairness = self.fairness.borrow_mut();
        // After a panic, or within another call, a key may be judged later.
        if self.seen.get().panics > 0 || self.seen.get().meddled > 0 {
            *fairness = None;
        }
        let Some(fairness) = &mut *fairness else {
            return;
        };
        for &(key, n) in &grants {
            self.note("total grants: key, permits", key as u64, n.into(), 0);
        }
        let before = self.waited.borrow();
        let mut is_ready = vec![false; self.subject.keys()];
        for (_, key) in self.waiting().filter(|wait| before.contains(wait)) {
            is_ready[key] = true;
        }
        // What a key has saved for a request that leaves without a grant is lost: a new span.
        let waiting: Vec<_> = self.waiting().collect();
        for (key, is_ready) in is_ready.iter_mut().enumerate() {
            let of_key = |wait: &&(u64, usize)| wait.1 == key && !waiting.contains(*wait);
            let ended = before.iter().filter(of_key).count();
            let granted = grants.iter().filter(|grant| grant.0 == key).count();
            *is_ready &= ended <= granted;
        }
        fairness.step(&grants, &is_ready);
        let largest = fairness.largest;
        self.saw(|seen| seen.largest_lead = seen.largest_lead.max(largest));
    }

    /// Checks the invariants after a step.
    fn end(&self) -> Result<(), String> {
        let (struck, doubled, panics) = chance::take_struck();
        self.struck.set(struck);
        let mut seen = self.seen.get();
        seen.steps += 1;
        seen.panics += panics;
        seen.doubled += u64::from(doubled.count_ones());
        self.seen.set(seen);
        self.settle();
        self.report()?;
        if struck & Site::CUT_SHORT != 0 {
            // The next caller completes what a limiter, a clock or a timer has cut short.
            self.conserved();
            self.report()?;
            self.note("advance after a panic", 0, 0, 0);
            self.advance();
            self.settle();
        }
        self.conserved();
        self.adds_up();
        self.is_fair();
        self.note_since();
        self.stands_still();
        self.gone();
        self.report()
    }

    fn report(&self) -> Result<(), String> {
        let failures = chance::take_failures();
        if failures.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for failure in failures {
            _ = writeln!(text, "{failure}");
        }
        _ = writeln!(text, "in step {} of {:?}", self.step.get(), self.config);
        _ = writeln!(
            text,
            "at {} ns (newest {}), alarm at {:?}, attended: {}, closed: {}",
            self.time(),
            self.clock().newest(),
            self.clock().alarm().map(|(at, who)| match who {
                Wakes::Token(token) => format!("{at} for {:?}", token.owner),
                Wakes::Queue => format!("{at} for the queue"),
            }),
            self.attended.get(),
            self.closed.get()
        );
        for wait in self.waits.borrow().iter() {
            _ = writeln!(
                text,
                "  wait {} of key {}, {:?}: {} to {} until {:?}, {:?}, {:?}{}, due {:?}",
                wait.id,
                wait.key,
                wait.priority,
                wait.min,
                wait.max,
                wait.until,
                wait.bound,
                wait.phase,
                if wait.is_leaked { ", leaked" } else { "" },
                wait.predicted
            );
        }
        for driver in self.drivers.borrow().iter() {
            let told = driver.token.as_ref().map(|token| token.is_woken());
            _ = writeln!(text, "  driver {}: told {told:?}", driver.id);
        }
        _ = writeln!(text, "held by leases: {:?}", self.in_leases());
        for (depth, what, a, b, c) in self.trace.borrow().iter() {
            _ = writeln!(
                text,
                "{:width$}{what} {a} {b} {c}",
                "",
                width = 2 + 2 * *depth as usize
            );
        }
        Err(text)
    }

    fn note(&self, what: &'static str, a: u64, b: u64, c: u64) {
        let mut trace = self.trace.borrow_mut();
        if trace.len() >= self.config.shows {
            trace.pop_front();
        }
        trace.push_back((chance::depth(), what, a, b, c));
    }

    fn next(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    fn id(&self) -> u64 {
        self.ids.set(self.ids.get() + 1);
        self.ids.get()
    }

    fn clock(&self) -> &Sim {
        self.subject.clock()
    }

    fn time(&self) -> u64 {
        self.clock().time()
    }

    fn tally(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    fn ended(&self, change: impl FnOnce(&mut Ended)) {
        let mut ended = self.ended.get();
        change(&mut ended);
        self.ended.set(ended);
    }

    fn saw(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        change(&mut seen);
        self.seen.set(seen);
    }

    // The operations.

    fn act(&self) {
        let config = &self.config;
        if config.closes_at == Some(self.step.get()) {
            return self.close();
        }
        if self.later.get() > 0 && one_in(4) {
            return self.drainers();
        }
        let mut drawn = below(config.weights.iter().sum());
        let mut operation = 0;
        while drawn >= config.weights[operation] {
            drawn -= config.weights[operation];
            operation += 1;
        }
        Self::OPERATIONS[operation].1(self);
    }

    /// What one step does, and the usual weights, which each run changes.
    const OPERATIONS: [Operation<Self>; 23] = [
        (18, Self::enter),
        (16, Self::poll_woken),
        (5, Self::poll_any),
        (6, Self::drop_any),
        (11, Self::drop_lease),
        (2, Self::release_part),
        (3, Self::refund),
        (1, Self::split),
        (1, Self::merge),
        (3, Self::leave_later),
        (4, Self::try_acquire),
        (2, Self::change),
        (4, Self::drainers),
        (3, Self::advance),
        (7, Self::drive),
        (1, Self::attend),
        (3, Self::pass_time),
        (6, Self::fire),
        (1, Self::fire_wrongly),
        (2, Self::count),
        (1, Self::leak),
        (1, Self::ask),
        (1, Self::claim_all),
    ];

    /// The operations that a waker, or another thread, may do.
    fn act_within(&self) {
        match below(24) {
            0..3 => self.enter(),
            3..7 => self.poll_woken(),
            7 => self.poll_any(),
            8..10 => self.drop_any(),
            10..14 => self.drop_lease(),
            14 => self.release_part(),
            15 => self.refund(),
            16 => self.leave_later(),
            17 => self.try_acquire(),
            18 => self.drainers(),
            19 => self.advance(),
            20..22 => self.drive(),
            22 => self.count(),
            _ if one_in(50) && self.config.closes_at.is_some() => self.close(),
            _ => self.change(),
        }
    }

    /// The operations in a context that has pre-empted the holder of the lock.
    fn act_under_lock(&self) {
        match below(8) {
            0..3 => self.drop_lease(),
            3 => self.release_part(),
            4 => self.refund(),
            5 => self.leave_later(),
            _ => self.try_acquire(),
        }
    }

    fn enter(&self) {
        if self.waits.borrow().len() >= self.config.waits + 2 {
            return;
        }
        let key = index(self.subject.keys());
        let (a, b) = (
            below(u64::from(self.config.most) + 1) as u32,
            below(9) as u32,
        );
        // A request for none has a turn of its own, and no limit tells of it.
        let min = if one_in(3) && self.fairness.borrow().is_none() {
            a
        } else {
            a.max(1)
        };
        let max = if one_in(4) { b } else { min };
        let until = (self.config.deadlines && one_in(2)).then(|| {
            self.time() + [0, 5, 40, 300, 2_000][index(5)] * MILLI + below(2) * below(MILLI)
        });
        let priority = if self.config.priorities {
            [Priority::Low, Priority::Normal, Priority::High][index(3)]
        } else {
            Priority::Normal
        };
        let id = self.id();
        let wait = Wait {
            id,
            key,
            priority,
            min,
            max: max.max(min),
            until,
            bound: Bound::NONE,
            goes_first: None,
            phase: Phase::Fresh,
            future: Some(self.subject.acquire(key, min, max, until, priority)),
            tokens: Vec::new(),
            start: 0,
            end: 0,
            is_leaked: false,
            has_panicked: false,
            predicted: None,
            has_rival: false,
            overtook: false,
            left_later: false,
            newest: 0,
            granted_in_time: false,
            granted_late: false,
            is_hopeless: false,
            sole: None,
        };
        self.waits.borrow_mut().push(wait);
        self.note("acquire: wait, from, to", id, min.into(), max.into());
        if !one_in(20) {
            self.poll(id);
        }
    }

    fn poll_woken(&self) {
        let woken: Vec<_> = self
            .waits
            .borrow()
            .iter()
            .filter(|wait| !wait.is_leaked && wait.future.is_some() && wait.is_woken())
            .map(|wait| wait.id)
            .collect();
        if !woken.is_empty() {
            self.poll(woken[index(woken.len())]);
        }
    }

    fn pick(&self) -> Option<u64> {
        let waits = self.waits.borrow();
        if waits.is_empty() {
            return None;
        }
        let wait = &waits[index(waits.len())];
        (!wait.is_leaked && wait.future.is_some()).then_some(wait.id)
    }

    fn poll_any(&self) {
        if let Some(id) = self.pick() {
            self.poll(id);
        }
    }

    fn drop_any(&self) {
        if let Some(id) = self.pick() {
            self.drop_wait(id);
        }
    }

    fn of<T>(&self, id: u64, work: impl FnOnce(&mut Wait<S::Lease>) -> T) -> Option<T> {
        self.waits
            .borrow_mut()
            .iter_mut()
            .find(|wait| wait.id == id)
            .map(work)
    }

    fn remove(&self, id: u64) -> Option<Wait<S::Lease>> {
        let mut waits = self.waits.borrow_mut();
        let place = waits.iter().position(|wait| wait.id == id)?;
        Some(waits.remove(place))
    }

    fn poll(&self, id: u64) {
        let left = self.later.get();
        let uses = self.config.uses_one_in > 0 && one_in(self.config.uses_one_in);
        let new = Token::new(Owner::Wait(id), uses);
        let again = one_in(2);
        let now = self.next();
        let taken = self.of(id, |wait| {
            let (was_settled, was_woken) = (wait.is_settled(), wait.is_woken());
            if !was_settled {
                wait.tokens.iter().for_each(|token| token.reset());
            }
            let future = wait.future.take()?;
            let before = wait.tokens.len();
            let token = match wait.tokens.first() {
                Some(token) if again && before == 1 => Arc::clone(token),
                _ => {
                    wait.tokens.push(Arc::clone(&new));
                    Arc::clone(&new)
                }
            };
            if wait.phase == Phase::Fresh {
                wait.start = now;
                wait.end = u64::MAX;
            }
            Some((future, wait.phase, was_settled, was_woken, token))
        });
        let Some((mut future, phase, was_settled, was_woken, token)) = taken.flatten() else {
            return;
        };
        drop(new);
        self.note("poll: wait, woken", id, u64::from(was_woken), 0);
        let told = Told::len();
        let settled = self.settled_in_step();
        if phase == Phase::Fresh {
            self.note_terms(id);
        }
        let waker = waker(&token, self.config.apart);
        let outcome = call(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        _ = call(|| drop(waker));
        if phase == Phase::Fresh && (chance::has_meddled() || self.settled_in_step() > settled) {
            // Its list may have been empty when it entered, or not.
            self.set_terms(id, None);
        }
        let hooked = Told::since(told);
        let now = self.next();
        match outcome {
            Some(Poll::Pending) => {
                if phase == Phase::Settled || phase == Phase::Waiting && was_settled {
                    fail(format!("wait {id} was settled, and still waits"));
                }
                self.came(left);
                let old = self.of(id, |wait| {
                    if wait.phase == Phase::Fresh {
                        wait.phase = Phase::Waiting;
                        wait.end = now;
                        self.tally(|tally| tally.entered += 1);
                    }
                    wait.future = Some(future);
                    wait.has_panicked = false;
                    core::mem::replace(&mut wait.tokens, vec![token])
                });
                drop(old);
            }
            Some(Poll::Ready(result)) => {
                drop(future);
                let Some(wait) = self.remove(id) else { return };
                // A wait that drives the queue may grant its own request.
                let drives = was_woken || self.is_armed_for(&wait);
                if phase == Phase::Waiting && !drives && !wait.is_woken() && chance::depth() == 0 {
                    fail(format!("wait {id} is ready, and was not woken"));
                }
                match &result {
                    Ok(lease) => self.note("granted: wait, permits", id, lease.permits().into(), 0),
                    Err(_) => self.note("rejected: wait", id, 0, 0),
                }
                self.ready(wait, phase, result, hooked);
            }
            None => {
                self.tally(|tally| tally.unsure += 1);
                self.note("panicked: wait", id, u64::from(hooked.is_some()), 0);
                self.of(id, |wait| {
                    wait.future = Some(future);
                    wait.has_panicked = true;
                });
                if let Some(hooked) = hooked {
                    // Over, except for the hook.
                    if let Some(wait) = self.remove(id) {
                        self.finish(&wait, hooked);
                        self.bury(wait);
                    }
                } else if phase == Phase::Fresh {
                    if chance::depth() == 0 && !chance::has_meddled() && one_in(3) {
                        self.look_whether_it_waits(id);
                    } else {
                        self.drop_wait(id);
                    }
                } else if one_in(2) {
                    self.drop_wait(id);
                }
            }
        }
    }

    /// Notes on which terms a request enters that is about to be polled for the first time: until
    /// when it may wait, and whether it goes first.
    fn note_terms(&self, id: u64) {
        let now = self.time();
        let interval = self.config.settings.shedding.unwrap_or_default().interval();
        let interval = u64::try_from(interval.as_nanos()).expect("short");
        let Some(key) = self.of(id, |wait| wait.key) else {
            return;
        };
        let since = self.since.borrow()[key].filter(|_| self.is_waited_for(key));
        let past = |since: u64| now.saturating_sub(since) > interval;
        let is_overloaded = match since {
            _ if chance::depth() > 0 => None,
            None => Some(false),
            Some(Since { earliest, latest }) if past(earliest) == past(latest) => {
                Some(past(latest))
            }
            Some(_) => None,
        };
        self.set_terms(id, is_overloaded);
    }

    /// Sets the terms of a new request, given whether its list is overloaded, if that is known.
    fn set_terms(&self, id: u64, is_overloaded: Option<bool>) {
        let Settings {
            order, shedding, ..
        } = self.config.settings;
        let goes_first = match order {
            Order::OldestFirst => Some(false),
            Order::NewestFirst => Some(true),
            Order::NewestWhileOverloaded => is_overloaded,
            order => unreachable!("the model has no {order:?}"),
        };
        let bound = shedding.map_or(Bound::NONE, |rule| {
            let [target, interval] = [rule.target(), rule.interval()]
                .map(|time| self.time() + u64::try_from(time.as_nanos()).expect("short"));
            match is_overloaded {
                Some(true) => Bound {
                    least: target,
                    most: target,
                },
                Some(false) => Bound {
                    least: interval,
                    most: interval,
                },
                None => Bound {
                    least: target,
                    most: interval,
                },
            }
        });
        self.of(id, |wait| {
            (wait.bound, wait.goes_first) = (bound, goes_first);
        });
    }

    /// Notes since when each key has waits, after a step.
    fn note_since(&self) {
        let (now, started) = (self.time(), self.started.get());
        let waits = self.waits.borrow();
        let before = self.waited.borrow();
        for (key, since) in self.since.borrow_mut().iter_mut().enumerate() {
            let waiting = || {
                let waits = waits.iter().filter(|wait| wait.phase == Phase::Waiting);
                waits.filter(|wait| wait.key == key)
            };
            let has_left = before
                .iter()
                .any(|&(id, of)| of == key && !waiting().any(|wait| wait.id == id));
            let has_come = waiting().any(|wait| wait.end > started);
            let may_have_been_empty = has_come && (has_left || chance::has_meddled());
            *since = match *since {
                _ if waiting().next().is_none() => None,
                Some(since) if may_have_been_empty => Some(Since {
                    earliest: since.earliest.min(now),
                    latest: since.latest.max(now),
                }),
                Some(since) => Some(since),
                None => Some(Since {
                    earliest: now,
                    latest: now,
                }),
            };
        }
    }

    /// Its first poll panicked, before or after it queued.
    fn look_whether_it_waits(&self, id: u64) {
        let left = self.later.get();
        chance::disarm();
        let now = self.next();
        let waiting = self
            .waits
            .borrow()
            .iter()
            .filter(|wait| wait.phase == Phase::Waiting && !wait.is_settled())
            .count();
        let counted = self.subject.counts().waiters as usize;
        self.came(left);
        let entered = self.of(id, |wait| {
            let entered = wait.is_settled() || counted > waiting;
            if entered {
                (wait.phase, wait.end) = (Phase::Waiting, now);
                self.tally(|tally| tally.entered += 1);
            }
            entered
        });
        if entered == Some(false) {
            self.drop_wait(id);
        }
    }

    fn ready(
        &self,
        mut wait: Wait<S::Lease>,
        phase: Phase,
        result: Result<S::Lease, Rejected>,
        hooked: Option<WaitEnd>,
    ) {
        let id = wait.id;
        if hooked.is_none() {
            // The request did not wait.
            self.ended(|ended| match &result {
                Ok(lease) => ended.granted.add(lease.permits(), lease.permits()),
                Err(rejected) => ended.rejected(*rejected).add(wait.min, wait.min),
            });
        }
        let outcome = match &result {
            Ok(_) => WaitEnd::Granted,
            Err(Rejected::QueueFull { .. }) => {
                if phase != Phase::Fresh {
                    fail(format!("wait {id} is rejected after it has waited"));
                }
                self.tally(|tally| tally.refused += 1);
                self.saw(|seen| seen.refused += 1);
                self.full(&wait);
                self.bury(wait);
                return;
            }
            Err(Rejected::Evicted { .. }) => WaitEnd::Evicted,
            Err(Rejected::Deadline { .. }) => WaitEnd::Deadline,
            Err(Rejected::Shed { .. }) => WaitEnd::Shed,
            Err(Rejected::ExceedsCapacity { .. }) => WaitEnd::ExceedsCapacity,
            Err(_) => WaitEnd::Closed,
        };
        if let Ok(lease) = result {
            let n = lease.permits();
            if n < wait.min || n > wait.max {
                fail(format!(
                    "wait {id} requests {} to {}, and is granted {n}",
                    wait.min, wait.max
                ));
            }
            (wait.min, wait.max) = (n, n);
            self.handed.set(self.handed.get() + u64::from(n));
            if n > 0 || one_in(2) {
                self.leases.borrow_mut().push((wait.key, lease));
            }
        }
        // A wait that enters and drives the queue at once may be granted in its first poll. So may
        // one that goes before others by its priority, or whose key joins another that was alone
        // and has had its turn.
        let passes = |other: &Wait<_>| other.key == wait.key && other.priority < wait.priority;
        let is_alone = !self.subject.has_total()
            && !self.waits.borrow().iter().any(passes)
            && chance::depth() == 0
            && !chance::has_meddled()
            && !chance::has_struck()
            && self.later.get() == 0;
        let has_driven = hooked.is_some() && !is_alone;
        if phase == Phase::Fresh && !has_driven {
            if hooked.is_some() {
                fail("a hook is called for a request that did not wait");
            }
            match outcome {
                WaitEnd::Granted => {
                    self.saw(|seen| seen.granted_at_once += 1);
                    self.newcomers.borrow_mut().push(Newcomer::of(&wait));
                }
                _ if !wait.can_end(outcome) => {
                    fail(format!("wait {id} is {outcome:?}, with {:?}", wait.bound));
                }
                WaitEnd::Deadline => self.tally(|tally| tally.late += 1),
                WaitEnd::Shed => {
                    self.tally(|tally| tally.shed += 1);
                    self.saw(|seen| seen.shed += 1);
                }
                WaitEnd::Closed if !self.closed.get() => fail("an open queue rejects as closed"),
                WaitEnd::ExceedsCapacity
                    if u64::from(wait.min) <= self.subject.capacity(wait.key)
                        && !self.ever_changed.get() =>
                {
                    fail(format!("wait {id} does not exceed the capacity"));
                }
                WaitEnd::Closed => self.tally(|tally| tally.closed += 1),
                WaitEnd::ExceedsCapacity => self.tally(|tally| tally.oversized += 1),
                _ => {}
            }
        } else {
            if phase == Phase::Fresh {
                self.tally(|tally| tally.entered += 1);
            }
            if hooked != Some(outcome) {
                fail(format!(
                    "wait {id} is {outcome:?}, and the hook says {hooked:?}"
                ));
            }
            self.finish(&wait, outcome);
        }
        self.bury(wait);
    }

    /// No earlier wait still waits when a newcomer is granted at once, unless that one goes first.
    fn none_overtaken(&self) {
        let newcomers = self.newcomers.take();
        let waits = self.waits.borrow();
        for newcomer in newcomers {
            let waiting = waits.iter().filter(|other| other.phase == Phase::Waiting);
            if let Some(ahead) = waiting.into_iter().find(|other| newcomer.is_behind(other)) {
                fail(format!(
                    "wait {} has overtaken wait {}",
                    newcomer.id, ahead.id
                ));
            }
        }
    }

    /// A rejected request did not fit.
    fn full(&self, wait: &Wait<S::Lease>) {
        if chance::has_meddled() || self.later.get() > 0 {
            return;
        }
        let waits = self.waits.borrow();
        let waiting = waits
            .iter()
            .filter(|other| other.phase == Phase::Waiting && !other.is_settled());
        let of_key = || waiting.clone().filter(|other| other.key == wait.key);
        let (goes_first, priority) = (wait.goes_first != Some(false), wait.priority);
        let stays = |other: &&Wait<_>| {
            other.priority > priority || other.priority == priority && !goes_first
        };
        let line: u64 = of_key()
            .filter(stays)
            .map(|other| u64::from(other.min.max(1)))
            .sum();
        let Settings {
            max_permits,
            max_waiters,
            ..
        } = self.config.settings;
        let room = u64::from(wait.min.max(1));
        let most = max_permits.saturating_sub(line);
        let is_crowded =
            waiting.clone().count() >= max_waiters as usize && of_key().all(|other| stays(&other));
        let full = room > most || is_crowded || max_waiters == 0 || wait.goes_first.is_none();
        if !full && self.settled_in_step() == 0 {
            fail(format!("wait {} is rejected, though it fits", wait.id));
        }
    }

    fn settled_in_step(&self) -> usize {
        self.waits
            .borrow()
            .iter()
            .filter(|wait| wait.phase == Phase::Waiting && wait.is_settled())
            .count()
    }

    /// The outcome of a settled wait.
    fn finish(&self, wait: &Wait<S::Lease>, outcome: WaitEnd) {
        let id = wait.id;
        let phase = wait.phase;
        let most = if outcome == WaitEnd::Granted {
            wait.max
        } else {
            wait.min
        };
        self.ended(|ended| ended.waited(outcome).add(wait.min, most));
        match outcome {
            WaitEnd::Granted => {
                self.tally(|tally| tally.granted += 1);
                self.saw(|seen| seen.granted += 1);
                if wait.granted_late {
                    fail(format!("wait {id} was granted after its deadline"));
                }
                if wait.overtook {
                    fail(format!("wait {id} was granted out of turn"));
                }
            }
            WaitEnd::Evicted => {
                self.tally(|tally| tally.evicted += 1);
                self.saw(|seen| seen.evicted += 1);
                let evicts =
                    self.config.settings.order != Order::OldestFirst || self.config.priorities;
                if !evicts || wait.left_later {
                    fail(format!("wait {id} was evicted, and not the last"));
                }
            }
            WaitEnd::Deadline | WaitEnd::Shed => {
                if outcome == WaitEnd::Deadline {
                    self.tally(|tally| tally.late += 1);
                    self.saw(|seen| seen.late += 1);
                } else {
                    self.tally(|tally| tally.shed += 1);
                    self.saw(|seen| seen.shed += 1);
                }
                let (earliest, _) = wait.ends();
                let is_early = phase == Phase::Settled && earliest > wait.newest;
                if !wait.can_end(outcome) || is_early && !wait.is_hopeless {
                    fail(format!(
                        "wait {id} is {outcome:?} at {}, with {:?} and {:?}",
                        wait.newest, wait.until, wait.bound
                    ));
                }
                if wait.granted_in_time {
                    fail(format!(
                        "wait {id} is late at {}, though its permits came in at {:?}, before {:?}",
                        wait.newest, wait.predicted, wait.until
                    ));
                }
            }
            WaitEnd::Cancelled => {
                self.tally(|tally| tally.cancelled += 1);
                self.saw(|seen| seen.cancelled += 1);
            }
            WaitEnd::Closed => {
                self.tally(|tally| tally.closed += 1);
                if !self.closed.get() {
                    fail(format!("wait {id} is closed, but the queue is not"));
                }
            }
            _ => {
                self.tally(|tally| tally.oversized += 1);
                if !self.ever_changed.get() {
                    fail(format!("wait {id} did not exceed the capacity"));
                }
            }
        }
    }

    /// Drops a wait: all clones of its waker must be gone after the step.
    fn bury(&self, wait: Wait<S::Lease>) {
        self.gone.borrow_mut().extend(wait.tokens);
        drop(wait.future);
    }

    fn drop_wait(&self, id: u64) {
        let left = self.later.get();
        let Some(mut wait) = self.remove(id) else {
            return;
        };
        let Some(future) = wait.future.take() else {
            self.waits.borrow_mut().push(wait);
            return;
        };
        self.note("drop: wait, woken", id, u64::from(wait.is_woken()), 0);
        let was_waiting = wait.phase == Phase::Waiting;
        self.gave_back.set(self.gave_back.get() || wait.is_woken());
        let (refunded, takes) = (self.subject.refunded(), self.subject.takes());
        let told = Told::len();
        let dropped = call(|| drop(future));
        let hooked = Told::since(told);
        if was_waiting {
            self.came(left);
        }
        match hooked {
            Some(outcome) => {
                if wait.phase == Phase::Fresh {
                    // Its first poll panicked after it had queued.
                    self.tally(|tally| tally.entered += 1);
                }
                self.finish(&wait, outcome);
                self.all_given_back(&wait, outcome, takes, &refunded);
            }
            None if dropped.is_none() => self.tally(|tally| tally.unsure += 1),
            None if wait.phase == Phase::Fresh => {}
            None => fail(format!("wait {id} was dropped, and the hook is not called")),
        }
        self.bury(wait);
    }

    /// The permits granted to a wait that is dropped at once, before any other take, are returned
    /// completely.
    fn all_given_back(&self, wait: &Wait<S::Lease>, outcome: WaitEnd, taken: u64, before: &[u64]) {
        let Some((takes, at)) = wait.sole else { return };
        if outcome != WaitEnd::Granted
            || chance::has_meddled()
            || chance::has_struck()
            || takes != taken
            || at != self.time()
            || !drives("refunds")
        {
            return;
        }
        for (before, after) in before.iter().zip(self.subject.refunded()) {
            if after - before < u64::from(wait.min) {
                fail(format!(
                    "wait {} was granted and dropped, and of {} permits {} returned",
                    wait.id,
                    wait.min,
                    after - before
                ));
            }
        }
    }

    fn take_lease(&self) -> Option<(usize, S::Lease)> {
        let mut leases = self.leases.borrow_mut();
        if leases.is_empty() {
            return None;
        }
        let place = index(leases.len());
        Some(leases.swap_remove(place))
    }

    /// Records a release at the top of the step.
    fn mark_release(&self) {
        if chance::depth() == 0 {
            self.released.set(true);
        }
    }

    fn drop_lease(&self) {
        let Some((key, lease)) = self.take_lease() else {
            return;
        };
        self.note(
            "release: key, permits",
            key as u64,
            lease.permits().into(),
            0,
        );
        self.mark_release();
        let forgets = one_in(30) && self.can_forget(key, lease.permits());
        if forgets {
            self.forgotten.borrow_mut()[key] += u64::from(lease.permits());
            if one_in(2) {
                lease.forget();
            } else {
                self.forgotten_leases
                    .borrow_mut()
                    .push(ManuallyDrop::new(lease));
            }
            return;
        }
        if lease.permits() > 0 && !chance::is_held() {
            self.later.set(0);
        }
        _ = call(|| drop(lease));
    }

    fn can_forget(&self, key: usize, n: u32) -> bool {
        let lost: u64 = self.forgotten.borrow()[key] + self.leaked.borrow()[key].wanted;
        self.config.leaks && lost + u64::from(n) < self.subject.capacity(key)
    }

    fn with_lease(&self, work: impl FnOnce(usize, &mut S::Lease)) {
        let Some((key, mut lease)) = self.take_lease() else {
            return;
        };
        _ = call(|| work(key, &mut lease));
        self.leases.borrow_mut().push((key, lease));
    }

    fn release_part(&self) {
        self.with_lease(|key, lease| {
            let n = below(u64::from(lease.permits()) + 1) as u32;
            self.note("release a part: key, permits", key as u64, n.into(), 0);
            self.mark_release();
            if n > 0 && !chance::is_held() {
                self.later.set(0);
            }
            lease.release(n);
        });
    }

    fn refund(&self) {
        self.with_lease(|key, lease| {
            let n = below(u64::from(lease.permits()) + 1) as u32;
            self.note("refund: key, permits", key as u64, n.into(), 0);
            self.mark_release();
            if n > 0 && !chance::is_held() {
                self.later.set(0);
            }
            self.handed.set(self.handed.get().saturating_sub(n.into()));
            self.gave_back.set(true);
            let back = lease.refund(self.time(), n);
            if back > n {
                fail(format!("{back} of {n} permits are refunded"));
            }
        });
    }

    fn split(&self) {
        let mut part = None;
        self.with_lease(|key, lease| {
            let n = below(u64::from(lease.permits()) + 1) as u32;
            part = Some((key, lease.split(n)));
        });
        self.leases.borrow_mut().extend(part);
    }

    fn merge(&self) {
        if self.leases.borrow().len() < 2 {
            return;
        }
        let (Some((key, mut one)), Some((other_key, other))) =
            (self.take_lease(), self.take_lease())
        else {
            return;
        };
        let merged = one.merge(other);
        if merged.is_ok() != (key == other_key) {
            fail("leases of one limiter are merged, and no others");
        }
        let mut leases = self.leases.borrow_mut();
        leases.push((key, one));
        leases.extend(merged.err().map(|other| (other_key, other)));
    }

    fn leave_later(&self) {
        if !self.config.leaves_later {
            return;
        }
        let Some((key, lease)) = self.take_lease() else {
            return;
        };
        self.note("release later: permits", lease.permits().into(), 0, 0);
        let n = lease.permits();
        match call(|| self.subject.release_later(lease)) {
            Some(Err(lease)) => self.leases.borrow_mut().push((key, lease)),
            _ if n > 0 => self.later.set(self.next()),
            _ => {}
        }
    }

    fn try_acquire(&self) {
        let key = index(self.subject.keys());
        let n = below(u64::from(self.config.most) + 1) as u32;
        self.note("try: key, permits", key as u64, n.into(), 0);
        let free = chance::paused(|| self.subject.grants(key, self.time(), n));
        let waited_for = self.is_waited_for(key);
        let Some(outcome) = call(|| self.subject.try_acquire(key, n)) else {
            return;
        };
        let plain = chance::depth() == 0 && !chance::has_meddled() && !chance::has_struck();
        if plain {
            let may = free
                && !self.closed.get()
                && (self.config.settings.order == Order::NewestFirst || !waited_for);
            // Keys that wait for a limit of all keys come before the try of another key.
            let may_wait = self.subject.has_total() && !self.waits.borrow().is_empty();
            if outcome.is_ok() != may && !(may && may_wait) {
                fail(format!(
                    "a try is {:?}; free: {free}, waited for: {waited_for}",
                    outcome.as_ref().map(Leased::permits)
                ));
            }
        }
        self.ended(|ended| match &outcome {
            Ok(_) => ended.granted.add(n, n),
            Err(denied) => ended.tried(*denied).add(n, n),
        });
        if let Ok(lease) = outcome {
            self.note("taken: permits", n.into(), 0, 0);
            self.handed.set(self.handed.get() + u64::from(n));
            self.leases.borrow_mut().push((key, lease));
        }
    }

    fn is_waited_for(&self, key: usize) -> bool {
        self.waits
            .borrow()
            .iter()
            .any(|wait| wait.key == key && wait.phase == Phase::Waiting && !wait.is_settled())
    }

    fn change(&self) {
        let left = self.later.get();
        if self.config.changes {
            self.note("change", 0, 0, 0);
            self.ever_changed.set(true);
            self.changed_in.set(self.step.get());
            _ = call(|| self.subject.change());
            let now = self.time();
            for wait in self.waits.borrow_mut().iter_mut() {
                let free = chance::paused(|| self.subject.not_before(wait.key, now, wait.min));
                // What was done meanwhile may have given permits back since it was judged.
                wait.is_hopeless |=
                    chance::has_meddled() || free.is_some_and(|free| free > wait.ends().0);
            }
            self.came(left);
        }
    }

    fn close(&self) {
        self.note("close", 0, 0, 0);
        self.closed.set(true);
        self.closed_in.set(self.step.get());
        _ = call(|| self.subject.close());
    }

    /// A call of the queue has seen the pending release that was `left` before it, but not one left
    /// in the meantime.
    fn came(&self, left: u64) {
        if self.later.get() == left {
            self.later.set(0);
        }
    }

    fn advance(&self) {
        let left = self.later.get();
        self.note("advance", 0, 0, 0);
        let next = call(|| self.subject.advance());
        self.came(left);
        if chance::depth() == 0 && !chance::has_meddled() {
            self.advanced.set(next);
        }
    }

    fn ask(&self) {
        // None of these changes anything.
        _ = call(|| self.subject.is_closed());
        if self.subject.is_closed() != self.closed.get() {
            fail("whether it is closed");
        }
    }

    fn leak(&self) {
        if !self.config.leaks
            || self.config.settings.order != Order::OldestFirst
            || self.config.settings.shedding.is_some()
            || self.config.priorities
        {
            return;
        }
        let fits: Vec<_> = self
            .waits
            .borrow()
            .iter()
            .filter(|wait| {
                wait.phase == Phase::Waiting
                    && wait.until.is_none()
                    && wait.min == wait.max
                    && wait.future.is_some()
                    && !wait.is_leaked
                    && self.can_forget(wait.key, wait.min)
            })
            .map(|wait| wait.id)
            .collect();
        if self.ever_changed.get() || fits.is_empty() {
            return;
        }
        let id = fits[index(fits.len())];
        self.note("leak: wait", id, 0, 0);
        self.of(id, |wait| {
            wait.is_leaked = true;
            self.leaked.borrow_mut()[wait.key].wanted += u64::from(wait.min);
        });
    }

    fn drainers(&self) {
        if !self.config.drains {
            return;
        }
        let len = self.drained.borrow().len();
        match below(4) {
            0 if len < 3 => {
                let Some(future) = self.subject.drained() else {
                    return;
                };
                let id = self.id();
                self.note("drained: new", id, 0, 0);
                self.drained.borrow_mut().push(Other {
                    id,
                    future: Some(future),
                    token: None,
                });
                self.poll_drained(id);
            }
            1 | 2 if len > 0 => {
                let id = self.drained.borrow()[index(len)].id;
                self.poll_drained(id);
            }
            3 if len > 0 => {
                let id = self.drained.borrow()[index(len)].id;
                self.drop_drained(id);
            }
            _ => {}
        }
    }

    fn poll_drained(&self, id: u64) {
        let token = Token::new(
            Owner::Drained(id),
            self.config.uses_one_in > 0 && one_in(self.config.uses_one_in),
        );
        let (future, old) = {
            let mut drained = self.drained.borrow_mut();
            let Some(other) = drained.iter_mut().find(|other| other.id == id) else {
                return;
            };
            let Some(future) = other.future.take() else {
                return;
            };
            (future, other.token.replace(Arc::clone(&token)))
        };
        self.note("poll: drained", id, 0, 0);
        let mut future = future;
        let was_drained = self.subject.is_drained();
        let waker = waker(&token, self.config.apart);
        let outcome = call(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        _ = call(|| drop(waker));
        let plain = chance::depth() == 0 && !chance::has_meddled();
        let over = match outcome {
            Some(Poll::Ready(())) => {
                let was_woken = old.as_ref().is_some_and(|old| old.is_woken());
                if plain && !was_woken && !was_drained && !chance::has_struck() {
                    fail("drained, while permits are held");
                }
                true
            }
            // After a panic it is unknown which waker is registered.
            None => one_in(2) || !plain || old.as_ref().is_some_and(|old| old.is_woken()),
            Some(Poll::Pending) => false,
        };
        self.gone.borrow_mut().extend(old);
        let panicked = outcome.is_none();
        if let Some(other) = self
            .drained
            .borrow_mut()
            .iter_mut()
            .find(|other| other.id == id)
        {
            other.future = Some(future);
        }
        if over || panicked {
            self.drop_drained(id);
        }
    }

    fn drop_drained(&self, id: u64) {
        let other = {
            let mut drained = self.drained.borrow_mut();
            let Some(place) = drained
                .iter()
                .position(|other| other.id == id && other.future.is_some())
            else {
                return;
            };
            drained.remove(place)
        };
        self.note("drop: drained", id, 0, 0);
        let Other { future, token, .. } = other;
        _ = call(|| drop(future));
        self.gone.borrow_mut().extend(token);
    }

    fn drive(&self) {
        if self.config.drivers == 0 {
            return;
        }
        let len = self.drivers.borrow().len();
        let told = self
            .drivers
            .borrow()
            .iter()
            .find(|driver| driver.token.as_ref().is_some_and(|token| token.is_woken()))
            .map(|driver| driver.id);
        match below(8) {
            0 if len < self.config.drivers => {
                let id = self.id();
                self.note("driver: new", id, 0, 0);
                let future = Some(self.subject.drive());
                self.drivers.borrow_mut().push(Other {
                    id,
                    future,
                    token: None,
                });
                if !one_in(4) {
                    self.poll_driver(id);
                }
            }
            1 if len > 0 => {
                let id = self.drivers.borrow()[index(len)].id;
                self.drop_driver(id);
            }
            2 if len > 0 => {
                let id = self.drivers.borrow()[index(len)].id;
                self.poll_driver(id);
            }
            _ => {
                if let Some(told) = told {
                    self.poll_driver(told);
                }
            }
        }
    }

    fn poll_driver(&self, id: u64) {
        let left = self.later.get();
        let token = Token::new(
            Owner::Driver(id),
            self.config.uses_one_in > 0 && one_in(self.config.uses_one_in),
        );
        let (mut future, _old) = {
            let mut drivers = self.drivers.borrow_mut();
            let Some(driver) = drivers.iter_mut().find(|driver| driver.id == id) else {
                return;
            };
            let Some(future) = driver.future.take() else {
                return;
            };
            (future, driver.token.replace(Arc::clone(&token)))
        };
        self.note("poll: driver", id, 0, 0);
        let waker = waker(&token, self.config.apart);
        let outcome = call(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        _ = call(|| drop(waker));
        self.came(left);
        if let Some(driver) = self
            .drivers
            .borrow_mut()
            .iter_mut()
            .find(|driver| driver.id == id)
        {
            driver.future = Some(future);
        }
        match outcome {
            Some(Poll::Pending) => {
                if self.closed.get() && chance::depth() == 0 && !chance::has_meddled() {
                    fail("a driver of a closed queue goes on");
                }
            }
            Some(Poll::Ready(())) => {
                if !self.closed.get() {
                    fail("a driver is over, and the queue is open");
                }
                self.drop_driver(id);
            }
            // Its task is gone, as with an executor.
            None => self.drop_driver(id),
        }
    }

    fn drop_driver(&self, id: u64) {
        let other = {
            let mut drivers = self.drivers.borrow_mut();
            let Some(place) = drivers
                .iter()
                .position(|driver| driver.id == id && driver.future.is_some())
            else {
                return;
            };
            drivers.remove(place)
        };
        self.note("drop: driver", id, 0, 0);
        _ = call(|| drop(other.future));
    }

    fn attend(&self) {
        let left = self.later.get();
        if self.config.attends {
            self.note("attend", 0, 0, 0);
            self.attended.set(true);
            // Whether or not it panics.
            _ = call(|| self.subject.attend(one_in(2)));
            self.came(left);
        }
    }

    // Time.

    fn pass_time(&self) {
        let now = self.time();
        let to = if self.config.steps_back && one_in(3) {
            now.saturating_sub(below(200 * MILLI))
                .max(self.clock().newest().saturating_sub(400 * MILLI))
        } else {
            now + match below(8) {
                0 => below(2),
                1..4 => below(3 * MILLI),
                4..6 => below(40 * MILLI),
                6 => below(500 * MILLI),
                _ => below(3_000 * MILLI),
            }
        };
        self.clock().set(to);
        self.note("time", to, 0, 0);
    }

    /// Wakes the alarm, in time or late, and checks the instant that it was armed for.
    fn fire(&self) {
        let left = self.later.get();
        let Some((at, who)) = self.clock().alarm() else {
            return;
        };
        let late = match below(8) {
            0 => below(9 * MILLI),
            1 => below(30 * MILLI),
            2 if one_in(4) => below(900 * MILLI),
            _ => 0,
        };
        let to = self.time().max(at + late);
        self.clock().set(to);
        self.note("alarm", to, 0, 0);
        let Some(waker) = self.clock().take() else {
            return;
        };
        self.saw(|seen| seen.fired += 1);
        if one_in(4) {
            let copy = chance::paused(|| waker.clone());
            let old = self.fired.borrow_mut().replace(copy);
            chance::paused(|| drop(old));
        }
        _ = call(|| waker.wake());
        if matches!(who, Wakes::Queue) {
            self.came(left);
        }
    }

    /// Wakes too early, or once more.
    fn fire_wrongly(&self) {
        let waker = if one_in(2) {
            self.fired.borrow_mut().take()
        } else {
            self.clock().take()
        };
        if let Some(waker) = waker {
            self.note("alarm, too early or once more", 0, 0, 0);
            _ = call(|| waker.wake());
        }
    }

    fn count(&self) {
        let left = self.later.get();
        let waiting = |world: &Self| {
            let waits = world.waits.borrow();
            let waiting = waits
                .iter()
                .filter(|wait| wait.phase == Phase::Waiting && !wait.is_settled());
            let permits: u64 = waiting.clone().map(|wait| u64::from(wait.min)).sum();
            (waiting.count() as u32, permits)
        };
        let before = waiting(self);
        self.note("count: waiting", before.0.into(), before.1, 0);
        let Some(counts) = call(|| self.subject.counts()) else {
            return;
        };
        self.came(left);
        if chance::depth() > 0 || chance::has_meddled() {
            return;
        }
        if (counts.waiters, counts.permits) != before {
            fail(format!("{before:?} wait, and it counts {counts:?}"));
        }
        let tally = self.tally.get();
        let unclaimed = self
            .waits
            .borrow()
            .iter()
            .filter(|wait| wait.phase != Phase::Fresh && wait.is_settled())
            .count() as u64;
        let near = |counted: u64, seen: u64, unclaimed: u64| {
            (seen..=seen + unclaimed + tally.unsure).contains(&counted)
        };
        let add_up = near(counts.granted, tally.granted, unclaimed)
            && near(counts.evicted, tally.evicted, unclaimed)
            && near(counts.late, tally.late, unclaimed)
            && near(counts.shed, tally.shed, unclaimed)
            && near(counts.cancelled, tally.cancelled, 0)
            && near(counts.full, tally.refused, 0)
            && near(counts.closed, tally.closed, unclaimed)
            && near(counts.oversized, tally.oversized, unclaimed);
        if !add_up {
            fail(format!(
                "{tally:?} and {unclaimed} unclaimed are counted as {counts:?}"
            ));
        }
    }

    /// Claims all that is settled, so that nothing is unknown.
    fn claim_all(&self) {
        let settled: Vec<_> = self
            .waits
            .borrow()
            .iter()
            .filter(|wait| !wait.is_leaked && wait.phase == Phase::Settled && wait.future.is_some())
            .map(|wait| wait.id)
            .collect();
        for id in settled {
            self.poll(id);
        }
    }

    // The invariants.

    /// Records which waits were settled in this step.
    fn settle(&self) {
        self.settle_waits();
        self.none_overtaken();
    }

    fn settle_waits(&self) {
        let mut waits = self.waits.borrow_mut();
        let newly: Vec<_> = (0..waits.len())
            .filter(|&place| waits[place].phase == Phase::Waiting && waits[place].is_settled())
            .collect();
        if newly.is_empty() {
            return;
        }
        for &place in &newly {
            waits[place].phase = Phase::Settled;
        }
        let (now, newest, started) = (self.time(), self.clock().newest(), self.started.get());
        let slack = u64::try_from(self.config.settings.slack.as_nanos()).expect("short");
        let takes = self.subject.takes();
        for &place in &newly {
            let wait = &waits[place];
            let others = || {
                waits.iter().filter(|other| {
                    other.phase == Phase::Waiting
                        && other.key == wait.key
                        && (other.end < wait.start || other.end < started)
                })
            };
            let overtook = others().any(|other| other.is_before(wait));
            let left_later = others().any(|other| wait.is_before(other));
            // If two queued during each other's poll, either may be the head.
            let has_rival = waits.iter().any(|other| {
                other.id != wait.id
                    && other.key == wait.key
                    && other.start <= wait.end
                    && wait.start <= other.end
            });
            let in_time = wait.predicted.is_some_and(|predicted| {
                !(has_rival || wait.has_rival)
                    && self.config.settings.order == Order::OldestFirst
                    && wait.ends().0 < u64::MAX
                    && predicted <= wait.ends().0
                    && predicted + slack >= now
                    && now == newest
                    && self.changed_in.get() != self.step.get()
                    && self.closed_in.get() != self.step.get()
                    // Another key may be served before it.
                    && !self.subject.has_total()
                    // A late refund may fill a bucket as of its time.
                    && !self.gave_back.get()
                    && self.struck.get() == 0
                    && !chance::has_meddled()
            });
            let sole = (newly.len() == 1
                && !chance::has_meddled()
                && takes > self.takes.get()
                && takes - self.takes.get() == self.subject.refunded().len() as u64
                && wait.min == wait.max)
                .then_some((takes, now));
            // Behind a late one it may be granted as of that time, within the slack; and permits
            // that come by time, as of the instant at which they came.
            let is_timeless =
                self.subject.net().is_empty() && !self.subject.held(wait.key).is_empty();
            let late = is_timeless && wait.ends().1.saturating_add(slack) < now;
            let (key, min) = (wait.key, wait.min);
            let wait = &mut waits[place];
            wait.granted_late = late;
            (wait.left_later, wait.overtook, wait.granted_in_time) =
                (left_later, overtook, in_time);
            (wait.newest, wait.sole) = (newest, sole);
            if wait.is_leaked {
                let leaked = &mut self.leaked.borrow_mut()[key];
                leaked.most += u64::from(min);
                if self.closed_in.get() != self.step.get() && !self.ever_changed.get() {
                    leaked.least += u64::from(min);
                }
            }
        }
    }

    fn in_leases(&self) -> Vec<u64> {
        let mut held = vec![0; self.subject.keys()];
        for (key, lease) in self.leases.borrow().iter() {
            held[*key] += u64::from(lease.permits());
        }
        held
    }

    /// The limiter counts each request once: as granted, denied, refused or cancelled, or as one
    /// that still waits.
    fn adds_up(&self) {
        let Some(counts) = self.subject.counted() else {
            return;
        };
        let waits = self.waits.borrow();
        let settled = waits
            .iter()
            .filter(|wait| wait.phase != Phase::Fresh && wait.is_settled());
        // Their outcomes are unknown until they are polled.
        let unknown = settled.clone().count() as u64;
        let permits: u64 = settled.map(|wait| u64::from(wait.max)).sum();
        // A call that panicked may have ended one request more, and no lease tells its permits.
        let panics = self.seen.get().panics;
        let slack = panics * 10;
        let ended = self.ended.get();
        let all = counts.all().requests;
        let known = ended.requests() + unknown;
        let add_up = (known..=known + panics).contains(&all)
            && ended
                .granted
                .can_be(counts.granted, unknown + panics, permits + slack)
            && ended
                .denied
                .can_be(counts.denied, unknown + panics, permits + slack)
            && ended
                .refused
                .can_be(counts.refused, unknown + panics, permits + slack)
            && ended.cancelled.can_be(counts.cancelled, panics, slack);
        if !add_up {
            fail(format!(
                "{ended:?}, {unknown} unclaimed and {panics} panics are counted as {counts:?}"
            ));
        }
        if panics > 0 || waits.iter().any(|wait| wait.is_leaked) {
            return;
        }
        let held = self
            .in_leases()
            .iter()
            .chain(&*self.forgotten.borrow())
            .sum();
        if !(held..=held + permits).contains(&counts.held) {
            fail(format!(
                "{held} held, {permits} unclaimed, counted as {counts:?}"
            ));
        }
    }

    /// Permits taken are permits held, plus permits that returned.
    fn conserved(&self) {
        let held = self.in_leases();
        let waits = self.waits.borrow();
        let mut all = (0, 0);
        for (key, held) in held.iter().enumerate() {
            let unclaimed: u64 = waits
                .iter()
                .filter(|wait| wait.key == key && wait.phase == Phase::Settled && !wait.is_leaked)
                .map(|wait| u64::from(wait.max))
                .sum();
            let (leaked, forgotten) = (self.leaked.borrow()[key], self.forgotten.borrow()[key]);
            let least = held + forgotten + leaked.least;
            let most = held + forgotten + leaked.most + unclaimed;
            for out in self.subject.held(key) {
                if out < least || out > most {
                    fail(format!(
                        "key {key}: {out} permits are out, and {least} to {most} are held"
                    ));
                }
            }
            (all.0, all.1) = (all.0 + least, all.1 + most);
        }
        if let Some(out) = self.subject.held_in_total() {
            let (least, most) = all;
            if out < least || out > most {
                fail(format!(
                    "{out} permits are out in total, and {least} to {most} are held"
                ));
            }
        }
        for net in self.subject.net() {
            if net < self.handed.get() {
                fail(format!(
                    "{net} permits are taken, and {} handed out",
                    self.handed.get()
                ));
            }
        }
    }

    /// The waits that may be the head of a key's wait list.
    fn heads(&self, key: usize) -> Vec<usize> {
        let waits = self.waits.borrow();
        let line: Vec<_> = (0..waits.len())
            .filter(|&place| waits[place].phase == Phase::Waiting && waits[place].key == key)
            .collect();
        line.iter()
            .copied()
            .filter(|&place| {
                !line
                    .iter()
                    .any(|&other| waits[other].is_before(&waits[place]))
            })
            .collect()
    }

    /// Checks that no head of a wait list sleeps permanently.
    fn stands_still(&self) {
        let now = self.time();
        let later = self.later.get() > 0;
        let advanced = self.advanced.get();
        let mut due = u64::MAX;
        let mut waiting = 0;
        // A new wait goes behind those of other keys, for which an alarm may be late.
        let is_behind = self.subject.has_total()
            && self.waits.borrow().iter().any(|wait| {
                let predicted = wait.predicted.filter(|at| *at <= self.clock().newest());
                wait.phase == Phase::Waiting
                    && predicted.is_some_and(|predicted| advanced.is_none() || predicted > now)
            });
        for key in 0..self.subject.keys() {
            let heads = self.heads(key);
            for (place, wait) in self.waits.borrow_mut().iter_mut().enumerate() {
                if wait.key == key && wait.phase == Phase::Waiting {
                    waiting += 1;
                    due = due.min(wait.ends().1);
                    if !heads.contains(&place) {
                        wait.predicted = None;
                    }
                }
            }
            let mut free = !heads.is_empty();
            // Of several, any may be the head.
            let mut foreseen = is_behind;
            let mut line = 0;
            for &place in &heads {
                let mut waits = self.waits.borrow_mut();
                let wait = &mut waits[place];
                wait.has_rival |= heads.len() > 1;
                let at = self.subject.free_at(key, now, wait.min);
                if at == Some(now) {
                    let predicted = wait.predicted.filter(|at| *at <= self.clock().newest());
                    // A clock that has gone back is before the instant at which the limiter will be
                    // asked.
                    foreseen |=
                        predicted.is_some_and(|predicted| advanced.is_none() || predicted > now);
                    // If the clock has gone back since it came in, it may be seen again.
                    line = line.max(predicted.map_or(now, |predicted| predicted.max(now)));
                } else {
                    free = false;
                    line = line.max(at.unwrap_or(u64::MAX));
                    wait.predicted = Some(at.unwrap_or(u64::MAX));
                }
            }
            if !free {
                // Only one of these is the head: another one is.
                for &place in &heads {
                    let wait = &mut self.waits.borrow_mut()[place];
                    if self.subject.is_free(key, now, wait.min) {
                        wait.predicted = Some(wait.predicted.map_or(now, |at| at.min(now)));
                    }
                }
            }
            if free && !foreseen && !later {
                let id = self.waits.borrow()[heads[0]].id;
                fail(format!("wait {id} sleeps, though its permits are free"));
            }
            if !heads.is_empty() {
                due = due.min(line);
            }
        }
        self.bounds();
        if self.closed.get() && waiting > 0 {
            fail("a wait is left in a closed queue");
        }
        if let Some(next) = advanced {
            let right = match next {
                Next::Idle => waiting == 0,
                Next::At(at) => at.as_nanos() <= due && waiting > 0,
                Next::OnRelease => due == u64::MAX,
            };
            if !right || due <= now {
                fail(format!(
                    "to be called {next:?}, with {waiting} waits and {due} due"
                ));
            }
        }
        if !later {
            self.time_is_seen_to(due);
            let asleep = |drained: &Other| {
                drained
                    .token
                    .as_ref()
                    .is_some_and(|token| !token.is_woken())
            };
            if self.subject.is_drained() && self.drained.borrow().iter().any(asleep) {
                fail("nothing is held, and drained sleeps");
            }
        }
    }

    /// If anything ever becomes due, a driver is armed for it, or has been woken.
    fn time_is_seen_to(&self, due: u64) {
        let drivers = self.drivers.borrow();
        let tokens = || drivers.iter().filter_map(|driver| driver.token.as_ref());
        if self.closed.get() && tokens().any(|token| !token.is_woken()) {
            fail("a driver is not woken as the queue is closed");
        }
        let waits = self.waits.borrow();
        let waiting = || waits.iter().filter(|wait| wait.phase == Phase::Waiting);
        let is_told = tokens().any(|token| token.is_woken()) || waiting().any(Wait::is_told);
        // It may be the one that drives, until it is dropped.
        let is_abandoned = waiting().any(|wait| wait.is_leaked || wait.has_panicked);
        if due == u64::MAX || is_told || is_abandoned {
            return;
        }
        let comes = self.clock().alarm().is_some_and(|(at, who)| {
            at <= due
                && match who {
                    Wakes::Token(who) => {
                        tokens().any(|token| Arc::ptr_eq(token, &who))
                            || waiting().any(|wait| wait.has(&who))
                    }
                    Wakes::Queue => self.attended.get(),
                }
        });
        if !comes {
            fail(format!(
                "something is due at {due}, and no driver or timer comes"
            ));
        }
    }

    fn bounds(&self) {
        let waits = self.waits.borrow();
        let waiting = || waits.iter().filter(|wait| wait.phase == Phase::Waiting);
        let Settings {
            max_permits,
            max_waiters,
            ..
        } = self.config.settings;
        if waiting().count() > max_waiters as usize {
            fail("more waits than allowed");
        }
        for key in 0..self.subject.keys() {
            let line: u64 = waiting()
                .filter(|wait| wait.key == key)
                .map(|wait| u64::from(wait.min.max(1)))
                .sum();
            if line > max_permits {
                fail(format!("{line} permits wait, of at most {max_permits}"));
            }
        }
    }

    /// Whether the timer is armed for this wait: it drives the queue.
    fn is_armed_for(&self, wait: &Wait<S::Lease>) -> bool {
        match self.clock().alarm() {
            Some((_, Wakes::Token(token))) => wait.has(&token),
            _ => false,
        }
    }

    /// No clone is left of the wakers of dropped futures, so none of their nodes is linked. Only
    /// the timer may have one.
    fn gone(&self) {
        let alarm = self.clock().alarm().map(|(_, who)| who);
        let fired = self.fired.borrow().as_ref().and_then(token_of);
        for token in self.gone.take() {
            let in_alarm = matches!(&alarm, Some(Wakes::Token(set)) if Arc::ptr_eq(set, &token));
            let in_fired = fired.as_ref().is_some_and(|set| Arc::ptr_eq(set, &token));
            // The timer's clone, and the one that was just made to look.
            if Arc::strong_count(&token) != 1 + 2 * (usize::from(in_alarm) + usize::from(in_fired))
            {
                fail(format!(
                    "{:?} is gone, and a clone of its waker is left",
                    token.owner
                ));
            }
        }
    }

    /// Drops everything, in any order; all permits return.
    fn wind_up(&self) {
        self.claim_all();
        loop {
            let drivers = self.drivers.borrow().len();
            let drained = self.drained.borrow().len();
            let waits: Vec<_> = self
                .waits
                .borrow()
                .iter()
                .filter(|wait| !wait.is_leaked)
                .map(|wait| wait.id)
                .collect();
            match below(4) {
                0 if drivers > 0 => {
                    let id = self.drivers.borrow()[index(drivers)].id;
                    self.drop_driver(id);
                }
                1 if drained > 0 => {
                    let id = self.drained.borrow()[index(drained)].id;
                    self.drop_drained(id);
                }
                2 if !waits.is_empty() => self.drop_wait(waits[index(waits.len())]),
                3 if !self.leases.borrow().is_empty() => {
                    let lease = self.take_lease();
                    _ = call(|| drop(lease));
                }
                _ if drivers + drained + waits.len() + self.leases.borrow().len() == 0 => break,
                _ => {}
            }
        }
        self.settle();
        self.conserved();
        // Waits that are still there were leaked: they are dropped last.
        let leaked: Vec<_> = self.waits.borrow().iter().map(|wait| wait.id).collect();
        for id in leaked {
            self.drop_wait(id);
        }
        self.leaked.borrow_mut().fill(Leaked::default());
        self.conserved();
        let counts = call(|| self.subject.counts());
        if counts.is_none_or(|counts| (counts.waiters, counts.permits) != (0, 0)) {
            fail("waits are counted in an empty queue");
        }
        self.gone();
        drop(self.clock().take());
        drop(self.fired.take());
        for lease in self.forgotten_leases.take() {
            ManuallyDrop::into_inner(lease).forget();
        }
        if self.subject.references() != 1 {
            fail("a reference to the queue is left");
        }
        self.saw(|seen| seen.runs = 1);
    }
}
