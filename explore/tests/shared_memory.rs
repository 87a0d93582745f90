//! Every run of a few processes that share memory, up to a number of deaths: the algorithms of the
//! library, which a search drives one access at a time.
//!
//! A step is one of what can happen next:
//!
//! - a process makes its next access;
//! - a process dies between two accesses. The kernel then knows that no process has its number, and
//!   releases what it releases of a dead process;
//! - another process starts under the number of a dead one.
//!
//! A process that is stopped is one whose next access comes late. So all of these are among the
//! runs searched. Accesses are in one order: loom explores weaker ones.
//!
//! Two states are equal if the memory is, and what the accesses of each process have returned.
#![cfg(portcullis_explore)]
#![allow(unsafe_code)]

use core::fmt::Debug;
use core::hash::{BuildHasherDefault, Hash, Hasher};
use core::mem::{needs_drop, size_of};
use core::ptr;
use std::collections::HashSet;
use std::time::Instant;

use portcullis_core::keyed::{Line, PendingClaim, TokenBucketRules};
use portcullis_core::state::{Attached, Detach, StateWord};
use portcullis_core::{Keyed, Limiter, Rate, Timestamp, TokenBucket};
use portcullis_explore::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use portcullis_explore::steps::Steps;
use portcullis_shm::deaths::Deaths;
use portcullis_shm::owned_lock::{self, Owner, Waiting};
use portcullis_shm::pool_slots::Slot;
use portcullis_shm::slots::{self, Held};
use portcullis_shm::versions::{self, Newest, Settings, Version, WORDS};

/// What processes share: atomic words and nothing else.
trait Memory: Sized {
    /// What the kernel does when the process dies that has a number.
    fn dies(&self, number: usize);

    /// What must hold in each state. `alive` are the processes that are alive.
    fn check(&self, _alive: &[usize]) -> Result<(), String> {
        Ok(())
    }
}

/// What the processes with a number do.
type Program<M> = fn(&M, number: usize) -> u64;

struct Subject<M: 'static> {
    memory: fn() -> M,
    programs: &'static [Program<M>],
    /// How often processes die at most, and which do.
    deaths: u8,
    mortal: &'static [usize],
    /// How often a process goes on at most while another one could, or `ANY`.
    switches: u8,
    /// What must hold when all processes are over. `results` are those of the processes that came
    /// to their end, and the last one of each number.
    ends: fn(&M, results: &[Option<u64>]),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Runs(Steps),
    Ends(u64),
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    words: Vec<u64>,
    processes: Vec<Stage>,
    deaths: u8,
    switches: u8,
    /// Which process went on last, if that matters.
    last: usize,
}

/// So many that they are not counted.
const ANY: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
enum Step {
    Goes(usize),
    Dies(usize),
    IsReplaced(usize),
}

impl State {
    /// Whether another process could go on, which went on last.
    fn switches_to(&self, number: usize) -> bool {
        number != self.last && matches!(self.processes[self.last], Stage::Runs(_))
    }

    fn digest(&self) -> u128 {
        let [mut one, mut other] = [Fast(1), Fast(0x9e37_79b9_7f4a_7c15)];
        self.hash(&mut one);
        self.hash(&mut other);
        u128::from(one.finish()) << 64 | u128::from(other.finish())
    }
}

/// The memory as words.
fn save<M>(memory: &M) -> Vec<u64> {
    const { assert!(!needs_drop::<M>() && size_of::<M>().is_multiple_of(8)) };
    let mut words = vec![0; size_of::<M>() / 8];
    // SAFETY: the memory has atomic words only, so all its bytes are set, and no other thread
    // changes it.
    unsafe {
        ptr::copy_nonoverlapping(
            ptr::from_ref(memory).cast(),
            words.as_mut_ptr(),
            words.len(),
        )
    };
    words
}

fn restore<M>(memory: &mut M, words: &[u64]) {
    // SAFETY: the words were saved from such a memory, for which any bits are valid.
    unsafe { ptr::copy_nonoverlapping(words.as_ptr(), ptr::from_mut(memory).cast(), words.len()) };
}

