//! Byte-limited readers and writers: the same tests for both, and for the traits of futures-io and
//! of tokio.
#![cfg(all(feature = "futures-io", feature = "tokio"))]

mod support;

use core::num::NonZero;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker, ready};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::io as futures;
use portcullis_async::io::{LimitedRead, LimitedWrite};
use portcullis_async::{KeyedQueue, Next, Order, Queue, QueueKey, Rejected};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Carry;
use portcullis_core::{
    AdjustableBucket, Clock, Concurrency, Keyed, Rate, Retry, Timestamp, TokenBucket, Unlimited,
};
use support::{Hand, Manual, START, Task, available, now, permits, queue, waker};
use tokio::io as tokio_io;

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A queue of one byte per millisecond, and `burst` at once.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1_000), burst)
}

/// Sets the clock, and advances the queue.
fn advance<L: QueueLimiter>(queue: &Manual<L>, to: Timestamp) -> Next {
    queue.clock().set(to);
    queue.advance()
}

/// A call of the device, and its number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Read(usize),
    Write(usize),
    ReadVectored,
    WriteVectored,
    Flush,
    Close,
}

/// What the device answers, instead of moving all it can.
#[derive(Clone, Copy)]
enum Answer {
    Moves(usize),
    Pending,
    Fails,
    Panics,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    answers: VecDeque<Answer>,
    /// How many bytes can be read, and how many have been.
    holds: usize,
    read: usize,
    written: Vec<u8>,
    waker: Option<Waker>,
}

/// A scripted reader and writer. It reads the bytes of `pattern`.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

/// The byte at a place.
fn pattern(place: usize) -> u8 {
    (place % 251) as u8
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .enumerate()
        .all(|(place, byte)| *byte == pattern(place))
}

/// The first `n` bytes.
fn device(holds: usize) -> Device {
    Device(Arc::new(Mutex::new(State {
        holds,
        ..State::default()
    })))
}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn then(&self, answers: &[Answer]) {
        self.state().answers.extend(answers);
    }

    /// Returns the calls since the last time.
    fn calls(&self) -> Vec<Call> {
        core::mem::take(&mut self.state().calls)
    }

    /// Returns how many of `n` bytes it moves.
    fn answer(
        &self,
        call: Call,
        bytes: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        state.calls.push(call);
        match state.answers.pop_front() {
            None => Poll::Ready(Ok(bytes)),
            Some(Answer::Moves(most)) => Poll::Ready(Ok(bytes.min(most))),
            Some(Answer::Pending) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
            Some(Answer::Fails) => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
            Some(Answer::Panics) => {
                drop(state);
                panic!("the device panics");
            }
        }
    }

    fn read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let (wanted, holds) = (buffer.len(), self.state().holds);
        let moved = ready!(self.answer(Call::Read(wanted), wanted.min(holds), context))?;
        let mut state = self.state();
        for byte in &mut buffer[..moved] {
            *byte = pattern(state.read);
            state.read += 1;
        }
        state.holds -= moved;
        Poll::Ready(Ok(moved))
    }

    fn write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let moved = ready!(self.answer(Call::Write(bytes.len()), bytes.len(), context))?;
        self.state().written.extend(&bytes[..moved]);
        Poll::Ready(Ok(moved))
    }

    fn end(&self, call: Call, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.answer(call, 0, context).map_ok(drop)
    }
}

impl futures::AsyncRead for Device {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.read(cx, buffer)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answer(
            Call::ReadVectored,
            buffers.iter().map(|buffer| buffer.len()).sum(),
            context,
        )
    }
}

impl futures::AsyncWrite for Device {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answer(
            Call::WriteVectored,
            bytes.iter().map(|bytes| bytes.len()).sum(),
            context,
        )
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(Call::Flush, context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(Call::Close, context)
    }
}

impl tokio_io::AsyncRead for Device {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio_io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = vec![0; buffer.remaining()];
        let moved = ready!(self.read(context, &mut bytes))?;
        buffer.put_slice(&bytes[..moved]);
        Poll::Ready(Ok(()))
    }
}

impl tokio_io::AsyncWrite for Device {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answer(
            Call::WriteVectored,
            bytes.iter().map(|bytes| bytes.len()).sum(),
            context,
        )
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(Call::Flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(Call::Close, context)
    }
}

/// A family of traits.
trait Family {
    fn read<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>>;
    fn write<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>>;
    fn flush<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn close<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// What both families have in common.
trait Both:
    futures::AsyncRead + futures::AsyncWrite + tokio_io::AsyncRead + tokio_io::AsyncWrite
{
}

impl<T: futures::AsyncRead + futures::AsyncWrite + tokio_io::AsyncRead + tokio_io::AsyncWrite> Both
    for T
{
}

struct Futures;

impl Family for Futures {
    fn read<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        futures::AsyncRead::poll_read(it, cx, buffer)
    }

    fn write<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        futures::AsyncWrite::poll_write(it, cx, bytes)
    }

    fn flush<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_flush(it, cx)
    }

    fn close<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        futures::AsyncWrite::poll_close(it, cx)
    }
}

struct Tokio;

impl Family for Tokio {
    fn read<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = tokio_io::ReadBuf::new(buffer);
        ready!(tokio_io::AsyncRead::poll_read(it, cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn write<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        tokio_io::AsyncWrite::poll_write(it, cx, bytes)
    }

    fn flush<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio_io::AsyncWrite::poll_flush(it, cx)
    }

    fn close<T: Both>(it: Pin<&mut T>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio_io::AsyncWrite::poll_shutdown(it, cx)
    }
}

/// One limited direction, by one family.
trait Way {
    type Family: Family;
    type Limited<'q, L: QueueLimiter + 'q>: Both;
    /// The call of the device for N bytes.
    const CALL: fn(usize) -> Call;
    const BACK: fn(usize) -> Call;

    fn new<'q, L: QueueLimiter>(
        device: &Device,
        queue: &'q Manual<L>,
        piece: u32,
    ) -> Self::Limited<'q, L>;

    /// Moves up to N bytes, and appends them to those that were `moved`.
    fn go<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        bytes: usize,
        moved: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>>;

    /// The same by the other family.
    fn back<T: Both>(
        it: Pin<&mut T>,
        cx: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<io::Result<usize>>;
}

fn read<F: Family, T: Both>(
    it: Pin<&mut T>,
    cx: &mut Context<'_>,
    bytes: usize,
    moved: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut buffer = vec![0; bytes];
    let read = ready!(F::read(it, cx, &mut buffer))?;
    moved.extend(&buffer[..read]);
    Poll::Ready(Ok(read))
}

fn write<F: Family, T: Both>(
    it: Pin<&mut T>,
    cx: &mut Context<'_>,
    bytes: usize,
    moved: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let bytes: Vec<u8> = (moved.len()..).map(pattern).take(bytes).collect();
    let written = ready!(F::write(it, cx, &bytes))?;
    moved.extend(&bytes[..written]);
    Poll::Ready(Ok(written))
}

