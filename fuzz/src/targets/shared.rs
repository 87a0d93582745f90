//! Pages of shared memory that a hostile process writes.

/// The first byte says what the file has. Then each 10 bytes are an offset and a word, which is
/// written there. After each write the contents are used, and after every eighth they are opened
/// again. Nothing panics, and no write ends the process.
#[cfg(target_os = "linux")]
pub fn shared_files(data: &[u8]) {
    linux::run(data);
}

/// Shared files are for Linux only.
#[cfg(not(target_os = "linux"))]
pub fn shared_files(_: &[u8]) {}

#[cfg(target_os = "linux")]
mod linux {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use core::time::Duration;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    use portcullis_core::leases::LeaseId;
    use portcullis_core::{Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
    use portcullis_shm::{OpenError, SharedFile};

    const BURST: u64 = 1_000;

    /// The path of a file that is removed at the end.
    struct Removed(PathBuf);

    impl Removed {
        fn new() -> Self {
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Relaxed);
            let folder = Path::new("/dev/shm");
            let folder = if folder.is_dir() {
                folder.to_owned()
            } else {
                std::env::temp_dir()
            };
            let name = format!("portcullis-fuzz-{}-{number}", std::process::id());
            Self(folder.join(name))
        }
    }

    impl Drop for Removed {
        fn drop(&mut self) {
            // There may be no file.
            let _ = fs::remove_file(&self.0);
        }
    }

    pub(super) fn run(data: &[u8]) {
        let Some((kind, writes)) = data.split_first() else {
            return;
        };
        let path = Removed::new();
        let open = || SharedFile::at(&path.0);
        let mut using = open_kind(*kind, &open()).expect("a new file");
        let page = OpenOptions::new().write(true).open(&path.0);
        let page = page.expect("the file is there");
        let length = page.metadata().expect("its length").len();
        for (number, write) in writes.chunks_exact(10).take(64).enumerate() {
            put(&page, length, write);
            using();
            if number % 8 == 7 {
                let _ = open().describe();
                // It may be refused as damaged.
                if let Ok(again) = open_kind(*kind, &open()) {
                    using = again;
                }
            }
        }
    }

    /// Writes a word: in the header if the offset is even, otherwise after it.
    fn put(page: &File, length: u64, write: &[u8]) {
        let offset = u64::from(u16::from_le_bytes([write[0], write[1]]));
        let at = if offset.is_multiple_of(2) {
            offset % 4096 / 4 * 4
        } else {
            4096 + offset / 2 * 8
        };
        let at = at % (length - 8);
        page.write_all_at(&write[2..10], at).expect("a write");
    }

    type Using = Box<dyn FnMut()>;

    /// Opens a file with the contents of a kind, and returns how to use them.
    fn open_kind(kind: u8, file: &SharedFile) -> Result<Using, OpenError> {
        let bucket = || TokenBucket::new(Rate::ZERO, BURST);
        let now = Timestamp::from_secs(1);
        Ok(match kind % 6 {
            0 => {
                let limiter = file.limiter(bucket())?;
                Box::new(move || use_all(&limiter))
            }
            1 => {
                let table = file.table(bucket(), 10)?;
                Box::new(move || {
                    for key in 0..4_u32 {
                        use_all(&table.keyed().key(&key));
                    }
                    table.recover();
                    table.keyed().statistics_at(now);
                    table.keyed().sweep_at(now, ..);
                })
            }
            2 => {
                let limit = file.concurrency(20, None)?;
                Box::new(move || {
                    let lease = limit.try_acquire(3);
                    assert!(limit.in_use() <= 20);
                    limit.recover();
                    drop(lease);
                    let _ = limit.acquire_timeout(20, Duration::from_micros(1));
                })
            }
            3 => {
                let stripes = file.striped(Rate::per_second(5), 100 * BURST)?;
                Box::new(move || {
                    use_all(&stripes);
                    let _ = stripes.room();
                })
            }
            4 => {
                let pool = file.lease_pool(4)?;
                Box::new(move || {
                    if let Ok(id) = pool.claim(Some(Duration::from_secs(9))) {
                        let _ = pool.renew(id, None);
                        let _ = pool.release(id);
                        let _ = pool.adopt(LeaseId::from_bits(!id.to_bits()));
                    }
                    assert!(pool.leases() <= 4);
                    pool.recover();
                })
            }
            _ => {
                let records = file.records(10, 3)?;
                Box::new(move || {
                    if let Ok(mut locked) = records.lock() {
                        let now = locked.now();
                        let _ = locked.read(b"a");
                        let _ = locked.write(&[(b"a", &[1, 2, 3], now), (b"b", &[4], now)]);
                    }
                })
            }
        })
    }

    fn use_all(limiter: &impl Limiter) {
        let at = Timestamp::from_secs(1_000_000);
        for n in [0, 7, u32::MAX] {
            let _ = limiter.peek_at(at, n);
            let _ = limiter.explain_at(at, n);
            match limiter.take_at(at, n) {
                Ok(receipt) => {
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
    }
}
