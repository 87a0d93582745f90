//! The stores on etcd and Redis, on servers that the tests start: they decide as the table does.

#[path = "support/servers.rs"]
mod servers;

use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::time::Duration;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use portcullis_core::Timestamp;
use portcullis_fleet::{
    Exchange, ExchangeAnswer, Heard, LeaseError, LeaseStore, LeaseTable, MemberId, PartitionLease,
};
use servers::{Kind, Server};
use tokio::runtime::{Builder, Runtime};

/// As long as no test takes.
const LONG: Duration = Duration::from_mins(10);
const SECOND: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(n)) as u32
    }
}

fn ask(member: u128, lease: Duration, candidates: &[u32], at_most: u32) -> Exchange {
    {
        let mut request = Exchange::new(MemberId(member), lease);
        request.demand = at_most;
        request.candidates = candidates.to_vec();
        request.at_most = at_most;
        request
    }
}

impl Server {
    /// Sets a field of a pool on a Redis server.
    async fn set(&self, pool: &str, field: &str, value: &str) {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let key = format!("portcullis:fleet:{pool}");
        let mut command = redis::cmd("HSET");
        let _: () = command
            .arg(&key)
            .arg(&[field, value])
            .query_async(&mut connection)
            .await
            .unwrap();
    }
}

/// Makes a pool known to a store, and old.
async fn aged(server: &Server, pool: &str) -> Arc<dyn LeaseStore> {
    let store = server.store();
    let nothing = Exchange::new(MemberId(0xfeed), SECOND);
    store.exchange(pool, &nothing).await.unwrap();
    if server.kind == Kind::Redis {
        server.set(pool, "since", "1").await;
    }
    store
}

/// Runs a test on both kinds of servers.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Server) -> F) {
    for kind in Kind::BOTH {
        if let Some(server) = Server::start(kind) {
            runtime().block_on(test(server));
        }
    }
}

/// The leases of one member: by partition, the fence of the store and that of the table.
type Leases = HashMap<u32, (u64, u64)>;

/// Returns an exchange for the store and the same for the table.
fn both(asked: &Exchange, leases: &Leases, renew: &[u32], release: &[u32]) -> [Exchange; 2] {
    let with = |fence: fn(&(u64, u64)) -> u64| {
        let held = |partitions: &[u32]| {
            let held = partitions.iter().map(|&partition| PartitionLease {
                partition,
                fence: fence(&leases[&partition]),
            });
            held.collect()
        };
        {
            let mut request = asked.clone();
            request.renew = held(renew);
            request.release = held(release);
            request
        }
    };
    [with(|pair| pair.0), with(|pair| pair.1)]
}

fn sorted(held: &[PartitionLease]) -> Vec<u32> {
    let mut partitions: Vec<_> = held.iter().map(|held| held.partition).collect();
    partitions.sort_unstable();
    partitions
}

/// Random exchanges of some members with a store, compared with the table.
async fn agrees(server: Server) {
    const PARTITIONS: u32 = 14;
    let store = aged(&server, "agreement").await;
    let (mut table, mut random) = (LeaseTable::new(), Random(7));
    let mut members: Vec<Leases> = vec![Leases::new(); 5];
    let (mut grants, mut refusals) = (0, 0);
    for step in 0..300_u32 {
        let which = random.below(5) as usize;
        let leases = &mut members[which];
        let mut held: Vec<_> = leases.keys().copied().collect();
        held.sort_unstable();
        let (release, renew): (Vec<_>, Vec<_>) = held.iter().partition(|_| random.below(3) == 0);
        let mut candidates: Vec<_> = (0..PARTITIONS).filter(|p| !held.contains(p)).collect();
        let by = random.below(PARTITIONS) as usize % candidates.len().max(1);
        candidates.rotate_left(by);
        candidates.truncate(random.below(PARTITIONS) as usize);
        let asked = {
            let mut request = ask(which as u128, LONG, &candidates, random.below(5));
            request.served = u64::from(step);
            request
        };
        let [for_store, for_table] = both(&asked, leases, &renew, &release);
        let of_store = store.exchange("agreement", &for_store).await.unwrap();
        let of_table = table.exchange(&for_table, Timestamp::from_secs(1));
        let context = format!("step {step}: {for_store:?} {of_store:?} {of_table:?}");
        assert_eq!(of_store.renewed, for_store.renew, "{context}");
        assert_eq!(
            sorted(&of_store.granted),
            sorted(&of_table.granted),
            "{context}"
        );
        let is_named = |partition| of_store.taken.contains(partition);
        assert!(of_table.taken.iter().all(is_named), "{context}");
        assert_eq!(of_store.hold_off, None);
        for claim in &of_table.members {
            assert!(of_store.members.contains(claim), "{claim:?} {context}");
        }
        leases.retain(|partition, _| !release.contains(partition));
        for of in &of_table.granted {
            let same = of_store
                .granted
                .iter()
                .find(|a| a.partition == of.partition);
            leases.insert(of.partition, (same.unwrap().fence, of.fence));
        }
        grants += of_table.granted.len();
        refusals += of_table.taken.len();
    }
    assert!(grants > 100 && refusals > 100, "{grants} {refusals}");
}

