//! Concurrency limits in files: permits that are taken, held, renewed, lost and waited for.

mod support;
#[path = "support/fork.rs"]
mod support_fork;

use core::time::Duration;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Instant;

use portcullis_async::{Queue, ThreadTimer};
use portcullis_core::builder::Setting;
use portcullis_core::{
    AllOf, Denied, Lease, Limiter, LimiterExt, Rate, Retry, SettingsError, Timestamp, TokenBucket,
};
use portcullis_shm::{Ended, OpenError, SharedFile};
use support::{Folder, Process, role};
use support_fork::{fork, fork_without_handlers};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["hold", file, millis] => hold(Path::new(file), millis.parse().unwrap()),
        ["fork", file] => fork_with_a_lease(&SharedFile::at(file)),
        ["fork a limiter", file] => fork_with_a_grant(&SharedFile::at(file)),
        ["hold a grant", file] => hold_a_grant(Path::new(file)),
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

/// Forks while it holds permits. The child has a copy of the lease.
fn fork_with_a_lease(file: &SharedFile) {
    for has_handlers in [true, false] {
        let limit = limit(file);
        let mut lease = Some(limit.try_acquire(3).unwrap());
        let work = || {
            let mut copy = lease.take().unwrap();
            assert!(!copy.is_held());
            assert_eq!(copy.renew(), Err(Ended));
            drop(copy);
            drop(limit.try_acquire(1).unwrap());
        };
        let child = if has_handlers {
            fork(work)
        } else {
            fork_without_handlers(work)
        };
        child.finish();
        assert_eq!(limit.in_use(), 3);
        assert!(limit.try_acquire(2).is_err());
        let lease = lease.unwrap();
        assert!(lease.is_held());
        drop(lease);
        assert_eq!(limit.in_use(), 0);
    }
    println!("\nkept");
}

