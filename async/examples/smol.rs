//! Tasks of smol wait in order. The queue is a static, and the timer is that of smol.
//!
//! ```sh
//! cargo run -p portcullis-async --features async-io --example smol
//! ```

use portcullis_async::{AsyncIoTimer, Queue, Rejected};
use portcullis_core::{Rate, TokenBucket};

// 20 per second. Up to 100 requests wait.
static MAILS: Queue<TokenBucket, AsyncIoTimer> = Queue::new(
    TokenBucket::new(Rate::per_second(20), 1),
    AsyncIoTimer::new(),
    100,
);

fn main() -> Result<(), Rejected> {
    // From here on the timer grants the permits, whichever task is polled.
    MAILS.attend();
    smol::block_on(async {
        let send = |mail| async move {
            // The permits of a rate return by time alone, so the lease need not be kept.
            let _ = MAILS.acquire(1).await?;
            println!("mail {mail} is sent");
            Ok::<_, Rejected>(())
        };
        let tasks: Vec<_> = (1..=5).map(|mail| smol::spawn(send(mail))).collect();
        for task in tasks {
            task.await?;
        }
        Ok(())
    })
}
