//! Records in files: what is written at once, and what a process that is killed leaves.

mod support;
#[path = "support/fork.rs"]
mod support_fork;

use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use portcullis_core::Timestamp;
use portcullis_shm::{LockedRecords, OpenError, RecordsError, SharedFile, SharedRecords};
use support::{Folder, Journal, Process, now, role, seconds};
use support_fork::{drop_privileges, fork, fork_without_handlers, unshare};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["count", file, journal] => count(&SharedFile::at(file), Path::new(journal)),
        ["keep", file, millis] => keep(&SharedFile::at(file), millis.parse().unwrap()),
        ["open", file] => {
            let _open = records(&SharedFile::at(file));
            println!("\nready");
            std::thread::sleep(Duration::from_mins(1));
        }
        ["namespaces", file] => count_in_namespaces(&SharedFile::at(file)),
        ["guard", file, fork] => fork_with_a_guard(&SharedFile::at(file), fork),
        ["dropped", file] => use_without_privileges(&SharedFile::at(file)),
        ["use", file, millis] => use_for(&SharedFile::at(file), millis.parse().unwrap()),
        [] => {}
        _ => panic!("{role:?}"),
    }
}

const NEVER: Timestamp = Timestamp::MAX;

fn records(file: &SharedFile) -> SharedRecords {
    file.records(1_000, 3).unwrap()
}

fn number(records: &SharedRecords, key: &[u8]) -> Option<u64> {
    Some(records.lock().unwrap().read(key)?.numbers[0])
}

#[test]
fn processes_read_what_others_wrote() {
    let folder = Folder::new("records");
    let (one, other) = (records(&folder.file("r")), records(&folder.file("r")));
    one.lock()
        .unwrap()
        .write(&[(b"a", &[1, 2], NEVER), (b"b", &[3], NEVER)])
        .unwrap();
    let locked = other.lock().unwrap();
    assert_eq!(locked.read(b"a").unwrap().numbers, [1, 2]);
    assert_eq!(locked.read(b"b").unwrap().numbers, [3]);
    assert_eq!(locked.read(b"c"), None);
    drop(locked);
    other.lock().unwrap().write(&[(b"a", &[], NEVER)]).unwrap();
    assert_eq!(one.lock().unwrap().read(b"a").unwrap().numbers, [0; 0]);
    let refused = folder.file("r").records(1_000, 4).unwrap_err().to_string();
    assert!(
        refused.contains("up to 3") && refused.contains("up to 4"),
        "{refused}"
    );
    for (records, numbers) in [(0, 1), (1, 0), (1, 129)] {
        let refused = folder.file("none").records(records, numbers).unwrap_err();
        assert!(matches!(refused, OpenError::Count { .. }), "{refused}");
    }
}

#[test]
fn a_key_that_is_written_twice_at_once_has_what_was_written_last() {
    let folder = Folder::new("twice");
    let records = records(&folder.file("r"));
    records
        .lock()
        .unwrap()
        .write(&[(b"a", &[1], NEVER), (b"a", &[2], NEVER)])
        .unwrap();
    assert_eq!(number(&records, b"a"), Some(2));
}

#[test]
fn records_that_are_written_at_once_have_places_of_their_own() {
    let folder = Folder::new("places");
    let records = folder.file("r").records(64, 1).unwrap();
    let keys: Vec<_> = (0..60_u64).map(u64::to_ne_bytes).collect();
    let numbers: Vec<_> = (0..60_u64).map(|nth| [nth]).collect();
    let writes = keys.iter().zip(&numbers);
    let writes: Vec<_> = writes
        .map(|(key, number)| (&key[..], &number[..], NEVER))
        .collect();
    records.lock().unwrap().write(&writes).unwrap();
    for (key, numbers) in keys.iter().zip(&numbers) {
        assert_eq!(number(&records, key), Some(numbers[0]));
    }
}

