//! Instruction counts of waits, in a separate program, so that they and the limiters do not affect
//! each other's code generation.

use core::hint::black_box;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use gungraun::{library_benchmark, library_benchmark_group, main};
use portcullis_async::{Acquire, Queue};
use portcullis_core::{Concurrency, Limiter, Timeless};

/// Operations per bench.
const OPERATIONS: u64 = 1_000;

fn all_granted(granted: u64) {
    assert_eq!(granted, OPERATIONS);
}

#[inline(always)]
fn count(operation: impl FnMut(u64) -> bool) -> u64 {
    (0..OPERATIONS).map(operation).map(u64::from).sum()
}

/// A queue around a limit of one permit.
fn queue() -> &'static Queue<Concurrency, Timeless> {
    Box::leak(Box::new(Queue::new(
        Concurrency::new(1),
        Timeless,
        u64::MAX,
    )))
}

type Wait = Pin<Box<Acquire<&'static Queue<Concurrency, Timeless>>>>;

/// Waits that arrive while the permit is held.
fn crowd_to_come() -> (&'static Queue<Concurrency, Timeless>, Vec<Wait>) {
    let queue = queue();
    let waits = (0..=OPERATIONS)
        .map(|_| Box::pin(queue.acquire(1)))
        .collect();
    assert!(queue.try_acquire(1).expect("free").forget() == 1);
    (queue, waits)
}

/// Waits behind a waiter for the held permit.
fn crowd() -> (&'static Queue<Concurrency, Timeless>, Vec<Wait>) {
    let (queue, mut waits) = crowd_to_come();
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        waits
            .iter_mut()
            .all(|wait| wait.as_mut().poll(&mut context).is_pending())
    );
    (queue, waits)
}

// No waiters.
#[library_benchmark(teardown = all_granted)]
#[bench::queue(queue())]
fn acquire(queue: &'static Queue<Concurrency, Timeless>) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    count(|_| {
        let lease = pin!(black_box(queue).acquire(black_box(1))).poll(&mut context);
        matches!(black_box(lease), Poll::Ready(Ok(_)))
    })
}

// A release grants to each waiter, which claims the permit.
#[library_benchmark(teardown = all_granted)]
#[bench::queue(crowd())]
fn hand_over((queue, waits): (&'static Queue<Concurrency, Timeless>, Vec<Wait>)) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let waits = waits.leak();
    count(|i| {
        black_box(queue).release(black_box(1));
        match waits[i as usize].as_mut().poll(&mut context) {
            Poll::Ready(Ok(lease)) => lease.forget() == 1,
            _ => false,
        }
    })
}

// One waiter at a time: it finds an empty list, is granted by a release, and claims the permit.
#[library_benchmark(teardown = all_granted)]
#[bench::queue(crowd_to_come())]
fn take_turns((queue, waits): (&'static Queue<Concurrency, Timeless>, Vec<Wait>)) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let waits = waits.leak();
    count(|i| {
        let wait = &mut waits[i as usize];
        let waited = wait.as_mut().poll(&mut context).is_pending();
        black_box(queue).release(black_box(1));
        match wait.as_mut().poll(&mut context) {
            Poll::Ready(Ok(lease)) => waited && lease.forget() == 1,
            _ => false,
        }
    })
}

// A wait that arrives behind others, and is cancelled.
#[library_benchmark(teardown = all_granted)]
#[bench::queue(crowd())]
fn give_up((queue, waits): (&'static Queue<Concurrency, Timeless>, Vec<Wait>)) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let _ = waits.leak();
    count(|_| {
        pin!(black_box(queue).acquire(black_box(1)))
            .poll(&mut context)
            .is_pending()
    })
}

library_benchmark_group!(
    name = waits,
    benchmarks = [acquire, hand_over, take_turns, give_up]
);
main!(library_benchmark_groups = waits);
