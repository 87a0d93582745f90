//! What a member does, event by event, and what a store grants.

use core::time::Duration;

use portcullis_core::{Rate, Timestamp};
use portcullis_fleet::{
    Actions, Exchange, ExchangeAnswer, Heard, LeaseTable, MemberId, MemberReport, MemberShare,
    PartitionLease, Pool, Protocol, ProtocolEvent,
};

const LEASE: Duration = Duration::from_secs(15);

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// 20 partitions, leases of 15 s, a margin of 200 ms.
fn pool() -> Pool {
    let pool = Pool::builder("writes", Rate::per_second(500));
    pool.lease(LEASE).build().unwrap()
}

/// A member, and the request that it sends at 1 s for so many partitions.
fn asking(partitions: u32) -> (Protocol, u64, Exchange) {
    let mut member = Protocol::new(&pool(), MemberId(1), 1, at(0));
    let actions = member.on(ProtocolEvent::Demand(partitions), at(1_000));
    let (exchange, request) = actions.send.unwrap();
    (member, exchange, request)
}

fn answer(member: &mut Protocol, exchange: u64, answer: &ExchangeAnswer, now: u64) -> Actions {
    member.on(ProtocolEvent::Answered { exchange, answer }, at(now))
}

fn granted(partitions: &[u32]) -> ExchangeAnswer {
    let granted = partitions.iter().map(|&partition| PartitionLease {
        partition,
        fence: 1,
    });
    {
        let mut answer = ExchangeAnswer::default();
        answer.granted = granted.collect();
        answer
    }
}

/// A member that has had leases on the partitions 3 and 7 since 1 s.
fn holding() -> Protocol {
    let (mut member, exchange, _) = asking(2);
    let share = answer(&mut member, exchange, &granted(&[3, 7]), 1_010).share;
    assert_eq!(share.unwrap().partitions, 2);
    member
}

#[test]
fn the_end_of_a_lease_counts_from_the_sending() {
    for arrives in [1_001, 2_500, 4_000] {
        let (mut member, exchange, _) = asking(1);
        let actions = answer(&mut member, exchange, &granted(&[3]), arrives);
        let until = at(1_000 + 14_800);
        let share = MemberShare {
            partitions: 1,
            until,
        };
        assert_eq!(actions.share, Some(share));
    }
}

#[test]
fn a_grant_that_arrives_after_its_end_is_released_and_not_used() {
    let (mut member, exchange, _) = asking(1);
    let actions = answer(&mut member, exchange, &granted(&[3]), 15_800);
    assert_eq!(actions.share, None);
    assert_eq!(member.leases().count(), 0);
    let (_, request) = actions.send.unwrap();
    assert_eq!(request.release, granted(&[3]).granted);

    let (mut member, exchange, _) = asking(1);
    let actions = answer(&mut member, exchange, &granted(&[3]), 15_799);
    assert_eq!(actions.share.unwrap().partitions, 1);
}

/// The store has leased a partition for as long as the request said.
#[test]
fn a_lease_lasts_as_long_as_its_request_said_although_the_settings_have_changed() {
    for lease in [2, 15, 60].map(Duration::from_secs) {
        let (mut member, exchange, request) = asking(1);
        let other = pool().to_builder().lease(lease).build().unwrap();
        member.on(ProtocolEvent::Changed(&other), at(1_005));
        let actions = answer(&mut member, exchange, &granted(&[3]), 1_010);
        assert_eq!(request.lease, LEASE);
        assert_eq!(
            actions.share.unwrap().until,
            at(1_000 + 14_800),
            "{lease:?}"
        );
        // It is renewed in time, for the new length, and never ends earlier than before.
        let (exchange, request) = member.on(ProtocolEvent::Wake, at(6_000)).send.unwrap();
        assert_eq!(request.lease, lease);
        let renewed = {
            let mut answer = ExchangeAnswer::default();
            answer.renewed = request.renew;
            answer
        };
        answer(&mut member, exchange, &renewed, 6_010);
        let lasts = lease.as_millis() as u64 - 200;
        let ends = at((1_000 + 14_800).max(6_000 + lasts));
        assert_eq!(member.leases().next().unwrap().1, ends, "{lease:?}");
    }
}

