//! The behaviour that the tests of Doorman show for its algorithms, and those of go-batcher v2 for
//! its `SharedResource`.
//!
//! Each function is a test, or a group of tests, of `algorithm_test.go` of Doorman or of
//! `v2/sharedresource_test.go` of go-batcher, in our spelling, and names the intended differences.

use core::time::Duration;

use portcullis_core::{Rate, Timestamp};
use portcullis_fleet::{
    Claim, FairShares, LeaseTable, MemberId, Pool, PoolBuilder, PoolError, Protocol, ProtocolEvent,
};

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A member whose requests the store answers at once.
struct Member {
    protocol: Protocol,
    held: u32,
    wake_at: Timestamp,
}

impl Member {
    fn new(pool: &Pool, id: u128) -> Self {
        let protocol = Protocol::new(pool, MemberId(id), id as u64, at(0));
        Self {
            protocol,
            held: 0,
            wake_at: at(0),
        }
    }

    /// Returns how many partitions the member has after the event.
    fn tell(&mut self, store: &mut LeaseTable, event: ProtocolEvent<'_>, now: Timestamp) -> u32 {
        let mut actions = self.protocol.on(event, now);
        loop {
            self.held = actions.share.map_or(self.held, |share| share.partitions);
            self.wake_at = actions.wake_at;
            let Some((exchange, request)) = actions.send else {
                return self.held;
            };
            let answer = &store.exchange(&request, now);
            actions = self
                .protocol
                .on(ProtocolEvent::Answered { exchange, answer }, now);
        }
    }
}

/// `Test_Static`. A member has what is reserved for it, whatever the others want.
#[test]
fn static_capacity_for_each_client() {
    let pool = Pool::builder("static", Rate::per_second(1))
        .partitions(0)
        .reserved(100)
        .build()
        .unwrap();
    let has = |wants: u64| wants.min(pool.capacity(pool.wanted(wants)));
    assert_eq!([100, 10, 120].map(has), [100, 10, 100]);
}

/// `Test_FairShare`. A client with several subclients is as many members.
#[test]
fn fair_share_weighted_by_subclients() {
    let shares = |capacity: u32, clients: [(u32, u32); 3]| {
        let mut claims = Vec::new();
        for (client, (subclients, wants)) in (0..).zip(clients) {
            for subclient in 0..subclients {
                let member = MemberId(client << 32 | u128::from(subclient));
                claims.push(Claim::new(member, wants / subclients));
            }
        }
        let shares = FairShares::of(&claims, capacity, 0);
        [0, 1, 2].map(|client: u128| {
            let of_client = claims.iter().filter(|claim| claim.member.0 >> 32 == client);
            of_client.map(|claim| shares.share(claim)).sum::<u32>()
        })
    };
    let wants = [(6, 1_000), (4, 500), (2, 200)];
    assert_eq!(shares(120, wants), [60, 40, 20]);
    let wants = [(10, 2_000), (10, 500), (30, 700)];
    assert_eq!(shares(1_000, wants), [200, 200, 600]);
}

/// `Test_ProportionalShare`. The clients arrive one after the other, and the sum is never more than
/// the capacity. Without `fair`, who comes first has what it wants.
#[test]
fn the_sum_of_what_clients_get_is_never_more_than_the_capacity() {
    let pool = Pool::builder("first", Rate::per_second(120))
        .partitions(120)
        .build()
        .unwrap();
    let mut store = LeaseTable::new();
    let mut get = |id, wants| {
        let mut member = Member::new(&pool, id);
        member.tell(&mut store, ProtocolEvent::Demand(wants), at(0))
    };
    assert_eq!((get(1, 60), get(2, 75), get(3, 10)), (60, 60, 0));
}

/// `Test_LeaseLength`: a lease of 342 s that is refreshed every 5 s. Ours varies by a quarter, and
/// a member stops before the store ends the lease.
#[test]
fn lease_terms() {
    let pool = Pool::builder("terms", Rate::per_second(10))
        .lease(Duration::from_secs(342))
        .interval(Duration::from_secs(5))
        .fair(true)
        .build()
        .unwrap();
    let mut store = LeaseTable::new();
    let mut member = Member::new(&pool, 1);
    assert_eq!(
        member.tell(&mut store, ProtocolEvent::Demand(1), at(1_000)),
        1
    );
    let (held, ends) = member.protocol.leases().next().unwrap();
    assert_eq!(ends, at(343_000).saturating_sub(pool.margin()));
    assert!(store.holder(held.partition, at(342_999)).is_some());
    assert_eq!(store.holder(held.partition, at(343_000)), None);
    let refresh = member.wake_at.saturating_since(at(1_000));
    assert!(refresh >= Duration::from_millis(3_750) && refresh <= Duration::from_millis(6_250));
}

fn pool_of(shared: u32, factor: u32) -> PoolBuilder {
    Pool::builder("shared", Rate::per_second(shared)).partition_of(factor)
}

