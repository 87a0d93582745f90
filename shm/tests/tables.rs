//! Tables in files: what processes agree on, and what a process that is killed leaves.

mod support;
#[path = "support/change_lock.rs"]
mod support_change_lock;

use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use portcullis_async::{KeyedQueue, ThreadTimer};
use portcullis_core::keyed::TokenBucketRules;
use portcullis_core::queue::Keys;
use portcullis_core::{
    Denied, FixedWindow, Limiter, ManualClock, Rate, Retry, Timestamp, TokenBucket,
};
use portcullis_shm::{OpenError, SharedTable};
use support::{Folder, now};

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::ZERO, 20)
}

#[test]
fn processes_agree_on_the_slots_of_keys() {
    let folder = Folder::new("agree");
    let open = || folder.file("users").table(bucket(), 1_000).unwrap();
    let (one, other) = (open(), open());
    for key in 0..1_000 {
        assert!(one.key(&key).try_acquire(15).is_ok());
        assert!(other.key(&key).try_acquire(6).is_err(), "key {key}");
        assert!(other.key(&key).try_acquire(5).is_ok());
    }
    let other_file = folder.file("others").table(bucket(), 1_000).unwrap();
    let address = |key: &str| {
        (
            one.keyed().key(key).address(),
            other_file.keyed().key(key).address(),
        )
    };
    let equal = (0..100).filter(|nth| {
        let (one, other) = address(&nth.to_string());
        one == other
    });
    assert!(equal.count() < 50, "each file has a seed of its own");
}

#[test]
fn a_table_for_other_keys_or_limits_is_refused() {
    let folder = Folder::new("tables");
    let file = folder.file("users");
    let _open = file.table(bucket(), 1_000).unwrap();
    let text = file.table(bucket(), 1_001).unwrap_err().to_string();
    assert!(
        text.contains("1000 keys") && text.contains("1001 keys"),
        "{text}"
    );
    let window = FixedWindow::new(20, Duration::from_secs(1));
    let refused = file.table(window, 1_000).unwrap_err();
    assert!(
        matches!(refused, OpenError::OtherSettings { .. }),
        "{refused}"
    );
    let refused = file.limiter(bucket()).unwrap_err();
    assert!(
        matches!(refused, OpenError::OtherSettings { .. }),
        "{refused}"
    );
    assert!(folder.file("none").table(bucket(), usize::MAX).is_err());
    assert_eq!(folder.names(), ["users"], "nothing is left of it");
}

/// Where the lines begin, after the header and the settings.
const LINES_AT: u64 = 8192;

/// Turns all held slots into claims, as a process leaves them that is killed while it claims.
fn leave_claimed(file: &Path) -> usize {
    const HELD: u64 = 1 << 20;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let size = file.metadata().unwrap().len();
    let mut changed = 0;
    for at in (LINES_AT..size).step_by(8) {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        let word = u64::from_ne_bytes(word);
        if word & HELD != 0 {
            file.write_all_at(&(word & (HELD - 1)).to_ne_bytes(), at)
                .unwrap();
            changed += 1;
        }
    }
    changed
}

#[test]
fn a_slot_that_a_killed_process_was_claiming_is_recovered() {
    let folder = Folder::new("recover");
    let users = folder.file("users").table(bucket(), 1_000).unwrap();
    let _ = users.key("alice").try_acquire(1).unwrap();
    let _ = users.key("bob").try_acquire(1).unwrap();
    assert_eq!(leave_claimed(&folder.path("users")), 2);
    let after = |seconds: u64| Timestamp::from_nanos(now().as_nanos() + seconds * 1_000_000_000);
    let denied = users.key("alice").try_acquire(1).map(|_| ());
    assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
    assert_eq!(users.recover_at(after(0)), 0);
    assert_eq!(users.recover_at(after(9)), 0, "a claim may take so long");
    assert_eq!(users.recover_at(after(11)), 2);
    assert!(users.key("alice").try_acquire(20).is_ok());
    assert_eq!(users.recover_at(after(30)), 0);
    assert_eq!(leave_claimed(&folder.path("users")), 1);
    assert_eq!(
        users.recover_at(after(40)),
        0,
        "another claim, seen for the first time"
    );
}

#[test]
fn a_table_whose_file_is_truncated_denies() {
    let folder = Folder::new("lost");
    let users = folder.file("users").table(bucket(), 1_000).unwrap();
    assert!(users.key("alice").try_acquire(1).is_ok());
    let file = OpenOptions::new().write(true).open(folder.path("users"));
    file.unwrap().set_len(4096).unwrap();
    // The first access finds it out.
    let _granted_as_by_an_empty_table = users.key("alice").try_acquire(1).is_ok();
    assert!(users.is_lost());
    for key in 0..100 {
        let denied = users.key(&key).try_acquire(1).map(|_| ());
        assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
    }
    assert_eq!(users.recover(), 0);
    assert_eq!(users.keyed().statistics_at(now()).live, 0);
}

