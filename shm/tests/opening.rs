//! Which files are opened, and which are refused.

mod support;
#[path = "support/fork.rs"]
mod support_fork;
#[path = "support/header.rs"]
mod support_header;

use core::time::Duration;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{PermissionsExt, symlink};

use portcullis_core::{AllOf, Denied, FixedWindow, Rate, Timestamp, TokenBucket};
use portcullis_shm::{FileKind, OpenError, RecordsError, SharedFile};
use support::{Folder, Process, role};
use support_fork::{fork, fork_without_handlers, set_clock_ahead, unshare};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        // In a process with one thread: the kernel tells of the first one.
        ["shift", a, b] => {
            fork(|| shift_the_clock(&SharedFile::at(a), &SharedFile::at(b))).finish();
        }
        ["records", file] => {
            fork(|| shift_the_clock_of_records(&SharedFile::at(file))).finish();
        }
        [] => {}
        _ => panic!("{role:?}"),
    }
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::per_second(100), 20)
}

#[test]
fn other_settings_are_refused_with_both_named() {
    let folder = Folder::new("settings");
    let file = folder.file("limit");
    let _open = file.limiter(bucket()).unwrap();
    let faster = file.limiter(TokenBucket::new(Rate::per_second(500), 20));
    let text = faster.unwrap_err().to_string();
    // In lowest terms.
    assert!(text.contains("1 permits per 10ms, burst 20"), "{text}");
    assert!(text.contains("1 permits per 2ms, burst 20"), "{text}");
    let window = FixedWindow::new(20, Duration::from_secs(1));
    let text = file.limiter(window).unwrap_err().to_string();
    assert!(
        text.contains("token bucket") && text.contains("fixed window, limit 20"),
        "{text}"
    );
    assert!(file.limiter(bucket()).is_ok());
}

#[test]
fn a_setting_that_the_text_does_not_name_is_refused_too() {
    let folder = Folder::new("origin");
    let open = |origin| {
        let window = FixedWindow::builder(20, Duration::from_secs(1));
        let window = window.origin(Timestamp::from_millis(origin)).build();
        folder.file("limit").limiter(window.unwrap()).map(drop)
    };
    open(0).unwrap();
    let text = open(300).unwrap_err().to_string();
    assert!(
        text.contains("differs from (fixed window, limit 20"),
        "{text}"
    );
}

#[test]
fn the_state_remains_while_no_process_has_the_file_open() {
    let folder = Folder::new("remains");
    let open = || {
        folder
            .file("limit")
            .limiter(TokenBucket::new(Rate::ZERO, 20))
    };
    assert!(open().unwrap().try_acquire(15).is_ok());
    assert!(open().unwrap().try_acquire(6).is_err());
    assert!(open().unwrap().try_acquire(5).is_ok());
}

#[test]
fn a_file_of_another_boot_is_replaced_unless_it_is_in_use() {
    let folder = Folder::new("boot");
    let file = folder.file("limit");
    let open = || file.limiter(TokenBucket::new(Rate::ZERO, 20));
    let old = open().unwrap();
    assert!(old.try_acquire(15).is_ok());
    support_header::edit(&folder.path("limit"), 56, &[b'0'; 36]);
    assert!(
        matches!(open(), Err(OpenError::Busy { .. })),
        "a process uses it"
    );
    drop(old);
    assert!(open().unwrap().try_acquire(20).is_ok(), "it starts again");
    assert!(
        open().unwrap().try_acquire(1).is_err(),
        "and is replaced once"
    );
}

#[test]
fn a_file_from_another_time_namespace_is_refused() {
    let folder = Folder::new("namespace");
    let file = folder.file("limit");
    drop(file.limiter(bucket()).unwrap());
    let here = fs::read(folder.path("limit")).unwrap()[96];
    support_header::edit(&folder.path("limit"), 96, &[here.wrapping_add(1)]);
    let refused = file.limiter(bucket()).unwrap_err();
    assert!(
        matches!(refused, OpenError::TimeNamespace { .. }),
        "{refused}"
    );
}

/// Opens a file, and lets the clock of the processes that it forks have another origin.
fn shift_the_clock(file: &SharedFile, other: &SharedFile) {
    let slow = || TokenBucket::new(Rate::per_minute(1), 5);
    let limiter = file.limiter(slow()).unwrap();
    assert!(limiter.try_acquire(5).is_ok());
    if !unshare(libc::CLONE_NEWTIME) {
        return println!("\nskipped");
    }
    set_clock_ahead(100_000);
    // What the kernel tells of this process is true of its children only.
    for file in [file, other] {
        let refused = file.limiter(slow()).unwrap_err();
        assert!(matches!(refused, OpenError::TimeUnshared), "{refused}");
    }
    fork(|| {
        let denied = limiter.try_acquire(1).map(drop);
        assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
        assert!(limiter.is_lost());
        let refused = file.limiter(slow()).unwrap_err();
        assert!(
            matches!(refused, OpenError::TimeNamespace { .. }),
            "{refused}"
        );
        let new = other.limiter(slow()).unwrap();
        assert!(new.try_acquire(5).is_ok());
        // Its own children have the same clock.
        fork(|| {
            let denied = new.try_acquire(1).map(drop);
            assert!(
                matches!(denied, Err(Denied::Exhausted { .. })),
                "{denied:?}"
            );
        })
        .finish();
    })
    .finish();
    let denied = limiter.try_acquire(1).map(drop);
    assert!(
        matches!(denied, Err(Denied::Exhausted { .. })),
        "{denied:?}"
    );
    println!("\ndenied");
}