#[test]
fn stores_decide_as_the_table_does() {
    on_both(agrees);
}

/// The request that renews what a request was granted.
fn renewing(request: &Exchange, granted: &[PartitionLease]) -> Exchange {
    {
        let mut request = request.clone();
        request.renew = granted.to_vec();
        request.candidates = Vec::new();
        request
    }
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_the_next_one_has_a_larger_fence() {
    on_both(async |server| {
        let store = aged(&server, "ends").await;
        let (one, other) = (ask(1, SECOND, &[3, 5], 2), ask(2, SECOND, &[5], 1));
        let begun = Instant::now();
        let of_one = store.exchange("ends", &one).await.unwrap().granted;
        assert_eq!(sorted(&of_one), [3, 5]);
        let of_other = loop {
            let answer = store.exchange("ends", &other).await.unwrap();
            if let [granted] = answer.granted[..] {
                break granted;
            }
            assert_eq!(answer.taken, [5]);
            assert!(begun.elapsed() < 20 * SECOND, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(begun.elapsed() >= SECOND, "{:?}", begun.elapsed());
        assert_eq!(of_other.partition, 5);
        assert!(of_one.iter().all(|held| held.fence < of_other.fence));
        // The first member comes back, and has lost what it had.
        let answer = store
            .exchange("ends", &renewing(&one, &of_one))
            .await
            .unwrap();
        assert!(
            !answer.renewed.iter().any(|held| held.partition == 5),
            "{answer:?}"
        );
    });
}

#[test]
fn a_renewed_lease_does_not_end() {
    on_both(async |server| {
        let store = aged(&server, "renewed").await;
        let lease = 2 * SECOND;
        let (one, other) = (ask(1, lease, &[3], 1), ask(2, lease, &[3], 1));
        let granted = store.exchange("renewed", &one).await.unwrap().granted;
        let mut renewed = Instant::now();
        let begun = renewed;
        while begun.elapsed() < 3 * SECOND {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = Instant::now();
            let answer = store
                .exchange("renewed", &renewing(&one, &granted))
                .await
                .unwrap();
            if now - renewed < lease {
                assert_eq!(answer.renewed, granted);
            }
            renewed = now;
            let answer = store.exchange("renewed", &other).await.unwrap();
            if now.elapsed() < lease {
                assert_eq!(answer.taken, [3]);
            }
        }
    });
}

/// The settings of a pool have changed: the next request asks for another length.
#[test]
fn a_lease_that_begins_again_with_another_length_lasts_for_the_longer_one() {
    on_both(async |server| {
        for (pool, before, after) in [("longer", 2, 6), ("shorter", 6, 2)] {
            let store = aged(&server, pool).await;
            let [one, with_other] = [before, after].map(|seconds| {
                let mut request = ask(1, seconds * SECOND, &[3, 4], 2);
                request.demand = 2;
                request
            });
            let granted = store.exchange(pool, &one).await.unwrap().granted;
            let begun = Instant::now();
            let again = renewing(&with_other, &granted);
            // By another store, which does not know what was asked before.
            let answer = server.store().exchange(pool, &again).await.unwrap();
            assert_eq!(sorted(&answer.renewed), [3, 4], "{pool} {answer:?}");
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let other = ask(2, SECOND, &[3, 4], 1);
                let answer = store.exchange(pool, &other).await.unwrap();
                if !answer.granted.is_empty() {
                    break;
                }
                assert!(begun.elapsed() < 30 * SECOND);
            }
            assert!(
                begun.elapsed() >= 6 * SECOND,
                "{pool} {:?}",
                begun.elapsed()
            );
        }
    });
}

/// More leases than fit into one transaction of etcd, and a release among them.
#[test]
fn all_leases_of_a_member_begin_again_with_a_longer_length() {
    on_both(async |server| {
        let store = aged(&server, "moved").await;
        let all: Vec<_> = (0..250).collect();
        let granted = store
            .exchange("moved", &ask(1, 5 * SECOND, &all, 250))
            .await;
        let mut granted = granted.unwrap().granted;
        let released = granted.split_off(249);
        let request = {
            let mut request = renewing(&ask(1, LONG, &[], 0), &granted);
            request.release = released.clone();
            request
        };
        // Another store of the same member, which reads the pool first.
        let other = server.store();
        let answer = other.exchange("moved", &request).await.unwrap();
        assert_eq!(sorted(&answer.renewed), sorted(&granted));
        let answer = store.exchange("moved", &ask(2, LONG, &all, 250)).await;
        assert_eq!(sorted(&answer.unwrap().granted), sorted(&released));
    });
}

#[test]
fn what_a_lost_answer_granted_is_granted_again() {
    on_both(async |server| {
        let store = aged(&server, "lost").await;
        let granted = store
            .exchange("lost", &ask(1, LONG, &[3, 5], 2))
            .await
            .unwrap()
            .granted;
        for again in [ask(1, LONG, &[], 0), ask(1, LONG, &[5, 7], 1)] {
            let mut answer = store.exchange("lost", &again).await.unwrap();
            answer.granted.sort_unstable_by_key(|held| held.partition);
            assert_eq!(answer.granted, granted);
        }
        // Another store of the same process, which knows nothing.
        let release = {
            let mut request = ask(1, LONG, &[], 0);
            request.release = granted;
            request
        };
        let answer = server.store().exchange("lost", &release).await.unwrap();
        assert!(answer.granted.is_empty() && answer.renewed.is_empty());
        let other = store
            .exchange("lost", &ask(2, LONG, &[3, 5], 2))
            .await
            .unwrap();
        assert_eq!(sorted(&other.granted), [3, 5]);
    });
}

#[test]
fn a_stale_fence_renews_and_releases_nothing() {
    on_both(async |server| {
        let store = aged(&server, "stale").await;
        let held = store
            .exchange("stale", &ask(1, LONG, &[3], 1))
            .await
            .unwrap()
            .granted[0];
        let stale = PartitionLease {
            fence: held.fence - 1,
            ..held
        };
        for (member, renew, release) in [
            (1, vec![stale], vec![]),
            (1, vec![], vec![stale]),
            (2, vec![held], vec![]),
            (2, vec![], vec![held]),
        ] {
            // A demand, so that the store remembers the member.
            let request = {
                let mut request = ask(member, LONG, &[], 0);
                request.demand = 1;
                request.renew = renew;
                request.release = release;
                request
            };
            let answer = store.exchange("stale", &request).await.unwrap();
            assert!(answer.renewed.is_empty(), "{answer:?}");
            let answer = store
                .exchange("stale", &ask(3, LONG, &[3], 1))
                .await
                .unwrap();
            assert_eq!(answer.taken, [3]);
        }
    });
}

#[test]
fn pools_are_apart_whatever_their_names() {
    on_both(async |server| {
        for pool in ["a", "a/p", "a/p/3", "1:a/", ""] {
            let store = aged(&server, pool).await;
            let answer = store.exchange(pool, &ask(1, LONG, &[3], 1)).await.unwrap();
            assert_eq!(sorted(&answer.granted), [3], "{pool:?}");
        }
    });
}

#[test]
fn a_large_exchange_takes_several_transactions() {
    on_both(async |server| {
        let store = aged(&server, "large").await;
        let all: Vec<_> = (0..500).collect();
        let request = ask(1, LONG, &all, 500);
        let granted = store.exchange("large", &request).await.unwrap().granted;
        assert_eq!(sorted(&granted), all);
        let answer = store
            .exchange("large", &renewing(&request, &granted))
            .await
            .unwrap();
        assert_eq!(answer.renewed.len(), 500);
        let release = {
            let mut request = ask(1, LONG, &[], 0);
            request.release = granted;
            request
        };
        store.exchange("large", &release).await.unwrap();
        let answer = store
            .exchange("large", &ask(2, LONG, &all, 500))
            .await
            .unwrap();
        assert_eq!(sorted(&answer.granted), all);
    });
}

/// Asks until the server answers.
async fn persistent(store: &dyn LeaseStore, pool: &str, request: &Exchange) -> ExchangeAnswer {
    let begun = Instant::now();
    loop {
        match store.exchange(pool, request).await {
            Ok(answer) => return answer,
            Err(LeaseError::Unreachable(_) | LeaseError::Refused(_)) => {
                assert!(begun.elapsed() < 60 * SECOND);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn after_a_restart_no_partition_is_leased_twice() {
    on_both(async |mut server| {
        let store = aged(&server, "restart").await;
        let lease = 3 * SECOND;
        let (one, other) = (ask(1, lease, &[3], 1), ask(2, lease, &[3, 4], 2));
        // Renewed just before.
        let held = store.exchange("restart", &one).await.unwrap().granted;
        let granted = Instant::now();
        server.restart();
        let up = Instant::now();
        let answer = persistent(&*store, "restart", &other).await;
        if server.kind == Kind::Redis && granted.elapsed() < lease {
            assert!(answer.granted.is_empty(), "{answer:?}");
            assert!(
                answer.hold_off.is_some_and(|rest| rest <= lease),
                "{answer:?}"
            );
        }
        if granted.elapsed() < lease {
            assert!(!sorted(&answer.granted).contains(&3), "{answer:?}");
        }
        // The holder renews, also where the server has forgotten its lease.
        let answer = persistent(&*store, "restart", &renewing(&one, &held)).await;
        if granted.elapsed() < lease {
            assert_eq!(answer.renewed, held);
        }
        // The hold-off ends. The holder has renewed, so only the rest is free.
        let both = loop {
            let renewed = Instant::now();
            let answer = persistent(&*store, "restart", &renewing(&one, &held)).await;
            if answer.renewed.is_empty() {
                return eprintln!("not judged: the machine is too slow");
            }
            let answer = persistent(&*store, "restart", &other).await;
            if renewed.elapsed() < lease {
                assert!(!sorted(&answer.granted).contains(&3), "{answer:?}");
            }
            if answer.hold_off.is_none() {
                break answer;
            }
            assert!(up.elapsed() < 60 * SECOND, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        if server.kind == Kind::Redis {
            assert!(up.elapsed() >= lease, "{:?}", up.elapsed());
        }
        assert_eq!(sorted(&both.granted), [4]);
    });
}

#[test]
fn a_pool_that_the_server_does_not_know_is_leased_after_one_lease_time() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let (store, begun) = (server.store(), Instant::now());
        let answer = store
            .exchange("new", &ask(1, SECOND, &[0], 1))
            .await
            .unwrap();
        assert_eq!(answer.hold_off, Some(SECOND));
        while store
            .exchange("new", &ask(1, SECOND, &[0], 1))
            .await
            .unwrap()
            .granted
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(begun.elapsed() >= SECOND);
    });
}

/// A server with a file remembers leases, but maybe not the last ones.
#[test]
fn a_pool_that_another_run_of_the_server_has_written_is_leased_after_one_lease_time() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = aged(&server, "run").await;
        let held = store
            .exchange("run", &ask(1, LONG, &[0], 1))
            .await
            .unwrap()
            .granted;
        assert_eq!(sorted(&held), [0]);
        server.set("run", "run", "another").await;
        let answer = store
            .exchange("run", &ask(2, LONG, &[0, 1], 2))
            .await
            .unwrap();
        assert!(
            answer.granted.is_empty() && answer.taken == [0],
            "{answer:?}"
        );
        assert_eq!(answer.hold_off, Some(LONG));
        let answer = store
            .exchange("run", &renewing(&ask(1, LONG, &[], 0), &held))
            .await
            .unwrap();
        assert_eq!(answer.renewed, held);
    });
}

#[test]
fn a_lease_that_has_ended_is_not_renewed_although_no_one_else_has_it() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = aged(&server, "ended").await;
        let one = ask(1, LONG, &[3], 1);
        let held = store.exchange("ended", &one).await.unwrap().granted;
        let ended = format!("{} {} 1", one.member, held[0].fence);
        server.set("ended", "p:3", &ended).await;
        let answer = store
            .exchange("ended", &renewing(&one, &held))
            .await
            .unwrap();
        assert!(
            answer.renewed.is_empty() && answer.granted.is_empty(),
            "{answer:?}"
        );
        let next = store.exchange("ended", &one).await.unwrap().granted;
        assert!(next[0].fence > held[0].fence, "{next:?}");
    });
}

