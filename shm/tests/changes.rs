//! Settings that change while processes use a limiter.

mod support;
#[path = "support/change_lock.rs"]
mod support_change_lock;
#[path = "support/fork.rs"]
mod support_fork;

use core::time::Duration;
use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use portcullis_core::{Denied, FixedWindow, Limiter, Rate, TokenBucket};
use portcullis_shm::{OpenError, SharedFile};
use support::{Folder, Journal, PERMIT, Process, most_above_rate, now, role, seconds};
use support_fork::{drop_privileges, fork};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["take", file, journal] => take(&SharedFile::at(file), Path::new(journal)),
        ["change", file, pause] => change(&SharedFile::at(file), pause.parse().unwrap()),
        ["change_table", file, burst] => {
            let file = SharedFile::at(file).changing();
            println!("\nready");
            // Another change may be under way, of a process that was killed.
            let changed = file.table(bucket(burst.parse().unwrap()), KEYS);
            assert!(matches!(changed, Ok(_) | Err(OpenError::Busy { .. })));
            println!("\nchanged");
        }
        ["hold", file, journal] => hold(&SharedFile::at(file), Path::new(journal)),
        ["change_at_once", file, journal] => {
            change_at_once(&SharedFile::at(file), Path::new(journal));
        }
        ["dropped", file] => complete_without_privileges(&SharedFile::at(file)),
        [] => {}
        _ => panic!("{role:?}"),
    }
}

/// A bucket that is never refilled.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::ZERO, burst)
}

#[test]
fn a_process_with_other_settings_is_refused_or_changes_them_for_all() {
    let folder = Folder::new("changed");
    let file = folder.file("limit");
    let old = file.limiter(bucket(20)).unwrap();
    assert!(old.try_acquire(12).is_ok());
    let refused = file.limiter(bucket(30)).unwrap_err().to_string();
    assert!(
        refused.contains("burst 20") && refused.contains("burst 30"),
        "{refused}"
    );

    let new = file.clone().changing().limiter(bucket(30)).unwrap();
    assert_eq!((new.rules().burst(), new.available_at(now())), (30, 18));
    assert_eq!((old.available_at(now()), old.rules().burst()), (18, 30));
    assert!(old.try_acquire(17).is_ok() && new.try_acquire(1).is_ok());
    assert!(old.try_acquire(1).is_err() && new.try_acquire(1).is_err());
    assert!(file.describe().unwrap().settings.contains("burst 30"));

    let refused = file.limiter(bucket(20)).unwrap_err().to_string();
    assert!(
        refused.contains("has the settings (token bucket"),
        "{refused}"
    );
    assert!(
        refused.contains("burst 30") && refused.contains("burst 20"),
        "{refused}"
    );
    assert!(file.limiter(bucket(30)).is_ok());
    let window = FixedWindow::new(30, Duration::from_secs(1));
    let refused = file.changing().limiter(window).unwrap_err();
    assert!(
        matches!(refused, OpenError::OtherSettings { .. }),
        "another kind of limiter"
    );
}

#[test]
fn a_lower_burst_takes_effect_at_once() {
    let folder = Folder::new("lowered");
    let file = folder.file("limit").changing();
    let old = file.limiter(bucket(20)).unwrap();
    assert!(old.try_acquire(12).is_ok());
    let _new = file.limiter(bucket(10)).unwrap();
    assert_eq!(old.available_at(now()), 0);
    let _again = file.limiter(bucket(20)).unwrap();
    assert_eq!(
        old.available_at(now()),
        8,
        "nothing that is in use was forgotten"
    );
    let _new = file.limiter(bucket(10)).unwrap();
    assert_eq!(
        old.try_acquire(11).map(drop),
        Err(Denied::ExceedsCapacity {
            permits: 11,
            capacity: 10
        })
    );
}

#[test]
fn a_window_changes_too() {
    let folder = Folder::new("window");
    let file = folder.file("limit").changing();
    let window = |limit| FixedWindow::new(limit, Duration::from_hours(24 * 365 * 100));
    let old = file.limiter(window(20)).unwrap();
    assert!(old.try_acquire(12).is_ok());
    let new = file.limiter(window(30)).unwrap();
    assert_eq!((old.available_at(now()), new.available_at(now())), (18, 18));
    assert_eq!(file.limiter(window(10)).unwrap().available_at(now()), 0);
    assert_eq!(file.limiter(window(20)).unwrap().available_at(now()), 8);
}