struct Search<'a, M: 'static> {
    subject: &'a Subject<M>,
    memory: M,
    /// Hashes of the states that were reached.
    seen: HashSet<u128, BuildHasherDefault<Fast>>,
    transitions: u64,
    path: Vec<Step>,
}

impl<M: Memory> Search<'_, M> {
    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, process) in state.processes.iter().enumerate() {
            match process {
                Stage::Runs(_) => {
                    if state.switches > 0 || !state.switches_to(number) {
                        steps.push(Step::Goes(number));
                    }
                    if state.deaths > 0 && self.subject.mortal.contains(&number) {
                        steps.push(Step::Dies(number));
                    }
                }
                // A process that has ended is one that does something else.
                Stage::Ends(_) => {}
                Stage::Dead => steps.push(Step::IsReplaced(number)),
            }
        }
        steps
    }

    fn apply(&mut self, state: &mut State, step: Step) -> Result<(), String> {
        restore(&mut self.memory, &state.words);
        match step {
            Step::Goes(number) => {
                if state.switches != ANY {
                    state.switches -= u8::from(state.switches_to(number));
                    state.last = number;
                }
                let process = &mut state.processes[number];
                let Stage::Runs(steps) = process else {
                    unreachable!("it runs");
                };
                let memory = &self.memory;
                let program = self.subject.programs[number];
                let words = &mut state.words;
                let mut leaves = || *words = save(memory);
                if let Some(result) = steps.step(&mut leaves, || program(memory, number)) {
                    *process = Stage::Ends(result);
                    state.words = save(&self.memory);
                }
            }
            Step::Dies(number) => {
                state.deaths -= 1;
                state.processes[number] = Stage::Dead;
                self.memory.dies(number);
                state.words = save(&self.memory);
            }
            Step::IsReplaced(number) => {
                state.processes[number] = Stage::Runs(Steps::default());
            }
        }
        restore(&mut self.memory, &state.words);
        let is_alive = |&number: &usize| state.processes[number] != Stage::Dead;
        let alive: Vec<usize> = (0..state.processes.len()).filter(is_alive).collect();
        self.memory.check(&alive)
    }

    fn beyond(&mut self, state: &State) -> Result<(), String> {
        let steps = self.steps(state);
        if steps.is_empty() {
            restore(&mut self.memory, &state.words);
            let results = state.processes.iter().map(|process| match *process {
                Stage::Ends(result) => Some(result),
                _ => None,
            });
            (self.subject.ends)(&self.memory, &results.collect::<Vec<_>>());
        }
        for step in steps {
            let mut next = state.clone();
            self.transitions += 1;
            self.path.push(step);
            self.apply(&mut next, step)?;
            if self.seen.insert(next.digest()) {
                self.beyond(&next)?;
            }
            self.path.pop();
        }
        Ok(())
    }
}

/// Searches all runs of a subject.
fn search<M: Memory>(subject: &Subject<M>) {
    let begun = Instant::now();
    let memory = (subject.memory)();
    let start = Stage::Runs(Steps::default());
    let state = State {
        words: save(&memory),
        processes: vec![start; subject.programs.len()],
        deaths: subject.deaths,
        switches: subject.switches,
        last: 0,
    };
    let mut search = Search {
        subject,
        memory,
        seen: HashSet::default(),
        transitions: 0,
        path: Vec::new(),
    };
    let found = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| search.beyond(&state)));
    let switches = match subject.switches {
        ANY => "any number of".to_owned(),
        switches => switches.to_string(),
    };
    println!(
        "{} processes, {} deaths, {} switches: {} states, {} transitions, {:.1} s",
        subject.programs.len(),
        subject.deaths,
        switches,
        search.seen.len(),
        search.transitions,
        begun.elapsed().as_secs_f64(),
    );
    match found {
        Ok(Ok(())) => {}
        Ok(Err(wrong)) => panic!("{wrong}, after {:?}", search.path),
        Err(_) => panic!("wrong in the end, after {:?}", search.path),
    }
}

/// A fast hash of words.
#[derive(Default)]
struct Fast(u64);

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.0 = mixed ^ mixed >> 31;
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// The processes with a number that are alive, as the kernel knows: a bit for each.
#[derive(Default)]
struct Kernel(AtomicU32);

