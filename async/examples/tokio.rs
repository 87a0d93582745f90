//! Tasks of tokio wait in order, for a rate and for a number at once.
//!
//! ```sh
//! cargo run -p portcullis-async --features tokio --example tokio
//! ```

use portcullis_async::{Queue, Rejected, TokioTimer};
use portcullis_core::{AllOf, Concurrency, Rate, TokenBucket};

#[tokio::main]
async fn main() -> Result<(), Rejected> {
    // 20 per second and 4 at once, decided together. Up to 100 requests wait, in order.
    let limits = AllOf::new((
        TokenBucket::new(Rate::per_second(20), 1),
        Concurrency::new(4),
    ));
    let downloads = Queue::new(limits, TokioTimer::new(), 100).shared();

    for page in 1..=10 {
        let _lease = downloads.acquire(1).await?;
        println!("page {page}");
    }
    Ok(())
}