macro_rules! way {
    ($way:ident: $family:ident, $limited:ident, $go:ident $call:ident, $back:ident $other:ident) => {
        struct $way;

        impl Way for $way {
            type Family = $family;
            type Limited<'q, L: QueueLimiter + 'q> = $limited<Device, &'q Manual<L>>;
            const CALL: fn(usize) -> Call = Call::$call;
            const BACK: fn(usize) -> Call = Call::$other;

            fn new<'q, L: QueueLimiter>(
                device: &Device,
                queue: &'q Manual<L>,
                piece: u32,
            ) -> Self::Limited<'q, L> {
                let limited = $limited::new(device.clone(), queue);
                match NonZero::new(piece) {
                    Some(piece) => limited.with_piece(piece),
                    None => limited,
                }
            }

            fn go<T: Both>(
                it: Pin<&mut T>,
                cx: &mut Context<'_>,
                bytes: usize,
                moved: &mut Vec<u8>,
            ) -> Poll<io::Result<usize>> {
                $go::<$family, T>(it, cx, bytes, moved)
            }

            fn back<T: Both>(
                it: Pin<&mut T>,
                cx: &mut Context<'_>,
                bytes: usize,
            ) -> Poll<io::Result<usize>> {
                $back::<$family, T>(it, cx, bytes, &mut Vec::new())
            }
        }
    };
}

way!(FuturesRead: Futures, LimitedRead, read Read, write Write);
way!(FuturesWrite: Futures, LimitedWrite, write Write, read Read);
way!(TokioRead: Tokio, LimitedRead, read Read, write Write);
way!(TokioWrite: Tokio, LimitedWrite, write Write, read Read);

/// Whether the bytes are there before their permits, as for a reader.
fn reads<W: Way>() -> bool {
    matches!((W::CALL)(0), Call::Read(_))
}

/// Each function tests readers and writers, by both families.
macro_rules! each_way {
    ($($body:ident,)*) => {
        each_way!(futures_read: FuturesRead, $($body,)*);
        each_way!(futures_write: FuturesWrite, $($body,)*);
        each_way!(tokio_read: TokioRead, $($body,)*);
        each_way!(tokio_write: TokioWrite, $($body,)*);
    };
    ($module:ident: $way:ident, $($body:ident,)*) => {
        mod $module {
            $(
                #[test]
                fn $body() {
                    super::$body::<super::$way>();
                }
            )*
        }
    };
}

/// A default piece.
const DEFAULT: u32 = 0;

/// A transfer in progress, and the waker with which it is polled.
struct Transfer<'q, W: Way, L: QueueLimiter + 'q> {
    it: Pin<Box<W::Limited<'q, L>>>,
    waker: Waker,
    wakes: Arc<AtomicUsize>,
    moved: Vec<u8>,
}

impl<'q, W: Way, L: QueueLimiter> Transfer<'q, W, L> {
    fn new(device: &Device, queue: &'q Manual<L>, piece: u32) -> Self {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        let waker = waker(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        Self {
            it: Box::pin(W::new(device, queue, piece)),
            waker,
            wakes,
            moved: Vec::new(),
        }
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    fn poll(&mut self, bytes: usize) -> Poll<io::Result<usize>> {
        let context = &mut Context::from_waker(&self.waker);
        W::go(self.it.as_mut(), context, bytes, &mut self.moved)
    }

    /// Returns the number of bytes that move at once.
    #[track_caller]
    fn moves(&mut self, bytes: usize) -> usize {
        match self.poll(bytes) {
            Poll::Ready(moved) => moved.expect("no error"),
            Poll::Pending => panic!("waits"),
        }
    }

    #[track_caller]
    fn waits(&mut self) {
        assert!(self.poll(1).is_pending(), "must wait");
    }