#[test]
fn a_table_that_has_changed_and_whose_lines_are_truncated_denies() {
    let folder = Folder::new("lost-changed");
    let file = folder.file("users");
    drop(file.table(bucket(), 1_000).unwrap());
    let changed = TokenBucket::new(Rate::ZERO, 30);
    let users = file.changing().table(changed, 1_000).unwrap();
    assert!(users.key("alice").try_acquire(1).is_ok());
    let opened = OpenOptions::new().write(true).open(folder.path("users"));
    // The settings remain.
    opened.unwrap().set_len(LINES_AT).unwrap();
    let _granted_as_by_an_empty_table = users.key("alice").try_acquire(1).is_ok();
    assert!(users.is_lost());
    for key in 0..100 {
        let denied = users.key(&key).try_acquire(1).map(drop);
        assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
    }
}

fn refilled(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), burst)
}

#[test]
fn the_settings_of_a_table_change_for_all_processes() {
    let folder = Folder::new("table-changed");
    let file = folder.file("users");
    let bucket = |burst| TokenBucket::new(Rate::ZERO, burst);
    let old = file.table(bucket(20), 1_000).unwrap();
    for key in 0..1_000_u32 {
        assert!(old.key(&key).try_acquire(1 + key % 15).is_ok());
    }
    let kept = old.key(&7_u32);
    let size = || std::fs::metadata(folder.path("users")).unwrap().len();
    let before = size();
    let new = file.clone().changing().table(bucket(30), 1_000).unwrap();
    // As many lines again, and one between both.
    assert_eq!(size() - before, before - LINES_AT - 8 + 64);
    let denied = kept.try_acquire(1).map(drop);
    assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
    for key in 0..1_000_u32 {
        let left = 29 - u64::from(key % 15);
        assert_eq!(
            (old.key(&key).available(), new.key(&key).available()),
            (left, left)
        );
        assert!(old.key(&key).try_acquire(left as u32).is_ok());
        assert!(new.key(&key).try_acquire(1).is_err());
    }
    assert_eq!(old.key("new").available(), 30);
    assert_eq!(new.recover(), 0);

    let text = file.table(bucket(20), 1_000).unwrap_err().to_string();
    assert!(
        text.contains("burst 30") && text.contains("burst 20"),
        "{text}"
    );
    let other = file.clone().changing().table(bucket(30), 1_001);
    assert!(matches!(
        other.unwrap_err(),
        OpenError::OtherSettings { .. }
    ));
    let joined = file.table(bucket(30), 1_000).unwrap();
    assert_eq!(joined.key(&5_u32).available(), 0);
    let text = file.describe().unwrap().settings;
    assert!(
        text.contains("1000 keys") && text.contains("burst 30"),
        "{text}"
    );
    let often = file.changing().table(bucket(40), 1_000).unwrap_err();
    assert!(
        matches!(often, OpenError::Changes { most: 1, .. }),
        "{often}"
    );
}

#[test]
fn a_request_that_waits_in_a_queue_follows_a_change() {
    let folder = Folder::new("table-queue");
    let file = folder.file("users");
    let users = file.table(bucket(), 100).unwrap();
    let queue = KeyedQueue::new(users, ThreadTimer::new(), 100);
    drop(queue.key("alice").blocking_acquire(20).unwrap());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| queue.key("alice").blocking_acquire(5).map(drop));
        while queue.counts().waiters == 0 {
            std::thread::yield_now();
        }
        let other = file
            .clone()
            .changing()
            .table(TokenBucket::new(Rate::ZERO, 30), 100);
        assert_eq!(other.unwrap().key("alice").available(), 10);
        queue.change(|_| ());
        waits.join().unwrap().unwrap();
    });
    assert_eq!(queue.key("alice").available(), 5);
    // Such as in the midst of a change.
    let (now, permits) = (now(), 1);
    let crowded = Denied::Crowded { now, permits };
    let retry = queue.change(|users| {
        let address = users.locate(users.hash_of("alice"));
        users.limiter_at(&address).retry(crowded)
    });
    assert_eq!(retry, Retry::After(Duration::from_millis(100)));
}