impl Kernel {
    /// A process gets a number that no process has.
    fn joins(&self, number: usize) {
        let before = self.0.fetch_or(1 << number, SeqCst);
        assert_eq!(before & 1 << number, 0, "two processes with one number");
    }

    fn is_alive(&self, number: usize) -> bool {
        self.0.load(SeqCst) & 1 << number != 0
    }

    fn dies(&self, number: usize) {
        self.0.fetch_and(!(1 << number), SeqCst);
    }
}

mod lock {
    use super::*;

    /// Records under a lock: a count, and who is writing it.
    pub(super) struct Records {
        lock: AtomicU32,
        generation: AtomicU32,
        count: AtomicU64,
        writes: [AtomicU32; 4],
        kernel: Kernel,
        padding: AtomicU32,
    }

    impl Memory for Records {
        fn dies(&self, number: usize) {
            self.kernel.dies(number);
            self.writes[number].store(0, SeqCst);
        }

        fn check(&self, alive: &[usize]) -> Result<(), String> {
            let writes = |&&number: &&usize| self.writes[number].load(SeqCst) != 0;
            let owners: Vec<_> = alive.iter().filter(writes).collect();
            if owners.len() > 1 {
                return Err(format!("{owners:?} have the lock"));
            }
            Ok(())
        }
    }

    pub(super) fn records() -> Records {
        Records {
            lock: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            count: AtomicU64::new(0),
            writes: [const { AtomicU32::new(0) }; 4],
            kernel: Kernel::default(),
            padding: AtomicU32::new(0),
        }
    }

    /// Waits for a look at most.
    struct Asks<'a>(&'a Kernel);

    impl Waiting for Asks<'_> {
        fn is_alive(&self, owner: Owner) -> bool {
            self.0.is_alive(owner.number())
        }

        fn sleep(&self, _: &AtomicU32, _: u32) -> bool {
            false
        }
    }

    /// Joins, and counts once under the lock. Returns whether it got the lock.
    pub(super) fn counts(records: &Records, number: usize) -> u64 {
        records.kernel.joins(number);
        let me = Owner::new(number, records.generation.fetch_add(1, SeqCst));
        owned_lock::inherit(&records.lock, me);
        if !owned_lock::take(&records.lock, me, &Asks(&records.kernel)) {
            return 0;
        }
        records.writes[number].store(1, SeqCst);
        let count = records.count.load(SeqCst);
        records.count.store(count + 1, SeqCst);
        records.writes[number].store(0, SeqCst);
        owned_lock::release(&records.lock, me);
        1
    }

    pub(super) fn ends(records: &Records, results: &[Option<u64>]) {
        let counted: u64 = results.iter().flatten().sum();
        let count = records.count.load(SeqCst);
        assert!(count >= counted, "{count} of {counted} were counted");
        // The next process gets the lock, whichever process has died.
        (0..results.len()).for_each(|number| records.kernel.dies(number));
        assert_eq!(records.padding.load(SeqCst), 0, "nothing writes it");
        assert_eq!(counts(records, 3), 1, "the lock is lost");
    }
}

const LOCK: Subject<lock::Records> = Subject {
    memory: lock::records,
    programs: &[lock::counts, lock::counts],
    deaths: 1,
    mortal: &[0, 1],
    switches: ANY,
    ends: lock::ends,
};

#[test]
fn one_process_at_a_time_owns_a_lock_whichever_die_and_are_replaced() {
    search(&LOCK);
}

const NOW: Timestamp = Timestamp::from_secs(9);

/// The lock of the process that changes settings, which the kernel releases if it dies.
#[derive(Default)]
struct ChangeLock(AtomicU64);

impl ChangeLock {
    fn take(&self, number: usize) -> bool {
        let owner = number as u64 + 1;
        let taken = self.0.compare_exchange(0, owner, SeqCst, SeqCst);
        taken.is_ok()
    }

    fn release(&self, number: usize) {
        let owner = number as u64 + 1;
        let _others = self.0.compare_exchange(owner, 0, SeqCst, SeqCst);
    }
}

const SETTINGS: Settings = Settings {
    words: [7; WORDS],
    fingerprint: 7,
    room: 7,
};