#[test]
fn there_is_room_for_all_records_and_no_more_push_others_out() {
    let folder = Folder::new("full");
    let records = records(&folder.file("r"));
    let mut locked = records.lock().unwrap();
    let key = |nth: u64| nth.to_ne_bytes();
    for nth in 0..1_000_u64 {
        locked.write(&[(&key(nth), &[nth], NEVER)]).unwrap();
    }
    let mut written = 1_000;
    while locked.write(&[(&key(written), &[written], NEVER)]).is_ok() {
        written += 1;
        assert!(written < 2_000);
    }
    // All or none: the first of the two has a place, the second none.
    let both = [(key(0), [7]), (key(written), [7])];
    let both = both
        .each_ref()
        .map(|(key, numbers)| (&key[..], &numbers[..], NEVER));
    assert_eq!(locked.write(&both), Err(RecordsError::Full));
    for nth in 0..written {
        assert_eq!(locked.read(&key(nth)).unwrap().numbers, [nth]);
    }
    // A record that expires makes room.
    let past = locked.now();
    for nth in 0..written {
        locked.write(&[(&key(nth), &[nth], past)]).unwrap();
    }
    assert!((0..written).all(|nth| locked.read(&key(nth)).is_none()));
    locked.write(&[(&key(written), &[7], NEVER)]).unwrap();
}

#[test]
fn too_much_at_once_is_refused() {
    let folder = Folder::new("much");
    let records = records(&folder.file("r"));
    let mut locked = records.lock().unwrap();
    let long = locked.write(&[(b"a", &[1], NEVER), (b"b", &[1; 4], NEVER)]);
    assert_eq!(long, Err(RecordsError::TooMany { most: 3 }));
    let many = [(b"a".as_slice(), [1].as_slice(), NEVER); 65];
    assert_eq!(locked.write(&many), Err(RecordsError::TooMany { most: 64 }));
    assert_eq!(locked.read(b"a"), None);
}

/// Counts in two records at once until it is killed.
fn count(file: &SharedFile, journal: &Path) {
    let records = records(file);
    let mut journal = Journal::open(journal);
    println!("\nready");
    loop {
        let mut locked = records.lock().unwrap();
        let [a, b] = [b"a", b"b"].map(|key| locked.read(key).map_or(0, |record| record.numbers[0]));
        assert_eq!(a, b, "both were written, or none");
        let next = [a + 1, 7, a + 1];
        locked
            .write(&[(b"a", &next, NEVER), (b"b", &next, NEVER)])
            .unwrap();
        drop(locked);
        journal.write(now(), now(), 1);
    }
}

fn killed_processes_leave_no_half_of_a_write(time: Duration) {
    let folder = Folder::new(&format!("count-{}", time.as_secs()));
    let (file, journal) = (folder.path("r"), folder.path("journal"));
    let words = ["count", file.to_str().unwrap(), journal.to_str().unwrap()];
    let start = || Process::start(&words);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut killed) = (Instant::now(), 4);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(7));
        let nth = killed as usize % 4;
        children[nth].until("ready");
        core::mem::replace(&mut children[nth], start()).kill();
        killed += 1;
    }
    children.into_iter().for_each(Process::kill);
    let records = records(&folder.file("r"));
    let (a, b) = (number(&records, b"a"), number(&records, b"b"));
    assert_eq!(a, b);
    let (counted, written) = (a.unwrap(), Journal::read(&journal).len() as u64);
    println!("{counted} writes, {killed} processes killed");
    // A process may be killed between its write and its note.
    assert!(
        written <= counted && counted <= written + killed,
        "{written} {counted} {killed}"
    );
    assert!(written > 100);
}

