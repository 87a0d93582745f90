//! Ids of leases that come from elsewhere.

use portcullis_core::leases::{LeaseId, StaleId};
use portcullis_core::{Concurrency, LeasePool, Timestamp};

const SLOTS: usize = 4;
const LIMIT: u32 = 9;

/// Claims, releases and sweeps, in 10 bytes each: what to do, a number of permits, and an id. An id
/// that no claim has returned is stale, and so is one that was released.
pub fn lease_ids(data: &[u8]) {
    let pool: LeasePool<_, SLOTS> = LeasePool::new(Concurrency::new(LIMIT));
    let mut held: Vec<(LeaseId, u32, u64)> = Vec::new();
    for (second, step) in (1..).zip(data.chunks_exact(10).take(256)) {
        let now = Timestamp::from_secs(second);
        let number = u64::from_le_bytes([
            step[2], step[3], step[4], step[5], step[6], step[7], step[8], step[9],
        ]);
        let permits = u32::from(step[1] % 4);
        match step[0] % 4 {
            0 => {
                let until = second + number % 8;
                if let Ok(id) = pool.claim_at(now, permits, Some(Timestamp::from_secs(until))) {
                    assert!(held.iter().all(|(other, ..)| *other != id), "{id:?} twice");
                    held.push((id, permits, until));
                }
            }
            1 if !held.is_empty() => {
                let (id, permits, _) = held.swap_remove(step[1] as usize % held.len());
                assert_eq!(pool.release(id), Ok(permits));
                assert_eq!(pool.release(id), Err(StaleId));
            }
            2 => {
                let ended = held.extract_if(.., |(.., until)| *until <= second);
                let ended: u64 = ended.map(|(_, permits, _)| u64::from(permits)).sum();
                assert_eq!(pool.sweep(now), ended);
            }
            _ => {
                let id = LeaseId::from_bits(number);
                let at = held.iter().position(|(other, ..)| *other == id);
                let expected = at.map(|at| held.swap_remove(at).1).ok_or(StaleId);
                assert_eq!(pool.release(id), expected, "{number}");
            }
        }
        let permits: u32 = held.iter().map(|(_, permits, _)| permits).sum();
        assert!(permits <= LIMIT && held.len() <= SLOTS);
        let all = (pool.limiter().in_use(), pool.leases());
        assert_eq!(all, (permits, held.len()));
    }
}
