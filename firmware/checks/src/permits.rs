//! Limiters whose permits return by release, compared with counters: leases, a pool of them by
//! id, and slices.

use core::time::Duration;

use portcullis_core::leases::{LeaseId, StaleId};
use portcullis_core::{
    Concurrency, Denied, Lease, LeasePool, Rate, Retry, SlicedBucket, Timestamp,
};

use crate::draws::Draws;
use crate::tally::Group;

static LIMIT: Concurrency<u32> = match Concurrency::builder(9).build_on() {
    Ok(limit) => limit,
    Err(_) => panic!(),
};
static POOL: LeasePool<Concurrency, 6> = LeasePool::new(Concurrency::new(10));
static SLICED_LIMIT: Concurrency = Concurrency::new(10);
static SLICED_BUCKET: SlicedBucket<u32> = match SlicedBucket::builder(Rate::per_second(10), 10)
    .initial(9)
    .tick(Duration::from_millis(1))
    .build_on()
{
    Ok(limit) => limit,
    Err(_) => panic!(),
};

pub(crate) fn check(group: &mut Group<'_>) {
    leases(group);
    pool(group);
    slices_of_a_limit(group);
    slices_of_a_bucket(group);
}

/// Takes, releases and resizes at random, and compares with two counters.
fn leases(group: &mut Group<'_>) {
    let mut draws = Draws(1);
    let mut held: [Option<Lease<&Concurrency<u32>>>; 5] = [const { None }; 5];
    let (mut limit, mut in_use) = (9u32, 0u32);
    for step in 0..1_000 {
        let place = draws.below(5) as usize;
        let n = draws.below(u64::from(limit) + 3) as u32;
        match (draws.below(8), &mut held[place]) {
            (0, _) => {
                limit = draws.below(14) as u32;
                group.check(
                    LIMIT.set_limit(limit).is_ok(),
                    format_args!("step {step}: a limit of {limit}"),
                );
            }
            (1, Some(lease)) => {
                let had = lease.permits();
                let released = lease.release(n);
                group.check(
                    released.is_ok() == (n <= had),
                    format_args!("step {step}: {n} of {had}: {released:?}"),
                );
                in_use -= if n <= had { n } else { 0 };
            }
            (_, place @ Some(_)) => in_use -= place.take().map_or(0, |lease| lease.permits()),
            (_, place @ None) => {
                let taken = LIMIT.try_acquire(n);
                let fits = in_use + n.max(1) <= limit;
                group.check(
                    taken.is_ok() == fits,
                    format_args!("step {step}: {n} of {limit}, {in_use} in use"),
                );
                if let Err(denied) = taken {
                    let never = n.max(1) > limit;
                    let retry = denied.retry(&LIMIT);
                    let expected = if never {
                        Retry::Never
                    } else {
                        Retry::OnRelease
                    };
                    group.check(
                        retry == expected,
                        format_args!("step {step}: {n} of {limit}: {retry:?}"),
                    );
                }
                *place = taken.ok();
                in_use += if fits { n } else { 0 };
            }
        }
        let available = LIMIT.available();
        group.check(
            available == limit.saturating_sub(in_use) && LIMIT.in_use() == in_use,
            format_args!("step {step}: {available} of {limit}, {in_use} in use"),
        );
    }
}

