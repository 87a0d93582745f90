//! Transfers in real time: files and a writer, with the timers of tokio, of smol and of threads.
//! They do not disturb each other: each has its own clock and queue, and mostly waits. And two
//! readers on one limit, in the time of a paused clock.
//!
//! Delays of a busy machine are not the adapter's. So a transfer can catch up on those of half a
//! second. A time that is too long is measured again, up to twice, and counts only if the machine
//! could have moved the bytes: without a limit, it needs less than half of the time, and the share
//! of other programs does not explain the rest. A time that is too short is never excused.
#![cfg(all(feature = "tokio", feature = "async-io", feature = "futures-io"))]

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use portcullis_async::io::{LimitedRead, LimitedWrite};
use portcullis_async::{AsyncIoTimer, Queue, ReentrantTimer, ThreadTimer, TokioTimer};
use portcullis_core::{Rate, TokenBucket};
use tokio::io as tokio_io;

#[path = "support/machine.rs"]
mod machine;

use machine::Machine;

const MB: u64 = 1_000_000;
/// Bytes per second.
const RATE: u32 = 20_000_000;
/// What comes in within half a second, for which a busy machine may stop a thread.
const BURST: u64 = 10 * MB;
/// Four pieces, so that one reader has little before the other one begins.
const SMALL_BURST: u64 = 64 * 1024;

type Shared<T> = Arc<Queue<TokenBucket, T>>;

/// A queue that drives itself.
fn limit<T: ReentrantTimer + Send + Sync + 'static>(timer: T) -> Shared<T> {
    limit_with(BURST, timer)
}

fn limit_with<T: ReentrantTimer + Send + Sync + 'static>(burst: u64, timer: T) -> Shared<T> {
    let bucket = TokenBucket::new(Rate::per_second(RATE), burst);
    let queue = Arc::new(Queue::new(bucket, timer, u64::MAX));
    queue.attend_shared();
    queue
}

/// Fails if it takes longer than that: then a waiter was not woken.
fn within(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (tell, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        _ = tell.send(());
    });
    assert_ne!(
        over.recv_timeout(time),
        Err(mpsc::RecvTimeoutError::Timeout),
        "a waiter sleeps permanently"
    );
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A sparse file of 100 MB, which is removed on drop.
struct Big(PathBuf);

impl Big {
    const BYTES: u64 = 100 * MB;

    fn new() -> Self {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!(
            "portcullis-io-rate-{}-{number}",
            std::process::id()
        ));
        let this = Self(path);
        File::create(&this.0)
            .and_then(|file| file.set_len(Self::BYTES))
            .expect("there is room for a name");
        this
    }
}

impl Drop for Big {
    fn drop(&mut self) {
        // A sparse file that stays takes no space.
        _ = fs::remove_file(&self.0);
    }
}

/// Counts the polls of a future.
struct Counted<F> {
    future: Pin<Box<F>>,
    polls: u64,
}

impl<F: Future> Future for Counted<F> {
    type Output = (F::Output, u64);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls += 1;
        let polls = self.polls;
        self.future
            .as_mut()
            .poll(context)
            .map(|outcome| (outcome, polls))
    }
}

fn counted<F: Future>(future: F) -> Counted<F> {
    Counted {
        future: Box::pin(future),
        polls: 0,
    }
}

/// Measures up to three times how long `bytes` bytes take, and with how many polls: within 1 % of
/// the rate, and never faster. `plain` transfers them without a limit.
fn takes_its_time(
    what: &str,
    bytes: u64,
    transfer: impl Fn() -> (u64, u64),
    plain: impl Fn() -> u64,
) {
    let due = Duration::from_nanos((bytes - BURST) * 1_000_000_000 / u64::from(RATE));
    let mut is_excused = false;
    for attempt in 1.. {
        let (machine, begin) = (Machine::now(), Instant::now());
        let (moved, polls) = transfer();
        let time = begin.elapsed();
        let others = Machine::share_of_others(machine);
        let off = (time.as_secs_f64() / due.as_secs_f64() - 1.0) * 100.0;
        println!(
            "{what}: {moved} bytes in {time:.3?}, due in {due:.3?}: {off:+.2} %; {polls} polls; \
             others use {:.0} %",
            others * 100.0
        );
        assert_eq!(moved, bytes);
        // The queue's clock starts a little later than the measurement.
        assert!(time >= due, "{what}: more than the rate");
        if off <= 1.0 {
            return;
        }
        is_excused |= time.mul_f64(1.0 - others) <= due;
        if attempt == 3 {
            let begin = Instant::now();
            assert_eq!(plain(), bytes);
            let alone = begin.elapsed();
            println!("{what}: without a limit in {alone:.3?}");
            let is_busy = is_excused || alone > due / 2;
            assert!(is_busy, "{what}: less than the rate, three times");
            return;
        }
    }
}

