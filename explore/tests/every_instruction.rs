//! Pre-empts calls at every instruction by other calls. The result must not exceed the result of
//! the calls in some order.
//!
//! The processor's trap flag finds the instructions of a call: it interrupts the call after each
//! one. Most runs then set a breakpoint at one of these instructions. A breakpoint costs two
//! microseconds; stepping to the instruction would cost thirty microseconds for each step.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(portcullis_explore))))]
fn main() {}

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(portcullis_explore)))]
mod support;

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(portcullis_explore)))]
fn main() {
    let asked = |what: &str| std::env::args().any(|argument| argument == what);
    if asked("--list") {
        return;
    }
    trapped::run(if asked("--ignored") { 100 } else { 1 });
}

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(portcullis_explore)))]
mod trapped {
    use core::arch::asm;
    use core::cell::Cell;
    use core::hint::black_box;
    use core::panic::AssertUnwindSafe;
    use core::ptr;
    use core::sync::atomic::Ordering::Relaxed;
    use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
    use std::panic::catch_unwind;
    use std::time::Instant;

    use super::support::draws::Draws;
    use super::support::judge::{self, Run};
    use super::support::op::{Call, Log, Op, Outcome};
    use super::support::scenario::{self, Mix, Scenario};
    use super::support::subjects::for_each_subject;
    use super::support::world::{Subject, World};

    /// The largest number of instructions of a call to consider.
    const MOST: usize = 4_096;
    const TRAP: i64 = 0x100;
    const BREAKPOINT: u8 = 0xcc;

