//! Processes that share limiters, join, are killed, and write nonsense.

mod support;

use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Instant;

use portcullis_async::{KeyedQueue, ThreadTimer};
use portcullis_core::keyed::TokenBucketRules;
use portcullis_core::{Denied, FixedWindow, Limiter, LimiterExt, Rate, TokenBucket};
use portcullis_shm::{OpenError, SharedFile, SharedTable};
use support::{
    Admission, Folder, Journal, PERMIT, Process, least_left, most_above_rate, now, role, seconds,
};

const PER_SECOND: u32 = 20_000;
const BURST: u64 = 10_000;
/// The most permits that a process takes at once.
const MOST: u32 = 7;

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(PER_SECOND), BURST)
}

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["take", file, journal] => take(&SharedFile::at(file), Path::new(journal)),
        ["take_keyed", file, journal] => take_keyed(&SharedFile::at(file), Path::new(journal)),
        ["wait", file, journal] => wait(&SharedFile::at(file), Path::new(journal)),
        ["hold", file, journal] => hold(&SharedFile::at(file), Path::new(journal)),
        ["race", folder, begun, rounds] => race(
            Path::new(folder),
            begun.parse().unwrap(),
            rounds.parse().unwrap(),
        ),
        ["use", a, b, c, d, e, time] => {
            use_for(&[a, b, c, d, e].map(SharedFile::at), time.parse().unwrap());
        }
        ["create", file] => create(&SharedFile::at(file)),
        ["write", file, time] => write_nonsense(Path::new(file), time.parse().unwrap()),
        ["outlive", file, other] => outlive(&SharedFile::at(file), &SharedFile::at(other)),
        ["fault", file, foreign] => fault(&SharedFile::at(file), Path::new(foreign)),
        ["step", word, points] => {
            support_steps::run(&Folder::new("stepped"), word, points.parse().unwrap());
        }
        [] => {}
        _ => panic!("{role:?}"),
    }
}

/// Takes until it is killed.
fn take(file: &SharedFile, journal: &Path) {
    let bucket = file.limiter(bucket()).unwrap();
    let mut journal = Journal::open(journal);
    println!("\nready");
    loop {
        let earliest = now();
        for n in [MOST, 1] {
            if bucket.try_acquire_at(earliest, n).is_ok() {
                journal.write(earliest, now(), n.into());
                break;
            }
        }
    }
}

/// Numbers that need not be good.
fn draw(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *state >> 33
}

/// Kills a process that has begun to take. On a slow machine, it could take nothing otherwise.
fn kill_once_ready(mut process: Process) {
    process.until("ready");
    process.kill();
}

fn four_processes_share_one_bucket(time: Duration) {
    let folder = Folder::new(&format!("bucket-{}", time.as_secs()));
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    let start = || Process::start(&["take", file.to_str().unwrap(), journal.to_str().unwrap()]);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut draws, mut killed) = (Instant::now(), 7, 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(20 + draw(&mut draws) % 200));
        let unlucky = (draw(&mut draws) % 4) as usize;
        kill_once_ready(core::mem::replace(&mut children[unlucky], start()));
        killed += 1;
    }
    killed += children.len();
    children.into_iter().for_each(Process::kill);
    let bucket = folder.file("limit").limiter(bucket()).unwrap();
    let end = now();
    let available = bucket.available_at(end);
    let admissions = Journal::read(&journal);
    let admitted: u64 = admissions.iter().map(|a| a.permits).sum();
    let most = most_above_rate(&admissions, PER_SECOND);
    assert!(
        most <= i128::from(BURST) * PERMIT,
        "{most} billionths above the rate, and the burst is {BURST}"
    );
    // With each process, a take that it had not noted may be lost.
    let lost = killed as u64 * u64::from(MOST);
    let least = least_left(&admissions, PER_SECOND, BURST, end) / PERMIT;
    println!("{admitted} permits, {available} of {least} left, {killed} processes killed");
    assert!(
        i128::from(available + lost) >= least,
        "{available} permits of {least}, after {admitted}; {killed} processes killed"
    );
}

