//! Limiters in memory that processes share, compared with those in the memory of one process.

use portcullis_core::{Rate, TokenBucket};
use portcullis_shm::SharedFile;

use super::token_bucket::{PLENTY, allow_ours, granting_by};
use crate::measure::{Contest, Expected};

pub(crate) fn rows() -> Vec<Contest> {
    vec![allow(1), allow(2)]
}

/// Grants at explicit times, as in `token_bucket.allow`. Each thread has the file mapped at an
/// address of its own, as a process has.
fn allow(threads: usize) -> Contest {
    let name = format!("versus-{}-{threads}", std::process::id());
    let file = SharedFile::named(&name).expect("a name");
    let open = || {
        let bucket = TokenBucket::new(Rate::per_second(PLENTY), 1 << 30);
        file.limiter(bucket).expect("a file in memory")
    };
    let buckets = [open(), open()];
    // The mappings keep what they need. So nothing remains of a run that is interrupted.
    std::fs::remove_file(file.path()).expect("the file");
    Contest {
        row: "shm_bucket.allow",
        threads,
        expected: Expected::Granted,
        ours: granting_by(move |thread, now| buckets[thread].try_acquire_at(now, 1).is_ok()),
        peers: vec![allow_ours().named("token-bucket")],
    }
}
