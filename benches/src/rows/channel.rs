//! Channels: the cost of an item's permits and place, compared with a plain channel.

use core::num::NonZero;

use futures_executor::block_on;
use portcullis_async::channel::channel;
use portcullis_async::{PerItem, Queue};
use portcullis_core::{Concurrency, Timeless};

use crate::measure::{Contest, Contestant, Expected};

/// The number of places, and of permits.
const ROOM: u32 = 64;

pub(crate) fn rows() -> Vec<Contest> {
    let row = |row, threads| Contest {
        row,
        threads,
        expected: Expected::Granted,
        ours: ours(threads),
        peers: vec![async_channel(threads), tokio_mpsc(threads)],
    };
    vec![row("channel.cycle", 1), row("channel.pass", 2)]
}

/// A channel in which each item holds a permit of a limit.
fn ours(threads: usize) -> Contestant {
    let queue: &'static _ = Box::leak(Box::new(Queue::new(
        Concurrency::new(ROOM),
        Timeless,
        u64::MAX,
    )));
    let (sender, receiver) = channel(queue, NonZero::new(ROOM).expect("some"), PerItem);
    passing(
        "portcullis",
        threads,
        async move |item: u64| sender.send(item).await.is_ok(),
        async move || receiver.recv().await,
    )
}

fn async_channel(threads: usize) -> Contestant {
    let (sender, receiver) = async_channel::bounded(ROOM as usize);
    passing(
        "async-channel",
        threads,
        async move |item: u64| sender.send(item).await.is_ok(),
        async move || receiver.recv().await.ok(),
    )
}

/// A channel with only one reader. Here it is in a lock, which is never contended.
fn tokio_mpsc(threads: usize) -> Contestant {
    let (sender, receiver) = tokio::sync::mpsc::channel(ROOM as usize);
    let receiver = parking_lot::Mutex::new(receiver);
    passing(
        "tokio-mpsc",
        threads,
        async move |item: u64| sender.send(item).await.is_ok(),
        async move || core::future::poll_fn(|context| receiver.lock().poll_recv(context)).await,
    )
}

/// Items that one thread sends and receives, or that one thread sends and another receives.
fn passing(
    name: &'static str,
    threads: usize,
    send: impl AsyncFn(u64) -> bool + Sync + 'static,
    receive: impl AsyncFn() -> Option<u64> + Sync + 'static,
) -> Contestant {
    Contestant::new(name, move |thread, operations| {
        let (sends, receives) = (thread == 0, thread + 1 == threads);
        block_on(async {
            let mut passed = 0;
            for item in 0..operations {
                let is_sent = !sends || send(item).await;
                passed += u64::from(is_sent && (!receives || receive().await == Some(item)));
            }
            passed
        })
    })
}