#[test]
fn four_processes_share_one_bucket_while_processes_are_killed() {
    four_processes_share_one_bucket(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_bucket_for_long() {
    four_processes_share_one_bucket(seconds(30));
}

const WAITED_PER_SECOND: u32 = 200;
const WAITED_BURST: u64 = 20;

/// Waits in a queue of this process for the permits of one key, in four threads, until it is
/// killed.
fn wait(file: &SharedFile, journal: &Path) {
    let bucket = TokenBucket::new(Rate::per_second(WAITED_PER_SECOND), WAITED_BURST);
    let queue = KeyedQueue::new(file.table(bucket, 1_000).unwrap(), ThreadTimer::new(), 100);
    println!("\nready");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut journal = Journal::open(journal);
                loop {
                    let earliest = now();
                    let _ = queue.key("tenant").blocking_acquire(1).unwrap();
                    journal.write(earliest, now(), 1);
                }
            });
        }
    });
}

#[test]
fn queues_of_several_processes_share_the_limit_of_a_key() {
    let folder = Folder::new("queued");
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    let start = || Process::start(&["wait", file.to_str().unwrap(), journal.to_str().unwrap()]);
    let mut children: Vec<_> = (0..3).map(|_| start()).collect();
    for child in &mut children {
        child.until("ready");
    }
    std::thread::sleep(Duration::from_millis(700));
    // It has requests that wait.
    children.pop().unwrap().kill();
    let killed = now();
    std::thread::sleep(Duration::from_secs(1));
    let over = now();
    children.into_iter().for_each(Process::kill);
    let admissions = Journal::read(&journal);
    let most = most_above_rate(&admissions, WAITED_PER_SECOND);
    assert!(
        most <= i128::from(WAITED_BURST) * PERMIT,
        "{most} billionths above the rate, and the burst is {WAITED_BURST}"
    );
    // A loaded machine may be late for more than the burst makes up.
    let after = |a: &&Admission| a.latest > killed.as_nanos();
    let permits = admissions.iter().filter(after).count() as u128;
    let ideal = u128::from(WAITED_PER_SECOND) * over.saturating_since(killed).as_millis() / 1_000;
    assert!(2 * permits >= ideal, "{permits} of {ideal} permits");
}

const HOT_KEYS: u64 = 16;
const PER_KEY: u32 = 1_000;
const BURST_PER_KEY: u64 = 500;

fn table(file: &SharedFile) -> SharedTable<TokenBucketRules> {
    let bucket = TokenBucket::new(Rate::per_second(PER_KEY), BURST_PER_KEY);
    file.table(bucket, 1_000_000).unwrap()
}

/// Takes from a table until it is killed: mostly from few keys.
fn take_keyed(file: &SharedFile, journal: &Path) {
    let table = table(file);
    let mut journal = Journal::open(journal);
    let mut draws = now().as_nanos();
    println!("\nready");
    for nth in 1_u64.. {
        let (earliest, key) = (now(), draw(&mut draws) % HOT_KEYS);
        if table.keyed().key(&key).try_acquire_at(earliest, 1).is_ok() {
            journal.write(earliest, now(), key << 8 | 1);
        }
        if nth.is_multiple_of(16) {
            let _ = table.key(&(draw(&mut draws) % 500_000)).try_acquire(1);
        }
        if nth.is_multiple_of(1 << 20) {
            table.recover();
        }
    }
}

fn four_processes_share_one_table(time: Duration) {
    let folder = Folder::new(&format!("table-{}", time.as_secs()));
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    let words = [
        "take_keyed",
        file.to_str().unwrap(),
        journal.to_str().unwrap(),
    ];
    let start = || Process::start(&words);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut draws, mut killed) = (Instant::now(), 7, 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(20 + draw(&mut draws) % 200));
        let unlucky = (draw(&mut draws) % 4) as usize;
        kill_once_ready(core::mem::replace(&mut children[unlucky], start()));
        killed += 1;
    }
    killed += children.len();
    children.into_iter().for_each(Process::kill);
    let table = table(&folder.file("limit"));
    let admissions = Journal::read(&journal);
    for key in 0..HOT_KEYS {
        let of_key = admissions.iter().filter(|a| a.permits >> 8 == key);
        // In a table, a time counts as the start of its tick of a microsecond.
        let of_key: Vec<_> = of_key
            .map(|a| Admission {
                earliest: a.earliest / 1_000 * 1_000,
                latest: a.latest / 1_000 * 1_000,
                permits: 1,
            })
            .collect();
        let most = most_above_rate(&of_key, PER_KEY);
        assert!(
            most <= i128::from(BURST_PER_KEY) * PERMIT,
            "{most} billionths for key {key}"
        );
        let end = now();
        let available = table.keyed().key(&key).available_at(end);
        let least = least_left(&of_key, PER_KEY, BURST_PER_KEY, end) / PERMIT;
        // With each process, a take that it had not noted may be lost.
        assert!(
            i128::from(available) + killed as i128 >= least,
            "{available} of {least} permits for key {key}; {killed} processes killed"
        );
    }
}