/// A file may be older than a release.
#[test]
fn a_server_that_may_remember_too_much_grants_nothing_again() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = aged(&server, "old").await;
        let one = ask(1, LONG, &[3], 1);
        let held = store.exchange("old", &one).await.unwrap().granted;
        server.set("old", "run", "another").await;
        // The member has released it, and another one may have it now.
        let answer = store.exchange("old", &ask(1, LONG, &[], 0)).await.unwrap();
        assert!(answer.hold_off.is_some());
        assert_eq!(answer.granted, []);
        let newer = PartitionLease {
            fence: held[0].fence + 1,
            ..held[0]
        };
        let other = renewing(&ask(2, LONG, &[], 0), &[newer]);
        assert_eq!(
            store.exchange("old", &other).await.unwrap().renewed,
            [newer]
        );
    });
}

/// Of two members that say they hold a partition, the one with the larger fence does.
#[test]
fn while_a_server_holds_off_the_larger_fence_counts() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = server.store();
        let renew = |member, fence| {
            let mut request = ask(member, LONG, &[], 0);
            request.renew = vec![PartitionLease {
                partition: 3,
                fence,
            }];
            request
        };
        for (member, fence, is_renewed) in
            [(1, 7, true), (2, 6, false), (2, 8, true), (1, 7, false)]
        {
            let answer = store
                .exchange("claims", &renew(member, fence))
                .await
                .unwrap();
            assert_eq!(
                answer.renewed.len(),
                usize::from(is_renewed),
                "{member} {fence}"
            );
        }
    });
}

