//! The processors of the example: no record is lost, and the capacity is kept and used, while
//! processes start, crash and stop.
//!
//! Leases last 2 s instead of the 15 s of the pattern.

#[path = "../examples/processors.rs"]
#[allow(dead_code, reason = "its `main`")]
mod processors;
#[path = "../../fleet/tests/support/servers.rs"]
mod servers;

use core::time::Duration;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use portcullis_fleet::{Exchange, MemberId};
use processors::{CAPACITY, Database, PARTITIONS, Processor, Running, backlog, enqueue, pool};
use servers::{Kind, Server};

const LEASE: Duration = Duration::from_secs(2);
/// Longer than anything takes, however busy the machine is.
const LONG: Duration = Duration::from_mins(3);
const RECORDS: [(&str, u32); 2] = [("A", 6_000), ("B", 3_000)];

/// The processes that the other test starts.
#[test]
fn processor() {
    if let Some(processor) = Processor::from_environment() {
        processor.run().unwrap();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn no_record_is_lost_and_the_capacity_is_kept_while_processors_come_and_go() {
    let Some(server) = Server::start(Kind::Redis) else {
        return;
    };
    let url = format!("redis://127.0.0.1:{}/", server.port);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    for (queue, records) in RECORDS {
        runtime.block_on(enqueue(&url, queue, records)).unwrap();
    }
    let database = Database::start().unwrap();
    let begun = Instant::now();
    let start = |queue: &str, name: &str| {
        let processor = Processor {
            url: url.clone(),
            database: database.address,
            queue: queue.into(),
            name: name.into(),
            lease: LEASE,
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processor"]).stdout(Stdio::null());
        Running::start(&processor, command).unwrap()
    };
    let all = RECORDS
        .iter()
        .map(|(_, records)| *records as usize)
        .sum::<usize>();
    let part = |percent: usize| {
        until("the records are not written", || {
            database.written().records.len() * 100 >= all * percent
        });
    };
    // How many processes hold partitions, and how many in all.
    let store = runtime.block_on(async { server.store() });
    let held = || {
        let looks = Exchange::new(MemberId(1), LEASE);
        let answer = runtime
            .block_on(store.exchange("database", &looks))
            .unwrap();
        let held = answer
            .members
            .iter()
            .map(|claim| claim.held)
            .filter(|&held| held > 0);
        (held.clone().count(), held.sum::<u32>())
    };

    let b1 = start("B", "B1");
    let a1 = start("A", "A1");
    part(5);
    let a2 = start("A", "A2");
    part(15);
    a1.kill().unwrap();
    // What it held is in use again, while there is still work for it.
    until("the capacity of the killed process is not used", || {
        held() == (2, PARTITIONS)
    });
    assert!(database.written().records.len() < all);
    part(50);
    let b2 = start("B", "B2");
    assert!(b1.stop().unwrap());
    part(100);
    for running in [a2, b2] {
        assert!(running.stop().unwrap());
    }

    let written = database.written();
    for (queue, records) in RECORDS {
        assert_eq!(written.of(queue), records as usize);
        let left = runtime.block_on(async {
            let client = redis::Client::open(url.as_str()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            backlog(&mut connection, queue).await.unwrap()
        });
        assert_eq!(left, 0, "all of {queue} are acknowledged");
    }
    // The store grants nothing for the first lease time. From then on, no more has come than the
    // capacity allows: a write comes after its admission.
    let burst = pool(LEASE).unwrap().burst_of(PARTITIONS);
    let mut sum = 0;
    for (at, records) in &written.times {
        sum += *records as u128;
        let time = at.saturating_duration_since(begun).saturating_sub(LEASE);
        let most =
            u128::from(burst) + (u128::from(CAPACITY) * time.as_millis()).div_ceil(1_000) + 1;
        assert!(sum <= most, "{sum} writes after {time:?}");
    }
}