/// At most this many polls per piece: one for its permits, and those for the file.
fn of_pieces(bytes: u64, each: u64) -> u64 {
    (bytes / (16 * 1024) + 1) * each
}

#[test]
fn a_file_of_100_mb_by_tokio_takes_the_time_of_its_rate() {
    within(Duration::from_mins(1), || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let file = Big::new();
        let opened = async || tokio::fs::File::open(&file.0).await.unwrap();
        let limited = async || {
            let down = limit(TokioTimer::new());
            let mut reader = Box::pin(LimitedRead::new(opened().await, down));
            let (moved, polls) = counted(tokio_io::copy(&mut reader, &mut tokio_io::sink())).await;
            assert!(polls <= of_pieces(Big::BYTES, 4), "{polls} polls");
            (moved.unwrap(), polls)
        };
        let plain = async || {
            // In pieces of the same size.
            let mut reader = tokio_io::BufReader::with_capacity(16 * 1024, opened().await);
            let copied = tokio_io::copy_buf(&mut reader, &mut tokio_io::sink()).await;
            copied.unwrap()
        };
        takes_its_time(
            "a file by tokio",
            Big::BYTES,
            || runtime.block_on(limited()),
            || runtime.block_on(plain()),
        );
    });
}

#[test]
fn a_file_of_100_mb_by_smol_takes_the_time_of_its_rate() {
    within(Duration::from_mins(1), || {
        let file = Big::new();
        let opened = async || smol::fs::File::open(&file.0).await.unwrap();
        let limited = async || {
            let down = limit(AsyncIoTimer::new());
            let reader = Box::pin(LimitedRead::new(opened().await, down));
            let mut nowhere = futures_util::io::sink();
            let (moved, polls) = counted(futures_util::io::copy(reader, &mut nowhere)).await;
            assert!(polls <= of_pieces(Big::BYTES, 4), "{polls} polls");
            (moved.unwrap(), polls)
        };
        let plain = async || {
            let mut nowhere = futures_util::io::sink();
            let copied = futures_util::io::copy(opened().await, &mut nowhere).await;
            copied.unwrap()
        };
        takes_its_time(
            "a file by smol",
            Big::BYTES,
            || smol::block_on(limited()),
            || smol::block_on(plain()),
        );
    });
}

#[test]
fn a_writer_of_50_mb_takes_the_time_of_its_rate() {
    within(Duration::from_mins(1), || {
        let bytes = vec![7; 50 * MB as usize];
        let limited = || {
            let up = limit(ThreadTimer::new());
            let mut writer = Box::pin(LimitedWrite::new(futures_util::io::sink(), up));
            let (outcome, polls) = futures_executor::block_on(counted(writer.write_all(&bytes)));
            outcome.unwrap();
            // It waits for permits only.
            assert!(polls <= of_pieces(50 * MB, 1), "{polls} polls");
            (50 * MB, polls)
        };
        // It moves nothing but the permits.
        takes_its_time("a writer", 50 * MB, limited, || 50 * MB);
    });
}

/// What two tasks read within a time of tokio's paused clock, with buffers of 4 KiB and of 64 KiB.
fn two_readers(time: Duration) -> [u64; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let moved = Arc::new([const { AtomicU64::new(0) }; 2]);
    runtime.block_on(async {
        let down = limit_with(SMALL_BURST, TokioTimer::new());
        for (index, buffer) in [4, 64].into_iter().enumerate() {
            let (down, moved) = (Arc::clone(&down), Arc::clone(&moved));
            tokio::spawn(async move {
                let mut reader = Box::pin(LimitedRead::new(futures_util::io::repeat(7), down));
                let mut buffer = vec![0; buffer * 1024];
                loop {
                    let read = reader.read(&mut buffer).await.unwrap();
                    moved[index].fetch_add(read as u64, Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(time).await;
    });
    [0, 1].map(|index| moved[index].load(Ordering::Relaxed))
}

/// The time is not that of the machine: a thread that is stopped for a while misses its turns, and
/// the other one has them.
#[test]
fn two_readers_on_one_limit_get_half_of_it_each() {
    within(Duration::from_mins(1), || {
        let moved = two_readers(Duration::from_secs(2));
        let all = SMALL_BURST + u64::from(RATE) * 2;
        // In thousandths.
        let off = moved.map(|bytes| bytes.cast_signed() * 2_000 / all.cast_signed() - 1_000);
        println!("two readers: {moved:?} bytes, {off:?} thousandths off half");
        assert!(moved.iter().sum::<u64>() <= all, "more than the rate");
        assert!(off.iter().all(|off| off.abs() <= 10), "not half each");
    });
}