#[test]
fn a_store_does_not_end_a_lease_earlier_than_it_was_granted_for() {
    let ask = |member, seconds: u64| {
        let mut request = Exchange::new(MemberId(member), Duration::from_secs(seconds));
        request.demand = 1;
        request.candidates = vec![3];
        request.at_most = 1;
        request
    };
    let mut table = LeaseTable::new();
    let held = table.exchange(&ask(1, 15), at(0)).granted;
    let shorter = {
        let mut request = ask(1, 2);
        request.renew = held.clone();
        request
    };
    assert_eq!(table.exchange(&shorter, at(1_000)).renewed, held);
    table.restart(at(2_000));
    assert_eq!(table.exchange(&ask(2, 2), at(14_999)).granted, []);
    assert_eq!(table.exchange(&ask(2, 2), at(15_000)).granted.len(), 1);
    // Also if it is granted again, because an answer was lost.
    let mut table = LeaseTable::new();
    table.exchange(&ask(1, 15), at(0));
    assert_eq!(table.exchange(&ask(1, 2), at(1_000)).granted.len(), 1);
    assert_eq!(table.exchange(&ask(2, 2), at(14_999)).granted, []);
}

#[test]
fn from_its_end_on_a_lease_is_not_used() {
    let mut member = holding();
    member.on(ProtocolEvent::Wake, at(15_799));
    assert_eq!(member.leases().count(), 2);
    let actions = member.on(ProtocolEvent::Wake, at(15_800));
    assert_eq!(actions.share, Some(MemberShare::NONE));
}

/// It may arrive after the end of the lease. The store has leased it to the member all the time.
#[test]
fn a_renewal_moves_the_end_on_unless_the_new_end_has_passed() {
    for (arrives, ended) in [
        (14_510, false),
        (15_799, false),
        (15_800, false),
        (15_801, true),
        (16_499, true),
    ] {
        let mut member = holding();
        let (exchange, request) = member.on(ProtocolEvent::Wake, at(14_500)).send.unwrap();
        assert_eq!(request.renew.len(), 2);
        let renewed = {
            let mut answer = ExchangeAnswer::default();
            answer.renewed = request.renew.clone();
            answer
        };
        if ended {
            // An event of any kind shows the member that its leases have ended.
            let actions = member.on(ProtocolEvent::Demand(2), at(15_800));
            assert_eq!(actions.share, Some(MemberShare::NONE));
        }
        let actions = answer(&mut member, exchange, &renewed, arrives);
        let share = MemberShare {
            partitions: 2,
            until: at(14_500 + 14_800),
        };
        assert_eq!(actions.share, Some(share), "{arrives} ms");
        let mut leases: Vec<_> = member.leases().map(|(held, _)| held).collect();
        leases.sort_unstable_by_key(|held| held.partition);
        assert_eq!(leases, request.renew, "each once");
    }
    let mut member = holding();
    let (exchange, request) = member.on(ProtocolEvent::Wake, at(6_000)).send.unwrap();
    let renewed = {
        let mut answer = ExchangeAnswer::default();
        answer.renewed = request.renew.clone();
        answer
    };
    let actions = answer(&mut member, exchange, &renewed, 20_800);
    assert_eq!(actions.share, Some(MemberShare::NONE));
    let (_, released) = actions.send.unwrap();
    assert_eq!(released.release, request.renew);
}

/// A store that has forgotten its leases believes a claim that was on its way when the lease ended,
/// although it had leased the partition to another member since.
#[test]
fn a_lease_that_has_ended_is_not_used_again_by_the_word_of_a_store_that_has_forgotten() {
    let mut table = LeaseTable::new();
    let (mut member, exchange, request) = asking(1);
    let first = table.exchange(&request, at(1_000));
    answer(&mut member, exchange, &first, 1_010);
    // It is stopped after it has sent its renewal, beyond the end of its lease.
    let (exchange, renewal) = member.on(ProtocolEvent::Wake, at(14_500)).send.unwrap();
    let partition = first.granted[0].partition;
    let other = table.exchange(&ask(2, vec![partition]), at(16_000));
    assert_eq!(other.granted.len(), 1, "another member uses it");
    table.forget(at(16_100));
    let late = table.exchange(&renewal, at(16_200));
    assert_eq!(late.renewed, first.granted, "the store knows no better");
    let actions = answer(&mut member, exchange, &late, 16_210);
    assert_eq!(actions.share, Some(MemberShare::NONE));
    assert_eq!(actions.send.unwrap().1.release, first.granted);
}