    #[track_caller]
    fn fails(&mut self, bytes: usize) -> io::Error {
        match self.poll(bytes) {
            Poll::Ready(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the queue's error behind an I/O error.
    #[track_caller]
    fn rejected(&mut self, bytes: usize) -> Rejected {
        let error = self.fails(bytes);
        assert_eq!(error.kind(), ErrorKind::Other);
        *error
            .get_ref()
            .expect("there is a cause")
            .downcast_ref()
            .expect("the cause is the queue's error")
    }

    fn back(&mut self, bytes: usize) -> Poll<io::Result<usize>> {
        W::back(
            self.it.as_mut(),
            &mut Context::from_waker(&self.waker),
            bytes,
        )
    }

    fn flush(&mut self) -> Poll<io::Result<()>> {
        W::Family::flush(self.it.as_mut(), &mut Context::from_waker(&self.waker))
    }

    fn close(&mut self) -> Poll<io::Result<()>> {
        W::Family::close(self.it.as_mut(), &mut Context::from_waker(&self.waker))
    }
}

/// More than is ever moved.
const ENDLESS: usize = 1 << 40;

mod pace {
    use super::*;

    each_way!(
        bytes_move_at_the_rate_of_permits,
        bytes_never_exceed_the_burst_and_what_has_come_in,
        a_waiting_task_is_polled_once_for_each_piece,
        while_it_waits_nothing_is_polled_and_no_task_is_woken,
        several_in_both_directions_share_one_limit,
    );

    fn bytes_move_at_the_rate_of_permits<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert_eq!((transfer.moves(1_000), transfer.moves(1_000)), (50, 50));
        for piece in 1..=20 {
            assert!(transfer.poll(1_000).is_pending());
            let due = ms(50 * piece);
            assert_eq!(
                advance(&queue, Timestamp::from_nanos(due.as_nanos() - 1)),
                Next::At(due)
            );
            assert!(transfer.poll(1_000).is_pending());
            advance(&queue, due);
            assert_eq!(transfer.moves(1_000), 50);
        }
        assert_eq!((transfer.moved.len(), transfer.wakes()), (1_100, 20));
        assert!(is_pattern(&transfer.moved));
        assert!(device.calls().into_iter().eq([W::CALL(50); 22]));
    }

    fn bytes_never_exceed_the_burst_and_what_has_come_in<W: Way>() {
        for (burst, piece) in [(1, 1), (2, 7), (100, 7), (100, 50), (1_000, 333)] {
            let queue = queue(bucket(burst), u64::MAX);
            let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, piece);
            let piece = u64::from(piece).min(burst / 2).max(1);
            for time in 0..3_000 {
                advance(&queue, ms(time));
                while transfer.poll(11).is_ready() {}
                let moved = transfer.moved.len() as u64;
                assert!(
                    moved <= burst + time,
                    "{moved} of a burst of {burst} after {time} ms"
                );
                assert!(
                    moved + piece > burst + time,
                    "{moved} of a burst of {burst} after {time} ms"
                );
            }
        }
    }

    fn a_waiting_task_is_polled_once_for_each_piece<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, 20);
        let mut polls = 0;
        // Polled only when it is woken, once it has moved a piece and waits for the next.
        for pieces in 5..=100 {
            while {
                polls += 1;
                transfer.poll(20).is_ready()
            } {}
            assert_eq!(
                (transfer.moved.len(), transfer.wakes()),
                (20 * pieces, pieces - 5)
            );
            assert_eq!(
                polls - transfer.wakes(),
                pieces + 1,
                "one more for each wait"
            );
            let Next::At(due) = queue.advance() else {
                panic!("the wait is for time")
            };
            advance(&queue, due);
        }
        // A reader waits together with what it has read.
        assert_eq!(device.calls().len(), 100 + usize::from(reads::<W>()));
    }

    fn while_it_waits_nothing_is_polled_and_no_task_is_woken<W: Way>() {
        let queue = Arc::new(queue(TokenBucket::new(Rate::per_second(1), 2), u64::MAX));
        queue.attend_shared();
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert_eq!((transfer.moves(9), transfer.moves(9)), (1, 1));
        transfer.waits();
        device.calls();
        for time in 0..1_000 {
            queue.clock().run(ms(time));
            assert_eq!((transfer.wakes(), device.calls()), (0, vec![]));
            transfer.waits();
        }
        queue.clock().run(ms(1_000));
        assert_eq!((transfer.wakes(), device.calls()), (1, vec![]));
        assert_eq!(
            (transfer.moves(9), device.calls().len()),
            (1, usize::from(!reads::<W>()))
        );
        assert!(
            queue.clock().armed().iter().all(|at| *at == ms(1_000)),
            "every timer request covers at least a piece"
        );
    }

    /// Returns what two transfers get in 4 s at 1 MiB/s, with different sizes at once.
    fn shares<W: Way>(at_once: [usize; 2]) -> [usize; 2] {
        // Empty at first: otherwise the first one would get the burst.
        let bucket = TokenBucket::builder(Rate::per_second(1 << 20), 32 * 1024)
            .initial(0)
            .build()
            .unwrap();
        let queue = Arc::new(queue(bucket, u64::MAX));
        queue.attend_shared();
        let mut transfers = at_once.map(|buffer| {
            (
                buffer,
                0,
                Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT),
            )
        });
        while queue.clock().now() < Timestamp::from_secs(4) {
            for (buffer, woken, transfer) in &mut transfers {
                if transfer.moved.is_empty() || transfer.wakes() > *woken {
                    *woken = transfer.wakes();
                    while transfer.poll(*buffer).is_ready() {}
                }
            }
            queue
                .clock()
                .run(queue.clock().alarm().expect("both waits are for time"));
        }
        let moved = transfers
            .each_ref()
            .map(|(_, _, transfer)| transfer.moved.len());
        println!("{at_once:?} at once: {moved:?}");
        let all: usize = moved.iter().sum();
        assert!(all <= 4 << 20, "{all}");
        assert!(
            all + 16 * KIB >= 4 << 20,
            "no part of the rate is lost, except that the last piece waits: {all}"
        );
        moved
    }

    const KIB: usize = 1024;

    fn are_even(moved: [usize; 2]) {
        for part in moved {
            assert!(part.abs_diff(2 << 20) <= 5 * (2 << 20) / 100, "{moved:?}");
        }
        assert!(
            moved[0].abs_diff(moved[1]) <= 16 * KIB,
            "by a piece at most: {moved:?}"
        );
    }

    #[test]
    fn a_reader_with_a_large_buffer_gets_no_more_than_one_with_a_small_one() {
        are_even(shares::<FuturesRead>([4 * KIB, 64 * KIB]));
        are_even(shares::<TokioRead>([64 * KIB, 4 * KIB]));
        are_even(shares::<FuturesRead>([100, 16 * KIB]));
    }

    #[test]
    fn writers_get_equal_shares_if_they_write_a_piece_or_more_at_once() {
        are_even(shares::<FuturesWrite>([16 * KIB, 64 * KIB]));
        are_even(shares::<TokioWrite>([17 * KIB, 20 * KIB]));
    }

    #[test]
    fn writers_get_shares_in_proportion_to_what_they_write_at_once() {
        let [small, large] = shares::<FuturesWrite>([4 * KIB, 64 * KIB]);
        assert!(
            (4 * small).abs_diff(large) <= 64 * KIB,
            "{small} and {large}"
        );
    }

    /// Other pieces, other shares.
    fn several_in_both_directions_share_one_limit<W: Way>() {
        let bucket = TokenBucket::builder(Rate::per_second(1_000), 200)
            .initial(0)
            .build()
            .unwrap();
        let queue = queue(bucket, u64::MAX);
        let device = device(ENDLESS);
        let mut there = Transfer::<W, _>::new(&device, &queue, 30);
        let mut back = Transfer::<TokioWrite, _>::new(&device, &queue, 90);
        let mut time = 0;
        while time < 60_000 {
            while there.poll(30).is_ready() {}
            while back.poll(1_000).is_ready() {}
            let Next::At(due) = queue.advance() else {
                panic!("both waits are for time")
            };
            time = due.as_nanos() / 1_000_000;
            advance(&queue, due);
        }
        let (one, three) = (there.moved.len(), back.moved.len());
        assert!(
            three.abs_diff(3 * one) <= 90,
            "by a piece at most: {one} and {three}"
        );
        assert!((one + three) as u64 <= time);
    }
}

mod pieces {
    use super::*;

    each_way!(
        free_permits_are_taken_only_for_bytes_that_move,
        a_piece_is_as_large_as_configured_but_at_most_half_of_the_capacity,
        a_limit_lowered_during_a_wait_makes_the_piece_smaller,
        a_rate_and_burst_lowered_during_a_wait_apply_from_then_on,
        a_raised_limit_makes_the_next_piece_larger,
    );