#[test]
fn processes_whose_clocks_begin_at_other_times_have_no_limit_in_common() {
    let folder = Folder::new("shifted");
    let paths = ["a", "b"].map(|name| folder.path(name));
    let [a, b] = paths.each_ref().map(|path| path.to_str().unwrap());
    let lines = Process::start(&["shift", a, b]).finish("");
    assert!(
        lines
            .iter()
            .any(|line| line == "denied" || line == "skipped"),
        "{lines:?}"
    );
}

/// As above. A child that was made without the handlers of `fork` notices it when it asks.
fn shift_the_clock_of_records(file: &SharedFile) {
    let records = file.records(10, 1).unwrap();
    if !unshare(libc::CLONE_NEWTIME) {
        return println!("\nskipped");
    }
    set_clock_ahead(100_000);
    let lost = || assert_eq!(records.lock().map(drop), Err(RecordsError::Lost));
    fork(lost).finish();
    fork_without_handlers(lost).finish();
    assert!(records.lock().is_ok());
    println!("\ndenied");
}

#[test]
fn records_whose_times_are_of_another_clock_are_lost() {
    let folder = Folder::new("shifted-records");
    let path = folder.path("r");
    let lines = Process::start(&["records", path.to_str().unwrap()]).finish("");
    assert!(
        lines
            .iter()
            .any(|line| line == "denied" || line == "skipped"),
        "{lines:?}"
    );
}

#[test]
fn files_that_are_no_limiter_are_refused_with_the_reason() {
    let folder = Folder::new("damaged");
    let path = folder.path("limit");
    let file = folder.file("limit");
    drop(file.limiter(bucket()).unwrap());
    let whole = fs::read(&path).unwrap();
    let opened = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        file.limiter(bucket()).map(drop)
    };
    let says = |bytes: &[u8], words: &str| {
        let text = opened(bytes).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    says(b"", "shorter than a header");
    says(&whole[..100], "shorter than a header");
    says(&whole[..4096], "another size");
    says(&whole[..4100], "another size");
    says(&[b'x'; 8192], "not a file of shared limiters");
    let mut changed = whole.clone();
    changed[130] ^= 1;
    says(&changed, "checksum");
    assert!(opened(&whole).is_ok());
    support_header::edit(&path, 8, &1_u32.to_ne_bytes());
    let text = file.limiter(bucket()).unwrap_err().to_string();
    assert!(
        text.contains("layout version 1, and this library has version 5"),
        "{text}"
    );
    // A 32-bit program, and one with the other byte order.
    for (at, word) in [(16, 32_u32), (12, 0x0403_0201)] {
        opened(&whole).unwrap();
        support_header::edit(&path, at, &word.to_ne_bytes());
        let text = file.limiter(bucket()).unwrap_err().to_string();
        assert!(
            text.contains("another pointer width or byte order created it"),
            "{text}"
        );
    }
    opened(&whole).unwrap();
    support_header::edit(&path, 24, &u64::MAX.to_ne_bytes());
    let text = file.limiter(bucket()).unwrap_err().to_string();
    assert!(text.contains("another size"), "{text}");
}

#[test]
fn only_plain_files_are_opened() {
    let folder = Folder::new("plain");
    fs::create_dir(folder.path("folder")).unwrap();
    assert!(folder.file("folder").limiter(bucket()).is_err());
    drop(folder.file("limit").limiter(bucket()).unwrap());
    symlink(folder.path("limit"), folder.path("link")).unwrap();
    assert!(folder.file("link").limiter(bucket()).is_err());
    assert!(folder.file("none/limit").limiter(bucket()).is_err());
}

