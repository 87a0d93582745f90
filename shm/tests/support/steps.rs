//! What must hold after a process was killed, or stopped and overtaken, at an instruction of each
//! operation. The others are handles of this process: each is a member of its own, and gets the
//! number of one that was dropped.

use core::mem::forget;
use core::time::Duration;
use std::thread::sleep;
use std::time::Instant;

use portcullis_core::keyed::TokenBucketRules;
use portcullis_core::leases::LeaseId;
use portcullis_core::{Denied, Rate, TokenBucket};
use portcullis_shm::{OpenError, SharedConcurrency, SharedFile, SharedLeasePool, SharedTable};

use super::support_stepped::Fate::{self, Killed, Stopped};
use super::support_stepped::Stepped;

/// Does an operation in a file that does not exist, up to an instruction, lets a process meet its
/// fate there, and checks what must hold. Returns how many instructions it did; `None` if the
/// system forbids it.
type Case = fn(&SharedFile, Fate, usize) -> Option<usize>;

pub(crate) const CASES: [(&str, Case); 13] = [
    ("recover", recover),
    ("take_over", take_over),
    ("take", take),
    ("renew", renew),
    ("pool_recover", pool_recover),
    ("pool_claim", pool_claim),
    ("pool_renew", pool_renew),
    ("pool_adopt", pool_adopt),
    ("pool_release", pool_release),
    ("limiter_take", limiter_take),
    ("limiter_change", limiter_change),
    ("table_first_grant", table_first_grant),
    ("table_change", table_change),
];

const MINUTE: Option<Duration> = Some(Duration::from_mins(1));
const MOMENT: Option<Duration> = Some(Duration::from_millis(1));
/// For how long a process looks for dead ones at most once.
const LOOK: Duration = Duration::from_millis(11);

const AT_ONCE: u32 = 3;

fn permits(file: &SharedFile) -> SharedConcurrency {
    file.concurrency(AT_ONCE, None).unwrap()
}

/// A process takes all permits and dies with them. The next one gets its number.
fn die_with_all_permits(file: &SharedFile) {
    let limit = permits(file);
    forget(limit.try_acquire(AT_ONCE).unwrap());
}

fn overtaken(
    file: &SharedFile,
    fate: Fate,
    at: usize,
    run: fn(&SharedConcurrency) -> u8,
) -> Option<usize> {
    // The first member, so that the dead process and the next one are the second.
    let mut process = Stepped::start(|| permits(file), |limit| run(limit))?;
    die_with_all_permits(file);
    let steps = process.step(at);
    let next = permits(file);
    // The stopped process may have taken some of them.
    let mut leases: Vec<_> = (0..AT_ONCE)
        .map_while(|_| next.try_acquire(1).ok())
        .collect();
    let mut taken = AT_ONCE - leases.len() as u32;
    match fate {
        Killed => process.kill(),
        Stopped => taken = process.finish().into(),
    }
    assert!(
        leases.iter().all(portcullis_shm::SharedLease::is_held),
        "a live process lost a permit"
    );
    assert!(leases.len() as u32 + taken <= AT_ONCE);
    leases.clear();
    sleep(LOOK);
    let all = next.try_acquire(AT_ONCE);
    assert!(all.is_ok(), "{} permits are lost", next.in_use());
    Some(steps)
}

fn recover(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    overtaken(file, fate, at, |limit| {
        limit.recover();
        0
    })
}

fn take_over(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    overtaken(file, fate, at, |limit| match limit.try_acquire(1) {
        Ok(lease) => {
            forget(lease);
            1
        }
        Err(_) => 0,
    })
}

fn take(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let take = |limit: &mut SharedConcurrency| u8::from(limit.try_acquire(2).is_ok());
    let mut process = Stepped::start(|| permits(file), take)?;
    let steps = process.step(at);
    let other = permits(file);
    let leases: Vec<_> = (0..AT_ONCE)
        .map_while(|_| other.try_acquire(1).ok())
        .collect();
    assert!(!leases.is_empty(), "it takes two at most");
    match fate {
        Killed => process.kill(),
        Stopped => _ = process.finish(),
    }
    assert!(leases.iter().all(portcullis_shm::SharedLease::is_held));
    drop(leases);
    sleep(LOOK);
    assert!(
        other.try_acquire(AT_ONCE).is_ok(),
        "{} permits are lost",
        other.in_use()
    );
    Some(steps)
}

/// Renews a permit that another process takes over.
fn renew(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let prepare = || {
        let limit = file.concurrency(1, Some(Duration::from_millis(2))).unwrap();
        Box::leak(Box::new(limit)).try_acquire(1).unwrap()
    };
    let mut process = Stepped::start(prepare, |lease| u8::from(lease.renew().is_ok()))?;
    let steps = process.step(at);
    sleep(Duration::from_millis(4));
    let other = file.clone().changing().concurrency(1, MINUTE).unwrap();
    let lease = other.try_acquire(1).unwrap();
    match fate {
        Killed => process.kill(),
        Stopped => _ = process.finish(),
    }
    assert!(lease.is_held(), "its permit was renewed by another process");
    drop(lease);
    sleep(LOOK);
    assert!(other.try_acquire(1).is_ok());
    Some(steps)
}