#[test]
fn a_grant_from_before_a_change_is_not_refunded() {
    let folder = Folder::new("refund");
    let file = folder.file("limit").changing();
    let old = file.limiter(bucket(20)).unwrap();
    let receipt = old.take_at(now(), 5).unwrap();
    let other = old.take_at(now(), 5).unwrap();
    let _new = file.limiter(bucket(30)).unwrap();
    assert_eq!(
        old.refund_at(now(), 5, receipt).permits,
        0,
        "by the settings of before"
    );
    assert_eq!(old.available_at(now()), 20);
    assert_eq!(
        old.refund_at(now(), 5, other).permits,
        0,
        "by the new settings"
    );
    assert_eq!(old.available_at(now()), 20);
    std::thread::sleep(Duration::from_millis(1));
    let before = old.available_at(now());
    let receipt = old.take_at(now(), 5).unwrap();
    assert_eq!(old.refund_at(now(), 5, receipt).permits, 5);
    assert_eq!(old.available_at(now()), before);
}

#[test]
fn a_receipt_of_earlier_settings_is_worth_nothing_if_the_state_looks_the_same() {
    let folder = Folder::new("receipt");
    let file = folder.file("limit").changing();
    let old = file.limiter(bucket(20)).unwrap();
    let receipt = old.take_at(now(), 5).unwrap();
    // Another debt leaves the state as it is.
    let owing = TokenBucket::builder(Rate::ZERO, 20).debt(3);
    let _new = file.limiter(owing.build().unwrap()).unwrap();
    assert_eq!(old.available_at(now()), 15);
    assert_eq!(old.refund_at(now(), 5, receipt).permits, 0);
    assert_eq!(old.available_at(now()), 15);
}

const VERSION: usize = 128;

/// Writes words into a version of a file's settings.
fn write(file: &Path, version: u64, at: u64, words: &[u64]) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let from = 4096 + version * VERSION as u64 + at;
    file.write_all_at(&bytes, from).unwrap();
}