    fn free_permits_are_taken_only_for_bytes_that_move<W: Way>() {
        let queue = queue(bucket(200), 0);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, 50);
        for (moves, left) in [(20, 180), (7, 173), (50, 123), (50, 73)] {
            assert_eq!(
                (
                    transfer.moves(if moves == 50 { 1_000 } else { moves }),
                    available(&queue)
                ),
                (moves, left)
            );
        }
        assert_eq!(device.calls(), [20, 7, 50, 50].map(W::CALL));
        assert!(is_pattern(&transfer.moved));
    }

    fn a_piece_is_as_large_as_configured_but_at_most_half_of_the_capacity<W: Way>() {
        let device = device(ENDLESS);
        for (burst, piece, moves) in [
            (100_000, DEFAULT, 16 * 1024),
            (100_000, 1_000, 1_000),
            (100_000, u32::MAX, 50_000),
            (32 * 1024, DEFAULT, 16 * 1024),
            (32 * 1024 - 1, DEFAULT, 16 * 1024 - 1),
            (101, 50, 50),
            (99, 50, 49),
            (100, 1, 1),
            (3, DEFAULT, 1),
            (2, DEFAULT, 1),
            (1, DEFAULT, 1),
        ] {
            let queue = queue(bucket(burst), u64::MAX);
            let mut transfer = Transfer::<W, _>::new(&device, &queue, piece);
            assert_eq!(transfer.moves(60_000), moves, "{piece} of {burst}");
            assert_eq!(available(&queue), burst - moves as u64);
        }
        let unlimited = queue(Unlimited, 0);
        let mut transfer = Transfer::<W, _>::new(&device, &unlimited, 50_000);
        assert_eq!(transfer.moves(60_000), 50_000);
    }

    fn a_limit_lowered_during_a_wait_makes_the_piece_smaller<W: Way>() {
        let queue = queue(Concurrency::new(100), u64::MAX);
        let held = now(queue.acquire(100)).unwrap();
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert!(transfer.poll(100).is_pending());
        assert_eq!(queue.counts().permits, 50);
        queue.change(|limit| limit.set_limit(10)).unwrap();
        assert_eq!(transfer.wakes(), 1);
        assert!(transfer.poll(100).is_pending());
        assert_eq!(queue.counts().permits, 10, "the whole capacity");
        drop(held);
        assert_eq!(transfer.wakes(), 2);
        // What was read is paid for in parts, and handed out at once.
        assert_eq!(transfer.moves(100), if reads::<W>() { 50 } else { 10 });
        assert_eq!(transfer.moves(100), 5);
    }

    fn a_rate_and_burst_lowered_during_a_wait_apply_from_then_on<W: Way>() {
        let queue = queue(
            AdjustableBucket::new(Rate::per_second(1_000), 100),
            u64::MAX,
        );
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert_eq!((transfer.moves(100), transfer.moves(100)), (50, 50));
        assert!(transfer.poll(100).is_pending());
        queue
            .change(|bucket| bucket.adjust_at(START, Rate::per_second(10), 20, Carry::Keep))
            .unwrap();
        assert_eq!(transfer.wakes(), 1);
        let mut moved = Vec::new();
        for second in 0..10 {
            advance(&queue, Timestamp::from_secs(second));
            while let Poll::Ready(bytes) = transfer.poll(100) {
                moved.push((second, bytes.unwrap()));
            }
        }
        // A read piece waits for all of its 50 permits; a write, for the whole burst. Then, for
        // half of it.
        let first = if reads::<W>() {
            vec![(5, 50)]
        } else {
            vec![(2, 20), (3, 10), (4, 10), (5, 10)]
        };
        assert_eq!(moved[..first.len()], first);
        assert_eq!(moved[first.len()..], [(6, 10), (7, 10), (8, 10), (9, 10)]);
    }

    fn a_raised_limit_makes_the_next_piece_larger<W: Way>() {
        let queue = queue(Concurrency::new(10), u64::MAX);
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert_eq!(transfer.moves(100), 5);
        queue.change(|limit| limit.set_limit(100)).unwrap();
        assert_eq!(transfer.moves(100), 50);
    }
}

/// A reader waits together with what it has read; a writer keeps its permits.
mod reading {
    use super::*;

    each_way!(futures: FuturesRead,
        data_is_read_by_the_piece_whatever_the_buffer,
        data_that_comes_during_a_wait_stays_until_the_next_read,
        without_data_no_permits_are_spent,
        the_end_and_errors_come_after_the_data_read_before,
        after_a_rejection_the_data_stays,
        a_device_that_panics_loses_nothing,
        closing_the_other_direction_does_not_affect_a_reader,
    );
    each_way!(tokio: TokioRead,
        data_is_read_by_the_piece_whatever_the_buffer,
        data_that_comes_during_a_wait_stays_until_the_next_read,
        without_data_no_permits_are_spent,
        the_end_and_errors_come_after_the_data_read_before,
        after_a_rejection_the_data_stays,
        a_device_that_panics_loses_nothing,
        closing_the_other_direction_does_not_affect_a_reader,
    );

    fn data_is_read_by_the_piece_whatever_the_buffer<W: Way>() {
        let queue = queue(bucket(200), u64::MAX);
        let _held = queue.try_acquire(200).unwrap();
        let device = device(ENDLESS);
        let mut reader = Transfer::<W, _>::new(&device, &queue, 50);
        assert!(reader.poll(20).is_pending());
        assert_eq!(device.calls(), [20, 20, 10].map(W::CALL));
        assert_eq!((queue.counts().waiters, queue.counts().permits), (1, 50));
        advance(&queue, ms(49));
        assert!(reader.poll(20).is_pending());
        advance(&queue, ms(50));
        assert_eq!(
            [20, 100].map(|bytes| reader.moves(bytes)),
            [20, 30],
            "with a larger buffer too"
        );
        assert_eq!(
            (device.calls(), available(&queue), reader.wakes()),
            (vec![], 0, 1)
        );
        assert!(is_pattern(&reader.moved));
    }

    fn data_that_comes_during_a_wait_stays_until_the_next_read<W: Way>() {
        let queue = queue(bucket(200), u64::MAX);
        let _held = queue.try_acquire(200).unwrap();
        let device = device(ENDLESS);
        let mut reader = Transfer::<W, _>::new(&device, &queue, 50);
        device.then(&[Answer::Moves(5), Answer::Moves(6), Answer::Pending]);
        assert!(reader.poll(20).is_pending());
        assert_eq!(
            (device.calls(), queue.counts().permits),
            ([20, 20, 20].map(W::CALL).into(), 11)
        );
        device.state().waker.take().unwrap().wake();
        assert!(reader.poll(20).is_pending());
        assert_eq!(
            (device.calls(), reader.wakes()),
            (vec![], 1),
            "again, by the inner one"
        );
        advance(&queue, ms(11));
        assert_eq!((reader.wakes(), reader.moves(20)), (2, 11));
        assert!(reader.poll(20).is_pending() && is_pattern(&reader.moved));
    }

