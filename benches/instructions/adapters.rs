//! Instruction counts of adapters: an item that passes through a channel, and a byte that is read.

use core::hint::black_box;
use core::num::NonZero;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use futures_io::AsyncRead;
use gungraun::{library_benchmark, library_benchmark_group, main};
use portcullis_async::channel::{Receiver, Sender, channel};
use portcullis_async::io::LimitedRead;
use portcullis_async::{PerItem, Queue};
use portcullis_core::{Concurrency, Rate, Timeless, TokenBucket};

/// Operations per bench.
const OPERATIONS: u64 = 1_000;

fn all_done(done: u64) {
    assert_eq!(done, OPERATIONS);
}

#[inline(always)]
fn count(operation: impl FnMut(u64) -> bool) -> u64 {
    (0..OPERATIONS).map(operation).map(u64::from).sum()
}

type Limit = &'static Queue<Concurrency, Timeless>;
type Ends = (Sender<u64, Limit>, Receiver<u64, Limit>);

/// A channel with places and permits for all items.
fn ends() -> &'static Ends {
    let queue: Limit = Box::leak(Box::new(Queue::new(
        Concurrency::new(64),
        Timeless,
        u64::MAX,
    )));
    Box::leak(Box::new(channel(
        queue,
        NonZero::new(64).expect("some"),
        PerItem,
    )))
}

/// A reader that is always ready.
struct Zeros;

impl AsyncRead for Zeros {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(buffer.len()))
    }
}

type Reader = LimitedRead<Zeros, &'static Queue<TokenBucket, Timeless>>;

fn reader() -> Pin<Box<Reader>> {
    let bucket = TokenBucket::new(Rate::per_second(1), 1 << 20);
    Box::pin(LimitedRead::new(
        Zeros,
        Box::leak(Box::new(Queue::new(bucket, Timeless, u64::MAX))),
    ))
}

#[library_benchmark(teardown = all_done)]
#[bench::channel(ends())]
fn pass((sender, receiver): &'static Ends) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    count(|item| {
        let sent = pin!(black_box(sender).send(black_box(item)))
            .poll(&mut context)
            .is_ready();
        sent && pin!(black_box(receiver).recv()).poll(&mut context) == Poll::Ready(Some(item))
    })
}

// Most reads are served from the piece that is already granted.
#[library_benchmark(teardown = all_done)]
#[bench::reader(reader())]
fn read(mut reader: Pin<Box<Reader>>) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let mut buffer = [0; 16];
    count(|_| {
        let read = black_box(reader.as_mut()).poll_read(&mut context, black_box(&mut buffer));
        matches!(read, Poll::Ready(Ok(16)))
    })
}

library_benchmark_group!(name = adapters, benchmarks = [pass, read]);
main!(library_benchmark_groups = adapters);