/// `TestAzureSharedResource_PartitionCount`. More than 500 partitions are refused, where upstream
/// takes 500 and reports an error.
#[test]
fn partition_count() {
    let partitions = |shared, factor| {
        pool_of(shared, factor)
            .build()
            .map(|pool| pool.partitions())
    };
    assert_eq!(partitions(10, 1), Ok(10));
    assert_eq!(partitions(10_000, 1), Err(PoolError::Partitions(10_000)));
    assert_eq!(partitions(10_000, 777), Ok(13));
    assert_eq!(partitions(10_050, 1_000), Ok(11));
    // Here all partitions together are worth the capacity, not 11,000.
    let pool = pool_of(10_050, 1_000).build().unwrap();
    assert_eq!(pool.rate_of(11), Rate::per_second(10_050));
}

/// `TestAzureSharedResource_GiveMe`. All partitions are asked for at once, where upstream asks for
/// one in each interval.
#[test]
fn target_to_leases() {
    let leased = |wants: u64, reserved| {
        let pool = pool_of(10_000, 1_000).reserved(reserved).build().unwrap();
        let mut member = Member::new(&pool, 1);
        let wanted = ProtocolEvent::Demand(pool.wanted(wants));
        let held = member.tell(&mut LeaseTable::new(), wanted, at(0));
        (held, pool.capacity(held))
    };
    assert_eq!(leased(2_500, 2_000), (1, 3_000));
    assert_eq!(leased(4_000, 0), (4, 4_000));
    assert_eq!(leased(2_000, 2_000), (0, 2_000));
    assert_eq!(leased(1_800, 2_000), (0, 2_000));
}

/// `TestAzureSharedResource_LeaseExpiration`. Leases end if they are not renewed, and are released
/// when the demand has ended, which upstream does not do.
#[test]
fn lease_expiry() {
    let pool = pool_of(10_000, 1_000)
        .lease(Duration::from_millis(300))
        .reserved(500)
        .build()
        .unwrap();
    let mut store = LeaseTable::new();
    let mut member = Member::new(&pool, 1);
    let wanted = ProtocolEvent::Demand(pool.wanted(1_800));
    assert_eq!(member.tell(&mut store, wanted, at(0)), 2);
    // The store does not answer any more.
    let share = member
        .protocol
        .on(ProtocolEvent::Wake, at(247))
        .share
        .unwrap();
    assert_eq!(pool.capacity(share.partitions), 500);

    let mut member = Member::new(&pool, 2);
    let wanted = ProtocolEvent::Demand(pool.wanted(1_800));
    assert_eq!(member.tell(&mut store, wanted, at(1_000)), 2);
    member.tell(&mut store, ProtocolEvent::Demand(0), at(1_010));
    let linger = pool.linger().as_millis() as u64;
    while member.held > 0 {
        let now = member.wake_at;
        assert!(now <= at(1_010 + linger));
        member.tell(&mut store, ProtocolEvent::Wake, now);
    }
    assert!((0..10).all(|partition| store.holder(partition, at(1_010 + linger)).is_none()));
}

/// `TestAzureSharedResource_SetSharedCapacity` and `_SetReservedCapacity`.
#[test]
fn live_change() {
    let capacity = |pool: &Pool| pool.capacity(pool.partitions());
    let ten = pool_of(10_000, 1_000).build().unwrap();
    let twenty = ten.to_builder().shared(Rate::per_second(20_000));
    assert_eq!(
        capacity(&twenty.partition_of(1_000).build().unwrap()),
        20_000
    );
    let reserved = ten.to_builder().reserved(2_000).build().unwrap();
    assert_eq!(reserved.capacity(0), 2_000);

    let mut store = LeaseTable::new();
    let mut member = Member::new(&ten, 1);
    assert_eq!(member.tell(&mut store, ProtocolEvent::Demand(5), at(0)), 5);
    let twelve = pool_of(12_000, 1_000).build().unwrap();
    let held = member.tell(&mut store, ProtocolEvent::Changed(&twelve), at(10));
    assert_eq!(twelve.capacity(held), 5_000);

    // Of the leases, those on partitions that remain are kept; others are taken for the rest.
    let three = pool_of(3_000, 1_000).build().unwrap();
    member.tell(&mut store, ProtocolEvent::Changed(&three), at(20));
    let mut now = at(20);
    while member.held < 3 {
        now = member.wake_at;
        assert!(now < at(500));
        member.tell(&mut store, ProtocolEvent::Wake, now);
    }
    assert_eq!(three.capacity(member.held), 3_000);
    assert!((3..12).all(|partition| store.holder(partition, now).is_none()));

    // No partition, while leases end.
    let none = pool_of(0, 1_000).build().unwrap();
    let held = member.tell(&mut store, ProtocolEvent::Changed(&none), now);
    assert_eq!((held, none.capacity(held)), (0, 0));
    assert_eq!(member.tell(&mut store, ProtocolEvent::Wake, at(60_000)), 0);

    // From none to one.
    let mut member = Member::new(&none, 2);
    assert_eq!(
        member.tell(&mut store, ProtocolEvent::Demand(1), at(60_000)),
        0
    );
    let one = pool_of(1_000, 1_000).build().unwrap();
    let held = member.tell(&mut store, ProtocolEvent::Changed(&one), at(60_001));
    assert_eq!(one.capacity(held), 1_000);
}