    fn without_data_no_permits_are_spent<W: Way>() {
        let queue = queue(bucket(100), 0);
        let device = device(ENDLESS);
        let mut reader = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[
            Answer::Pending,
            Answer::Fails,
            Answer::Moves(3),
            Answer::Moves(0),
        ]);
        assert!(reader.poll(100).is_pending());
        device.state().waker.take().unwrap().wake();
        assert_eq!((reader.wakes(), available(&queue)), (1, 100));
        assert_eq!(reader.fails(100).kind(), ErrorKind::BrokenPipe);
        assert_eq!(available(&queue), 100);
        assert_eq!(
            (reader.moves(100), reader.moves(100), available(&queue)),
            (3, 0, 97),
            "nor does the end"
        );
        drop(reader);
        assert_eq!(available(&queue), 97);
    }

    fn the_end_and_errors_come_after_the_data_read_before<W: Way>() {
        for (answer, fails) in [(Answer::Moves(0), false), (Answer::Fails, true)] {
            let queue = queue(bucket(100), u64::MAX);
            let _held = queue.try_acquire(100).unwrap();
            let device = device(ENDLESS);
            let mut reader = Transfer::<W, _>::new(&device, &queue, DEFAULT);
            device.then(&[Answer::Moves(9), answer]);
            assert!(reader.poll(20).is_pending());
            advance(&queue, ms(9));
            assert_eq!(
                (reader.moves(5), reader.moves(5), device.calls().len()),
                (5, 4, 2)
            );
            if fails {
                assert_eq!(reader.fails(5).kind(), ErrorKind::BrokenPipe);
            } else {
                assert_eq!(reader.moves(5), 0);
            }
            assert_eq!(device.calls(), [], "the end was reported once");
            advance(&queue, ms(14));
            assert_eq!(
                (reader.moves(5), device.calls()),
                (5, vec![W::CALL(5)]),
                "and then it continues"
            );
            assert!(is_pattern(&reader.moved));
        }
    }

    fn after_a_rejection_the_data_stays<W: Way>() {
        let queue = queue(bucket(100), 0);
        let held = queue.try_acquire(100).unwrap();
        let device = device(ENDLESS);
        let mut reader = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        let full = Rejected::QueueFull {
            permits: 50,
            retry: Retry::At(ms(50)),
        };
        assert_eq!((reader.rejected(100), device.calls().len()), (full, 1));
        assert_eq!((reader.rejected(100), device.calls().len()), (full, 0));
        drop(held);
        advance(&queue, ms(60));
        assert_eq!(
            (reader.moves(20), available(&queue)),
            (20, 10),
            "all bytes read are paid for"
        );
        queue.close();
        assert_eq!(reader.moves(100), 30);
        assert_eq!(reader.rejected(100), Rejected::Closed { permits: 50 });
        assert!(is_pattern(&reader.moved));
    }

    fn a_device_that_panics_loses_nothing<W: Way>() {
        let queue = queue(bucket(100), 99);
        let held = queue.try_acquire(100).unwrap();
        let device = device(ENDLESS);
        let mut reader = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[Answer::Panics, Answer::Moves(9), Answer::Panics]);
        assert!(catch_unwind(AssertUnwindSafe(|| reader.poll(20))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| reader.poll(20))).is_err());
        assert_eq!(queue.counts().waiters, 0);
        assert!(reader.poll(20).is_pending());
        assert_eq!(queue.counts().permits, 9);
        advance(&queue, ms(9));
        assert_eq!((reader.moves(20), available(&queue)), (9, 0));
        assert!(is_pattern(&reader.moved));
        drop(held);
    }

    fn closing_the_other_direction_does_not_affect_a_reader<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let _held = queue.try_acquire(100).unwrap();
        let mut reader = Transfer::<W, _>::new(&device(30), &queue, DEFAULT);
        assert!(reader.poll(20).is_pending());
        assert!(matches!(reader.close(), Poll::Ready(Ok(()))));
        assert_eq!(queue.counts().waiters, 1);
        advance(&queue, ms(30));
        assert_eq!(
            (reader.moves(20), reader.moves(20), reader.moves(20)),
            (20, 10, 0)
        );
    }
}

mod writing {
    use super::*;

    each_way!(futures: FuturesWrite,
        bytes_that_are_not_accepted_keep_their_permits,
        a_closed_writer_returns_its_permits_and_does_not_wait,
        a_dropped_writer_returns_its_permits,
        permits_are_not_returned_if_the_limiter_accepts_no_refund,
        two_writers_on_a_concurrency_limit_make_progress,
        after_a_rejection_nothing_is_written,
        a_device_that_panics_costs_nothing,
    );
    each_way!(tokio: TokioWrite,
        bytes_that_are_not_accepted_keep_their_permits,
        a_closed_writer_returns_its_permits_and_does_not_wait,
        a_dropped_writer_returns_its_permits,
        permits_are_not_returned_if_the_limiter_accepts_no_refund,
        two_writers_on_a_concurrency_limit_make_progress,
        after_a_rejection_nothing_is_written,
        a_device_that_panics_costs_nothing,
    );

    fn bytes_that_are_not_accepted_keep_their_permits<W: Way>() {
        let queue = queue(bucket(100), 0);
        let device = device(0);
        let mut writer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[
            Answer::Moves(1),
            Answer::Pending,
            Answer::Fails,
            Answer::Moves(9),
        ]);
        assert_eq!(writer.moves(100), 1);
        assert!(writer.poll(100).is_pending());
        assert_eq!(writer.fails(100).kind(), ErrorKind::BrokenPipe);
        assert_eq!(
            (writer.moves(100), writer.moves(30), writer.moves(30)),
            (9, 30, 10)
        );
        assert_eq!(device.calls(), [50, 49, 49, 49, 30, 10].map(W::CALL));
        assert_eq!(
            (available(&queue), writer.moves(100)),
            (50, 50),
            "the bytes were of one piece"
        );
        assert_eq!(device.state().written, writer.moved);
    }

    fn a_closed_writer_returns_its_permits_and_does_not_wait<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let device = device(0);
        let mut writer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[Answer::Moves(30)]);
        assert_eq!((writer.moves(100), available(&queue)), (30, 50));
        assert!(matches!(writer.flush(), Poll::Ready(Ok(()))));
        assert_eq!(available(&queue), 50, "there may be more bytes");
        device.then(&[Answer::Pending, Answer::Fails]);
        assert!(writer.close().is_pending());
        assert_eq!(available(&queue), 70);
        assert!(matches!(writer.close(), Poll::Ready(Err(_))));
        assert!(matches!(writer.close(), Poll::Ready(Ok(()))));
        assert_eq!(
            (available(&queue), writer.moves(100)),
            (70, 50),
            "whatever the data is by then"
        );
        assert!(writer.poll(100).is_pending());
        let behind = Task::waiting(queue.acquire(20));
        assert!(matches!(writer.close(), Poll::Ready(Ok(()))));
        assert_eq!(
            (queue.counts().waiters, permits(behind.outcome())),
            (0, Ok(20))
        );
        assert_eq!(writer.wakes(), 0);
    }

    fn a_dropped_writer_returns_its_permits<W: Way>() {
        let (in_use, by_time) = (
            queue(Concurrency::new(100), u64::MAX),
            queue(bucket(100), u64::MAX),
        );
        let device = device(0);
        let mut one = Transfer::<W, _>::new(&device, &in_use, DEFAULT);
        let mut other = Transfer::<W, _>::new(&device, &by_time, DEFAULT);
        device.then(&[Answer::Moves(30); 2]);
        assert_eq!((one.moves(100), other.moves(100)), (30, 30));
        assert_eq!(available(&by_time), 50);
        let waiting = Task::waiting(by_time.acquire(70));
        drop((one, other));
        assert_eq!(available(&in_use), 100);
        assert_eq!(
            permits(waiting.outcome()),
            Ok(70),
            "and goes to the waiters"
        );
        assert_eq!(available(&by_time), 0);
    }

    fn two_writers_on_a_concurrency_limit_make_progress<W: Way>() {
        let queue = queue(Concurrency::new(100), u64::MAX);
        let mut writers = [(); 2].map(|()| Transfer::<W, _>::new(&device(0), &queue, DEFAULT));
        for _ in 0..10 {
            for writer in &mut writers {
                assert_eq!(writer.moves(100), 50, "used permits are no longer held");
            }
        }
    }

    fn permits_are_not_returned_if_the_limiter_accepts_no_refund<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let device = device(0);
        let mut writer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[Answer::Moves(30)]);
        assert_eq!(writer.moves(100), 30);
        // The bucket no longer knows whose it is.
        assert!(queue.try_acquire(10).is_ok());
        drop(writer);
        assert_eq!(available(&queue), 40);
        queue.clock().set(ms(60));
        assert_eq!(available(&queue), 100, "the rest comes in by time");
    }

    fn after_a_rejection_nothing_is_written<W: Way>() {
        let queue = queue(bucket(100), 0);
        let device = device(0);
        let mut writer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[Answer::Moves(20)]);
        assert_eq!(writer.moves(100), 20);
        queue.close();
        assert_eq!(writer.moves(100), 30, "what is paid for is written");
        assert_eq!(writer.rejected(100), Rejected::Closed { permits: 50 });
        assert_eq!(writer.rejected(20), Rejected::Closed { permits: 20 });
        assert_eq!(device.state().written.len(), 50);
    }

    fn a_device_that_panics_costs_nothing<W: Way>() {
        let queue = queue(bucket(100), 9);
        let device = device(0);
        let mut writer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        device.then(&[Answer::Panics; 4]);
        for _ in 0..4 {
            assert!(catch_unwind(AssertUnwindSafe(|| writer.poll(20))).is_err());
            assert_eq!(available(&queue), 80);
        }
        assert_eq!((writer.moves(20), available(&queue)), (20, 80));
        device.then(&[Answer::Panics]);
        assert!(
            catch_unwind(AssertUnwindSafe(move || writer.poll(20))).is_err(),
            "and is dropped with the writer"
        );
        assert_eq!((available(&queue), queue.counts().waiters), (80, 0));
    }
}