mod change {
    use super::*;

    /// A bucket of one permit, which never returns, under two versions of its settings.
    pub(super) struct Shared {
        versions: [Version; 2],
        lock: ChangeLock,
    }

    impl Memory for Shared {
        fn dies(&self, number: usize) {
            self.lock.release(number);
        }
    }

    fn rules() -> TokenBucketRules<u64> {
        TokenBucket::new(Rate::ZERO, 1).detach().0
    }

    pub(super) fn shared() -> Shared {
        let (_, word) = TokenBucket::new(Rate::ZERO, 1).detach();
        Shared {
            versions: Version::pair(word.get()),
            lock: ChangeLock::default(),
        }
    }

    /// `None` if the version is not in force any more.
    fn take_by(shared: &Shared, number: u64) -> Option<u64> {
        let version = versions::numbered(&shared.versions, number);
        let taken = Attached::new(rules(), version).take_at(NOW, 1);
        let granted = u64::from(taken.is_ok());
        version.is_in_force(number).then_some(granted)
    }

    fn complete(shared: &Shared) {
        let [next, before] = &shared.versions;
        let (from, to) = (Attached::new(rules(), before), Attached::new(rules(), next));
        next.complete(1, |instead_of| {
            from.move_to_at(NOW, &to, instead_of);
        });
    }

    /// Takes the permit, by the version that it finds in force. Completes a change that it finds.
    pub(super) fn takes(shared: &Shared, _: usize) -> u64 {
        for _ in 0..2 {
            match versions::newest(&shared.versions) {
                Newest::InForce(number) => {
                    if let Some(granted) = take_by(shared, number) {
                        return granted;
                    }
                }
                Newest::Changing(1) => complete(shared),
                other => panic!("{other:?}"),
            }
        }
        0
    }

    /// Changes the settings, if no other process does, and unless that is done.
    pub(super) fn changes(shared: &Shared, number: usize) -> u64 {
        if !shared.lock.take(number) {
            return 0;
        }
        let [next, before] = &shared.versions;
        if versions::newest(&shared.versions) == Newest::InForce(1) {
            let (rules, word) = TokenBucket::new(Rate::ZERO, 1).detach();
            let (unused, to) = (Attached::new(rules, &word), Attached::new(rules, next));
            let state: &StateWord = next.as_ref();
            let clear = || assert!(unused.move_to_at(NOW, &to, state.get()));
            next.supersede(before, 1, &SETTINGS, (9_000, 1), clear);
        }
        complete(shared);
        shared.lock.release(number);
        0
    }

    pub(super) fn ends(shared: &Shared, results: &[Option<u64>]) {
        let granted: u64 = results.iter().flatten().sum();
        assert!(granted + takes(shared, 0) <= 1, "it is granted twice");
        let newest = versions::newest(&shared.versions);
        assert!(matches!(newest, Newest::InForce(_)), "{newest:?}");
    }
}

const CHANGE: Subject<change::Shared> = Subject {
    memory: change::shared,
    programs: &[change::changes, change::takes],
    deaths: 1,
    mortal: &[0],
    switches: ANY,
    ends: change::ends,
};

#[test]
fn settings_that_change_grant_nothing_twice_whichever_processes_die_and_are_replaced() {
    search(&CHANGE);
}

mod table {
    use super::*;

    /// A table of one line, under two versions of its settings: a burst of 1, and then of 2.
    pub(super) struct Shared {
        lines: [[Line; 1]; 2],
        versions: [Version; 2],
        lock: ChangeLock,
    }

    impl Memory for Shared {
        fn dies(&self, number: usize) {
            self.lock.release(number);
        }
    }

    pub(super) fn shared() -> Shared {
        Shared {
            lines: [[Line::closed()], [Line::new()]],
            versions: Version::pair(0),
            lock: ChangeLock::default(),
        }
    }