#[test]
fn permissions_are_as_set_whatever_the_umask_is() {
    let folder = Folder::new("mode");
    let mode = |name: &str| {
        let metadata = fs::metadata(folder.path(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    drop(folder.file("private").limiter(bucket()).unwrap());
    assert_eq!(mode("private"), 0o600);
    let shared = folder.file("shared").mode(0o666);
    drop(shared.limiter(bucket()).unwrap());
    assert_eq!(mode("shared"), 0o666);
}

#[test]
fn a_file_of_another_user_is_opened_only_if_asked_to() {
    let folder = Folder::new("owner");
    drop(folder.file("limit").limiter(bucket()).unwrap());
    let path = folder.path("limit");
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
        // Only root can give a file away.
        return;
    }
    let refused = folder.file("limit").limiter(bucket()).unwrap_err();
    assert!(
        matches!(refused, OpenError::Owner { owner: 12_345, .. }),
        "{refused}"
    );
    assert!(folder.file("limit").any_owner().limiter(bucket()).is_ok());
}

#[test]
fn a_file_in_use_is_not_removed() {
    let folder = Folder::new("remove");
    let file = folder.file("limit");
    assert!(
        matches!(file.remove(), Err(OpenError::System { .. })),
        "there is none"
    );
    let open = file.limiter(bucket()).unwrap();
    assert!(matches!(file.remove(), Err(OpenError::Busy { .. })));
    drop(open);
    file.remove().unwrap();
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_file_of_another_program_is_not_removed() {
    let folder = Folder::new("foreign");
    for content in ["", "text", &"text".repeat(2_000)] {
        fs::write(folder.path("limit"), content).unwrap();
        let refused = folder.file("limit").remove().unwrap_err();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
        assert_eq!(fs::read_to_string(folder.path("limit")).unwrap(), content);
    }
}

#[test]
fn what_a_process_leaves_that_dies_while_it_creates_a_file_harms_nobody() {
    let folder = Folder::new("unfinished");
    fs::write(folder.path(".limit.77-0.new"), "half").unwrap();
    let bucket = folder.file("limit").limiter(bucket()).unwrap();
    assert!(bucket.try_acquire(20).is_ok());
    // Of other files, and of none.
    for name in [
        ".other.77-0.new",
        ".limit.x-0.new",
        ".limit.new",
        "limit.77-0.new",
    ] {
        fs::write(folder.path(name), "").unwrap();
    }
    let creating = fs::File::create(folder.path(".limit.77-1.new")).unwrap();
    creating.lock_shared().unwrap();
    assert_eq!(folder.file("limit").remove_unfinished().unwrap(), 1);
    drop(creating);
    assert_eq!(folder.file("limit").remove_unfinished().unwrap(), 1);
    assert_eq!(folder.names().len(), 5);
}

#[test]
fn what_a_process_with_the_same_process_id_leaves_keeps_no_file_from_being_created() {
    let folder = Folder::new("same-id");
    let process = std::process::id();
    for nth in 0..1_000 {
        fs::write(folder.path(&format!(".limit.{process}-{nth}.new")), "half").unwrap();
    }
    assert!(folder.file("limit").limiter(bucket()).is_ok());
    assert_eq!(folder.names().len(), 1_001);
    assert_eq!(folder.file("limit").remove_unfinished().unwrap(), 1_000);
}

#[test]
fn a_file_is_described_without_being_opened() {
    let folder = Folder::new("described");
    let file = folder.file("limit").mode(0o640);
    drop(file.limiter(bucket()).unwrap());
    let described = file.describe().unwrap();
    assert_eq!((described.kind, described.bytes), (FileKind::Limiter, 8200));
    assert_eq!(
        (described.mode, described.creator),
        (0o640, std::process::id())
    );
    assert!(
        described.settings.contains("burst 20"),
        "{}",
        described.settings
    );
    assert!(described.created.elapsed().unwrap() < Duration::from_mins(1));
    assert!(!described.is_in_use && !described.is_of_another_boot);
    let open = file.limiter(bucket()).unwrap();
    assert!(file.describe().unwrap().is_in_use);
    support_header::edit(&folder.path("limit"), 56, &[b'0'; 36]);
    assert!(file.describe().unwrap().is_of_another_boot);
    drop(open);
    fs::write(folder.path("limit"), "text").unwrap();
    assert!(matches!(file.describe(), Err(OpenError::Damaged { .. })));
}

#[test]
fn two_limiters_of_one_file_are_one_limit_in_a_composition() {
    let folder = Folder::new("composed");
    let open = || {
        folder
            .file("limit")
            .limiter(TokenBucket::new(Rate::ZERO, 3))
            .unwrap()
    };
    let (one, other) = (open(), open());
    let both = AllOf::new((&one, &other));
    assert!(both.try_acquire_at(support::now(), 2).is_err(), "4 of 3");
    assert!(both.try_acquire_at(support::now(), 1).is_ok());
    assert!(
        one.try_acquire(1).is_ok(),
        "a denial gives back what it took"
    );
}

#[test]
fn a_truncated_file_is_refused() {
    let folder = Folder::new("short");
    drop(folder.file("limit").limiter(bucket()).unwrap());
    let file = OpenOptions::new()
        .write(true)
        .open(folder.path("limit"))
        .unwrap();
    file.set_len(5_000).unwrap();
    let refused = folder.file("limit").limiter(bucket()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}