/// What the member has given up meanwhile, it does not use again.
#[test]
fn a_renewal_of_what_is_being_released_changes_nothing() {
    let mut member = holding();
    let (exchange, request) = member.on(ProtocolEvent::Wake, at(6_000)).send.unwrap();
    member.on(ProtocolEvent::Demand(1), at(6_001));
    member.on(ProtocolEvent::Wake, at(6_500));
    assert_eq!(member.leases().count(), 1);
    let renewed = {
        let mut answer = ExchangeAnswer::default();
        answer.renewed = request.renew.clone();
        answer
    };
    let actions = answer(&mut member, exchange, &renewed, 6_510);
    assert_eq!(actions.share.unwrap().partitions, 1);
    let (_, next) = actions.send.unwrap();
    assert_eq!((next.renew.len(), next.release.len()), (1, 1));
}

/// Its leases ended, and then their renewal arrives.
#[test]
fn a_member_that_leaves_releases_what_was_renewed_meanwhile() {
    let mut member = holding();
    let (exchange, request) = member.on(ProtocolEvent::Wake, at(14_500)).send.unwrap();
    member.on(ProtocolEvent::Leave, at(15_800));
    assert!(member.leases().count() == 0 && !member.has_left());
    let renewed = {
        let mut answer = ExchangeAnswer::default();
        answer.renewed = request.renew.clone();
        answer
    };
    let actions = answer(&mut member, exchange, &renewed, 15_900);
    assert_eq!((actions.share, member.leases().count()), (None, 0));
    let (exchange, next) = actions.send.unwrap();
    assert_eq!(next.release.len(), 2);
    answer(&mut member, exchange, &ExchangeAnswer::default(), 15_910);
    assert!(member.has_left());
}

#[test]
fn what_the_store_does_not_renew_is_lost() {
    let mut member = holding();
    let (exchange, request) = member.on(ProtocolEvent::Wake, at(6_000)).send.unwrap();
    let renewed = {
        let mut answer = ExchangeAnswer::default();
        answer.renewed = request.renew[..1].to_vec();
        answer
    };
    let actions = answer(&mut member, exchange, &renewed, 6_010);
    assert_eq!(actions.share.unwrap().partitions, 1);
    assert!(actions.reports.contains(&MemberReport::Lost(7)));
}

#[test]
fn a_late_or_doubled_answer_changes_nothing() {
    let (mut member, exchange, _) = asking(2);
    // It has given that exchange up, and asked again.
    let actions = member.on(ProtocolEvent::Wake, at(3_000));
    assert!(actions.reports.contains(&MemberReport::Unreachable));
    assert_eq!(
        answer(&mut member, exchange, &granted(&[3, 7]), 3_100).share,
        None
    );

    let mut member = holding();
    assert_eq!(answer(&mut member, 1, &granted(&[4, 5]), 1_020).share, None);
    assert_eq!(member.leases().count(), 2);
}

#[test]
fn the_share_falls_before_a_release_is_sent() {
    let mut member = holding();
    let actions = member.on(ProtocolEvent::Demand(1), at(2_000));
    assert_eq!((actions.share, actions.wake_at), (None, at(2_300)));
    // A demand that is back in time releases nothing.
    member.on(ProtocolEvent::Demand(2), at(2_299));
    assert_eq!(member.on(ProtocolEvent::Wake, at(2_300)).share, None);

    member.on(ProtocolEvent::Demand(1), at(3_000));
    let actions = member.on(ProtocolEvent::Wake, at(3_300));
    assert_eq!(actions.share.unwrap().partitions, 1);
    let (_, request) = actions.send.unwrap();
    assert_eq!((request.renew.len(), request.release.len()), (1, 1));
}

#[test]
fn a_release_is_repeated_until_the_store_confirms_it() {
    let mut member = holding();
    member.on(ProtocolEvent::Demand(1), at(3_000));
    let (exchange, request) = member.on(ProtocolEvent::Wake, at(3_300)).send.unwrap();
    let wake_at = member
        .on(ProtocolEvent::Failed { exchange }, at(3_400))
        .wake_at;
    // In the meantime it does not ask for that partition.
    let (_, again) = member.on(ProtocolEvent::Demand(20), wake_at).send.unwrap();
    assert_eq!(again.release, request.release);
    let released = request.release[0].partition;
    assert!(!again.candidates.contains(&released) && again.candidates.len() == 18);
}

#[test]
fn a_member_that_leaves_releases_everything() {
    let mut member = holding();
    let actions = member.on(ProtocolEvent::Leave, at(2_000));
    assert_eq!(actions.share, Some(MemberShare::NONE));
    let (exchange, request) = actions.send.unwrap();
    assert_eq!((request.release.len(), request.demand), (2, 0));
    assert!(!member.has_left());
    let actions = answer(&mut member, exchange, &ExchangeAnswer::default(), 2_010);
    assert!(member.has_left() && actions.send.is_none());
}