    /// Lines as long as their version is in force, as those that lie in a file.
    struct InForce<'a>(&'a Shared, u64);

    impl AsRef<[Line]> for InForce<'_> {
        fn as_ref(&self) -> &[Line] {
            static NONE: [Line; 1] = [Line::closed()];
            let &Self(shared, number) = self;
            if versions::numbered(&shared.versions, number).is_in_force(number) {
                &shared.lines[(number % 2) as usize]
            } else {
                &NONE
            }
        }
    }

    type Itself = BuildHasherDefault<Fast>;

    fn keyed<L: AsRef<[Line]>>(number: u64, lines: L) -> Keyed<TokenBucketRules, L, Itself> {
        let rules = TokenBucket::builder(Rate::ZERO, number).rules();
        let rules = rules.expect("the settings fit");
        Keyed::new(rules, lines, Itself::default()).with_revocable_claims()
    }

    const KEY: u64 = 1;

    fn hand_over(shared: &Shared) {
        if versions::newest(&shared.versions) != Newest::Changing(1) {
            return;
        }
        let [to, from] = &shared.lines;
        let (from, to) = (keyed(1, from.as_slice()), keyed(2, to.as_slice()));
        assert_eq!(from.hand_over_to(&to, NOW), 0);
        shared.versions[0].complete(1, |_| ());
    }

    fn take(shared: &Shared, number: u64) -> u64 {
        let table = keyed(number, InForce(shared, number));
        u64::from(table.key(&KEY).take_at(NOW, 1).is_ok())
    }

    /// Takes a permit, by the version that it finds in force.
    pub(super) fn takes(shared: &Shared, _: usize) -> u64 {
        match versions::newest(&shared.versions) {
            Newest::InForce(number) => take(shared, number),
            _ => 0,
        }
    }

    /// Completes a change that it finds, as of a process that is stopped; then takes a permit.
    pub(super) fn helps(shared: &Shared, number: usize) -> u64 {
        hand_over(shared);
        takes(shared, number)
    }

    pub(super) fn changes(shared: &Shared, number: usize) -> u64 {
        if !shared.lock.take(number) {
            return 0;
        }
        if versions::newest(&shared.versions) == Newest::InForce(1) {
            let [next, before] = &shared.versions;
            shared.lines[0].iter().for_each(Line::close);
            next.supersede(before, 1, &SETTINGS, (9_000, 1), || ());
        }
        hand_over(shared);
        shared.lock.release(number);
        0
    }

    /// Vacates claims, as of processes that were killed.
    pub(super) fn recovers(shared: &Shared, _: usize) -> u64 {
        if let Newest::InForce(number) = versions::newest(&shared.versions) {
            let lines = &shared.lines[(number % 2) as usize];
            for claim in PendingClaim::all(lines) {
                claim.abandon(lines);
            }
        }
        0
    }

    pub(super) fn ends(shared: &Shared, results: &[Option<u64>]) {
        let granted: u64 = results.iter().flatten().sum();
        hand_over(shared);
        let Newest::InForce(number) = versions::newest(&shared.versions) else {
            panic!("no version is in force");
        };
        recovers(shared, 0);
        let left: u64 = (0..3).map(|_| take(shared, number)).sum();
        assert!(granted + left <= number, "{granted} and {left} of {number}");
    }
}

/// A process changes the settings, and may die. Another one takes.
const TABLE: Subject<table::Shared> = Subject {
    memory: table::shared,
    programs: &[table::changes, table::takes],
    deaths: 1,
    mortal: &[0],
    switches: 2,
    ends: table::ends,
};

/// As the process that changes the settings is stopped, another one completes that.
const HELPED: Subject<table::Shared> = Subject {
    programs: &[table::changes, table::helps],
    ..TABLE
};

/// Claims of processes that may be killed, or stopped, are vacated.
const CLAIMED: Subject<table::Shared> = Subject {
    programs: &[table::takes, table::recovers],
    ..TABLE
};

#[test]
fn a_table_that_changes_grants_nothing_twice_whichever_processes_die_and_are_replaced() {
    search(&TABLE);
}

#[test]
fn a_table_whose_change_another_process_completes_grants_nothing_twice() {
    search(&HELPED);
}

#[test]
fn a_claim_that_is_vacated_grants_nothing() {
    search(&CLAIMED);
}

mod permits {
    use core::cell::RefCell;

    use super::*;

