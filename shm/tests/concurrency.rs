//! Concurrency limits in files: permits that are taken, held, renewed, lost and waited for.

mod support;

use core::time::Duration;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Instant;

use portcullis_core::{Denied, Setting, SettingsError};
use portcullis_shm::{Ended, OpenError, SharedFile};
use support::{Folder, Process, role};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["hold", file, millis] => hold(Path::new(file), millis.parse().unwrap()),
        [] => {}
        _ => panic!("{role:?}"),
    }
}

fn limit(file: &SharedFile) -> portcullis_shm::SharedConcurrency {
    file.concurrency(4, None).unwrap()
}

/// Holds all permits for a time.
fn hold(file: &Path, millis: u64) {
    let limit = limit(&SharedFile::at(file));
    let lease = limit.try_acquire(4).unwrap();
    println!("\nready");
    std::thread::sleep(Duration::from_millis(millis));
    drop(lease);
    println!("\nreleased");
}

#[test]
fn no_more_permits_are_in_use_than_the_limit() {
    let folder = Folder::new("permits");
    let open = || limit(&folder.file("limit"));
    let (one, other) = (open(), open());
    let three = one.try_acquire(3).unwrap();
    assert_eq!((three.permits(), other.in_use(), other.limit()), (3, 3, 4));
    assert!(matches!(
        other.try_acquire(2),
        Err(Denied::Exhausted { permits: 2, .. })
    ));
    assert_eq!(other.in_use(), 3, "a denial gives back what it took");
    let last = other.try_acquire(1).unwrap();
    assert!(matches!(
        one.try_acquire(0),
        Err(Denied::Exhausted { permits: 0, .. })
    ));
    assert!(three.is_held() && last.is_held());
    drop(three);
    assert!(one.try_acquire(0).is_ok());
    assert_eq!(one.in_use(), 1, "a probe takes nothing");
    let denied = one.try_acquire(5).map(drop);
    assert_eq!(
        denied,
        Err(Denied::ExceedsCapacity {
            permits: 5,
            capacity: 4
        })
    );
    drop(last);
    assert_eq!(other.in_use(), 0);
}

#[test]
fn settings_that_do_not_fit_or_differ_are_refused() {
    let folder = Folder::new("at-once-settings");
    let file = folder.file("limit");
    let refused = file.concurrency(0, None).unwrap_err();
    let zero = SettingsError::Zero {
        setting: Setting::Limit,
    };
    assert!(matches!(refused, OpenError::Settings(error) if error == zero));
    assert!(file.concurrency(65_537, None).is_err());
    let _open = file.concurrency(4, None).unwrap();
    let text = file.concurrency(5, None).unwrap_err().to_string();
    assert!(
        text.contains("limit 4") && text.contains("limit 5"),
        "{text}"
    );
    let ending = file.concurrency(4, Some(Duration::from_secs(3)));
    let text = ending.unwrap_err().to_string();
    assert!(
        text.contains("end with their process") && text.contains("end after 3s"),
        "{text}"
    );
}

#[test]
fn the_permits_of_a_process_that_is_killed_return_to_the_next_request() {
    let folder = Folder::new("killed");
    let limit = limit(&folder.file("limit"));
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold", path.to_str().unwrap(), "60000"]);
    holder.until("ready");
    assert!(limit.try_acquire(1).is_err());
    std::thread::sleep(Duration::from_millis(20));
    assert!(limit.try_acquire(1).is_err(), "the holder lives");
    holder.kill();
    std::thread::sleep(Duration::from_millis(11));
    assert!(limit.try_acquire(4).is_ok());
}

#[test]
fn a_waiter_is_woken_by_a_release_in_another_process() {
    let folder = Folder::new("woken");
    let limit = limit(&folder.file("limit"));
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold", path.to_str().unwrap(), "300"]);
    holder.until("ready");
    let begun = Instant::now();
    assert!(limit.acquire_timeout(4, Duration::from_millis(20)).is_err());
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let lease = limit.acquire_timeout(4, Duration::from_secs(9));
    assert!(lease.is_ok() && begun.elapsed() > Duration::from_millis(200));
    assert_eq!(holder.finish("released").len(), 1);
    let denied = limit.acquire_timeout(5, Duration::from_secs(9)).map(drop);
    assert!(
        matches!(denied, Err(Denied::ExceedsCapacity { .. })),
        "at once"
    );
}

#[test]
fn a_waiter_gets_the_permits_of_a_process_that_is_killed() {
    let folder = Folder::new("inherits");
    let limit = limit(&folder.file("limit"));
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold", path.to_str().unwrap(), "60000"]);
    holder.until("ready");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limit.acquire_timeout(4, Duration::from_secs(9)).is_ok());
        std::thread::sleep(Duration::from_millis(50));
        holder.kill();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_new_process_does_not_inherit_the_permits_of_a_dead_one() {
    let folder = Folder::new("successor");
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold", path.to_str().unwrap(), "60000"]);
    holder.until("ready");
    holder.kill();
    // It gets the number of the dead process.
    let limit = limit(&folder.file("limit"));
    assert_eq!(limit.in_use(), 0);
    assert!(limit.try_acquire(4).is_ok());
}

#[test]
fn a_permit_ends_at_its_deadline_unless_it_is_renewed() {
    let folder = Folder::new("deadline");
    let limit = folder
        .file("limit")
        .concurrency(2, Some(Duration::from_millis(200)));
    let limit = limit.unwrap();
    let begun = Instant::now();
    let mut renewed = limit.try_acquire(1).unwrap();
    let mut forgotten = limit.try_acquire(1).unwrap();
    while begun.elapsed() < Duration::from_millis(300) {
        renewed.renew().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(renewed.is_held() && !forgotten.is_held());
    assert_eq!(limit.in_use(), 1);
    let taken_over = limit.try_acquire(1).unwrap();
    assert!(limit.try_acquire(1).is_err());
    assert_eq!(forgotten.renew(), Err(Ended));
    assert_eq!(forgotten.permits(), 0);
    drop(forgotten);
    assert!(
        taken_over.is_held(),
        "the late release took nothing from its new holder"
    );
    assert_eq!(limit.in_use(), 2);
}

#[test]
fn a_limit_whose_file_is_truncated_denies() {
    let folder = Folder::new("at-once-lost");
    let limit = limit(&folder.file("limit"));
    let lease = limit.try_acquire(1).unwrap();
    let file = OpenOptions::new().write(true).open(folder.path("limit"));
    file.unwrap().set_len(4096).unwrap();
    let denied = limit.try_acquire(1).map(drop);
    assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
    assert!(!lease.is_held() && limit.is_lost());
    let denied = limit.acquire_timeout(1, Duration::from_secs(9)).map(drop);
    assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
}

#[test]
fn threads_of_a_process_share_the_limit() {
    let folder = Folder::new("threads");
    let limit = limit(&folder.file("limit"));
    let in_use = core::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let lease = limit.acquire_timeout(1, Duration::from_secs(9)).unwrap();
                    let others = in_use.fetch_add(1, core::sync::atomic::Ordering::SeqCst);
                    assert!(others < 4);
                    in_use.fetch_sub(1, core::sync::atomic::Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
    });
    assert_eq!(limit.in_use(), 0);
}