#[test]
fn without_the_store_a_member_backs_off_and_reports_when_it_is_alone() {
    let mut member = holding();
    let mut now = at(6_000);
    let (mut exchanges, mut alone) = (0, None);
    while alone.is_none() {
        let actions = member.on(ProtocolEvent::Wake, now);
        exchanges += u32::from(actions.send.is_some());
        let is_alone = actions.reports.contains(&MemberReport::Alone);
        alone = is_alone.then_some(now);
        now = actions.wake_at;
    }
    assert_eq!(alone, Some(at(15_800)));
    assert!((3..7).contains(&exchanges), "{exchanges}");
}

fn ask(member: u128, candidates: Vec<u32>) -> Exchange {
    {
        let mut request = Exchange::new(MemberId(member), LEASE);
        request.at_most = candidates.len() as u32;
        request.candidates = candidates;
        request
    }
}

#[test]
fn a_store_grants_again_what_a_lost_answer_granted() {
    let mut table = LeaseTable::new();
    let lost = table.exchange(&ask(1, vec![3]), at(0)).granted;
    let again = table.exchange(&ask(1, vec![]), at(1_000)).granted;
    assert_eq!(again[0].partition, 3);
    // With a new fence: a release of the old one may be on its way.
    let release = {
        let mut request = ask(1, vec![]);
        request.release = lost;
        request.renew = again.clone();
        request
    };
    table.exchange(&release, at(1_001));
    assert_eq!(
        table.holder(3, at(15_999)),
        Some((MemberId(1), again[0].fence))
    );
}

#[test]
fn a_late_release_or_renewal_does_not_touch_a_later_lease() {
    let mut table = LeaseTable::new();
    let first = table.exchange(&ask(1, vec![3]), at(0)).granted;
    let later = table.exchange(&ask(2, vec![3]), at(15_000)).granted;
    assert!(later[0].fence > first[0].fence);
    let release = |held: &[PartitionLease], member| {
        let mut request = ask(member, vec![]);
        request.release = held.to_vec();
        request
    };
    table.exchange(&release(&first, 1), at(15_001));
    // Nor does one of the same member with an old fence.
    table.exchange(&release(&first, 2), at(15_002));
    let (holder, _) = table.holder(3, at(15_003)).unwrap();
    assert_eq!(holder, MemberId(2));
    let renew = {
        let mut request = ask(1, vec![]);
        request.renew = first;
        request
    };
    assert!(table.exchange(&renew, at(15_004)).renewed.is_empty());
}

#[test]
fn a_store_that_has_forgotten_believes_the_larger_fence_and_grants_nothing() {
    let mut table = LeaseTable::new();
    let first = table.exchange(&ask(1, vec![3]), at(0)).granted;
    let later = table.exchange(&ask(2, vec![3]), at(15_000)).granted;
    table.forget(at(15_100));
    let renew = |held: &[PartitionLease], member| {
        let mut request = ask(member, vec![9]);
        request.renew = held.to_vec();
        request
    };
    // A claim that is late: its lease had ended before.
    let late = table.exchange(&renew(&first, 1), at(15_200));
    assert_eq!((late.renewed.len(), late.granted.len()), (1, 0));
    // It is not granted again either, although the table has it for that member.
    assert!(
        table
            .exchange(&ask(1, vec![]), at(15_300))
            .granted
            .is_empty()
    );
    let valid = table.exchange(&renew(&later, 2), at(15_400));
    assert_eq!(valid.renewed, later);
    assert!(
        table
            .exchange(&renew(&first, 1), at(15_500))
            .renewed
            .is_empty()
    );
    assert_eq!(
        table.holder(3, at(15_501)),
        Some((MemberId(2), later[0].fence))
    );
    // Until the longest lease has ended.
    let answer = table.exchange(&ask(3, vec![9]), at(30_099));
    assert_eq!(answer.hold_off, Some(Duration::from_millis(1)));
    assert!(answer.granted.is_empty());
    assert_eq!(
        table.exchange(&ask(3, vec![9]), at(30_100)).granted.len(),
        1
    );
}