mod passes {
    use super::*;

    each_way!(
        the_other_direction_flushes_and_closes_pass_through,
        empty_buffers_need_no_permits,
        both_directions_can_be_limited,
    );

    fn the_other_direction_flushes_and_closes_pass_through<W: Way>() {
        let queue = queue(bucket(2), 0);
        let device = device(ENDLESS);
        let _held = queue.try_acquire(2).unwrap();
        queue.close();
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert!(matches!(transfer.back(100_000), Poll::Ready(Ok(100_000))));
        assert!(matches!(transfer.flush(), Poll::Ready(Ok(()))));
        assert!(matches!(transfer.close(), Poll::Ready(Ok(()))));
        assert_eq!(device.calls(), [W::BACK(100_000), Call::Flush, Call::Close]);
        device.then(&[Answer::Pending; 3]);
        assert!(
            transfer.back(1).is_pending()
                && transfer.flush().is_pending()
                && transfer.close().is_pending()
        );
        device.then(&[Answer::Fails; 3]);
        assert!(
            matches!(transfer.back(1), Poll::Ready(Err(error)) if error.kind() == ErrorKind::BrokenPipe)
        );
        assert!(
            matches!(transfer.flush(), Poll::Ready(Err(error)) if error.kind() == ErrorKind::BrokenPipe)
        );
        assert!(
            matches!(transfer.close(), Poll::Ready(Err(error)) if error.kind() == ErrorKind::BrokenPipe)
        );
        assert_eq!((queue.counts().full, queue.counts().waiters), (0, 0));
    }

    fn empty_buffers_need_no_permits<W: Way>() {
        let queue = queue(bucket(2), 9);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert_eq!((transfer.moves(0), available(&queue)), (0, 2));
        queue.close();
        let passed = if reads::<W>() {
            vec![]
        } else {
            vec![W::CALL(0); 2]
        };
        assert_eq!((transfer.moves(0), device.calls()), (0, passed));
    }

    fn both_directions_can_be_limited<W: Way>() {
        let (down, up) = (queue(bucket(100), 0), queue(bucket(10), 0));
        let device = device(ENDLESS);
        let both = LimitedWrite::new(LimitedRead::new(device.clone(), &down), &up);
        let mut both = Box::pin(both);
        let mut context = Context::from_waker(Waker::noop());
        let mut moved = Vec::new();
        assert!(matches!(
            read::<W::Family, _>(both.as_mut(), &mut context, 100, &mut moved),
            Poll::Ready(Ok(50))
        ));
        assert_eq!((available(&down), available(&up)), (50, 10));
        let mut moved = Vec::new();
        assert!(matches!(
            write::<W::Family, _>(both.as_mut(), &mut context, 100, &mut moved),
            Poll::Ready(Ok(5))
        ));
        assert_eq!((available(&down), available(&up)), (50, 5));
        assert_eq!(device.calls(), [Call::Read(50), Call::Write(5)]);
    }
}

mod refusals {
    use super::*;

    each_way!(
        a_full_queue_is_an_error_until_it_has_room,
        closing_the_queue_fails_waiting_and_later_transfers,
        an_evicted_transfer_fails_and_may_be_retried,
        in_a_queue_with_less_room_than_a_piece_no_transfer_can_wait,
    );

    fn a_full_queue_is_an_error_until_it_has_room<W: Way>() {
        let queue = queue(bucket(2), 0);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert_eq!((transfer.moves(9), transfer.moves(9)), (1, 1));
        let full = Rejected::QueueFull {
            permits: 1,
            retry: Retry::At(ms(1)),
        };
        assert_eq!((transfer.rejected(1), transfer.rejected(1)), (full, full));
        assert_eq!(device.calls().len(), 2 + usize::from(reads::<W>()));
        queue.clock().set(ms(1));
        assert_eq!((transfer.moves(9), transfer.wakes()), (1, 0));
        assert!(is_pattern(&transfer.moved));
    }

    fn closing_the_queue_fails_waiting_and_later_transfers<W: Way>() {
        let queue = queue(bucket(2), 9);
        let device = device(ENDLESS);
        let mut transfer = Transfer::<W, _>::new(&device, &queue, DEFAULT);
        assert_eq!((transfer.moves(9), transfer.moves(9)), (1, 1));
        transfer.waits();
        queue.close();
        assert_eq!(transfer.wakes(), 1);
        let closed = Rejected::Closed { permits: 1 };
        assert_eq!(
            (transfer.rejected(1), transfer.rejected(1)),
            (closed, closed)
        );
        assert_eq!(
            (transfer.wakes(), device.calls().len()),
            (1, 2 + usize::from(reads::<W>()))
        );
    }

    fn an_evicted_transfer_fails_and_may_be_retried<W: Way>() {
        let queue = queue(bucket(2), 1).with_order(Order::NewestFirst);
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert_eq!((transfer.moves(9), transfer.moves(9)), (1, 1));
        transfer.waits();
        let newer = Task::waiting(queue.acquire(1));
        assert_eq!(transfer.wakes(), 1);
        assert!(matches!(
            transfer.rejected(1),
            Rejected::Evicted { permits: 1, .. }
        ));
        drop(newer);
        transfer.waits();
        advance(&queue, ms(1));
        assert_eq!(transfer.moves(9), 1);
    }

