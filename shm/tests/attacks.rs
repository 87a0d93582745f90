//! Hostile programs: files that are changed, replaced and removed while processes use them. They
//! cause denials, and no panic, no crash and no second limit.

mod support;
#[path = "support/header.rs"]
mod support_header;
#[path = "support/punch.rs"]
mod support_punch;

use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::time::Duration;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Barrier;

use portcullis_core::clock::Interval;
use portcullis_core::limiter::Ask;
use portcullis_core::{Denied, FixedWindow, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use portcullis_shm::{OpenError, RecordsError, SharedFile};
use support::{Folder, now};

fn bucket() -> TokenBucket {
    TokenBucket::new(Rate::ZERO, 1_000)
}

/// Calls every method.
#[expect(
    clippy::let_underscore_must_use,
    reason = "nothing but that they return"
)]
fn use_all(limiter: &impl Limiter) -> u64 {
    let at = now();
    let mut granted = 0;
    for n in [0, 1, 7, u32::MAX] {
        let _ = limiter.peek_at(at, n);
        let _ = limiter.explain_at(at, n);
        let interval = Interval::new(at, at).unwrap();
        let _ = limiter.peek_within(interval, n);
        let _ = limiter.take_within(interval, n);
        let _ = limiter.decide(Ask::look(at, n));
        match limiter.take_at(at, n) {
            Ok(receipt) => {
                granted += u64::from(n);
                let _ = limiter.refund_at(at, n / 2, receipt);
            }
            Err(denied) => {
                let _ = limiter.retry(denied);
            }
        }
    }
    let _ = (
        limiter.available_at(at),
        limiter.capacity(),
        limiter.idle_at(at),
    );
    granted
}

const EXTREMES: [u64; 8] = [
    0,
    1,
    2,
    1 << 31,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
    0x7fff_ffff_ffff_ffff,
];