#[test]
fn a_member_tells_each_store_which_one_has_answered_last() {
    let (mut member, exchange, first) = asking(2);
    assert_eq!(first.heard, None);
    let from = |server, fence| {
        let mut answer = ExchangeAnswer::default();
        answer.server = server;
        answer.fence = fence;
        answer
    };
    answer(&mut member, exchange, &from(7, 40), 1_010);
    let (exchange, second) = member.on(ProtocolEvent::Wake, at(2_010)).send.unwrap();
    // Since the first one was sent, less 200 ms of 15 s.
    let ago = Duration::from_micros(1_010_000 - 13_466);
    let heard = second.heard.unwrap();
    assert_eq!((heard.server, heard.fence), (7, 40));
    assert!(
        heard.ago.abs_diff(ago) < Duration::from_micros(2),
        "{heard:?}"
    );
    // Of all servers the largest fence; an answer that was given up says nothing.
    answer(&mut member, exchange, &from(8, 30), 2_020);
    answer(&mut member, exchange, &from(9, 50), 2_030);
    let (_, third) = member.on(ProtocolEvent::Wake, at(4_000)).send.unwrap();
    let heard = third.heard.unwrap();
    assert_eq!((heard.server, heard.fence), (8, 40));
}

/// The members turn to another server and back, and this one kept running.
#[test]
fn a_store_that_was_not_in_charge_grants_nothing_until_all_leases_of_the_other_one_have_ended() {
    let mut table = LeaseTable::new().server(1);
    assert_eq!(table.exchange(&ask(1, vec![3]), at(0)).granted.len(), 1);
    let heard = |member, server, ago, candidates| {
        let mut request = ask(member, candidates);
        request.heard = Some(Heard::new(
            server,
            Duration::from_millis(ago),
            1_000_000_000,
        ));
        request
    };
    // The other one has leased the partition since.
    let answer = table.exchange(&heard(2, 2, 1_000, vec![3]), at(60_000));
    assert_eq!(answer.hold_off, Some(LEASE));
    assert!(answer.granted.is_empty());
    assert!(answer.fence >= 1_000_000_000);
    let held = PartitionLease {
        partition: 3,
        fence: 999_999_999,
    };
    let claim = {
        let mut request = heard(3, 2, 2_000, vec![]);
        request.renew = vec![held];
        request
    };
    let answer = table.exchange(&claim, at(61_000));
    assert_eq!(answer.renewed, [held]);
    // What was answered before does not make it hold off for longer.
    assert_eq!(
        answer.hold_off,
        Some(LEASE.checked_sub(Duration::from_secs(1)).unwrap())
    );
    // What this one has answered, or another one so long ago that its leases have ended, is no
    // reason to hold off.
    let own = table.exchange(&heard(2, 1, 100, vec![4]), at(75_000));
    assert_eq!((own.hold_off, own.granted.len()), (None, 1));
    let old = table.exchange(&heard(4, 2, 15_000, vec![5]), at(100_000));
    assert_eq!((old.hold_off, old.granted.len()), (None, 1));
    assert!(old.granted[0].fence > 1_000_000_000);
    // There and back again.
    let again = table.exchange(&heard(4, 2, 14_999, vec![6]), at(200_000));
    assert_eq!(again.hold_off, Some(LEASE));
}

#[test]
fn a_store_holds_off_for_the_longest_lease_that_may_last_and_no_longer() {
    let hold_off = |asked: &[(u64, u64)], restart: u64| {
        let mut table = LeaseTable::new();
        for &(now, lease) in asked {
            let lease = Duration::from_millis(lease);
            table.exchange(&Exchange::new(MemberId(1), lease), at(now));
        }
        table.forget(at(restart));
        let nothing = Exchange::new(MemberId(1), Duration::from_millis(1));
        let answer = table.exchange(&nothing, at(restart));
        answer.hold_off.unwrap().as_millis()
    };
    let hour = 3_600_000;
    assert_eq!(hold_off(&[(0, hour), (1, 15_000)], 2), hour.into());
    assert_eq!(hold_off(&[(0, hour), (1, 15_000)], hour - 1), hour.into());
    // It has ended.
    assert_eq!(hold_off(&[(0, hour), (1, 15_000)], hour), 15_000);
    // What was asked for in the meantime counts, in any order.
    let several = [(0, hour), (9, 60_000), (hour - 2, 15_000), (hour, 15_000)];
    assert_eq!(hold_off(&several, hour + 1), 60_000);
    let later = [&several[..], &[(hour + 59_000, 15_000)]].concat();
    assert_eq!(hold_off(&later, hour + 60_000), 15_000);
    assert_eq!(hold_off(&several, hour + 60_000), 1);
    // And what is asked for again.
    let again = [(0, hour), (hour / 2, hour), (hour, 15_000)];
    assert_eq!(hold_off(&again, hour + 1), hour.into());
}