    fn in_a_queue_with_less_room_than_a_piece_no_transfer_can_wait<W: Way>() {
        let queue = queue(bucket(100), 49);
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert_eq!((transfer.moves(100), transfer.moves(100)), (50, 50));
        assert!(matches!(
            transfer.rejected(100),
            Rejected::QueueFull { permits: 50, .. }
        ));
    }
}

mod conserved {
    use super::*;

    each_way!(
        a_waker_that_panics_costs_nothing,
        a_transfer_dropped_while_it_waits_leaves_the_queue,
        a_transfer_dropped_with_an_unclaimed_grant_passes_it_on,
    );

    fn a_waker_that_panics_costs_nothing<W: Way>() {
        let queue = queue(Concurrency::new(100), u64::MAX);
        let held = queue.try_acquire(100).unwrap();
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        transfer.waker = waker(|| panic!("a waker"));
        assert!(transfer.poll(100).is_pending());
        assert!(
            catch_unwind(AssertUnwindSafe(|| drop(held))).is_err(),
            "the releaser gets the panic"
        );
        assert_eq!(available(&queue), 50);
        assert_eq!(transfer.moves(100), 50);
        drop(transfer);
        assert_eq!((available(&queue), queue.counts().waiters), (100, 0));
    }

    fn a_transfer_dropped_while_it_waits_leaves_the_queue<W: Way>() {
        let queue = queue(bucket(100), u64::MAX);
        let _held = queue.try_acquire(100).unwrap();
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        transfer.waits();
        let behind = Task::waiting(queue.acquire(1));
        drop(transfer);
        assert_eq!((queue.counts().waiters, queue.counts().cancelled), (1, 1));
        advance(&queue, ms(1));
        assert_eq!(permits(behind.outcome()), Ok(1));
    }

    fn a_transfer_dropped_with_an_unclaimed_grant_passes_it_on<W: Way>() {
        let queue = Arc::new(queue(bucket(100), u64::MAX));
        queue.attend_shared();
        let _held = queue.try_acquire(100).unwrap();
        let mut transfer = Transfer::<W, _>::new(&device(ENDLESS), &queue, DEFAULT);
        assert!(transfer.poll(100).is_pending());
        let behind = Task::waiting(queue.acquire(50));
        queue.clock().run(ms(50));
        assert_eq!((transfer.wakes(), behind.wakes()), (1, 0));
        drop(transfer);
        assert_eq!((behind.wakes(), available(&queue)), (1, 0));
        assert_eq!(permits(behind.outcome()), Ok(50));
    }
}

mod all_of_it {
    use super::*;

    const BYTES: usize = 10_000;

    /// Polled only when it is woken, once for each piece.
    fn run<F: Future>(queue: &Manual<TokenBucket>, future: F) -> F::Output {
        let mut task = Task::new(future);
        loop {
            let wakes = task.wakes();
            if let Poll::Ready(outcome) = task.poll() {
                // 10,000 bytes, 1,000 of which were available; the last piece is taken whole.
                assert_eq!(queue.clock().now(), ms(9_000));
                assert_eq!(task.wakes(), 18);
                return outcome;
            }
            while task.wakes() == wakes {
                let Next::At(due) = queue.advance() else {
                    panic!("the wait is for time")
                };
                advance(queue, due);
            }
        }
    }

    fn limit() -> Manual<TokenBucket> {
        queue(bucket(1_000), u64::MAX)
    }

    #[test]
    fn bytes_are_read() {
        let queue = limit();
        let mut reader = Box::pin(LimitedRead::new(device(BYTES), &queue));
        let mut all = vec![0; BYTES];
        run(
            &queue,
            futures::AsyncReadExt::read_exact(&mut reader, &mut all),
        )
        .unwrap();
        assert!(is_pattern(&all));
        let queue = limit();
        let mut reader = Box::pin(LimitedRead::new(device(BYTES), &queue));
        let mut all = vec![0; BYTES];
        run(
            &queue,
            tokio_io::AsyncReadExt::read_exact(&mut reader, &mut all),
        )
        .unwrap();
        assert!(is_pattern(&all));
    }

    #[test]
    fn bytes_are_written() {
        let all: Vec<u8> = (0..BYTES).map(pattern).collect();
        let (queue, to) = (limit(), device(0));
        let mut writer = Box::pin(LimitedWrite::new(to.clone(), &queue));
        run(&queue, futures::AsyncWriteExt::write_all(&mut writer, &all)).unwrap();
        assert_eq!(to.state().written, all);
        let (queue, to) = (limit(), device(0));
        let mut writer = Box::pin(LimitedWrite::new(to.clone(), &queue));
        run(
            &queue,
            tokio_io::AsyncWriteExt::write_all(&mut writer, &all),
        )
        .unwrap();
        assert_eq!(to.state().written, all);
    }

    #[test]
    fn bytes_are_copied() {
        let (queue, to) = (limit(), device(0));
        let up = support::queue(bucket(2_000), u64::MAX);
        let from = Box::pin(LimitedRead::new(device(BYTES), &queue));
        let mut writer = Box::pin(LimitedWrite::new(to.clone(), &up));
        let mut copy = Task::new(futures::copy(from, &mut writer));
        loop {
            match copy.poll() {
                Poll::Ready(bytes) => break assert_eq!(bytes.unwrap(), BYTES as u64),
                Poll::Pending => {
                    let due = [queue.advance(), up.advance()]
                        .into_iter()
                        .filter_map(|next| match next {
                            Next::At(due) => Some(due),
                            _ => None,
                        });
                    let due = due.min().expect("the wait is for time");
                    advance(&queue, due);
                    advance(&up, due);
                }
            }
        }
        assert!(is_pattern(&to.state().written));
    }
}

mod vectored {
    use super::*;

    #[test]
    fn the_first_buffer_that_is_not_empty_counts() {
        let queue = queue(bucket(11), 0);
        let device = device(ENDLESS);
        let mut context = Context::from_waker(Waker::noop());
        let (mut first, mut second) = ([0; 9], [0; 9]);
        let mut buffers = [&mut [][..], &mut first, &mut second].map(IoSliceMut::new);
        let mut reader = Box::pin(LimitedRead::new(device.clone(), &queue));
        let read =
            futures::AsyncRead::poll_read_vectored(reader.as_mut(), &mut context, &mut buffers);
        assert!(matches!(read, Poll::Ready(Ok(5))));
        let mut writer = Box::pin(LimitedWrite::new(device.clone(), &queue));
        let bytes = [&[][..], &[1; 3], &[2; 2]].map(IoSlice::new);
        let written =
            futures::AsyncWrite::poll_write_vectored(writer.as_mut(), &mut context, &bytes);
        assert!(matches!(written, Poll::Ready(Ok(3))));
        let written =
            tokio_io::AsyncWrite::poll_write_vectored(writer.as_mut(), &mut context, &bytes);
        assert!(matches!(written, Poll::Ready(Ok(3))));
        assert!(!tokio_io::AsyncWrite::is_write_vectored(&*writer));
        assert_eq!(
            device.calls(),
            [Call::Read(5), Call::Write(3), Call::Write(3)]
        );
        assert_eq!(available(&queue), 0);
    }