    /// A concurrency limit of one.
    pub(super) struct Shared {
        slots: [AtomicU64; 1],
        kernel: Kernel,
        generation: AtomicU32,
        /// Who holds the permit, as it believes.
        believes: [AtomicU64; 3],
    }

    impl Memory for Shared {
        fn dies(&self, number: usize) {
            self.kernel.dies(number);
            self.believes[number].store(0, SeqCst);
        }

        fn check(&self, alive: &[usize]) -> Result<(), String> {
            let held = self.slots[0].load(SeqCst);
            let of = |&number: &usize| self.believes[number].load(SeqCst);
            let believed: Vec<u64> = alive.iter().map(of).filter(|&word| word != 0).collect();
            if believed.iter().any(|&word| word != held) {
                return Err(format!("{believed:x?} are held, and {held:x} is"));
            }
            Ok(())
        }
    }

    pub(super) fn shared() -> Shared {
        Shared {
            slots: [AtomicU64::new(0)],
            kernel: Kernel::default(),
            generation: AtomicU32::new(0),
            believes: [const { AtomicU64::new(0) }; 3],
        }
    }

    fn joins(shared: &Shared, number: usize) -> Held {
        shared.kernel.joins(number);
        let generation = shared.generation.fetch_add(1, SeqCst);
        slots::free(&shared.slots, |held| held.member() == number);
        Held::new(number, generation, slots::NEVER)
    }

    fn take(shared: &Shared, number: usize, mine: Held) -> Option<usize> {
        let deaths = Deaths::new(number, |member| shared.kernel.is_alive(member));
        let deaths = RefCell::new(deaths);
        let is_over = |held: Held| deaths.borrow_mut().is_dead(held.member());
        slots::take(&shared.slots, 0, mine, is_over)
    }

    /// Joins, takes the permit, and keeps it.
    pub(super) fn keeps(shared: &Shared, number: usize) -> u64 {
        let mine = joins(shared, number);
        if take(shared, number, mine).is_none() {
            return 0;
        }
        let word = shared.slots[0].load(SeqCst);
        shared.believes[number].store(word, SeqCst);
        1
    }

    /// Joins, takes the permit, and gives it back; then frees what dead processes have.
    pub(super) fn gives_back(shared: &Shared, number: usize) -> u64 {
        let mine = joins(shared, number);
        if let Some(at) = take(shared, number, mine) {
            assert!(
                slots::give_back(&shared.slots, at, mine),
                "it was taken over"
            );
        }
        let mut deaths = Deaths::new(number, |member| shared.kernel.is_alive(member));
        slots::free(&shared.slots, |held| deaths.is_dead(held.member()));
        0
    }

    pub(super) fn ends(shared: &Shared, results: &[Option<u64>]) {
        let kept: u64 = results.iter().flatten().sum();
        let next = keeps(shared, 2);
        assert_eq!(kept + next, 1, "one process has the permit");
    }
}

const PERMITS: Subject<permits::Shared> = Subject {
    memory: permits::shared,
    programs: &[permits::keeps, permits::gives_back],
    deaths: 1,
    mortal: &[0, 1],
    switches: ANY,
    ends: permits::ends,
};

#[test]
fn a_permit_of_a_dead_process_is_taken_over_and_that_of_its_replacement_is_not() {
    search(&PERMITS);
}

mod leases {
    use super::*;

    /// A pool of one lease.
    pub(super) struct Shared {
        slot: Slot,
        kernel: Kernel,
        padding: AtomicU32,
        /// Until when a process has the lease, as it believes, and the generation; 0: it has none.
        believes: [AtomicU64; 3],
    }

    /// The present, in milliseconds, of all but the first process, which is late.
    const LATER: u64 = 6;

    impl Memory for Shared {
        fn dies(&self, number: usize) {
            self.kernel.dies(number);
            self.believes[number].store(0, SeqCst);
        }

        fn check(&self, alive: &[usize]) -> Result<(), String> {
            for &number in alive {
                let believed = self.believes[number].load(SeqCst);
                let (generation, end) = ((believed >> 32) as u32, believed & 0xffff_ffff);
                // Each looks at the lease of its next owner, too: at its end, and not beyond.
                let lasts = self.slot.holds(generation, end.saturating_sub(1));
                if believed != 0 && (!lasts || self.slot.holds(generation, end)) {
                    return Err(format!("{number} has no lease until {end}"));
                }
            }
            Ok(())
        }
    }

