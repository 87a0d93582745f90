//! The budgets: how long an operation may take at most, compared with the floor or with a peer in
//! the same run.

/// The numbers of a budget are compared with this tolerance.
const TOLERANCE: f64 = 1.05;

/// What a row is compared with.
#[derive(Clone, Copy)]
pub(crate) enum Against<'a> {
    Floor,
    Peer(&'a str),
}

/// Returns the budget of a row: the largest ratio, if there is one.
pub(crate) fn of(row: &str, threads: usize, against: Against<'_>) -> Option<f64> {
    match against {
        Against::Floor => FLOOR
            .iter()
            .find(|budget| (budget.0, 1) == (row, threads))
            .map(|budget| budget.1),
        Against::Peer(peer) => PEERS
            .iter()
            .find(|budget| (budget.0, budget.1, budget.2) == (row, threads, peer))
            .map(|budget| budget.3),
    }
}

/// Whether a ratio is within its budget.
pub(crate) fn is_met(ratio: f64, budget: f64) -> bool {
    ratio <= budget * TOLERANCE
}

/// All budgets with a peer: row, threads, peer and ratio.
pub(crate) const PEERS: &[(&str, usize, &str, f64)] = &[
    ("token_bucket.allow", 1, "governor-fake-clock", 1.05),
    ("token_bucket.allow", 1, "governor", 0.62),
    ("token_bucket.allow", 2, "governor-fake-clock", 1.0),
    ("token_bucket.deny", 1, "governor", 0.18),
    ("token_bucket.clocked", 1, "governor", 0.9),
    ("token_bucket.clocked", 1, "ratelimit", 0.5),
    ("token_bucket.clocked_std", 1, "ratelimit", 0.4),
    ("token_bucket.clocked_std", 1, "governor", 1.1),
    ("adjustable_bucket.allow", 1, "token-bucket", 1.5),
    ("adjustable_window.allow", 1, "fixed-window", 1.5),
    ("concurrency.cycle", 1, "tokio", 0.5),
    ("concurrency.cycle", 1, "async-lock", 0.5),
    ("concurrency.cycle", 1, "maitake-sync", 0.5),
    ("adaptive.cycle", 1, "concurrency.cycle", 1.25),
    ("adaptive.cycle", 1, "tokio", 0.7),
    ("slice.allow", 1, "governor", 0.08),
    ("slice.allow", 2, "governor", 0.03),
    ("shm_bucket.allow", 1, "token-bucket", 1.1),
    ("striped_bucket.allow", 2, "governor", 0.15),
    ("keyed.uniform_1k", 1, "governor-keyed", 0.5),
    ("keyed.uniform_1k", 1, "governor-same-hash", 0.6),
    ("keyed.uniform_1k", 1, "hash-and-exchange", 1.6),
    ("keyed.zipf_1k", 1, "governor-keyed", 0.5),
    ("keyed.zipf_1k", 1, "governor-same-hash", 0.6),
    ("keyed.zipf_1k", 1, "hash-and-exchange", 1.6),
    ("keyed.uniform_1m", 1, "governor-keyed", 0.6),
    ("keyed3.uniform_1m", 1, "keyed", 1.35),
    ("keyed3.uniform_1m", 1, "governor-keyed", 0.25),
    ("async.ready", 1, "tokio", 0.4),
    ("async.ready_rate_std", 1, "leaky-bucket", 0.5),
    ("async.handoff_2", 1, "tokio", 0.75),
    ("async.handoff_2", 1, "maitake-sync", 1.0),
    ("async.handoff_64", 1, "tokio", 0.6),
    ("async.handoff_64", 1, "maitake-sync", 0.75),
    ("async.cancel_10", 1, "tokio", 0.8),
    ("async.cancel_10", 1, "maitake-sync", 1.1),
    ("async.cancel_10k", 1, "tokio", 0.8),
    ("async.cancel_10k", 1, "maitake-sync", 1.1),
    ("blocking.handoff", 2, "std-mutex-condvar", 0.9),
    ("channel.cycle", 1, "async-channel", 1.25),
    ("channel.cycle", 1, "tokio-mpsc", 1.25),
    ("policy.match_1k", 1, "globset", 0.6),
    ("policy.decide", 1, "limitador", 0.1),
    ("http.allow", 1, "tower-governor", 0.5),
    ("http.deny", 1, "http.allow", 0.5),
    ("http.deny", 1, "tower-governor", 0.02),
    ("http.deny_request", 1, "allowed", 0.5),
];

/// All budgets with the floor, of rows with one thread: row and ratio.
pub(crate) const FLOOR: &[(&str, f64)] = &[
    ("token_bucket.allow", 1.15),
    ("token_bucket.deny", 0.35),
    ("fixed_window.allow", 1.2),
    ("sliding_window.allow", 2.1),
    ("concurrency.cycle", 2.05),
    ("lease_pool.cycle", 4.6),
    ("all_of_3.allow", 3.9),
    ("slice.allow", 0.15),
    ("striped_bucket.allow", 1.4),
    ("async.ready", 2.4),
];