/// A change of the server's clock: back by an hour, as the pool sees it.
#[test]
fn a_server_whose_clock_was_set_back_holds_off_for_one_lease_time() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = aged(&server, "clock").await;
        let hour = 3_600_000_000_u128;
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let ahead = since.as_micros() + hour;
        server.set("clock", "since", &ahead.to_string()).await;
        let ended = format!("{:032x} 7 {ahead}", 9);
        server.set("clock", "p:3", &ended).await;
        let begun = Instant::now();
        let answer = store
            .exchange("clock", &ask(1, SECOND, &[3], 1))
            .await
            .unwrap();
        assert_eq!(answer.hold_off, Some(SECOND));
        while store
            .exchange("clock", &ask(1, SECOND, &[3], 1))
            .await
            .unwrap()
            .granted
            .is_empty()
        {
            assert!(begun.elapsed() < 60 * SECOND);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(begun.elapsed() >= SECOND);
    });
}

/// The members turn to another server and back, and both kept running.
#[test]
fn a_server_that_was_not_in_charge_grants_nothing_that_the_other_one_has_leased() {
    let both = [Kind::Redis; 2].map(Server::start);
    let [Some(one), Some(other)] = both else {
        return;
    };
    runtime().block_on(async {
        let (first, second) = (aged(&one, "moved").await, aged(&other, "moved").await);
        // What the member says of an answer that it has just had.
        let after = |answer: &ExchangeAnswer, request: Exchange| {
            let mut request = request;
            request.heard = Some(Heard::new(
                answer.server,
                Duration::from_micros(1),
                answer.fence,
            ));
            request
        };
        let before = first
            .exchange("moved", &ask(2, LONG, &[], 0))
            .await
            .unwrap();
        // The first answer of the other server: it does not know what the first one has leased.
        let asked = after(&before, ask(1, LONG, &[3], 1));
        let held_off = second.exchange("moved", &asked).await.unwrap();
        assert_eq!((held_off.hold_off, held_off.granted.len()), (Some(LONG), 0));
        other.set("moved", "since", "1").await;
        let asked = after(&held_off, ask(1, LONG, &[3], 1));
        let leased = second.exchange("moved", &asked).await.unwrap();
        assert_eq!(sorted(&leased.granted), [3]);
        assert_ne!(leased.server, before.server);
        let seen = after(&leased, ask(2, LONG, &[3], 1));
        assert_eq!(second.exchange("moved", &seen).await.unwrap().taken, [3]);

        // Back: who lacks it comes first.
        let answer = first.exchange("moved", &seen).await.unwrap();
        assert_eq!((answer.granted.len(), answer.hold_off), (0, Some(LONG)));
        assert!(answer.fence >= leased.fence);
        let claim = after(&leased, renewing(&ask(1, LONG, &[], 0), &leased.granted));
        assert_eq!(
            first.exchange("moved", &claim).await.unwrap().renewed,
            leased.granted
        );
        // Also who has heard of nothing.
        let fresh = first
            .exchange("moved", &ask(3, LONG, &[4], 1))
            .await
            .unwrap();
        assert!(
            fresh.granted.is_empty() && fresh.hold_off < Some(LONG),
            "{fresh:?}"
        );
        one.set("moved", "since", "1").await;
        let own = after(&answer, ask(2, LONG, &[3, 4], 2));
        let answer = first.exchange("moved", &own).await.unwrap();
        assert_eq!((sorted(&answer.granted), answer.taken), (vec![4], vec![3]));
        // An answer of the other one whose leases have ended is no reason.
        let mut old = after(&leased, ask(3, LONG, &[5], 1));
        old.heard.as_mut().unwrap().ago = LONG;
        let answer = first.exchange("moved", &old).await.unwrap();
        assert_eq!(sorted(&answer.granted), [5]);
    });
}