const LEASES: u32 = 2;

fn pool(file: &SharedFile) -> SharedLeasePool {
    file.lease_pool(LEASES).unwrap()
}

fn claim_all(pool: &SharedLeasePool) -> Vec<LeaseId> {
    (0..LEASES).map_while(|_| pool.claim(MINUTE).ok()).collect()
}

/// Checks that all leases can be claimed, now or once dead processes were looked for.
fn has_all(pool: &SharedLeasePool) {
    sleep(LOOK);
    assert_eq!(claim_all(pool).len(), LEASES as usize, "leases are lost");
}

fn pool_recover(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let recover = |pool: &mut SharedLeasePool| {
        pool.recover();
        0
    };
    let mut process = Stepped::start(|| pool(file), recover)?;
    assert_eq!(claim_all(&pool(file)).len(), 2, "of a process that dies");
    let steps = process.step(at);
    let next = pool(file);
    let ids = claim_all(&next);
    assert_eq!(ids.len(), 2, "it gets the number of the dead process");
    match fate {
        Killed => process.kill(),
        Stopped => _ = process.finish(),
    }
    assert!(
        ids.iter().all(|&id| next.is_held(id)),
        "a live process lost a lease"
    );
    for id in ids {
        next.release(id).unwrap();
    }
    has_all(&next);
    Some(steps)
}

fn pool_claim(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let claim = |pool: &mut SharedLeasePool| u8::from(pool.claim(MOMENT).is_ok());
    let mut process = Stepped::start(|| pool(file), claim)?;
    let steps = process.step(at);
    let other = pool(file);
    let ids = claim_all(&other);
    assert!(!ids.is_empty());
    match fate {
        Killed => process.kill(),
        Stopped => _ = process.finish(),
    }
    assert!(ids.iter().all(|&id| other.is_held(id)));
    for id in ids {
        other.release(id).unwrap();
    }
    has_all(&other);
    Some(steps)
}

/// Does something with the lease of another process, which lives.
fn of_another(
    file: &SharedFile,
    fate: Fate,
    at: usize,
    run: fn(&SharedLeasePool, LeaseId) -> bool,
) -> Option<usize> {
    let owner = pool(file);
    let id = owner.claim(MINUTE).unwrap();
    let run = |pool: &mut SharedLeasePool| u8::from(run(pool, id));
    let mut process = Stepped::start(|| pool(file), run)?;
    let steps = process.step(at);
    if fate == Killed {
        process.kill();
        // It has done it or not, and nothing in between.
        if owner.is_held(id) {
            // If the dead process had adopted it, it ends with that.
            owner.renew(id, MOMENT).unwrap();
            sleep(Duration::from_millis(3));
            assert!(!owner.is_held(id), "the lease does not end any more");
        }
        has_all(&owner);
        return Some(steps);
    }
    // The place has another lease when the process goes on, one with an end.
    let _released_before = owner.release(id);
    let next = owner.claim(Some(Duration::from_millis(300))).unwrap();
    let claimed = Instant::now();
    process.finish();
    let is_early = claimed.elapsed() < Duration::from_millis(250);
    assert!(
        owner.is_held(next) || !is_early,
        "the next lease has ended early"
    );
    assert!(!owner.is_held(id));
    let others = owner.claim(MINUTE);
    assert!(others.is_ok(), "two leases");
    assert!(
        owner.claim(MINUTE).is_err() || !is_early,
        "the next lease was claimed twice"
    );
    assert!(owner.renew(next, MOMENT).is_ok() || !is_early);
    sleep(Duration::from_millis(3));
    assert!(!owner.is_held(next), "the next lease does not end any more");
    Some(steps)
}

fn pool_renew(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    of_another(file, fate, at, |pool, id| pool.renew(id, None).is_ok())
}

fn pool_adopt(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    of_another(file, fate, at, |pool, id| pool.adopt(id).is_ok())
}

fn pool_release(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    of_another(file, fate, at, |pool, id| pool.release(id).is_ok())
}

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::ZERO, burst)
}

/// A process takes from a limiter that another one changes.
fn limiter_take(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let open = || file.limiter(bucket(10)).unwrap();
    let other = open();
    let mut process = Stepped::start(open, |limit| u8::from(limit.try_acquire(3).is_ok()))?;
    let steps = process.step(at);
    let changed = file.clone().changing().limiter(bucket(20)).unwrap();
    assert!(other.try_acquire(2).is_ok());
    let now = super::now();
    let left = |limit: &dyn portcullis_core::Limiter| limit.available_at(now);
    match fate {
        Killed => {
            process.kill();
            assert!([18, 15].contains(&left(&changed)), "{}", left(&changed));
        }
        Stopped => {
            let taken = u64::from(process.finish()) * 3;
            // A decision that a change overtakes may cost its permits.
            assert!(
                [18 - taken, 15 - taken].contains(&left(&changed)),
                "{}",
                left(&changed)
            );
        }
    }
    assert_eq!(left(&other), left(&changed));
    Some(steps)
}

