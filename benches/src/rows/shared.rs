//! Limiters in memory that processes share, compared with those in the memory of one process.

use portcullis_core::{Rate, TokenBucket};
use portcullis_shm::SharedFile;

use super::token_bucket::{PLENTY, allow_ours, granting_by};
use crate::measure::{Contest, Contestant, Expected};

pub(crate) fn rows() -> Vec<Contest> {
    vec![allow(1), allow(2)]
}

/// Grants at explicit times, as in `token_bucket.allow`.
fn allow(threads: usize) -> Contest {
    Contest {
        row: "shm_bucket.allow",
        threads,
        expected: Expected::Granted,
        ours: ours(threads),
        peers: peers(),
    }
}

/// Each thread has the file mapped at an address of its own, as a process has.
pub(super) fn ours(threads: usize) -> Contestant {
    let name = format!("versus-{}-{threads}", std::process::id());
    let file = SharedFile::named(&name).expect("a name");
    let open = || {
        let bucket = TokenBucket::new(Rate::per_second(PLENTY), 1 << 30);
        file.limiter(bucket).expect("a file in memory")
    };
    let buckets: Vec<_> = (0..threads).map(|_| open()).collect();
    // The mappings keep what they need. So nothing remains of a run that is interrupted.
    std::fs::remove_file(file.path()).expect("the file");
    granting_by(move |thread, now| buckets[thread].try_acquire_at(now, 1).is_ok())
}

pub(super) fn peers() -> Vec<Contestant> {
    vec![allow_ours().named("token-bucket")]
}