    static SEEN: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    /// The step before which the other calls run; `usize::MAX` while steps are only recorded.
    static DUE: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// The address of the breakpoint, and the byte that it replaces.
    static PATCHED: AtomicUsize = AtomicUsize::new(0);
    static INSTEAD: AtomicU64 = AtomicU64::new(0);
    /// The calls to run at the trap.
    static OTHERS: AtomicPtr<&dyn Fn()> = AtomicPtr::new(ptr::null_mut());
    static PANICKED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }

    fn others() {
        let others = OTHERS.swap(ptr::null_mut(), Relaxed);
        if !others.is_null() {
            // SAFETY: `interrupted` points it to one of its locals, and calls `others` before it
            // returns. So the pointer is valid until it is taken here.
            let others = unsafe { &*others };
            if catch_unwind(AssertUnwindSafe(others)).is_err() {
                PANICKED.store(true, Relaxed);
            }
        }
    }

    extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system passes a valid `ucontext_t` to the handler of a signal with
        // `SA_SIGINFO`.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let patched = PATCHED.load(Relaxed);
        let at = registers[libc::REG_RIP as usize].cast_unsigned() as usize;
        if patched != 0 && at == patched + 1 {
            unpatch();
            registers[libc::REG_RIP as usize] = (patched as u64).cast_signed();
            others();
            return;
        }
        let step = STEPS.fetch_add(1, Relaxed);
        if step == DUE.load(Relaxed) {
            others();
            registers[libc::REG_EFL as usize] &= !TRAP;
        } else if let Some(seen) = SEEN.get(step) {
            seen.store(at, Relaxed);
        }
    }

    fn write(at: usize, byte: u8) {
        // SAFETY: `at` is the address of an instruction of this program, and `prepare` has made its
        // page writable. There is only one thread.
        unsafe { (at as *mut u8).write_volatile(byte) };
    }

    fn patch(at: usize) {
        // SAFETY: `at` is the address of an instruction of this program, so it is readable.
        INSTEAD.store(unsafe { (at as *const u8).read_volatile() }.into(), Relaxed);
        PATCHED.store(at, Relaxed);
        write(at, BREAKPOINT);
    }

    fn unpatch() {
        let at = PATCHED.swap(0, Relaxed);
        if at != 0 {
            write(at, INSTEAD.load(Relaxed) as u8);
        }
    }

    fn text() -> (usize, usize) {
        // SAFETY: the linker defines both symbols. Only their addresses are used.
        unsafe {
            (
                ptr::from_ref(&__executable_start).addr(),
                ptr::from_ref(&etext).addr(),
            )
        }
    }

    /// Installs the handler and makes the program's code writable. Returns whether breakpoints can
    /// be set.
    fn prepare() -> bool {
        // SAFETY: `action` is valid. The handler only makes calls that are allowed to pre-empt each
        // other at any instruction.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_trap as extern "C" fn(_, _, _) as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(
                libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut()),
                0
            );
        }
        let (start, end) = text();
        let start = start / 4_096 * 4_096;
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the pages hold the program's code, which stays mapped, readable and executable,
        // and is only written by `write`.
        unsafe { libc::mprotect(start as *mut libc::c_void, end - start, all) == 0 }
    }

    /// Runs a call step by step. Returns the number of steps.
    #[inline(never)]
    fn stepped(call: &dyn Fn()) -> usize {
        STEPS.store(0, Relaxed);
        // SAFETY: sets the trap flag, which is cleared below. The handler restores all registers
        // except the flag.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        black_box(call)();
        // SAFETY: clears the trap flag; see above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -257", "popfq") };
        STEPS.load(Relaxed)
    }

    /// Where the other calls run.
    #[derive(Clone, Copy, Debug)]
    enum Place {
        Step(usize),
        Address(usize),
    }

    /// Runs the first call, and the others when it reaches `place`, or else after it. Returns
    /// whether it reached `place`.
    fn interrupted(place: Place, first: &dyn Fn(), other: &dyn Fn()) -> bool {
        let other: &dyn Fn() = other;
        OTHERS.store(ptr::from_ref(&other).cast_mut().cast(), Relaxed);
        match place {
            Place::Step(step) => {
                DUE.store(step, Relaxed);
                stepped(first);
                DUE.store(usize::MAX, Relaxed);
            }
            Place::Address(at) => {
                patch(at);
                black_box(first)();
                unpatch();
            }
        }
        let reached = OTHERS.load(Relaxed).is_null();
        others();
        reached
    }

    fn pre_empted<S: Subject>(start: &World<S>, scenario: &Scenario, place: Place) -> (Run, bool) {
        let world = start.fork();
        let results = [const { Cell::new((Outcome::NOTHING, Log::new())) }; 3];
        let call = |index: usize| {
            if let Some(call) = scenario.calls.get(index) {
                results[index].set(world.call(call));
            }
        };
        // The log of a call is written while the call runs. A call of one step allocates nothing
        // for it, so no allocation is interrupted.
        let reached = interrupted(place, &|| call(0), &|| {
            call(1);
            call(2);
        });
        let results = results.map(Cell::into_inner);
        let outcomes = [results[0].0, results[1].0, results[2].0];
        let full = judge::comes_back(&world.fork(), scenario);
        let ending = judge::survey(&world, scenario, outcomes);
        (
            Run {
                ending,
                logs: results.map(|(_, log)| log),
                full,
            },
            reached,
        )
    }

    fn build<S: Subject>(seed: u64) -> Option<(World<S>, Scenario, Draws<'static>)> {
        let mut draws = Draws::Seeded {
            state: seed,
            steps: 0,
        };
        let (subject, facts) = S::random(&mut draws)?;
        let mix = Mix {
            repeats: draws.one_of(&[1, 1, 32]),
            calls: 3,
        };
        let scenario = scenario::random::<S>(&mut draws, &facts, mix);
        let world = judge::start(subject, &facts, &scenario)?;
        Some((world, scenario, draws))
    }

    /// Returns the kind of a call.
    fn kind(call: &Call) -> usize {
        call.ops().next().map_or(0, |op| match op {
            Op::Take { .. } => 1,
            Op::Planned { .. } => 2,
            Op::Refund { .. } => 3,
            Op::Rollback { .. } => 4,
            Op::Force { .. } | Op::Claim { .. } => 5,
            Op::Reserve { .. } | Op::End { .. } => 6,
            Op::Cancel { .. } | Op::Sweep { .. } => 7,
            Op::Adjust { .. } | Op::SetLimit { .. } => 8,
            Op::Cut { .. } => 9,
            Op::Draw { .. } => 10,
            Op::Uncut { .. } | Op::Release { .. } => 11,
            Op::Other { .. } => 12,
            _ => 0,
        })
    }

    const KINDS: usize = 13;

    /// Finds the instructions of the calls of each kind.
    fn learn<S: Subject>() -> [Vec<usize>; KINDS] {
        let (low, high) = text();
        let mut known = [const { Vec::new() }; KINDS];
        let mut learned = [0; KINDS];
        for seed in 0..4_000 {
            let Some((world, scenario, _)) = build::<S>(seed) else {
                continue;
            };
            let kind = kind(&scenario.calls[0]);
            if learned[kind] == 12 {
                continue;
            }
            learned[kind] += 1;
            let world = world.fork();
            let steps = stepped(&|| drop(world.call(&scenario.calls[0]))).min(MOST);
            for at in &SEEN[..steps] {
                let at = at.load(Relaxed);
                if (low..high).contains(&at) && !known[kind].contains(&at) {
                    known[kind].push(at);
                }
            }
        }
        known
    }

    #[derive(Debug, Default)]
    #[allow(dead_code, reason = "printed")]
    struct Tally {
        instructions: usize,
        runs: u64,
        pre_empted: u64,
        stepped: u64,
    }

    fn explore<S: Subject>(goal: u64, breakpoints: bool) -> Result<Tally, String> {
        let known = learn::<S>();
        let mut tally = Tally {
            instructions: known.iter().map(Vec::len).sum(),
            ..Tally::default()
        };
        let mut seed = std::env::var("PORTCULLIS_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(0);
        while tally.pre_empted < goal && tally.runs < 20 * goal {
            seed += 1;
            let Some((start, scenario, mut draws)) = build::<S>(seed) else {
                continue;
            };
            let known = &known[kind(&scenario.calls[0])];
            if known.is_empty() {
                continue;
            }
            for _ in 0..8 {
                let steps = !breakpoints || draws.below(2_000) == 0;
                let place = if steps {
                    Place::Step(draws.below(known.len() as u64) as usize)
                } else {
                    Place::Address(known[draws.below(known.len() as u64) as usize])
                };
                let (run, reached) = pre_empted(&start, &scenario, place);
                tally.runs += 1;
                tally.pre_empted += u64::from(reached);
                tally.stepped += u64::from(steps);
                let told = if PANICKED.swap(false, Relaxed) {
                    Err("a call panics".to_owned())
                } else if !run.full && judge::comes_back(&start.fork(), &scenario) {
                    Err("not all permits return".to_owned())
                } else {
                    judge::judge(&start, &scenario, &run)
                };
                if let Err(fault) = told {
                    let told = judge::tell(&start, &scenario, &run);
                    return Err(format!(
                        "seed {seed}, {place:x?}, after {tally:?}: {fault}\n{told}"
                    ));
                }
            }
        }
        Ok(tally)
    }

    pub(crate) fn run(times: u64) {
        let breakpoints = prepare();
        let goal = times * if breakpoints { 45_500 } else { 400 };
        let chosen: Vec<String> = std::env::args()
            .skip(1)
            .filter(|name| !name.starts_with('-'))
            .collect();
        println!("\nwith breakpoints: {breakpoints}");
        let (mut passed, mut failed) = (0, 0);
        let mut test = |name: &str, explore: &dyn Fn() -> Result<Tally, String>| {
            if !chosen.is_empty() && !chosen.iter().any(|chosen| name.contains(chosen.as_str())) {
                return;
            }
            let begin = Instant::now();
            match explore() {
                Ok(tally) => {
                    passed += 1;
                    println!("test {name} ... ok ({tally:?}, {:?})", begin.elapsed());
                }
                Err(fault) => {
                    failed += 1;
                    println!("test {name} ... FAILED\n{fault}");
                }
            }
        };
        macro_rules! tests {
            ($(
                $name:ident: $subject:ty, $_accesses:literal, $_refunds:tt, [$($share:literal)?];
            )*) => {$($(
                test(stringify!($name), &|| explore::<$subject>($share * goal, breakpoints));
            )?)*};
        }
        for_each_subject!(tests);
        println!(
            "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out",
            if failed == 0 { "ok" } else { "FAILED" }
        );
        if failed > 0 {
            std::process::exit(101);
        }
    }
}