#[test]
fn four_processes_share_one_table_of_a_million_keys() {
    four_processes_share_one_table(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_table_of_a_million_keys_for_long() {
    four_processes_share_one_table(seconds(30));
}

const AT_ONCE: u32 = 3;

/// Holds permits for short times until it is killed.
fn hold(file: &SharedFile, journal: &Path) {
    let limit = file.concurrency(AT_ONCE, None).unwrap();
    let mut journal = Journal::open(journal);
    let mut draws = now().as_nanos();
    loop {
        let n = 1 + draw(&mut draws) as u32 % 2;
        let lease = match draw(&mut draws) % 2 {
            0 => limit.try_acquire(n),
            _ => limit.acquire_timeout(n, Duration::from_millis(50)),
        };
        if let Ok(lease) = lease {
            let from = now();
            let until = from.as_nanos() + draw(&mut draws) % 400_000;
            while now().as_nanos() < until {
                core::hint::spin_loop();
            }
            // It is held until it is dropped below.
            journal.write(from, now(), lease.permits().into());
        }
    }
}

/// The most permits that are in use at one moment.
fn most_at_once(held: &[Admission]) -> i64 {
    let begins = held.iter().map(|a| (a.earliest, a.permits.cast_signed()));
    // At one instant, the end comes first.
    let ends = held.iter().map(|a| (a.latest, -a.permits.cast_signed()));
    let mut changes: Vec<_> = begins.chain(ends).collect();
    changes.sort_unstable();
    let in_use = changes.iter().scan(0, |in_use, (_, by)| {
        *in_use += by;
        Some(*in_use)
    });
    in_use.max().unwrap_or(0)
}

fn four_processes_share_one_concurrency_limit(time: Duration) {
    let folder = Folder::new(&format!("at-once-{}", time.as_secs()));
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    let limit = folder.file("limit").concurrency(AT_ONCE, None).unwrap();
    let words = ["hold", file.to_str().unwrap(), journal.to_str().unwrap()];
    let start = || Process::start(&words);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut draws, mut killed) = (Instant::now(), 7, 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(draw(&mut draws) % 50));
        let unlucky = (draw(&mut draws) % 4) as usize;
        core::mem::replace(&mut children[unlucky], start()).kill();
        killed += 1;
    }
    children.into_iter().for_each(Process::kill);
    // All of them are dead, so all permits return.
    let lease = limit.acquire_timeout(AT_ONCE, Duration::from_secs(1));
    assert!(lease.is_ok(), "{} permits are lost", limit.in_use());
    let held = Journal::read(&journal);
    let most = most_at_once(&held);
    println!(
        "{} leases, at most {most} permits, {killed} processes killed",
        held.len()
    );
    assert_eq!(most, AT_ONCE.into());
    assert!(held.len() as u64 > 100 * time.as_secs(), "{}", held.len());
}

