//! Two processes with one limit. Run it in two terminals at once: together they are granted 5
//! requests per second.
//!
//! ```sh
//! cargo run -p portcullis-shm --example two_processes
//! ```

use core::error::Error;
use core::time::Duration;
use std::thread;

use portcullis_core::{Rate, TokenBucket};
use portcullis_shm::SharedFile;

fn main() -> Result<(), Box<dyn Error>> {
    // The first process creates the file, and all others open it.
    let file = SharedFile::named("two-processes")?;
    let limit = file.limiter(TokenBucket::new(Rate::per_second(5), 5))?;
    for nth in 1..=30 {
        match limit.try_acquire(1) {
            Ok(_) => println!("request {nth}: granted"),
            Err(denied) => println!("request {nth}: {denied}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
    // The last process removes the file.
    drop(limit);
    if let Err(error) = file.remove() {
        println!("left to the other process: {error}");
    }
    Ok(())
}