/// A process changes the settings of a limiter that another one uses.
fn limiter_change(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let other = file.limiter(bucket(10)).unwrap();
    assert!(other.try_acquire(3).is_ok());
    let change = |file: &mut SharedFile| u8::from(file.limiter(bucket(20)).is_ok());
    let mut process = Stepped::start(|| file.clone().changing(), change)?;
    let steps = process.step(at);
    assert!(other.try_acquire(1).is_ok(), "a stopped change denies");
    let joined = [10, 20].map(|burst| file.limiter(bucket(burst)).map(drop));
    let is_one = |told: &Result<(), OpenError>| match told {
        Ok(()) => true,
        Err(OpenError::OtherSettings { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(joined.iter().filter(|told| is_one(told)).count(), 1);
    let left = || portcullis_core::Limiter::available_at(&other, super::now());
    match fate {
        Killed => process.kill(),
        Stopped => {
            assert_eq!(process.finish(), 1);
            assert!(left() > 10, "{}", left());
        }
    }
    // A decision that a change overtakes may cost its permit.
    assert!([6, 16, 15].contains(&left()), "{}", left());
    Some(steps)
}

const KEYS: usize = 20;

fn table(file: &SharedFile, burst: u64) -> SharedTable<TokenBucketRules> {
    file.table(bucket(burst), KEYS).unwrap()
}

/// A process grants a key for the first time in a table that another one changes.
fn table_first_grant(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let other = table(file, 10);
    assert!(other.key("bob").try_acquire(3).is_ok());
    let grant = |users: &mut SharedTable<TokenBucketRules>| {
        u8::from(users.key("alice").try_acquire(4).is_ok())
    };
    let mut process = Stepped::start(|| table(file, 10), grant)?;
    let steps = process.step(at);
    let begun = Instant::now();
    let changed = file.clone().changing().table(bucket(20), KEYS).unwrap();
    assert!(other.key("bob").try_acquire(1).is_ok());
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    let left = |key: &str| changed.key(key).available();
    match fate {
        Killed => process.kill(),
        Stopped => {
            let taken = u64::from(process.finish()) * 4;
            assert_eq!(left("alice"), 20 - taken);
        }
    }
    assert!([20, 16].contains(&left("alice")), "{}", left("alice"));
    assert_eq!(left("bob"), 16);
    Some(steps)
}

/// A process changes the settings of a table that another one uses.
fn table_change(file: &SharedFile, fate: Fate, at: usize) -> Option<usize> {
    let other = table(file, 10);
    for key in 0..KEYS {
        assert!(other.key(&key).try_acquire(3).is_ok());
    }
    let change = |file: &mut SharedFile| u8::from(file.table(bucket(20), KEYS).is_ok());
    let mut process = Stepped::start(|| file.clone().changing(), change)?;
    let steps = process.step(at);
    if fate == Killed {
        process.kill();
        assert!(
            other.key(&0_usize).try_acquire(1).is_ok(),
            "a change whose process is dead denies"
        );
        let left: Vec<_> = (1..KEYS).map(|key| other.key(&key).available()).collect();
        assert!(left == [7; KEYS - 1] || left == [17; KEYS - 1], "{left:?}");
        return Some(steps);
    }
    let begun = Instant::now();
    while let Err(denied) = other.key(&0_usize).try_acquire(1).map(drop) {
        assert!(matches!(denied, Denied::Crowded { .. }));
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "a stopped change denies"
        );
        sleep(Duration::from_millis(1));
    }
    let joined = [10, 20].map(|burst| file.table(bucket(burst), KEYS).is_ok());
    assert!(
        joined == [true, false] || joined == [false, true],
        "{joined:?}"
    );
    assert_eq!(process.finish(), 1);
    assert_eq!(other.key(&0_usize).available(), 16);
    assert!((1..KEYS).all(|key| other.key(&key).available() == 17));
    Some(steps)
}

/// Runs the cases whose name contains a word, at so many instructions of each.
pub(crate) fn run(folder: &super::Folder, word: &str, points: usize) {
    for (name, case) in CASES.into_iter().filter(|(name, _)| name.contains(word)) {
        for fate in [Killed, Stopped] {
            let mut rounds = 0;
            let mut at_most = |at: usize| {
                rounds += 1;
                let file = folder.file(&format!("{name}-{fate:?}-{rounds}"));
                let steps = case(&file, fate, at);
                // A fork may have it open for a moment.
                let _remains = file.remove();
                steps
            };
            let Some(all) = at_most(usize::MAX) else {
                println!("\nforbidden");
                return;
            };
            let stride = (all / points).max(1);
            let begun = Instant::now();
            for at in (0..all).step_by(stride) {
                println!("\nat {name} {fate:?} {at}");
                at_most(at);
            }
            println!(
                "\nstepped {name} {fate:?}: {rounds} of {all} instructions, {:?}",
                begun.elapsed()
            );
        }
    }
}
