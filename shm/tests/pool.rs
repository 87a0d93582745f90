//! Pools of leases in files: ids that pass between processes, and holders that are killed.

mod support;

use core::time::Duration;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Instant;

use portcullis_core::Denied;
use portcullis_core::leases::{ClaimError, LeaseId, StaleId};
use portcullis_shm::{OpenError, SharedFile};
use support::{Admission, Folder, Journal, Process, now, role, seconds};

/// The processes that the tests start.
#[test]
#[ignore = "a process of the other tests"]
fn child() {
    let role = role();
    let role: Vec<_> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["claim", file] => claim(&SharedFile::at(file)),
        ["release", file, id] => {
            let pool = SharedFile::at(file).lease_pool(4).unwrap();
            pool.release(LeaseId::from_bits(id.parse().unwrap()))
                .unwrap();
            println!("\nreleased");
        }
        ["hold", file, journal] => hold(&SharedFile::at(file), Path::new(journal)),
        [] => {}
        _ => panic!("{role:?}"),
    }
}

/// Claims two leases, tells their ids, and goes on.
fn claim(file: &SharedFile) {
    let pool = file.lease_pool(4).unwrap();
    for _ in 0..2 {
        println!("\nid {}", pool.claim(None).unwrap().to_bits());
    }
    println!("\nready");
    std::thread::sleep(Duration::from_mins(1));
}

#[test]
fn no_more_leases_are_held_than_the_pool_has() {
    let folder = Folder::new("pool");
    let open = || folder.file("pool").lease_pool(3).unwrap();
    let (one, other) = (open(), open());
    let ids = [(); 3].map(|()| one.claim(None).unwrap());
    assert_eq!(other.claim(None), Err(ClaimError::PoolFull { slots: 3 }));
    assert_eq!((one.leases(), other.leases()), (3, 3));
    assert_eq!(other.release(ids[1]), Ok(()));
    assert_eq!(one.release(ids[1]), Err(StaleId));
    let again = other.claim(None).unwrap();
    assert_ne!(again, ids[1]);
    assert_eq!(
        one.release(ids[1]),
        Err(StaleId),
        "another lease has its place"
    );
    assert!(one.is_held(again) && !one.is_held(ids[1]));
    for bits in [0, u64::MAX, (ids[0].to_bits() + 1) << 20, 7 << 16 | 9] {
        assert_eq!(one.release(LeaseId::from_bits(bits)), Err(StaleId));
    }
    let refused = folder.file("pool").lease_pool(4).unwrap_err().to_string();
    assert!(
        refused.contains("3 leases") && refused.contains("4 leases"),
        "{refused}"
    );
    for leases in [0, 65_537] {
        let refused = folder.file("none").lease_pool(leases).unwrap_err();
        assert!(matches!(refused, OpenError::Count { .. }), "{refused}");
    }
}

#[test]
fn a_lease_ends_at_its_deadline_unless_it_is_renewed() {
    let folder = Folder::new("pool-deadline");
    let pool = folder.file("pool").lease_pool(2).unwrap();
    let time = Some(Duration::from_millis(200));
    let (renewed, forgotten) = (pool.claim(time).unwrap(), pool.claim(time).unwrap());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        pool.renew(renewed, time).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(pool.is_held(renewed) && !pool.is_held(forgotten));
    assert_eq!(pool.renew(forgotten, time), Err(StaleId));
    let taken_over = pool.claim(None).unwrap();
    assert_eq!(pool.release(forgotten), Err(StaleId));
    assert!(pool.is_held(taken_over));
    assert_eq!(pool.renew(renewed, None), Ok(()));
    std::thread::sleep(Duration::from_millis(250));
    assert!(pool.is_held(renewed), "it has no deadline any more");
}

