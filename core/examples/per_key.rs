//! A limit for each user, in a table of a fixed size.
//!
//! ```sh
//! cargo run -p portcullis-core --features std --example per_key
//! ```

use portcullis_core::{Clocked, Keyed, MonotonicClock, Rate, TokenBucket};

fn main() {
    // 10,000 users can be in use at once. A flood of new keys resets no limit.
    let per_user = TokenBucket::new(Rate::per_minute(60), 3);
    let users = Clocked::new(Keyed::for_keys(per_user, 10_000), MonotonicClock::new());

    // `allow` is for rates. Permits at once are held, so a `Concurrency` has none. Keep its lease:
    // `let Ok(_lease) = WORKERS.try_acquire(1) else { return };`
    for user in ["alice", "alice", "alice", "alice", "bob"] {
        println!("{user}: {}", users.key(user).allow(1));
    }
}