#[test]
fn a_lease_of_a_process_that_forks_is_its_own() {
    let folder = Folder::new("forked");
    let path = folder.path("limit");
    let process = Process::start(&["fork", path.to_str().unwrap()]);
    assert_eq!(process.finish("kept").len(), 1);
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

#[test]
fn the_limit_changes_for_all_processes() {
    let folder = Folder::new("at-once-changed");
    let file = folder.file("limit");
    let old = limit(&file);
    let three = old.try_acquire(3).unwrap();
    let new = file.clone().changing().concurrency(6, None).unwrap();
    assert_eq!((old.limit(), new.limit(), new.in_use()), (6, 6, 3));
    let text = file.describe().unwrap().settings;
    assert!(text.contains("limit 6"), "{text}");
    let others = old.try_acquire(3).unwrap();
    assert!(new.try_acquire(1).is_err() && old.try_acquire(0).is_err());
    let text = file.concurrency(4, None).unwrap_err().to_string();
    assert!(
        text.contains("limit 6") && text.contains("limit 4"),
        "{text}"
    );
    drop((three, others));
    assert_eq!(new.in_use(), 0);
}

#[test]
fn permits_in_use_count_under_a_lower_limit() {
    let folder = Folder::new("at-once-lowered");
    let file = folder.file("limit").changing();
    let limit = file.concurrency(6, None).unwrap();
    let mut leases: Vec<_> = (0..6).map(|_| limit.try_acquire(1).unwrap()).collect();
    let lower = file.concurrency(2, None).unwrap();
    // Those in the first slots are given back first.
    for left in (2..6).rev() {
        drop(leases.remove(0));
        assert_eq!(lower.in_use(), left);
        assert!(lower.try_acquire(1).is_err(), "{left} are in use");
        assert!(lower.try_acquire(0).is_err(), "{left} are in use");
        assert!(limit.acquire_timeout(1, Duration::from_millis(1)).is_err());
    }
    drop(leases.pop());
    let one = lower.try_acquire(1).unwrap();
    assert!(limit.try_acquire(1).is_err());
    drop((one, leases));
    let both = limit.try_acquire(2).unwrap();
    assert!(lower.try_acquire(1).is_err());
    drop(both);
    // Once nothing is held beyond the limit, it is as that of a new file.
    let all: Vec<_> = (0..3).map(|_| lower.try_acquire(1)).collect();
    assert_eq!(all.iter().filter(|lease| lease.is_ok()).count(), 2);
}

#[test]
fn the_time_of_permits_changes_for_those_that_are_taken_or_renewed_later() {
    let folder = Folder::new("at-once-times");
    let file = folder.file("limit").changing();
    let limit = file.concurrency(3, None).unwrap();
    let (endless, mut renewed) = (limit.try_acquire(1).unwrap(), limit.try_acquire(1).unwrap());
    let _changed = file
        .concurrency(3, Some(Duration::from_millis(20)))
        .unwrap();
    renewed.renew().unwrap();
    let ending = limit.try_acquire(1).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(endless.is_held() && !renewed.is_held() && !ending.is_held());
    assert_eq!(limit.in_use(), 1);
    let _changed = file.concurrency(3, None).unwrap();
    let both = limit.try_acquire(2).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(both.is_held() && limit.try_acquire(1).is_err());
}

#[test]
fn a_waiter_gets_a_permit_when_the_limit_is_raised() {
    let folder = Folder::new("at-once-raised");
    let file = folder.file("limit").changing();
    let limit = file.concurrency(1, None).unwrap();
    let _lease = limit.try_acquire(1).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limit.acquire_timeout(1, Duration::from_secs(9)).is_ok());
        std::thread::sleep(Duration::from_millis(20));
        let _raised = file.concurrency(2, None).unwrap();
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_wait_for_several_permits_sleeps() {
    let folder = Folder::new("at-once-sleeps");
    let limit = limit(&folder.file("limit"));
    let _lease = limit.try_acquire(3).unwrap();
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after = stat.rsplit_once(')').unwrap().1;
        let times = after.split_whitespace().skip(11).take(2);
        times
            .map(|ticks| ticks.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let before = cpu();
    assert!(
        limit
            .acquire_timeout(2, Duration::from_millis(500))
            .is_err()
    );
    let ticks = cpu() - before;
    println!("{ticks} ticks");
    assert!(ticks < 10, "{ticks} ticks of 10 ms in half a second");
}

/// Takes all permits as of a limiter, and keeps them until it is killed.
fn hold_a_grant(file: &Path) {
    let limit = limit(&SharedFile::at(file));
    let lease = Lease::try_acquire_at(&limit, Timestamp::ZERO, 4).unwrap();
    println!("\nready");
    std::thread::sleep(Duration::from_mins(1));
    drop(lease);
}

#[test]
fn as_a_limiter_it_grants_denies_and_takes_back_as_one_of_this_process() {
    let folder = Folder::new("as-a-limiter");
    let (one, other) = (limit(&folder.file("limit")), limit(&folder.file("limit")));
    let now = Timestamp::from_secs(9);
    let three = one.try_acquire_at(now, 3).unwrap();
    let of_a_lease = one.try_acquire(1).unwrap();
    let denied = Denied::Exhausted { now, permits: 1 };
    for limit in [&one, &other] {
        assert_eq!(limit.try_acquire_at(now, 1).map(drop), Err(denied));
        assert_eq!(limit.peek_at(now, 1), Err(denied));
        let probe = Denied::Exhausted { now, permits: 0 };
        assert_eq!(limit.try_acquire_at(now, 0).map(drop), Err(probe));
        assert_eq!((limit.available_at(now), limit.capacity()), (0, 4));
    }
    assert_eq!(one.retry(denied), Retry::After(Duration::from_millis(10)));
    assert_eq!(
        (one.held(), other.held()),
        (3, 0),
        "a lease of its own is not held as a limiter"
    );
    drop(of_a_lease);
    assert_eq!(one.in_use(), 3);
    drop(three);
    assert_eq!((one.in_use(), one.held()), (0, 0));
    let too_many = one.try_acquire_at(now, 5).unwrap_err();
    assert_eq!(
        too_many,
        Denied::ExceedsCapacity {
            permits: 5,
            capacity: 4
        }
    );
    assert_eq!(one.retry(too_many), Retry::Never);
    // Each gives back its own.
    let (a, b) = (
        one.try_acquire_at(now, 2).unwrap(),
        other.try_acquire_at(now, 1).unwrap(),
    );
    let of_a_lease = one.try_acquire(1).unwrap();
    drop(a);
    assert_eq!((one.in_use(), one.held(), other.held()), (2, 0, 1));
    assert!(of_a_lease.is_held());
    drop(b);
    assert_eq!(one.in_use(), 1);
}

#[test]
fn with_others_it_takes_from_all_or_from_none() {
    let folder = Folder::new("with-others");
    let now = Timestamp::from_secs(9);
    let bucket = TokenBucket::new(Rate::per_second(1), 2);
    let both = AllOf::new((limit(&folder.file("limit")), bucket));
    assert!(both.try_acquire_at(now, 3).is_err());
    assert_eq!(both.limits().0.in_use(), 0);
    let lease = both.try_acquire_at(now, 2).unwrap();
    assert_eq!(both.limits().0.in_use(), 2);
    drop(lease);
    assert_eq!(both.limits().0.in_use(), 0);
    // A refund gives back at once, and the lease keeps the rest.
    let limit = &both.limits().0;
    let mut lease = limit.try_acquire_at(now, 3).unwrap();
    assert_eq!(lease.refund_at(now, 2), Ok(2));
    assert_eq!((limit.in_use(), lease.permits()), (1, 1));
}

#[test]
fn a_look_finds_the_permits_of_a_process_that_was_killed() {
    let folder = Folder::new("looks");
    let limit = limit(&folder.file("limit"));
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold", path.to_str().unwrap(), "60000"]);
    holder.until("ready");
    assert!(
        limit.peek_at(Timestamp::ZERO, 1).is_err(),
        "the holder lives"
    );
    holder.kill();
    std::thread::sleep(Duration::from_millis(11));
    assert_eq!(limit.peek_at(Timestamp::ZERO, 4), Ok(()));
}

#[test]
fn permits_of_a_limiter_outlast_the_time_of_leases() {
    let folder = Folder::new("outlasts");
    let time = Some(Duration::from_millis(1));
    let limit = folder.file("limit").concurrency(2, time).unwrap();
    let lease = limit.try_acquire(1).unwrap();
    let grant = limit.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!lease.is_held());
    assert_eq!(limit.in_use(), 1);
    drop((lease, grant));
    assert_eq!(limit.in_use(), 0);
}

#[test]
fn a_queue_of_each_process_serves_its_tasks_and_takes_over_from_the_dead() {
    let folder = Folder::new("queues");
    let path = folder.path("limit");
    let mut holder = Process::start(&["hold a grant", path.to_str().unwrap()]);
    holder.until("ready");
    // An `AllOf` looks before it takes.
    let rate = TokenBucket::new(Rate::per_second(1_000_000), 1_000_000);
    let limits = AllOf::new((rate, limit(&folder.file("limit"))));
    let queue = Queue::new(limits, ThreadTimer::new(), 100);
    let in_use = core::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for n in 0..500 {
                    let permits = 1 + n % 2;
                    let lease = queue.blocking_acquire(permits).unwrap();
                    let others = in_use.fetch_add(permits, core::sync::atomic::Ordering::SeqCst);
                    assert!(others + permits <= 4);
                    in_use.fetch_sub(permits, core::sync::atomic::Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(queue.counts().granted, 0, "the holder lives");
        holder.kill();
    });
    queue.change(|limits| {
        let limit = &limits.limits().1;
        assert_eq!((limit.in_use(), limit.held()), (0, 0));
    });
}

/// Forks while it holds permits as of a limiter.
fn fork_with_a_grant(file: &SharedFile) {
    for has_handlers in [true, false] {
        let limit = limit(file);
        let mut lease = Some(limit.try_acquire_at(Timestamp::ZERO, 3).unwrap());
        let work = || {
            drop(lease.take());
            let closed = Err(Denied::Closed { permits: 1 });
            assert_eq!(limit.try_acquire_at(Timestamp::ZERO, 1).map(drop), closed);
            assert_eq!(limit.peek_at(Timestamp::ZERO, 1), closed);
            assert_eq!(limit.held(), 0);
            let own = self::limit(file);
            drop(own.try_acquire_at(Timestamp::ZERO, 1).unwrap());
        };
        let child = if has_handlers {
            fork(work)
        } else {
            fork_without_handlers(work)
        };
        child.finish();
        assert_eq!((limit.in_use(), limit.held()), (3, 3));
        drop(lease);
        assert_eq!(limit.in_use(), 0);
    }
    println!("\nkept");
}

#[test]
fn permits_of_a_limiter_are_those_of_the_process_that_opened_it() {
    let folder = Folder::new("forked-limiter");
    let path = folder.path("limit");
    let process = Process::start(&["fork a limiter", path.to_str().unwrap()]);
    assert_eq!(process.finish("kept").len(), 1);
}
