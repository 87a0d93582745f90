//! One limiter in a static, without a lock and without an allocation.
//!
//! ```sh
//! cargo run -p portcullis-core --features std --example hello
//! ```

use portcullis_core::{Clock, Clocked, MonotonicClock, Rate, TokenBucket};

// 10 per second, and up to 3 at once: so 13 in the first second. Invalid settings do not compile.
static LIMIT: Clocked<TokenBucket, MonotonicClock> = Clocked::new(
    TokenBucket::new(Rate::per_second(10), 3),
    MonotonicClock::new(),
);

fn main() {
    for request in 1..=5 {
        match LIMIT.try_acquire(1) {
            Ok(_) => println!("{request}: served"),
            Err(denied) => {
                let wait = denied.retry(LIMIT.limiter()).wait_from(LIMIT.clock().now());
                println!("{request}: {denied}; retry in {wait:?}");
            }
        }
    }
}
