//! Striped buckets in files: one limit, whatever stripes hold, and whichever processes die.

mod support;

use core::time::Duration;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Instant;

use portcullis_core::{AllOf, Denied, Limiter, LimiterExt, Rate, Retry};
use portcullis_shm::{OpenError, SharedFile, SharedStripes};
use support::{Folder, Journal, PERMIT, Process, least_left, most_above_rate, now, role, seconds};

const PER_SECOND: u32 = 40_000;
const BURST: u64 = 40_000;
/// The most permits that a process takes at once.
const MOST: u32 = 7;

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["take", file, journal] => take(&SharedFile::at(file), Path::new(journal)),
        [] => {}
        _ => panic!("{role:?}"),
    }
}

fn once(file: &SharedFile, burst: u64) -> SharedStripes {
    file.striped(Rate::ZERO, burst).unwrap()
}

#[test]
fn threads_on_all_stripes_are_granted_what_the_rest_had_and_no_more() {
    let folder = Folder::new("stripes");
    let buckets = [0, 1].map(|_| once(&folder.file("limit"), 100_000));
    assert_eq!(buckets[0].room(), 64);
    let granted: usize = std::thread::scope(|scope| {
        let threads = [0, 1, 0, 1, 0, 1].map(|nth| {
            let bucket = &buckets[nth];
            scope.spawn(|| {
                let take = || bucket.try_acquire(1).is_ok();
                core::iter::repeat_with(take)
                    .take_while(|&granted| granted)
                    .count()
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    let least = 100_000 - 8 * 64;
    assert!((least - 6 * 64..=least).contains(&granted), "{granted}");
    assert_eq!(buckets[0].available_at(now()), 0);
    assert!(matches!(
        buckets[0].try_acquire(0),
        Err(Denied::Exhausted { .. })
    ));
}

#[test]
fn a_refund_to_a_stripe_is_exact_if_no_call_came_between() {
    let folder = Folder::new("refund");
    let bucket = once(&folder.file("limit"), 100_000);
    let full = bucket.available_at(now());
    let receipt = bucket.take_at(now(), 5).unwrap();
    assert_eq!(bucket.available_at(now()), full - 5);
    let refund = bucket.refund_at(now(), 2, receipt);
    assert_eq!((refund.permits, bucket.available_at(now())), (2, full - 3));
    let refund = bucket.refund_at(now(), 3, refund.rest);
    assert_eq!((refund.permits, bucket.available_at(now())), (3, full));
    let one = bucket.take_at(now(), 1).unwrap();
    let _other = bucket.take_at(now(), 1).unwrap();
    assert_eq!(bucket.refund_at(now(), 1, one).permits, 0);
    // More than a stripe has room for: from the rest.
    let receipt = bucket.take_at(now(), 500).unwrap();
    assert_eq!(bucket.refund_at(now(), 500, receipt).permits, 500);
    let small = once(&folder.file("other"), 10);
    let both = AllOf::new((&bucket, &small));
    let before = bucket.available_at(now());
    assert!(both.try_acquire_at(now(), 11).is_err());
    assert_eq!(
        bucket.available_at(now()),
        before,
        "a denial gives back what it took"
    );
}

#[test]
fn what_a_stripe_grants_is_told_as_granted_now() {
    let folder = Folder::new("stripes-told");
    let bucket = once(&folder.file("limit"), 10_000);
    let at = now();
    // The first take fills a stripe, and the second one empties the rest.
    let rest = bucket.capacity() as u32;
    bucket.take_at(at, 1).unwrap();
    bucket.take_at(at, rest - bucket.room() as u32).unwrap();
    let told = bucket.explain_at(at, 7);
    assert_eq!((told.decision, told.available), (Ok(()), 7));
    assert_eq!(told.retry, Retry::At(at), "the rest alone grants it never");
    let told = bucket.explain_at(at, 8);
    assert!(matches!(told.decision, Err(Denied::Exhausted { .. })));
    assert_eq!(told.retry, Retry::Never);
}

#[test]
fn a_small_bucket_has_no_stripes_and_other_settings_are_refused() {
    let folder = Folder::new("small");
    let file = folder.file("limit");
    let bucket = once(&file, 8_191);
    assert_eq!((bucket.room(), bucket.capacity()), (0, 8_191));
    assert!(bucket.try_acquire(8_191).is_ok() && bucket.try_acquire(1).is_err());
    let refused = file.striped(Rate::ZERO, 8_192).unwrap_err().to_string();
    assert!(
        refused.contains("burst 8191") && refused.contains("burst 8192"),
        "{refused}"
    );
    let refused = folder.file("none").striped(Rate::ZERO, 0).unwrap_err();
    assert!(matches!(refused, OpenError::Settings(_)));
}

#[test]
fn a_bucket_whose_file_is_truncated_denies() {
    let folder = Folder::new("stripes-lost");
    let bucket = once(&folder.file("limit"), 100_000);
    assert!(bucket.try_acquire(1).is_ok());
    let file = OpenOptions::new().write(true).open(folder.path("limit"));
    file.unwrap().set_len(4096).unwrap();
    let denied = bucket.try_acquire(1).map(drop);
    assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
    assert!(bucket.is_lost());
    assert_eq!(bucket.explain_at(now(), 1).available, 0);
}

/// Takes until it is killed.
fn take(file: &SharedFile, journal: &Path) {
    let bucket = file.striped(Rate::per_second(PER_SECOND), BURST).unwrap();
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

fn four_processes_share_one_bucket(time: Duration) {
    let folder = Folder::new(&format!("striped-{}", time.as_secs()));
    let (file, journal) = (folder.path("limit"), folder.path("journal"));
    let start = || Process::start(&["take", file.to_str().unwrap(), journal.to_str().unwrap()]);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut killed) = (Instant::now(), 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(100));
        let mut child = core::mem::replace(&mut children[killed % 4], start());
        // On a slow machine, it could take nothing otherwise.
        child.until("ready");
        child.kill();
        killed += 1;
    }
    killed += children.len();
    children.into_iter().for_each(Process::kill);
    let bucket = folder.file("limit");
    let bucket = bucket.striped(Rate::per_second(PER_SECOND), BURST).unwrap();
    let end = now();
    let available = bucket.available_at(end);
    let admissions = Journal::read(&journal);
    let admitted: u64 = admissions.iter().map(|a| a.permits).sum();
    let most = most_above_rate(&admissions, PER_SECOND);
    assert!(
        most <= i128::from(BURST) * PERMIT,
        "{most} billionths above the rate"
    );
    // With each process, a take that it had not noted may be lost, and what it had drawn.
    let lost = killed as u64 * (bucket.room() + u64::from(MOST));
    let least = least_left(&admissions, PER_SECOND, bucket.capacity(), end) / PERMIT;
    println!("{admitted} permits, {available} of {least} left, {killed} processes killed");
    assert!(
        i128::from(available + lost) >= least,
        "{available} permits of {least}, after {admitted}; {killed} processes killed"
    );
}

#[test]
fn four_processes_share_one_striped_bucket_while_processes_are_killed() {
    four_processes_share_one_bucket(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_striped_bucket_for_long() {
    four_processes_share_one_bucket(seconds(30));
}
