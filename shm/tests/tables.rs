//! Tables in files: what processes agree on, and what a process that is killed leaves.

mod support;

use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use portcullis_core::{Denied, FixedWindow, Rate, Timestamp, TokenBucket};
use portcullis_shm::OpenError;
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
    for at in (4096..size).step_by(8) {
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