#[test]
fn an_id_passes_between_processes_and_the_leases_of_a_killed_one_return() {
    let folder = Folder::new("pool-killed");
    let path = folder.path("pool");
    let path = path.to_str().unwrap();
    let pool = folder.file("pool").lease_pool(4).unwrap();
    let mut holder = Process::start(&["claim", path]);
    let lines = holder.until("ready");
    let ids = lines.iter().filter_map(|line| line.strip_prefix("id "));
    let ids: Vec<_> = ids
        .map(|id| LeaseId::from_bits(id.parse().unwrap()))
        .collect();
    assert!(ids.len() == 2 && pool.is_held(ids[0]));
    pool.adopt(ids[0]).unwrap();
    let mine = [(); 2].map(|()| pool.claim(None).unwrap());
    assert!(pool.claim(None).is_err());
    std::thread::sleep(Duration::from_millis(20));
    assert!(pool.claim(None).is_err(), "the holder lives");
    holder.kill();
    std::thread::sleep(Duration::from_millis(11));
    let _inherited = pool.claim(None).unwrap();
    assert!(pool.is_held(ids[0]), "it was adopted");
    assert!(pool.claim(None).is_err());
    let id = mine[0].to_bits().to_string();
    assert_eq!(
        Process::start(&["release", path, &id])
            .finish("released")
            .len(),
        1
    );
    assert!(!pool.is_held(mine[0]) && pool.claim(None).is_ok());
}

#[test]
fn a_pool_whose_file_is_truncated_denies() {
    let folder = Folder::new("pool-lost");
    let pool = folder.file("pool").lease_pool(300).unwrap();
    let id = pool.claim(None).unwrap();
    let file = OpenOptions::new().write(true).open(folder.path("pool"));
    file.unwrap().set_len(4096).unwrap();
    let denied = pool.claim(None);
    assert_eq!(
        denied,
        Err(ClaimError::Denied(Denied::Closed { permits: 1 }))
    );
    assert!(pool.is_lost() && pool.release(id) == Err(StaleId));
}

const LEASES: u32 = 3;

/// Holds leases for short times until it is killed.
fn hold(file: &SharedFile, journal: &Path) {
    let pool = file.lease_pool(LEASES).unwrap();
    let mut journal = Journal::open(journal);
    for nth in 0_u64.. {
        let time = (nth % 2 == 0).then_some(Duration::from_mins(1));
        let Ok(id) = pool.claim(time) else { continue };
        let from = now();
        let until = from.as_nanos() + nth % 7 * 50_000;
        while now().as_nanos() < until {
            core::hint::spin_loop();
        }
        if nth % 3 == 0 {
            pool.renew(id, time).unwrap();
        }
        // It is held until it is released below.
        journal.write(from, now(), 1);
        pool.release(id).unwrap();
    }
}

/// The most leases that are held at one moment.
fn most_at_once(held: &[Admission]) -> i64 {
    let begins = held.iter().map(|a| (a.earliest, 1));
    // At one instant, the end comes first.
    let ends = held.iter().map(|a| (a.latest, -1));
    let mut changes: Vec<_> = begins.chain(ends).collect();
    changes.sort_unstable();
    let in_use = changes.iter().scan(0, |in_use, (_, by)| {
        *in_use += by;
        Some(*in_use)
    });
    in_use.max().unwrap_or(0)
}

fn four_processes_share_one_pool(time: Duration) {
    let folder = Folder::new(&format!("pool-{}", time.as_secs()));
    let (file, journal) = (folder.path("pool"), folder.path("journal"));
    let pool = folder.file("pool").lease_pool(LEASES).unwrap();
    let words = ["hold", file.to_str().unwrap(), journal.to_str().unwrap()];
    let start = || Process::start(&words);
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let (begun, mut killed) = (Instant::now(), 0);
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(27));
        core::mem::replace(&mut children[killed % 4], start()).kill();
        killed += 1;
    }
    children.into_iter().for_each(Process::kill);
    // All of them are dead, so all leases return, at most 10 ms later.
    std::thread::sleep(Duration::from_millis(11));
    let claimed = (0..LEASES).filter(|_| pool.claim(None).is_ok()).count();
    assert_eq!(claimed, LEASES as usize, "leases are lost");
    let held = Journal::read(&journal);
    let most = most_at_once(&held);
    println!(
        "{} leases, at most {most}, {killed} processes killed",
        held.len()
    );
    assert!(most <= LEASES.into(), "{most}");
    assert!(held.len() as u64 > 100 * time.as_secs(), "{}", held.len());
}

#[test]
fn four_processes_share_one_pool_while_processes_are_killed() {
    four_processes_share_one_pool(Duration::from_secs(3));
}

#[test]
#[ignore = "half a minute"]
fn four_processes_share_one_pool_for_long() {
    four_processes_share_one_pool(seconds(30));
}