#[test]
fn a_queue_dates_no_grant_back_because_others_take_too() {
    let folder = Folder::new("table-slack");
    let bucket = TokenBucket::new(Rate::per_second(100), 1);
    let users = folder.file("users").table(bucket, 100).unwrap();
    let start = now();
    let queue = KeyedQueue::new(users, ManualClock::new(), 100);
    queue.clock().set(start);
    assert!(queue.key("alice").try_acquire(1).is_ok());
    let waits = [(); 2].map(|()| Box::pin(queue.acquire("alice", 1)));
    let mut context = Context::from_waker(Waker::noop());
    let mut granted = waits.map(|mut wait| {
        assert!(wait.as_mut().poll(&mut context).is_pending());
        wait
    });
    // 5 ms late for the second one: in a queue of its own limits, both would be granted.
    let late = start.saturating_add(Duration::from_millis(25));
    queue.clock().set(late);
    queue.advance();
    let [first, second] = &mut granted;
    assert!(matches!(
        first.as_mut().poll(&mut context),
        Poll::Ready(Ok(_))
    ));
    assert!(second.as_mut().poll(&mut context).is_pending());
}

#[test]
fn a_table_changes_again_after_a_minute() {
    let folder = Folder::new("table-again");
    let file = folder.file("users").changing();
    let old = file.table(refilled(20), 100).unwrap();
    assert!(old.key("a").try_acquire(20).is_ok());
    let kept = old.key("a");
    let bursts = [30, 25, 40];
    for (nth, burst) in bursts.into_iter().enumerate() {
        let _new = file.table(refilled(burst), 100).unwrap();
        let left = [10, 5, 20][nth];
        assert!(
            (left..left + 3).contains(&old.key("a").available()),
            "burst {burst}"
        );
        // Also when its lines are used again, under other settings.
        let denied = kept.try_acquire(1).map(drop);
        assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
        // As if a minute had passed: no version was superseded of late.
        for version in 0..4 {
            write(&folder.path("users"), 128 * version + 16, 0);
        }
    }
}

/// Writes a word, at an offset after the header.
fn write(file: &Path, at: u64, word: u64) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&word.to_ne_bytes(), 4096 + at).unwrap();
}

#[test]
fn a_change_of_a_table_whose_process_was_killed_is_completed_by_others() {
    let lines = portcullis_core::keyed::Line::count_for_keys(100) as u64;
    // The change was killed after it had closed this many slots; none: before it superseded.
    for closed in [None, Some(0), Some(1), Some(200), Some(8 * lines)] {
        let folder = Folder::new(&format!("table-killed-{closed:?}"));
        let file = folder.file("users");
        let bucket = |burst| TokenBucket::new(Rate::ZERO, burst);
        let old = file.table(bucket(20), 100).unwrap();
        for key in 0..100 {
            assert!(old.key(&key).try_acquire(12).is_ok());
        }
        // The file of a change that was not killed, with the same keys in the same slots.
        let path = folder.path("users");
        let before = std::fs::read(&path).unwrap();
        drop(file.clone().changing().table(bucket(30), 100).unwrap());
        let after = std::fs::read(&path).unwrap();
        let area = |nth: usize| 8192 + nth * (lines as usize * 64 + 64);
        let mut killed = after.clone();
        // The slots of the first area that were not closed yet, and those of the second before.
        let from = area(0) + 8 * closed.unwrap_or(0) as usize;
        killed[from..area(1) - 64].copy_from_slice(&before[from..area(1) - 64]);
        let end = killed.len() - 8;
        let to = area(1) + 8 * closed.unwrap_or(0) as usize;
        for word in killed[to..end].chunks_exact_mut(8) {
            word.copy_from_slice(&CLOSED.to_ne_bytes());
        }
        let stamps = match closed {
            None => [(1_u64, 2_u64), (2, 1)],
            Some(_) => [(1, 3), (2, 1)],
        };
        for (number, stage) in stamps {
            let at = 4096 + 128 * number as usize + 8;
            killed[at..at + 8].copy_from_slice(&(number << 2 | stage).to_ne_bytes());
        }
        std::fs::write(&path, &killed).unwrap();
        let left = if closed.is_none() { 8 } else { 18 };
        for key in 0..100 {
            assert_eq!(
                old.key(&key).available(),
                left,
                "{closed:?} slots, key {key}"
            );
        }
        let burst = if closed.is_none() { 20 } else { 30 };
        let joined = file.table(bucket(burst), 100).unwrap();
        assert!(joined.key(&3).try_acquire(left as u32).is_ok());
        assert!(old.key(&3).try_acquire(1).is_err());
    }
}

#[test]
fn a_claim_whose_process_was_killed_delays_no_change() {
    let folder = Folder::new("table-claim");
    let file = folder.file("users");
    let users = file.table(bucket(), 100).unwrap();
    let _ = users.key("alice").try_acquire(20).unwrap();
    assert_eq!(leave_claimed(&folder.path("users")), 1);
    let _ = users.key("bob").try_acquire(5).unwrap();
    let begun = Instant::now();
    let changed = TokenBucket::new(Rate::ZERO, 30);
    let new = file.changing().table(changed, 100).unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(users.key("bob").available(), 25);
    // What was claimed was not granted.
    assert!(new.key("alice").try_acquire(30).is_ok());
    assert_eq!(new.recover(), 0);
}