/// Claims, releases and sweeps at random, and compares with a list.
fn pool(group: &mut Group<'_>) {
    let mut draws = Draws(2);
    let mut held: [Option<(LeaseId, u32, u64)>; 6] = [None; 6];
    let mut stale: Option<LeaseId> = None;
    for now in 0..1_000 {
        let in_use: u32 = held.iter().flatten().map(|(_, n, _)| n).sum();
        let place = draws.below(6) as usize;
        match (draws.below(8), held[place]) {
            (0, _) => {
                let is_due = |lease: &Option<(LeaseId, u32, u64)>| {
                    lease.is_some_and(|(.., until)| until <= now)
                };
                let due: u32 = held
                    .iter()
                    .filter(|lease| is_due(lease))
                    .flatten()
                    .map(|(_, n, _)| n)
                    .sum();
                held.iter_mut()
                    .filter(|lease| is_due(lease))
                    .for_each(|lease| *lease = None);
                let swept = POOL.sweep(Timestamp::from_secs(now));
                group.check(
                    swept == due.into(),
                    format_args!("at {now}: swept {swept}, {due} were due"),
                );
            }
            (1, _) if stale.is_some() => {
                let released = stale.map(|id| POOL.release(id));
                group.check(
                    released == Some(Err(StaleId)),
                    format_args!("at {now}: stale, {released:?}"),
                );
            }
            (_, Some((id, n, _))) => {
                let released = POOL.release(id);
                group.check(
                    released == Ok(n),
                    format_args!("at {now}: {n} held, {released:?}"),
                );
                (held[place], stale) = (None, Some(id));
            }
            (draw, None) => {
                let n = draws.below(4) as u32;
                let until = if draw < 4 {
                    now + draws.below(20)
                } else {
                    u64::MAX
                };
                let deadline = (draw < 4).then_some(Timestamp::from_secs(until));
                let claimed = POOL.claim_at(Timestamp::from_secs(now), n, deadline);
                let fits = in_use + n.max(1) <= 10;
                group.check(
                    claimed.is_ok() == fits,
                    format_args!("at {now}: {n}, {in_use} in use: {claimed:?}"),
                );
                held[place] = claimed.ok().map(|id| (id, n, until));
            }
        }
        let in_use: u32 = held.iter().flatten().map(|(_, n, _)| n).sum();
        let leases = held.iter().flatten().count();
        group.check(
            POOL.limiter().in_use() == in_use && POOL.leases() == leases,
            format_args!("at {now}: {in_use} in {leases} leases, {POOL:?}"),
        );
    }
}

fn slices_of_a_limit(group: &mut Group<'_>) {
    let conserved = |held: u32, leased: u32| SLICED_LIMIT.available() + held + leased == 10;
    let (Ok(first), Ok(second)) = (SLICED_LIMIT.slice(4), SLICED_LIMIT.slice(3)) else {
        return group.check(false, format_args!("7 of 10 can be cut off"));
    };
    let refused = SLICED_LIMIT.slice(4).is_err();
    group.check(
        refused && SLICED_LIMIT.available() == 3,
        format_args!("3 are left: {SLICED_LIMIT:?}"),
    );
    let own = first.try_acquire(3);
    group.check(
        own.is_ok() && SLICED_LIMIT.available() == 3,
        format_args!("its own permits: {own:?}"),
    );
    let more = second.try_acquire(5);
    group.check(
        more.is_ok(),
        format_args!("with what the rest has: {more:?}"),
    );
    group.check(
        conserved(first.held() + second.held(), 8),
        format_args!("nothing is lost: {SLICED_LIMIT:?}"),
    );
    group.check(
        first.try_acquire(3).is_err(),
        format_args!("1 and 1 are less than 3"),
    );
    drop((own, more));
    group.check(
        conserved(first.held() + second.held(), 0),
        format_args!("what was leased is back: {SLICED_LIMIT:?}"),
    );
    drop((first, second));
    group.check(
        SLICED_LIMIT.available() == 10,
        format_args!("all is back: {SLICED_LIMIT:?}"),
    );
}

fn slices_of_a_bucket(group: &mut Group<'_>) {
    let now = Timestamp::ZERO;
    let Ok(slice) = SLICED_BUCKET.slice_at(now, 4) else {
        return group.check(false, format_args!("4 of 9 can be cut off"));
    };
    let mut state = |what: &str, held: u32, rest: u64| {
        let has = (slice.held(), SLICED_BUCKET.available_at(now));
        group.check(
            has == (held, rest),
            format_args!("{what}: {has:?}, not {held} and {rest}"),
        );
    };
    state("cut", 4, 5);
    drop(slice.try_acquire_at(now, 3));
    state("a take of what it has", 1, 5);
    drop(slice.try_acquire_at(now, 3));
    state("a take of more, which draws", 1, 2);
    let denied = slice.try_acquire_at(now, 5).err();
    state("a denial", 1, 2);
    let expected = Some(Denied::Exhausted { now, permits: 5 });
    group.check(denied == expected, format_args!("{denied:?}"));
    drop(slice);
    let later = SLICED_BUCKET.available_at(Timestamp::from_secs(9));
    group.check(later == 10, format_args!("full again: {later}"));
}