    #[test]
    fn the_unlimited_direction_passes_unchanged() {
        let queue = queue(bucket(10), 0);
        let device = device(ENDLESS);
        let mut context = Context::from_waker(Waker::noop());
        let mut bytes = [[0; 9]; 2];
        let mut buffers = bytes.each_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut writer = Box::pin(LimitedWrite::new(device.clone(), &queue));
        let read =
            futures::AsyncRead::poll_read_vectored(writer.as_mut(), &mut context, &mut buffers);
        assert!(matches!(read, Poll::Ready(Ok(18))));
        let mut reader = Box::pin(LimitedRead::new(device.clone(), &queue));
        let bytes = bytes.each_ref().map(|bytes| IoSlice::new(bytes));
        let written =
            futures::AsyncWrite::poll_write_vectored(reader.as_mut(), &mut context, &bytes);
        assert!(matches!(written, Poll::Ready(Ok(18))));
        let written =
            tokio_io::AsyncWrite::poll_write_vectored(reader.as_mut(), &mut context, &bytes);
        assert!(matches!(written, Poll::Ready(Ok(18))));
        assert!(tokio_io::AsyncWrite::is_write_vectored(&*reader));
        assert_eq!(
            device.calls(),
            [Call::ReadVectored, Call::WriteVectored, Call::WriteVectored]
        );
        assert_eq!(available(&queue), 10);
    }

    #[test]
    fn a_tokio_buffer_keeps_its_content() {
        let queue = queue(bucket(10), 0);
        let mut reader = Box::pin(LimitedRead::new(device(ENDLESS), &queue));
        let mut bytes = [0xEE; 20];
        let mut buffer = tokio_io::ReadBuf::new(&mut bytes);
        buffer.put_slice(&[0xAA; 4]);
        let mut context = Context::from_waker(Waker::noop());
        let read = tokio_io::AsyncRead::poll_read(reader.as_mut(), &mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Ok(()))));
        assert_eq!(buffer.filled(), [0xAA, 0xAA, 0xAA, 0xAA, 0, 1, 2, 3, 4]);
        let read = tokio_io::AsyncRead::poll_read(reader.as_mut(), &mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Ok(()))));
        assert_eq!(buffer.filled()[4..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        buffer.clear();
        buffer.advance(20);
        let read = tokio_io::AsyncRead::poll_read(reader.as_mut(), &mut context, &mut buffer);
        assert!(
            matches!(read, Poll::Ready(Ok(()))),
            "a full one needs no permits"
        );
    }
}

mod pointers {
    use futures_util::AsyncReadExt as _;

    use super::*;

    #[test]
    fn queues_in_a_static_in_an_arc_and_of_a_key_work() {
        static QUEUE: Manual = Manual::new(Concurrency::new(10), Hand::new(), 0);
        let mut all = Vec::new();
        let mut reader = Box::pin(LimitedRead::new(device(100), &QUEUE));
        now(reader.read_to_end(&mut all)).unwrap();
        assert!(all.len() == 100 && is_pattern(&all));
        drop(reader);
        let shared = Arc::new(queue(Concurrency::new(10), 0));
        let mut reader = Box::pin(LimitedRead::new(device(100), Arc::clone(&shared)));
        now(reader.read_to_end(&mut Vec::new())).unwrap();
        drop(reader);
        assert_eq!(
            (
                available(&QUEUE),
                available(&shared),
                Arc::strong_count(&shared)
            ),
            (10, 10, 1)
        );
        let table = Keyed::new(ConcurrencyRules::new(10), Line::for_keys(100), Seed::new());
        let keyed = Arc::new(KeyedQueue::new(table, Hand::new(), 0));
        let held = keyed.try_acquire("bob", 10).unwrap();
        let of = |key| {
            Box::pin(LimitedRead::new(
                device(100),
                QueueKey::new(Arc::clone(&keyed), key),
            ))
        };
        assert_eq!(now(of("alice").read_to_end(&mut all)).unwrap(), 100);
        assert!(now(of("bob").read_to_end(&mut all)).is_err());
        drop(held);
        assert_eq!(now(of("bob").read_to_end(&mut all)).unwrap(), 100);
        assert!(keyed.try_acquire("alice", 10).is_ok() && keyed.try_acquire("bob", 10).is_ok());
    }

    #[test]
    fn the_inner_reader_and_writer_can_be_reached() {
        let queue = queue(Concurrency::new(1), 9);
        let _held = queue.try_acquire(1).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut reader = Box::pin(LimitedRead::new(device(5), &queue));
        let mut buffer = [0; 9];
        assert!(Futures::read(reader.as_mut(), &mut context, &mut buffer).is_pending());
        assert_eq!(
            (reader.waiting(), reader.get_ref().state().holds),
            (&[0][..], 4)
        );
        let past = Futures::read(reader.as_mut().get_pin_mut(), &mut context, &mut buffer);
        assert!(matches!(past, Poll::Ready(Ok(4))));
        let mut writer = Box::pin(LimitedWrite::new(device(5), &queue));
        let past = Futures::write(writer.as_mut().get_pin_mut(), &mut context, &[7; 9]);
        assert!(matches!(past, Poll::Ready(Ok(9))));
        assert_eq!(writer.get_ref().state().written, [7; 9]);
    }

    #[test]
    fn adapters_show_the_inner_one_and_can_be_sent() {
        fn is_send<T: Send>(it: T) -> T {
            it
        }
        let queue = Arc::new(queue(Concurrency::new(10), 0));
        let reader = is_send(LimitedRead::new([1], Arc::clone(&queue)));
        let writer = is_send(LimitedWrite::new([1], queue));
        assert_eq!(format!("{reader:?}"), "LimitedRead { inner: [1], .. }");
        assert_eq!(format!("{writer:?}"), "LimitedWrite { inner: [1], .. }");
    }
}

#[test]
fn a_reader_loses_no_bytes_if_a_waker_panics_while_its_permits_are_returned() {
    let queue = queue(Concurrency::new(100), 99);
    let held = queue.try_acquire(10).unwrap();
    let mut drained = Task::new(queue.drained());
    assert!(drained.poll_with(&waker(|| panic!("a waker"))).is_pending());
    Queue::release_later(held);
    // What is read at once returns last.
    let mut reader = Box::pin(LimitedRead::new(&b"0123456789"[..], &queue));
    let mut read = || {
        let (mut context, mut buffer) = (Context::from_waker(Waker::noop()), [0; 4]);
        let outcome =
            futures_util::AsyncRead::poll_read(reader.as_mut(), &mut context, &mut buffer);
        (matches!(outcome, Poll::Ready(Ok(4))), buffer)
    };
    assert!(catch_unwind(AssertUnwindSafe(&mut read)).is_err());
    assert_eq!(read(), (true, *b"0123"));
}