    pub(super) fn shared() -> Shared {
        Shared {
            slot: Slot::new(),
            kernel: Kernel::default(),
            padding: AtomicU32::new(0),
            believes: [const { AtomicU64::new(0) }; 3],
        }
    }

    fn joins(shared: &Shared, number: usize) {
        shared.kernel.joins(number);
        let state = shared.slot.state();
        if !state.is_free() && state.member() == number {
            shared.slot.free(state);
        }
    }

    fn believes(shared: &Shared, number: usize, generation: u32, end: u64) {
        shared.believes[number].store(u64::from(generation) << 32 | end, SeqCst);
    }

    /// Claims the lease at 0 until 5, renews it at 4 until 9, and says so if both succeed.
    pub(super) fn renews(shared: &Shared, number: usize) -> u64 {
        joins(shared, number);
        let Some(generation) = shared.slot.claim(shared.slot.state(), number, 0, 5) else {
            return 0;
        };
        if shared.slot.renew(generation, 4, 9) {
            believes(shared, number, generation, 9);
            // It does not say so any more when the lease may be over.
            believes(shared, number, 0, 0);
            shared.slot.release(generation);
        }
        0
    }

    /// Frees the lease of a dead process, or one that is past its end, and claims it.
    pub(super) fn claims(shared: &Shared, number: usize) -> u64 {
        joins(shared, number);
        let mut deaths = Deaths::new(number, |member| shared.kernel.is_alive(member));
        let state = shared.slot.state();
        let is_dead = !state.is_free() && deaths.is_dead(state.member());
        if is_dead {
            shared.slot.free(state);
        }
        let claimed = shared.slot.claim(shared.slot.state(), number, LATER, 60);
        claimed.map_or(0, |generation| {
            believes(shared, number, generation, 60);
            1
        })
    }

    pub(super) fn ends(shared: &Shared, results: &[Option<u64>]) {
        let _unused = shared.padding.load(SeqCst);
        let kept: u64 = results.iter().flatten().sum();
        assert!(kept <= 1);
        if kept == 0 {
            assert_eq!(claims(shared, 2), 1, "the lease is lost");
        }
    }
}

const LEASES: Subject<leases::Shared> = Subject {
    memory: leases::shared,
    programs: &[leases::renews, leases::claims],
    deaths: 1,
    mortal: &[0, 1],
    switches: ANY,
    ends: leases::ends,
};

#[test]
fn a_late_renewal_leaves_the_next_lease_as_it_is_if_any_process_dies() {
    search(&LEASES);
}

/// The same with more deaths and switches.
mod soak {
    use super::*;

    #[test]
    #[ignore = "takes minutes"]
    fn a_lock() {
        search(&Subject { deaths: 3, ..LOCK });
        search(&Subject {
            programs: &[lock::counts, lock::counts, lock::counts],
            switches: 4,
            ..LOCK
        });
    }

    #[test]
    #[ignore = "takes minutes"]
    fn settings() {
        search(&Subject {
            deaths: 2,
            mortal: &[0, 1],
            ..CHANGE
        });
        search(&Subject {
            programs: &[change::changes, change::takes, change::takes],
            switches: 4,
            ..CHANGE
        });
    }

    #[test]
    #[ignore = "takes minutes"]
    fn tables() {
        for subject in [TABLE, HELPED, CLAIMED] {
            search(&Subject {
                mortal: &[0, 1],
                switches: 3,
                ..subject
            });
        }
        search(&Subject {
            programs: &[table::takes, table::takes, table::recovers],
            ..TABLE
        });
        search(&Subject {
            programs: &[table::changes, table::helps, table::takes],
            switches: 3,
            ..TABLE
        });
    }

    #[test]
    #[ignore = "takes minutes"]
    fn permits_and_leases() {
        search(&Subject {
            deaths: 3,
            ..PERMITS
        });
        search(&Subject {
            deaths: 2,
            ..LEASES
        });
    }
}