fn read(file: &Path, version: u64) -> Vec<u64> {
    let mut bytes = [0; VERSION];
    let file = OpenOptions::new().read(true).open(file).unwrap();
    let from = 4096 + version * VERSION as u64;
    file.read_exact_at(&mut bytes, from).unwrap();
    let words = bytes.chunks(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

/// A file whose changing process was killed after a step of a change from 20 permits to 30.
fn killed_after(step: u32, folder: &Folder) {
    let [limit, other] = ["limit", "other"].map(|name| folder.path(name));
    drop(folder.file("other").limiter(bucket(30)).unwrap());
    let settings = read(&other, 1);
    write(&limit, 2, 16, &settings[2..]);
    // A state of before.
    write(&limit, 2, 0, &[7 << 20]);
    write(&limit, 2, 8, &[2 << 2 | 1]);
    if step >= 2 {
        write(&limit, 1, 8, &[1 << 2 | 3]);
    }
    if step >= 3 {
        write(&limit, 2, 0, &[1 << 50]);
    }
}

#[test]
fn a_change_whose_process_was_killed_is_completed_by_others_or_never_was() {
    for step in 1..=3 {
        let folder = Folder::new(&format!("killed-{step}"));
        let file = folder.file("limit");
        let old = file.limiter(bucket(20)).unwrap();
        assert!(old.try_acquire(12).is_ok());
        killed_after(step, &folder);
        if step == 1 {
            assert_eq!(old.available_at(now()), 8);
            let new = file.changing().limiter(bucket(40)).unwrap();
            assert_eq!((old.available_at(now()), new.available_at(now())), (28, 28));
        } else {
            assert_eq!(old.available_at(now()), 18, "step {step}");
            assert!(file.limiter(bucket(30)).unwrap().try_acquire(18).is_ok());
            assert!(old.try_acquire(1).is_err());
        }
    }
}

/// Opens the file as root, and drops its privileges. So does a process that it has forked.
fn complete_without_privileges(file: &SharedFile) {
    let (first, second) = (file.limiter(bucket(20)), file.limiter(bucket(20)));
    let (first, second) = (first.unwrap(), second.unwrap());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let forked = fork(|| {
        if drop_privileges() {
            let mut line = String::new();
            std::io::BufReader::new(reader)
                .read_line(&mut line)
                .unwrap();
            assert_eq!(second.available_at(now()), 18);
        }
    });
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if line.trim() == "opened" && drop_privileges() {
        assert_eq!(first.available_at(now()), 18);
    }
    writer.write_all(b"go\n").unwrap();
    forked.finish();
    println!("\ncompleted");
}

#[test]
fn processes_that_have_dropped_their_privileges_complete_a_change() {
    for with in ["forked", "opened"] {
        let folder = Folder::new(&format!("dropped-{with}"));
        let file = folder.file("limit");
        assert!(file.limiter(bucket(20)).unwrap().try_acquire(12).is_ok());
        let path = folder.path("limit");
        let mut process = Process::start(&["dropped", path.to_str().unwrap()]);
        process.until("ready");
        killed_after(2, &folder);
        process.tell(with);
        assert_eq!(process.finish("completed").len(), 1);
    }
}

#[test]
fn a_change_whose_process_is_stopped_is_completed_by_others() {
    for step in 2..=3 {
        let folder = Folder::new(&format!("stopped-{step}"));
        let file = folder.file("limit");
        let old = file.limiter(bucket(20)).unwrap();
        assert!(old.try_acquire(12).is_ok());
        killed_after(step, &folder);
        // It is alive.
        let _stopped = support_change_lock::hold(&folder.path("limit"));
        let joined = file.limiter(bucket(30)).unwrap();
        assert_eq!(joined.available_at(now()), 18, "step {step}");
        assert!(old.try_acquire(18).is_ok() && joined.try_acquire(1).is_err());
        let refused = file.changing().limiter(bucket(40)).unwrap_err();
        assert!(matches!(refused, OpenError::Busy { .. }), "{refused}");
    }
}

#[test]
fn a_process_that_opens_a_file_completes_a_change_as_well() {
    let folder = Folder::new("joins");
    let file = folder.file("limit");
    assert!(file.limiter(bucket(20)).unwrap().try_acquire(12).is_ok());
    killed_after(2, &folder);
    assert_eq!(file.limiter(bucket(30)).unwrap().available_at(now()), 18);
    assert!(file.limiter(bucket(20)).is_err());
}

#[test]
fn settings_that_no_builder_accepts_are_those_of_a_damaged_file() {
    let folder = Folder::new("unbuilt");
    let file = folder.file("limit");
    let old = file.limiter(bucket(20)).unwrap();
    killed_after(2, &folder);
    // A burst of 0, and one that does not give the fingerprint.
    for burst in [0, 31] {
        write(&folder.path("limit"), 2, 8, &[2 << 2 | 2]);
        write(&folder.path("limit"), 2, 40 + 3 * 8, &[burst]);
        let denied = old.try_acquire(1).map(drop);
        assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
        let refused = file.limiter(bucket(30)).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    }
}

#[test]
fn settings_change_at_most_31_times_a_minute() {
    let folder = Folder::new("often");
    let file = folder.file("limit").changing();
    let old = file.limiter(bucket(1_000)).unwrap();
    assert!(old.try_acquire(1).is_ok());
    for burst in 1..32 {
        drop(file.limiter(bucket(burst)).unwrap());
    }
    let refused = file.limiter(bucket(50)).unwrap_err();
    assert!(
        matches!(refused, OpenError::Changes { most: 31, .. }),
        "{refused}"
    );
    assert_eq!((old.available_at(now()), old.rules().burst()), (30, 31));
}

#[test]
fn threads_that_take_during_changes_get_no_permit_twice() {
    let folder = Folder::new("threads");
    let file = folder.file("limit").changing();
    let burst = |nth: u64| bucket(100_000 + nth % 2);
    let open = || folder.file("limit").limiter(burst(0)).unwrap();
    let limits = [open(), open()];
    let granted: u64 = std::thread::scope(|scope| {
        let threads = [0, 1, 0, 1].map(|nth| {
            let limit = &limits[nth];
            scope.spawn(move || {
                let mut granted = 0;
                loop {
                    match limit.try_acquire(1).map(drop) {
                        Ok(()) => granted += 1,
                        Err(Denied::Exhausted { .. }) => break granted,
                        Err(Denied::Refused { .. }) => {}
                        Err(denied) => panic!("{denied}"),
                    }
                }
            })
        });
        for nth in 1..31 {
            drop(file.limiter(burst(nth)).unwrap());
        }
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert!(granted <= 100_001, "{granted}");
    // Each change may cost each thread the permits of a few decisions.
    assert!(granted >= 100_000 - 30 * 4 * 8, "{granted}");
}

const PER_SECOND: u32 = 20_000;
const BURSTS: [u64; 2] = [10_000, 9_000];

fn refilled(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(PER_SECOND), burst)
}

/// Takes until it is killed.
fn take(file: &SharedFile, journal: &Path) {
    let open = || {
        BURSTS
            .iter()
            .find_map(|&burst| file.limiter(refilled(burst)).ok())
    };
    // Another change may come between the two.
    let bucket = (0..100).find_map(|_| open()).unwrap();
    let mut journal = Journal::open(journal);
    loop {
        let earliest = now();
        if bucket.try_acquire_at(earliest, 1).is_ok() {
            journal.write(earliest, now(), 1);
        }
    }
}

/// Changes settings until it is killed, or may not any more.
fn change(file: &SharedFile, pause: u64) {
    let file = file.clone().changing();
    for burst in BURSTS.into_iter().cycle() {
        match file.limiter(refilled(burst)) {
            Ok(_) | Err(OpenError::Busy { .. }) => {}
            Err(OpenError::Changes { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
    println!("\nchanged");
}

fn four_processes_follow(time: Duration) {
    let folder = Folder::new(&format!("follow-{}", time.as_secs()));
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    drop(folder.file("limit").limiter(refilled(BURSTS[0])).unwrap());
    let file = file.to_str().unwrap();
    let start = || Process::start(&["take", file, journal.to_str().unwrap()]);
    let pause = (time.as_millis() as u64 / 40).to_string();
    let change = || Process::start(&["change", file, &pause]);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut changer, mut nth) = (Instant::now(), change(), 0);
    while begun.elapsed() < time {
        std::thread::sleep(time / 20);
        core::mem::replace(&mut changer, change()).kill();
        core::mem::replace(&mut children[nth % 4], start()).kill();
        nth += 1;
    }
    children
        .into_iter()
        .chain([changer])
        .for_each(Process::kill);
    let admissions = Journal::read(&journal);
    let most = most_above_rate(&admissions, PER_SECOND);
    assert!(
        most <= i128::from(BURSTS[0]) * PERMIT,
        "{most} billionths above the rate"
    );
    let first = admissions.iter().map(|a| a.earliest).min().unwrap();
    let last = admissions.iter().map(|a| a.latest).max().unwrap();
    let bound = BURSTS[1] + u64::from(PER_SECOND) * (last - first) / 1_000_000_000;
    let admitted = admissions.len() as u64;
    println!("{admitted} of {bound} permits");
    assert!(
        admitted >= bound / 100 * 99,
        "{admitted} of {bound} permits"
    );
}

#[test]
fn four_processes_follow_changes_while_processes_are_killed() {
    four_processes_follow(Duration::from_secs(4));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_follow_changes_for_long() {
    four_processes_follow(seconds(30));
}

/// The limits at once that a process sets in turn.
const AT_ONCE: [u32; 2] = [1, 6];

/// Holds permits for short times until it is killed. The journal says when each request began.
fn hold(file: &SharedFile, journal: &Path) {
    let open = || {
        AT_ONCE
            .iter()
            .find_map(|&limit| file.concurrency(limit, None).ok())
    };
    let limit = (0..100).find_map(|_| open()).unwrap();
    let mut journal = Journal::open(journal);
    for nth in 0_u64.. {
        let begun = now();
        let Ok(lease) = limit.acquire_timeout(1, Duration::from_millis(20)) else {
            continue;
        };
        let from = now();
        while now().as_nanos() < from.as_nanos() + nth % 7 * 50_000 {
            core::hint::spin_loop();
        }
        // It is held until it is dropped.
        journal.write(from, now(), begun.as_nanos());
        drop(lease);
    }
}

/// Changes the limit until it is killed. The journal says when each limit was certainly in force.
fn change_at_once(file: &SharedFile, journal: &Path) {
    let file = file.clone().changing();
    let mut journal = Journal::open(journal);
    for limit in AT_ONCE.into_iter().cycle() {
        if let Err(error) = file.concurrency(limit, None) {
            assert!(matches!(error, OpenError::Busy { .. }), "{error}");
            continue;
        }
        let from = now();
        std::thread::sleep(Duration::from_millis(3));
        journal.write(from, now(), limit.into());
    }
}

/// The leases that one process after another was granted while a limit of 1 was in force, and how
/// many others were held at that moment.
fn four_processes_hold_while_the_limit_changes(time: Duration) {
    let folder = Folder::new(&format!("hold-{}", time.as_secs()));
    let paths = ["limit", "held", "limits"].map(|name| folder.path(name));
    let [file, held, limits] = paths.each_ref().map(|path| path.to_str().unwrap());
    drop(folder.file("limit").concurrency(AT_ONCE[0], None).unwrap());
    let start = || Process::start(&["hold", file, held]);
    let change = || Process::start(&["change_at_once", file, limits]);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut changer, mut nth) = (Instant::now(), Some(change()), 0);
    while begun.elapsed() < time {
        std::thread::sleep(time / 20);
        // One at a time: what it records is in force.
        if let Some(changer) = changer.take() {
            changer.kill();
        }
        changer = Some(change());
        core::mem::replace(&mut children[nth % 4], start()).kill();
        nth += 1;
    }
    children.into_iter().chain(changer).for_each(Process::kill);
    let held = Journal::read(&paths[1]);
    let limits = Journal::read(&paths[2]);
    // Sorted, because there are many.
    let sorted = |mut times: Vec<u64>| {
        times.sort_unstable();
        times
    };
    let begins = sorted(held.iter().map(|lease| lease.earliest).collect());
    let ends = sorted(held.iter().map(|lease| lease.latest).collect());
    let at_once_at = |at| begins.partition_point(|&t| t <= at) - ends.partition_point(|&t| t < at);
    let mut ones: Vec<_> = limits.iter().filter(|limit| limit.permits == 1).collect();
    ones.sort_unstable_by_key(|limit| limit.earliest);
    let (mut judged, mut most) = (0, 0);
    for lease in &held {
        // They do not overlap, so the last one that began before the request ends last.
        let before = ones.partition_point(|limit| limit.earliest <= lease.permits);
        let last = before.checked_sub(1).map(|last| ones[last]);
        let in_force = last.is_some_and(|limit| lease.earliest <= limit.latest);
        let at_once = at_once_at(lease.earliest);
        assert!(at_once <= 6, "{at_once} leases at {}", lease.earliest);
        most = most.max(at_once);
        if in_force {
            judged += 1;
            assert_eq!(at_once, 1, "a lease was granted under a limit of 1");
        }
    }
    println!(
        "{} leases, {judged} under a limit of 1, at most {most} at once",
        held.len()
    );
    assert!(
        judged > 5 && most > 1,
        "{judged} leases, at most {most} at once"
    );
    let limit = folder
        .file("limit")
        .changing()
        .concurrency(6, None)
        .unwrap();
    let all = limit.acquire_timeout(6, Duration::from_secs(1));
    assert!(all.is_ok(), "{} permits are lost", limit.in_use());
}

#[test]
fn four_processes_keep_a_limit_at_once_that_changes_while_processes_are_killed() {
    four_processes_hold_while_the_limit_changes(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_keep_a_limit_at_once_that_changes_for_long() {
    four_processes_hold_while_the_limit_changes(seconds(30));
}

/// So many that a change takes a few milliseconds.
const KEYS: usize = 20_000;

#[test]
fn a_table_loses_no_permit_when_processes_are_killed_while_they_change_it() {
    let folder = Folder::new("table-kills");
    let file = folder.file("users");
    let users = file.table(bucket(1_000), KEYS).unwrap();
    let mut taken = vec![0; KEYS];
    let (mut began, mut completed) = (0, 0);
    for round in 0..60 {
        let burst = 1_000 + (round + 1) % 2 * 500;
        let path = folder.path("users");
        let words = ["change_table", path.to_str().unwrap(), &burst.to_string()];
        let mut changer = Process::start(&words);
        changer.until("ready");
        let begun = Instant::now();
        // Requests go on while the table changes, and after the changer was killed.
        let (mut changer, mut has_changed) = (Some(changer), false);
        for nth in 0_usize.. {
            let key = nth * 7_919 % KEYS;
            match users.key(&key).try_acquire(1) {
                Ok(_) => taken[key] += 1,
                Err(Denied::Crowded { .. }) => {}
                Err(denied) => panic!("{denied}"),
            }
            if begun.elapsed() > Duration::from_micros(700 * (round % 20)) {
                let lines = changer.take().map(Process::kill_for_lines);
                has_changed |= lines.is_some_and(|lines| lines.iter().any(|l| l == "changed"));
            }
            if begun.elapsed() > Duration::from_millis(25) {
                break;
            }
        }
        // Completes the change, if it was begun. A test that starts a process has its lock too, for
        // a moment.
        let begun = Instant::now();
        while users.key(&0_usize).available() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(9));
        }
        let settings = file.describe().unwrap().settings;
        let in_force = if settings.contains("burst 1500") {
            1_500
        } else {
            1_000
        };
        began += usize::from(in_force == burst);
        completed += usize::from(in_force == burst && !has_changed);
        for (key, taken) in taken.iter().enumerate().step_by(101) {
            let left = users.key(&key).available();
            assert_eq!(left, in_force - taken, "round {round}, key {key}");
        }
        // As if a minute had passed.
        for version in 0..32 {
            write(&folder.path("users"), version, 16, &[0]);
        }
    }
    println!("{began} changes were begun; of {completed} the process was killed before the end");
    assert!(completed > 0, "{began} changes");
}
