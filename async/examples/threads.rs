//! Threads wait in order, without an executor. One of them gives up after a time.
//!
//! ```sh
//! cargo run -p portcullis-async --example threads
//! ```

use core::time::Duration;
use std::thread;

use portcullis_async::{Queue, Rejected, ThreadTimer};
use portcullis_core::Concurrency;

fn main() -> Result<(), Rejected> {
    // Two connections. Up to 10 threads wait for one.
    let connections = Queue::new(Concurrency::new(2), ThreadTimer::new(), 10).shared();
    thread::scope(|scope| {
        let work = |number| {
            let lease = connections.blocking_acquire(1)?;
            println!("thread {number} has a connection");
            thread::sleep(Duration::from_millis(50));
            drop(lease);
            Ok(())
        };
        let threads: Vec<_> = (1..=5)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;

    let both = connections.blocking_acquire(2)?;
    let third = connections
        .acquire(1)
        .within(Duration::from_millis(20))
        .block();
    println!("both are in use: {}", third.is_err());
    drop(both);
    Ok(())
}