#[test]
fn processes_that_are_killed_leave_no_half_of_a_write() {
    killed_processes_leave_no_half_of_a_write(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn processes_that_are_killed_for_long_leave_no_half_of_a_write() {
    killed_processes_leave_no_half_of_a_write(seconds(30));
}

#[test]
fn a_write_whose_process_was_killed_after_its_instant_is_completed() {
    let folder = Folder::new("instant");
    let one = records(&folder.file("r"));
    one.lock()
        .unwrap()
        .write(&[(b"a", &[5], NEVER), (b"b", &[5], NEVER)])
        .unwrap();
    // The journal still has the images. Its places get other numbers.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.path("r"))
        .unwrap();
    let size = file.metadata().unwrap().len();
    let journal = 4096 + 64;
    let mut changed = 0;
    for at in (journal + 8 + 64 * 8 * 8..size).step_by(8) {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        if u64::from_ne_bytes(word) == 5 {
            file.write_all_at(&9_u64.to_ne_bytes(), at).unwrap();
            changed += 1;
        }
    }
    assert_eq!((changed, number(&one, b"a")), (2, Some(9)));
    file.write_all_at(&2_u64.to_ne_bytes(), journal).unwrap();
    assert_eq!((number(&one, b"a"), number(&one, b"b")), (Some(5), Some(5)));
}

/// Keeps the lock for a time.
fn keep(file: &SharedFile, millis: u64) {
    let records = records(file);
    let locked = records.lock().unwrap();
    println!("\nready");
    std::thread::sleep(Duration::from_millis(millis));
    drop(locked);
    println!("\nreleased");
}

#[test]
fn the_lock_of_a_process_that_is_killed_is_taken_over_and_that_of_a_live_one_is_not() {
    let folder = Folder::new("kept");
    let records = records(&folder.file("r"));
    let path = folder.path("r");
    let mut keeper = Process::start(&["keep", path.to_str().unwrap(), "60000"]);
    keeper.until("ready");
    assert_eq!(records.lock().map(drop), Err(RecordsError::Locked));
    keeper.kill();
    assert!(records.lock().is_ok());

    let mut keeper = Process::start(&["keep", path.to_str().unwrap(), "60000"]);
    keeper.until("ready");
    keeper.kill();
    // The next process has the number of the dead one, and does not ask for the lock.
    let mut successor = Process::start(&["open", path.to_str().unwrap()]);
    successor.until("ready");
    assert!(records.lock().is_ok());
    successor.kill();
}

/// Reads and writes, whatever the file has.
fn use_for(file: &SharedFile, millis: u64) {
    let records = records(file);
    println!("\nready");
    let (begun, mut done) = (Instant::now(), 0_u64);
    while begun.elapsed() < Duration::from_millis(millis) {
        let key = (done % 7).to_ne_bytes();
        if let Ok(mut locked) = records.lock() {
            let _any = locked.read(&key);
            let _any = locked.write(&[(&key, &[done], NEVER), (b"other", &[1, 2, 3], NEVER)]);
        }
        done += 1;
    }
    println!("\ndone {done}");
}

#[test]
fn random_words_in_the_file_end_no_process() {
    let folder = Folder::new("random");
    let path = folder.path("r");
    let words = ["use", path.to_str().unwrap(), "1500"];
    let mut users: Vec<_> = (0..4).map(|_| Process::start(&words)).collect();
    for user in &mut users {
        user.until("ready");
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let size = file.metadata().unwrap().len();
    let (begun, mut state) = (Instant::now(), 1_u64);
    while begun.elapsed() < Duration::from_millis(1_500) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = match state >> 63 {
            // The lock and the journal, or anywhere.
            0 => 4096 + (state >> 40) % 200,
            _ => 4096 + (state >> 20) % (size - 4096 - 8),
        };
        file.write_all_at(&(state >> (state % 64)).to_ne_bytes(), at)
            .unwrap();
    }
    for user in users {
        assert_eq!(user.finish("done").len(), 1);
    }
}

#[test]
fn records_whose_file_is_truncated_are_lost() {
    let folder = Folder::new("records-lost");
    let records = records(&folder.file("r"));
    records
        .lock()
        .unwrap()
        .write(&[(b"a", &[1], NEVER)])
        .unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(folder.path("r"))
        .unwrap();
    file.set_len(4096).unwrap();
    assert_eq!(records.lock().map(drop), Err(RecordsError::Lost));
    assert!(records.is_lost());
}

/// Waits for the lock for up to a minute: a machine that is busy may keep the lock from one of two
/// processes for longer than its patience.
fn patiently(records: &SharedRecords) -> LockedRecords<'_> {
    let a_second_each = (0..60).map(|_| records.lock());
    let mut waits = a_second_each.skip_while(|locked| matches!(locked, Err(RecordsError::Locked)));
    waits.next().expect("the lock within a minute").unwrap()
}

fn count_up(records: &SharedRecords, times: u64) {
    for _ in 0..times {
        let mut locked = patiently(records);
        let count = locked.read(b"a").map_or(0, |record| record.numbers[0]);
        locked.write(&[(b"a", &[count + 1], NEVER)]).unwrap();
    }
}

const COUNT: u64 = 20_000;

/// Counts in two processes that both are process 1 of their namespaces.
fn count_in_namespaces(file: &SharedFile) {
    if !unshare(libc::CLONE_NEWPID) {
        return println!("\nskipped");
    }
    let first = fork(|| {
        assert_eq!(std::process::id(), 1);
        let records = records(file);
        assert!(unshare(libc::CLONE_NEWPID));
        let second = fork(|| {
            assert_eq!(std::process::id(), 1);
            count_up(&records, COUNT);
        });
        count_up(&records, COUNT);
        second.finish();
    });
    first.finish();
    println!("\ncounted");
}

#[test]
fn processes_with_the_same_process_id_in_their_namespaces_lose_no_count() {
    let folder = Folder::new("namespaces");
    let records = records(&folder.file("r"));
    let path = folder.path("r");
    let counting = Process::start(&["namespaces", path.to_str().unwrap()]);
    if counting.finish("counted").len() == 1 {
        assert_eq!(number(&records, b"a"), Some(2 * COUNT));
    }
}

/// Forks while it has the lock. The child has a copy of the guard.
fn fork_with_a_guard(file: &SharedFile, with: &str) {
    let (records, other) = (records(file), records(file));
    let mut locked = records.lock().unwrap();
    locked.write(&[(b"a", &[1], NEVER)]).unwrap();
    let mut guard = Some(locked);
    let work = || {
        let mut copy = guard.take().unwrap();
        assert_eq!(copy.read(b"a"), None);
        let written = copy.write(&[(b"a", &[2], NEVER)]);
        assert_eq!(written, Err(RecordsError::Locked));
        drop(copy);
        assert_eq!(records.lock().map(drop), Err(RecordsError::Locked));
    };
    let child = match with {
        "fork" => fork(work),
        _ => fork_without_handlers(work),
    };
    child.finish();
    assert_eq!(other.lock().map(drop), Err(RecordsError::Locked));
    drop(guard);
    assert_eq!(number(&other, b"a"), Some(1));
    println!("\nkept");
}

#[test]
fn the_lock_of_a_process_that_forks_is_its_own() {
    for with in ["fork", "clone"] {
        let folder = Folder::new(&format!("guard-{with}"));
        let path = folder.path("r");
        let process = Process::start(&["guard", path.to_str().unwrap(), with]);
        assert_eq!(process.finish("kept").len(), 1);
    }
}

/// Opens the records as root, and uses them in processes without privileges.
fn use_without_privileges(file: &SharedFile) {
    let (records, other) = (records(file), records(file));
    let worker = fork(|| {
        if drop_privileges() {
            count_up(&records, 2);
            // It ends with the lock.
            core::mem::forget(records.lock().unwrap());
        }
    });
    worker.finish();
    let begun = Instant::now();
    let worker = fork(|| {
        if drop_privileges() {
            count_up(&records, 2);
        }
    });
    worker.finish();
    assert!(begun.elapsed() < Duration::from_millis(900), "taken over");
    println!("\ncounted {}", number(&other, b"a").unwrap_or(4));
}

#[test]
fn a_forked_process_that_drops_its_privileges_uses_the_records() {
    let folder = Folder::new("dropped");
    let path = folder.path("r");
    let process = Process::start(&["dropped", path.to_str().unwrap()]);
    assert_eq!(process.finish("counted"), ["4"]);
}