/// A file in which a process has begun to change a table, and has handed half of the keys over.
fn change_begun(folder: &Folder) -> SharedTable<TokenBucketRules> {
    let lines = portcullis_core::keyed::Line::count_for_keys(100) as u64;
    let file = folder.file("users");
    let bucket = |burst| TokenBucket::new(Rate::ZERO, burst);
    let old = file.table(bucket(20), 100).unwrap();
    for key in 0..100 {
        assert!(old.key(&key).try_acquire(12).is_ok());
    }
    let path = folder.path("users");
    let before = std::fs::read(&path).unwrap();
    drop(file.changing().table(bucket(30), 100).unwrap());
    let after = std::fs::read(&path).unwrap();
    let area = |nth: u64| LINES_AT + nth * (lines * 64 + 64);
    let opened = OpenOptions::new().write(true).open(&path).unwrap();
    let half = area(0) + 32 * lines;
    let left = &before[half as usize..(half + 32 * lines) as usize];
    opened.write_all_at(left, half).unwrap();
    // The other half was not reached: its slots are closed.
    let end = area(1) + 64 * lines;
    for at in (area(1) + 32 * lines..end).step_by(8) {
        opened.write_all_at(&CLOSED.to_ne_bytes(), at).unwrap();
    }
    assert_eq!(after.len() as u64, end + 8);
    for (number, stage) in [(1_u64, 3_u64), (2, 1)] {
        write(&path, 128 * number + 8, number << 2 | stage);
    }
    old
}

/// The word of a closed slot.
const CLOSED: u64 = 1 << 21;

#[test]
fn a_change_of_a_table_whose_process_is_stopped_is_completed_by_others() {
    let folder = Folder::new("table-stopped");
    let old = change_begun(&folder);
    // It is alive.
    let stopped = support_change_lock::hold(&folder.path("users"));
    let begun = Instant::now();
    while matches!(
        old.key(&3).try_acquire(1).map(drop),
        Err(Denied::Crowded { .. })
    ) {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "all keys are denied"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    for key in 0..100 {
        let taken = u64::from(key == 3);
        assert_eq!(old.key(&key).available(), 18 - taken, "key {key}");
    }
    let file = folder.file("users").changing();
    let again = || file.table(TokenBucket::new(Rate::ZERO, 40), 100);
    let refused = again().unwrap_err();
    assert!(matches!(refused, OpenError::Busy { .. }), "{refused}");
    drop(stopped);
    let refused = again().unwrap_err();
    assert!(matches!(refused, OpenError::Changes { .. }), "{refused}");
}

#[test]
fn a_process_that_opens_a_table_whose_change_was_stopped_is_not_told_of_damage() {
    let folder = Folder::new("table-stopped-open");
    drop(change_begun(&folder));
    let _stopped = support_change_lock::hold(&folder.path("users"));
    let joined = folder
        .file("users")
        .table(TokenBucket::new(Rate::ZERO, 30), 100);
    assert!(joined.unwrap().key(&7).try_acquire(18).is_ok());
}

#[test]
fn threads_that_take_while_a_table_changes_get_no_permit_twice() {
    for round in 0..10 {
        let folder = Folder::new(&format!("table-threads-{round}"));
        let bucket = |burst| TokenBucket::new(Rate::ZERO, burst);
        let file = folder.file("users").changing();
        let open = || folder.file("users").table(bucket(5_000), 100).unwrap();
        let tables = [open(), open()];
        let granted: u64 = std::thread::scope(|scope| {
            let threads = [0, 1, 0, 1].map(|nth| {
                let users = &tables[nth];
                scope.spawn(move || {
                    let (mut granted, mut exhausted) = (0, [false; 8]);
                    while exhausted != [true; 8] {
                        for (key, exhausted) in exhausted.iter_mut().enumerate() {
                            match users.key(&key).try_acquire(1).map(drop) {
                                Ok(()) => granted += 1,
                                Err(Denied::Exhausted { .. }) => *exhausted = true,
                                Err(Denied::Crowded { .. }) => {}
                                Err(denied) => panic!("{denied}"),
                            }
                        }
                    }
                    granted
                })
            });
            std::thread::sleep(Duration::from_micros(200 * round));
            drop(file.table(bucket(5_100), 100).unwrap());
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        // Nothing is lost: a grant that a change overtakes is in what it hands over.
        assert!((40_000..=40_800).contains(&granted), "{granted}");
        let left: u64 = (0..8_usize)
            .map(|key| tables[0].key(&key).available())
            .sum();
        assert_eq!(granted + left, 40_800, "round {round}");
    }
}