#[test]
fn four_processes_share_one_concurrency_limit_while_processes_are_killed() {
    four_processes_share_one_concurrency_limit(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_concurrency_limit_for_long() {
    four_processes_share_one_concurrency_limit(seconds(30));
}

const RACERS: u64 = 8;

/// Opens one file after another, each at a moment that all processes know, takes all permits that
/// there are, and tells how many.
fn race(folder: &Path, begun: u64, rounds: u64) {
    // None is closed before all have opened it.
    let mut opened = Vec::new();
    for round in 0..rounds {
        while now().as_nanos() < begun + round * 4_000_000 {
            core::hint::spin_loop();
        }
        let file = SharedFile::at(folder.join(round.to_string()));
        let bucket = file.limiter(TokenBucket::new(Rate::ZERO, 1_000)).unwrap();
        let granted = (0..1_500).filter(|_| bucket.try_acquire(1).is_ok()).count();
        println!("\ngranted {round} {granted}");
        opened.push(bucket);
    }
}

/// Returns how many permits of each round the racing processes were granted.
fn race_for(folder: &Folder, rounds: usize) -> Vec<u64> {
    let path = folder.path("");
    let (path, number) = (path.to_str().unwrap(), rounds.to_string());
    let begun = (now().as_nanos() + 300_000_000).to_string();
    let words = ["race", path, &begun, &number];
    let racers: Vec<_> = (0..RACERS).map(|_| Process::start(&words)).collect();
    let mut granted = vec![0; rounds];
    for racer in racers {
        for line in racer.finish("granted ") {
            let (round, permits) = line.split_once(' ').unwrap();
            granted[round.parse::<usize>().unwrap()] += permits.parse::<u64>().unwrap();
        }
    }
    granted
}

#[test]
fn of_processes_that_race_to_create_a_file_one_creates_it() {
    let folder = Folder::new("race");
    assert_eq!(race_for(&folder, 150), [1_000; 150]);
    assert_eq!(folder.names().len(), 150, "{:?}", folder.names());
}

/// Makes a file one of another boot of the machine.
fn age(file: &Path) {
    support_header::edit(file, 56, b"00000000-0000-0000-0000-000000000000");
}

#[test]
fn of_processes_that_find_a_file_of_another_boot_one_replaces_it() {
    let folder = Folder::new("reboot");
    for round in 0..240 {
        let name = round.to_string();
        let bucket = TokenBucket::new(Rate::ZERO, 1_000);
        let old = folder.file(&name).limiter(bucket).unwrap();
        let _ = old.try_acquire(900).unwrap();
        drop(old);
        age(&folder.path(&name));
    }
    assert_eq!(race_for(&folder, 240), [1_000; 240]);
    assert_eq!(folder.names().len(), 240, "{:?}", folder.names());
}

fn small_table(file: &SharedFile) -> SharedTable<TokenBucketRules> {
    file.table(TokenBucket::new(Rate::per_second(5), 3), 100)
        .unwrap()
}

/// Uses limiters in files for a time, whatever they contain.
fn use_for(files: &[SharedFile; 5], millis: u64) {
    let bucket = files[0].limiter(bucket()).unwrap();
    let table = small_table(&files[1]);
    let uploads = files[2]
        .concurrency(9, Some(Duration::from_millis(5)))
        .unwrap();
    let stripes = files[3].striped(Rate::per_second(50), 50_000).unwrap();
    let pool = files[4].lease_pool(9).unwrap();
    println!("\nready");
    let begun = Instant::now();
    let time = Duration::from_millis(millis);
    // A change waits for claims: for some seconds, if they are nonsense. It ends with the process.
    let changed = files.clone();
    std::thread::spawn(move || {
        // Not before the others have opened the files.
        std::thread::sleep(time / 4);
        for nth in [0, 1].into_iter().cycle() {
            change_all(&changed, nth);
        }
    });
    let mut decisions = 0;
    while begun.elapsed() < time {
        for n in [0, 1, 7, 20_000] {
            if let Err(denied) = bucket.take_at(now(), n) {
                bucket.retry(denied);
            }
            bucket.explain_at(now(), n);
            bucket.idle_at(now());
            match stripes.take_at(now(), n) {
                Ok(receipt) => drop(stripes.refund_at(now(), n / 2, receipt)),
                Err(denied) => drop(stripes.retry(denied)),
            }
            stripes.explain_at(now(), n);
            if let Ok(id) = pool.claim((n > 0).then_some(Duration::from_millis(1))) {
                let _ = pool.renew(id, None);
                let _ = pool.adopt(id);
                let _ = pool.release(id);
            }
            let key = table.keyed().key(&(decisions % 200));
            if let Err(denied) = key.take_at(now(), n) {
                key.retry(denied);
            }
            key.explain_at(now(), n);
            let _ = key.try_acquire_at(now(), n);
            let one = uploads.try_acquire(1);
            if let Ok(mut lease) = uploads.try_acquire(n % 8) {
                let _ = lease.renew();
                let _ = lease.is_held();
            }
            drop(one);
        }
        let _ = uploads.acquire_timeout(1, Duration::from_micros(50));
        if decisions % 4_000 == 0 {
            table.recover();
            table.keyed().sweep_at(now(), ..);
            pool.recover();
        }
        decisions += 4;
    }
    println!("\ndecisions {decisions}");
}

/// Changes settings in files whatever they contain. Their headers may be damaged: then it does
/// nothing.
fn change_all(files: &[SharedFile; 5], nth: u64) {
    let [bucket, table, uploads, ..] = files.each_ref().map(|file| file.clone().changing());
    let burst = 3 + nth;
    let _ = bucket.limiter(TokenBucket::new(Rate::per_second(PER_SECOND), BURST + nth));
    let _ = table.table(TokenBucket::new(Rate::per_second(5), burst), 100);
    let _ = uploads.concurrency(9 - nth as u32, Some(Duration::from_millis(5 + nth)));
    std::thread::sleep(Duration::from_millis(20));
}

/// Writes random bytes anywhere into a file for a time.
fn write_nonsense(path: &Path, millis: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let begun = Instant::now();
    let mut draws = now().as_nanos();
    while begun.elapsed() < Duration::from_millis(millis) {
        let bytes: Vec<_> = (0..=draw(&mut draws) % 64)
            .map(|_| draw(&mut draws) as u8)
            .collect();
        // Half of them hit the first words, and those of the first settings.
        let at = match draw(&mut draws) % 2 {
            0 => (4096 + draw(&mut draws) % 512).min(size - 1),
            // For half of the time, others may still open the file, and change its settings.
            _ if begun.elapsed() < Duration::from_millis(millis / 2) => {
                4096 + draw(&mut draws) % (size - 4096)
            }
            _ => draw(&mut draws) % size,
        };
        let bytes = &bytes[..bytes.len().min((size - at) as usize)];
        file.write_all_at(bytes, at).unwrap();
    }
}

fn nonsense_in_the_file(time: Duration) {
    let folder = Folder::new(&format!("nonsense-{}", time.as_secs()));
    let names = ["limit", "table", "uploads", "stripes", "pool"];
    let paths = names.map(|name| folder.path(name));
    let [a, b, c, d, e] = paths.each_ref().map(|path| path.to_str().unwrap());
    let millis = time.as_millis().to_string();
    let words = ["use", a, b, c, d, e, &millis];
    let mut users: Vec<_> = (0..4).map(|_| Process::start(&words)).collect();
    for user in &mut users {
        user.until("ready");
    }
    // The header is checked when a file is opened. After that, anything may be written.
    let writers = [a, b, c, d, e].map(|path| Process::start(&["write", path, &millis]));
    for user in users {
        let decisions: u64 = user.finish("decisions")[0].parse().unwrap();
        // Each may read as many slots as a limit can have.
        assert!(decisions > 50, "{decisions}");
    }
    for writer in writers {
        writer.finish("");
    }
    assert!(
        folder.file("limit").limiter(bucket()).is_err(),
        "its header is damaged"
    );
}

#[test]
fn nonsense_in_the_file_ends_no_process() {
    nonsense_in_the_file(Duration::from_secs(2));
}

#[test]
#[ignore = "a minute"]
fn nonsense_in_the_file_for_long_ends_no_process() {
    nonsense_in_the_file(seconds(60));
}

/// Creates a file of 64 MiB.
fn create(file: &SharedFile) {
    println!("\nready");
    let bucket = TokenBucket::new(Rate::per_second(PER_KEY), BURST_PER_KEY);
    let _table: SharedTable<TokenBucketRules> = file.table(bucket, 4_000_000).unwrap();
    println!("\ncreated");
}

#[test]
fn a_process_that_is_stopped_while_it_creates_a_file_opens_it() {
    for attempt in 0..20 {
        let folder = Folder::new(&format!("create-{attempt}"));
        let file = folder.path("table");
        let mut child = Process::start(&["create", file.to_str().unwrap()]);
        child.until("ready");
        // It writes the file under another name first.
        while folder.names().is_empty() {}
        child.signal("-STOP");
        let is_stopped_in_time = !file.exists();
        // Longer than it waits for other processes.
        std::thread::sleep(Duration::from_millis(1_200));
        child.signal("-CONT");
        assert_eq!(child.finish("created").len(), 1);
        if is_stopped_in_time {
            return;
        }
    }
    panic!("it was never stopped in time");
}

/// Uses a limiter until its file is truncated. Another limiter goes on.
fn outlive(file: &SharedFile, other: &SharedFile) {
    let bucket = file.limiter(bucket()).unwrap();
    let other = other
        .limiter(FixedWindow::new(1_000_000_000, Duration::from_hours(1)))
        .unwrap();
    println!("\nready");
    let denied = loop {
        assert!(other.try_acquire(1).is_ok());
        // The file may be truncated between a decision and the look.
        let was_lost = bucket.is_lost();
        match bucket.try_acquire(1) {
            Err(denied @ Denied::Closed { .. }) => break denied,
            _ => assert!(!was_lost),
        }
    };
    assert!(bucket.is_lost() && !other.is_lost());
    assert_eq!(denied.retry(&bucket), portcullis_core::Retry::Never);
    assert_eq!(bucket.available_at(now()), 0);
    for _ in 0..1_000 {
        let denied = bucket.try_acquire(1).map(|_| ());
        assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
        assert!(other.try_acquire(1).is_ok());
    }
    let refused = file.limiter(crate::bucket()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    println!("\noutlived");
}

#[test]
fn a_file_that_is_truncated_while_processes_use_it_ends_none_of_them() {
    for size in [0, 4096] {
        let folder = Folder::new(&format!("truncated-{size}"));
        let paths = [folder.path("limit"), folder.path("other")];
        let words = [
            "outlive",
            paths[0].to_str().unwrap(),
            paths[1].to_str().unwrap(),
        ];
        let mut users: Vec<_> = (0..4).map(|_| Process::start(&words)).collect();
        for user in &mut users {
            user.until("ready");
        }
        let file = OpenOptions::new().write(true).open(&paths[0]).unwrap();
        file.set_len(size).unwrap();
        for user in users {
            assert_eq!(user.finish("outlived").len(), 1);
        }
    }
}

/// Accesses a page that another mapping of the process lacks.
fn fault(file: &SharedFile, foreign: &Path) {
    let bucket = file.limiter(bucket()).unwrap();
    let _ = bucket.try_acquire(1).unwrap();
    let foreign = OpenOptions::new().read(true).write(true).open(foreign);
    println!("\nready");
    support_fault::beyond_the_end(&foreign.unwrap());
    println!("\nsurvived");
}

#[test]
fn a_fault_in_another_mapping_ends_the_process_as_before() {
    let folder = Folder::new("fault");
    std::fs::write(folder.path("foreign"), "").unwrap();
    let paths = [folder.path("limit"), folder.path("foreign")];
    let mut child = Process::start(&[
        "fault",
        paths[0].to_str().unwrap(),
        paths[1].to_str().unwrap(),
    ]);
    child.until("ready");
    assert_eq!(child.status().signal(), Some(libc::SIGBUS));
}

fn stepped(word: &str, points: usize) {
    // In a process with one thread: its forks do what the operations need.
    let stepped = Process::start(&["step", word, &points.to_string()]);
    for line in stepped.finish("stepped") {
        println!("{line}");
    }
}

#[test]
fn whatever_the_instruction_at_which_a_process_is_killed_or_overtaken_nothing_is_lost() {
    for word in ["recover", "take_over", "renew", "first_grant"] {
        stepped(word, 6);
    }
}

#[test]
#[ignore = "some minutes"]
fn whatever_the_instruction_at_which_a_process_is_killed_or_overtaken_for_long() {
    stepped("", 100);
}

#[path = "support/header.rs"]
mod support_header;
#[path = "support/stepped.rs"]
mod support_stepped;
#[path = "support/steps.rs"]
mod support_steps;

#[path = "support/fault.rs"]
mod support_fault;