#[test]
fn a_long_lease_that_has_ended_makes_no_later_restart_longer() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    runtime().block_on(async {
        let store = aged(&server, "longest").await;
        let short = Duration::from_millis(100);
        let hold_off = async |number: u32| {
            server
                .set("longest", "run", &format!("another{number}"))
                .await;
            let nothing = Exchange::new(MemberId(1), short);
            store.exchange("longest", &nothing).await.unwrap().hold_off
        };
        let long = Exchange::new(MemberId(1), 2 * SECOND);
        store.exchange("longest", &long).await.unwrap();
        let begun = Instant::now();
        assert_eq!(hold_off(1).await, Some(2 * SECOND));
        while begun.elapsed() < 2 * SECOND {
            let middle = Exchange::new(MemberId(1), SECOND);
            store.exchange("longest", &middle).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(hold_off(2).await, Some(SECOND));
        tokio::time::sleep(SECOND).await;
        assert_eq!(hold_off(3).await, Some(short));
    });
}

/// Passes bytes on between a store and its server, and damages what the server says.
struct Proxy {
    port: u16,
}

impl Proxy {
    fn start(server: u16, damage: fn(&mut Random, &mut Vec<u8>)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming().map_while(Result::ok)) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    return;
                };
                let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass_on(from, to, |_| {}));
                let mut random = Random(number);
                let damaged = move |bytes: &mut Vec<u8>| damage(&mut random, bytes);
                thread::spawn(move || pass_on(server, client, damaged));
            }
        });
        Self { port }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut Vec<u8>)) {
    let mut buffer = vec![0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..length].to_vec();
        change(&mut bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Passes bytes on to a server. While it holds, it keeps what clients say, and passes it on later,
/// although the client has closed its connection. Of requests to etcd, it holds those that delete.
struct Late {
    port: u16,
    holds: Arc<AtomicBool>,
}

impl Late {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holds = Arc::new(AtomicBool::new(false));
        let is_held = Arc::clone(&holds);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    return;
                };
                let (mut to, mut from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let is_held = Arc::clone(&is_held);
                thread::spawn(move || pass_on(server, client, |_| {}));
                thread::spawn(move || {
                    let mut buffer = vec![0; 65536];
                    while let Ok(length @ 1..) = from.read(&mut buffer) {
                        let text = String::from_utf8_lossy(&buffer[..length]);
                        let is_late = !text.contains("/v3/") || text.contains("delete_range");
                        while is_late && is_held.load(SeqCst) {
                            thread::sleep(Duration::from_millis(1));
                        }
                        if to.write_all(&buffer[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { port, holds }
    }
}

#[test]
fn a_release_that_was_given_up_does_not_end_a_lease_that_was_granted_again() {
    on_both(async |server| {
        let direct = aged(&server, "late").await;
        let late = Late::start(server.port);
        let store = server.kind.store(&[late.port], Duration::from_millis(300));
        let granted = persistent(&*store, "late", &ask(1, LONG, &[3], 1))
            .await
            .granted;
        let release = {
            let mut request = ask(1, LONG, &[], 0);
            request.release = granted.clone();
            request
        };
        late.holds.store(true, SeqCst);
        let answer = store.exchange("late", &release).await;
        assert!(
            matches!(answer, Err(LeaseError::Unreachable(_))),
            "{answer:?}"
        );
        // The member asks again, by another way, and is granted what it has.
        let answer = direct
            .exchange("late", &ask(1, LONG, &[3], 1))
            .await
            .unwrap();
        assert_eq!(answer.granted, granted);
        late.holds.store(false, SeqCst);
        // Until the release has arrived: what is said after it has.
        thread::sleep(Duration::from_millis(300));
        let answer = direct
            .exchange("late", &ask(2, LONG, &[3], 1))
            .await
            .unwrap();
        assert_eq!(answer.taken, [3], "{answer:?}");
    });
}

/// A leader that is stopped and goes on ends leases of etcd that were renewed with the next leader.
#[test]
fn a_former_leader_of_etcd_that_ends_all_leases_frees_no_partition() {
    let Some(server) = Server::start(Kind::Etcd) else {
        return;
    };
    runtime().block_on(async {
        let store = server.store();
        let one = ask(1, LONG, &[3], 1);
        let held = persistent(&*store, "former", &one).await.granted;
        assert_eq!(sorted(&held), [3]);
        let leases = server.call("/v3/lease/leases", "{}").unwrap();
        for lease in leases.split("\"ID\":\"").skip(1) {
            let (lease, _) = lease.split_once('"').unwrap();
            let ended = server.call("/v3/lease/revoke", &format!("{{\"ID\":\"{lease}\"}}"));
            assert!(ended.unwrap().contains("200 OK"));
        }
        let other = store.exchange("former", &ask(2, LONG, &[3], 1)).await;
        assert_eq!(other.unwrap().taken, [3]);
        let again = store.exchange("former", &renewing(&one, &held)).await;
        assert_eq!(again.unwrap().renewed, held);
    });
}

/// A member has found that the leases of another one have ended. They begin again before its
/// request arrives.
#[test]
fn leases_that_begin_again_before_another_member_of_etcd_ends_them_last() {
    let Some(server) = Server::start(Kind::Etcd) else {
        return;
    };
    runtime().block_on(async {
        let (direct, late) = (server.store(), Late::start(server.port));
        let one = ask(1, SECOND, &[3], 1);
        let held = persistent(&*direct, "again", &one).await.granted;
        let other = Kind::Etcd.store(&[late.port], 10 * SECOND);
        let seen = other.exchange("again", &ask(2, SECOND, &[3], 1)).await;
        assert_eq!(seen.unwrap().taken, [3]);
        late.holds.store(true, SeqCst);
        tokio::time::sleep(SECOND).await;
        let ends =
            tokio::spawn(async move { other.exchange("again", &ask(2, SECOND, &[3], 1)).await });
        // Until the request is on its way.
        tokio::time::sleep(SECOND / 2).await;
        let answer = direct.exchange("again", &renewing(&one, &held)).await;
        assert_eq!(answer.unwrap().renewed, held);
        late.holds.store(false, SeqCst);
        assert_eq!(ends.await.unwrap().unwrap().taken, [3]);
        let answer = direct.exchange("again", &renewing(&one, &held)).await;
        assert_eq!(answer.unwrap().renewed, held);
    });
}

/// Someone has deleted the key of a member, which says how long its leases last.
#[test]
fn partitions_of_a_member_without_a_key_on_etcd_return() {
    let Some(server) = Server::start(Kind::Etcd) else {
        return;
    };
    runtime().block_on(async {
        let store = server.store();
        let held = persistent(&*store, "orphan", &ask(1, LONG, &[3], 1)).await;
        assert_eq!(sorted(&held.granted), [3]);
        let key = STANDARD.encode(format!("portcullis:fleet:6:orphan/m/{}", MemberId(1)));
        let deleted = server.call("/v3/kv/deleterange", &format!("{{\"key\":\"{key}\"}}"));
        assert!(deleted.unwrap().contains("\"deleted\":\"1\""));
        let begun = Instant::now();
        while store
            .exchange("orphan", &ask(2, SECOND, &[3], 1))
            .await
            .unwrap()
            .granted
            .is_empty()
        {
            assert!(begun.elapsed() < 60 * SECOND);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(begun.elapsed() >= SECOND);
    });
}

/// Changes, cuts or doubles a part of some answers.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    let length = bytes.len() as u32;
    let at = random.below(length) as usize;
    match random.below(12) {
        0 => bytes[at] = random.below(256) as u8,
        1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes.truncate(at + 1),
        3 => drop(bytes.remove(at)),
        4 => bytes.insert(at, b"0]}{\"9-\r\n:$*"[random.below(12) as usize]),
        5 => {
            let part = bytes[at..].to_vec();
            bytes.extend(part);
        }
        _ => {}
    }
}

#[test]
fn damaged_answers_are_errors() {
    for kind in Kind::BOTH {
        let Some(server) = Server::start(kind) else {
            continue;
        };
        let proxy = Proxy::start(server.port, damage);
        runtime().block_on(async {
            let limit = Duration::from_millis(60);
            let (mut errors, mut random) = ([0; 3], Random(1));
            let mut store = kind.store(&[proxy.port], limit);
            for step in 0..200 {
                // A Redis client may wait for the rest of an answer that was cut.
                if step % 10 == 0 {
                    store = kind.store(&[proxy.port], limit);
                }
                let request = ask(u128::from(random.below(3)), LONG, &[1, 2, 3], 2);
                let begun = Instant::now();
                match store.exchange("damaged", &request).await {
                    Ok(_) => {}
                    Err(LeaseError::Unreachable(_)) => errors[0] += 1,
                    Err(LeaseError::Refused(_)) => errors[1] += 1,
                    Err(LeaseError::Damaged(_)) => errors[2] += 1,
                    Err(error) => panic!("{error}"),
                }
                assert!(begun.elapsed() < 30 * SECOND, "{:?}", begun.elapsed());
            }
            println!("{kind:?}: unreachable, refused, damaged: {errors:?}");
            assert!(errors[0] > 0 && errors[2] > 0, "{errors:?}");
        });
    }
}

#[test]
fn a_server_that_does_not_answer_is_unreachable_in_time() {
    for kind in Kind::BOTH {
        // It accepts connections, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        runtime().block_on(async {
            for port in [silent.local_addr().unwrap().port(), closed.port()] {
                let store = kind.store(&[port], Duration::from_millis(100));
                let begun = Instant::now();
                let answer = store.exchange("silent", &ask(1, SECOND, &[], 0)).await;
                assert!(
                    matches!(answer, Err(LeaseError::Unreachable(_))),
                    "{answer:?}"
                );
                assert!(begun.elapsed() < 20 * SECOND);
            }
        });
    }
}