#[test]
fn any_field_of_a_header_may_be_extreme() {
    let folder = Folder::new("fields");
    let path = folder.path("limit");
    let file = folder.file("limit");
    drop(file.limiter(bucket()).unwrap());
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..128).step_by(4) {
        for extreme in EXTREMES {
            for width in [4, 8] {
                fs::write(&path, &whole).unwrap();
                support_header::edit(&path, at, &extreme.to_ne_bytes()[..width]);
                let _ = file.describe();
                let _ = file.table(bucket(), 1_000);
                let _ = file.concurrency(3, None);
                let _ = file.records(10, 3);
                let _ = file.striped(Rate::ZERO, 1_000);
                match file.limiter(bucket()) {
                    Ok(limiter) => assert!(use_all(&limiter) < 10_000),
                    Err(error) => {
                        refused += 1;
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
    }
    assert!(refused > 300, "{refused}");
    // Without a checksum that is right.
    for at in (0..4096).step_by(64) {
        let mut damaged = whole.clone();
        damaged[at..at + 8].copy_from_slice(&u64::MAX.to_ne_bytes());
        fs::write(&path, &damaged).unwrap();
        assert!(file.limiter(bucket()).is_err(), "{at}");
    }
}

/// Sets each word of the file, while it is used, to each extreme.
fn any_word_may_be_extreme(path: &Path, words: u64, mut using: impl FnMut()) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    for nth in 0..words {
        let at = 4096 + 8 * nth;
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at).unwrap();
        for extreme in EXTREMES {
            file.write_all_at(&extreme.to_ne_bytes(), at).unwrap();
            using();
            // Also both words of a pair.
            if nth > 0 {
                file.write_all_at(&extreme.to_ne_bytes(), at - 8).unwrap();
                using();
            }
        }
        file.write_all_at(&before, at).unwrap();
    }
}

#[test]
fn any_word_of_a_limiter_may_be_extreme() {
    let folder = Folder::new("words");
    let file = folder.file("limit");
    let limiter = file.limiter(bucket()).unwrap();
    let window = folder.file("window");
    let started = FixedWindow::builder(9, Duration::from_secs(1)).started_by_first_request();
    let window = window.limiter(started.build().unwrap()).unwrap();
    // The first two versions, of which one is in force.
    any_word_may_be_extreme(&folder.path("limit"), 48, || {
        use_all(&limiter);
        let _ = file.describe();
    });
    any_word_may_be_extreme(&folder.path("window"), 48, || {
        use_all(&window);
    });
    let refused = file.limiter(bucket()).err();
    assert!(
        matches!(refused, Some(OpenError::Damaged { .. })),
        "{refused:?}"
    );
}

#[test]
fn any_word_of_other_contents_may_be_extreme() {
    let folder = Folder::new("contents");
    let stripes = folder
        .file("stripes")
        .striped(Rate::per_second(5), 100_000)
        .unwrap();
    any_word_may_be_extreme(&folder.path("stripes"), 40, || {
        use_all(&stripes);
    });
    let table = folder.file("table").table(bucket(), 10).unwrap();
    any_word_may_be_extreme(&folder.path("table"), 64, || {
        for key in 0..9_u32 {
            use_all(&table.keyed().key(&key));
        }
        table.recover();
        table.keyed().statistics_at(now());
        table.keyed().sweep_at(now(), ..);
    });
    let limit = folder.file("at-once").concurrency(20, None).unwrap();
    any_word_may_be_extreme(&folder.path("at-once"), 28, || {
        let lease = limit.try_acquire(3);
        assert!(limit.in_use() <= 20);
        limit.recover();
        drop(lease);
        let _ = limit.acquire_timeout(20, Duration::from_micros(10));
    });
}

#[test]
fn a_hole_in_the_file_is_damage_and_grants_nothing() {
    let folder = Folder::new("hole");
    let path = folder.path("limit");
    let limiter = folder.file("limit").limiter(bucket()).unwrap();
    let table = folder.file("table").table(bucket(), 1_000).unwrap();
    let stripes = folder.file("stripes").striped(Rate::ZERO, 100_000).unwrap();
    assert!(limiter.try_acquire(900).is_ok() && stripes.try_acquire(1).is_ok());
    assert!(table.key("a").try_acquire(1).is_ok());
    for name in ["limit", "table", "stripes"] {
        let file = OpenOptions::new()
            .write(true)
            .open(folder.path(name))
            .unwrap();
        let size = file.metadata().unwrap().len();
        support_punch::hole(&file, 4096, size - 4096);
    }
    // The pages read as zeros: no stamp is in force, neither of the limiter nor of the table.
    let denied = limiter.try_acquire(1).map(drop);
    assert_eq!(denied, Err(Denied::Closed { permits: 1 }));
    assert!(use_all(&stripes) <= 100_000);
    let denied = table.key("a").try_acquire(1).map(drop);
    assert!(matches!(denied, Err(Denied::Crowded { .. })), "{denied:?}");
    let refused = folder.file("limit").limiter(bucket()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let header = OpenOptions::new().write(true).open(&path).unwrap();
    support_punch::hole(&header, 0, 4096);
    let refused = folder.file("limit").limiter(bucket()).unwrap_err();
    assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
}

/// Cuts a file, and lets it grow to its size.
fn cut(path: &Path, at: impl Fn(u64) -> u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(at(size).min(size - 1)).unwrap();
    file.set_len(size).unwrap();
}

#[test]
fn a_truncation_that_leaves_no_page_missing_is_noticed() {
    let cuts: [fn(u64) -> u64; 5] = [
        |_| 4096,
        |_| 4096 + 64,
        |size| size / 2 + 2048,
        |size| size - 9,
        |size| size - 1,
    ];
    let closed = |permits| Some(Denied::Closed { permits });
    for (nth, at) in cuts.into_iter().enumerate() {
        let folder = Folder::new(&format!("cut-{nth}"));
        let file = |name| folder.file(name);
        let cut = |name| cut(&folder.path(name), at);
        let is_damaged = |opened: Option<OpenError>| {
            assert!(
                matches!(opened, Some(OpenError::Damaged { .. })),
                "{opened:?}"
            );
        };

        let limiter = file("limiter").limiter(bucket()).unwrap();
        cut("limiter");
        assert!(limiter.is_lost());
        is_damaged(file("limiter").limiter(bucket()).err());

        let stripes = || file("stripes").striped(Rate::ZERO, 100_000);
        let used = stripes().unwrap();
        assert!(used.try_acquire(90_000).is_ok());
        cut("stripes");
        assert_eq!(used.try_acquire(10_001).err(), closed(10_001));
        is_damaged(stripes().err());

        let table = || file("table").table(bucket(), 1_000);
        let used = table().unwrap();
        assert!(used.key("a").try_acquire(1_000).is_ok());
        cut("table");
        assert!(used.is_lost() && used.key("a").try_acquire(1).is_err());
        is_damaged(table().err());

        let at_once = || file("at-once").concurrency(2, None);
        let used = at_once().unwrap();
        let lease = used.try_acquire(2).unwrap();
        cut("at-once");
        assert!(used.try_acquire(1).is_err() && used.is_lost());
        is_damaged(at_once().err());
        drop(lease);

        let pool = || file("pool").lease_pool(2);
        let used = pool().unwrap();
        assert!(used.claim(None).is_ok() && used.claim(None).is_ok());
        cut("pool");
        assert_eq!(used.claim(None), Err(closed(1).unwrap().into()));
        is_damaged(pool().err());

        let records = || file("records").records(10, 1);
        let used = records().unwrap();
        let mut locked = used.lock().unwrap();
        locked.write(&[(b"a", &[7], Timestamp::MAX)]).unwrap();
        cut("records");
        let written = locked.write(&[(b"a", &[1], Timestamp::MAX)]);
        assert_eq!(written, Err(RecordsError::Lost));
        drop(locked);
        assert_eq!(used.lock().map(drop), Err(RecordsError::Lost));
        is_damaged(records().err());
    }
}

#[test]
fn a_truncation_of_the_lines_that_a_change_has_added_is_noticed() {
    let folder = Folder::new("cut-second");
    let file = folder.file("table").changing();
    let size = || fs::metadata(folder.path("table")).unwrap().len();
    let old = file.table(bucket(), 1_000).unwrap();
    let first = size();
    let table = file
        .table(TokenBucket::new(Rate::ZERO, 900), 1_000)
        .unwrap();
    assert!(size() > first && table.key("a").try_acquire(900).is_ok());
    cut(&folder.path("table"), |_| first);
    for table in [&table, &old] {
        assert!(table.key("a").try_acquire(1).is_err() && table.is_lost());
    }
}

#[test]
fn processes_that_race_with_one_that_removes_have_one_limit() {
    const OPENERS: usize = 4;
    let folder = Folder::new("removed");
    let mut removed = 0;
    for _ in 0..150 {
        let (start, opened) = (Barrier::new(OPENERS + 1), Barrier::new(OPENERS));
        let are_open = AtomicBool::new(false);
        let granted: usize = std::thread::scope(|scope| {
            let openers = [(); OPENERS].map(|()| {
                scope.spawn(|| {
                    start.wait();
                    let limiter = folder.file("limit").limiter(bucket()).unwrap();
                    // All have it open now.
                    opened.wait();
                    are_open.store(true, SeqCst);
                    let granted = (0..1_500)
                        .filter(|_| limiter.try_acquire(1).is_ok())
                        .count();
                    opened.wait();
                    granted
                })
            });
            start.wait();
            while !are_open.load(SeqCst) {
                match folder.file("limit").remove() {
                    Ok(()) => removed += 1,
                    Err(OpenError::Busy { .. } | OpenError::System { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            openers.map(|opener| opener.join().unwrap()).iter().sum()
        });
        assert_eq!(granted, 1_000);
        // The loop above may have removed it after the last one closed it.
        let _gone = folder.file("limit").remove();
    }
    println!("{removed} files removed while they were opened");
}

#[test]
fn a_file_that_is_replaced_while_processes_open_it_is_never_half_of_each() {
    let folder = Folder::new("replaced");
    let path = folder.path("limit");
    let [whole, other] = [1_000, 999].map(|burst| {
        let file = folder.file("source");
        drop(file.limiter(TokenBucket::new(Rate::ZERO, burst)).unwrap());
        let bytes = fs::read(file.path()).unwrap();
        file.remove().unwrap();
        bytes
    });
    let ends = AtomicBool::new(false);
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Replaces the file by others, by half of one, by a link, and by nothing.
            for round in 0.. {
                let new = folder.path("new");
                match round % 5 {
                    0 => fs::write(&new, &whole).unwrap(),
                    1 => fs::write(&new, &other).unwrap(),
                    2 => fs::write(&new, &whole[..4_500]).unwrap(),
                    3 => symlink("/etc/passwd", &new).unwrap(),
                    _ => fs::write(&new, b"").unwrap(),
                }
                fs::rename(&new, &path).unwrap();
                if ends.load(SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..3_000 {
            match SharedFile::at(&path).limiter(bucket()) {
                Ok(limiter) => {
                    opened += 1;
                    assert_eq!(
                        (limiter.capacity(), limiter.available_at(now())),
                        (1_000, 1_000)
                    );
                }
                Err(_) => refused += 1,
            }
        }
        ends.store(true, SeqCst);
    });
    assert!(refused > 0, "{opened}, {refused}");
}
