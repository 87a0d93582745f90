//! What one run does: how many processes, which settings, which faults.

use core::time::Duration;

use portcullis_core::Rate;
use portcullis_fleet::Pool;

use crate::random::Random;

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// What a store loses when it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Nothing, but each lease begins again: etcd.
    TimeToLive,
    /// All leases: Redis without a file.
    Everything,
    /// What was granted and released since the file was written: Redis with one.
    TheNewest,
}

/// What happens to the process of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scripted {
    Wants(usize, u32),
    /// It does not start again.
    Crashes(usize),
}

/// One run. Faults come at random, on average so often; 0 stands for never.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) processes: usize,
    pub(crate) pool: Pool,
    /// The same, with leases of another length: the settings of a process change.
    pub(crate) other_pool: Pool,
    pub(crate) change_every: u64,
    /// The largest demand of one process, in partitions.
    pub(crate) most_wanted: u32,
    /// How far apart two clocks may drift in the time of a lease is exactly the margin.
    pub(crate) drift: i64,
    /// The longest time of a message on its way, unless it is late.
    pub(crate) latency: u64,
    /// One message in so many is lost, late or doubled.
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) doubled: u64,
    /// How long until a process gets another demand, crashes, is paused or is cut off.
    pub(crate) demand_every: u64,
    pub(crate) crash_every: u64,
    pub(crate) pause_every: u64,
    pub(crate) cut_every: u64,
    /// When the store restarts, for how long it is away, and what it loses.
    pub(crate) restarts: Vec<(u64, u64, Restart)>,
    /// When the members turn to the other one of two servers, which keep running and do not know of
    /// each other. The second one does not know the pool at first.
    pub(crate) switches: Vec<u64>,
    /// The smallest demand of one process.
    pub(crate) least_wanted: u32,
    /// What happens to processes at given times, besides.
    pub(crate) script: Vec<(u64, Scripted)>,
    /// Until then demands change and faults happen.
    pub(crate) calm_from: u64,
    /// From then on, what is measured must be as good as without faults.
    pub(crate) measured_from: u64,
    pub(crate) ends: u64,
    /// How often a process takes permits.
    pub(crate) take_every: u64,
}

impl Plan {
    /// The longest lease, in nanoseconds.
    pub(crate) fn longest_lease(&self) -> u64 {
        let longest = self.pool.lease().max(self.other_pool.lease());
        longest.as_nanos() as u64
    }

    /// A plan of `seconds` without faults, in which processes do only what the script says.
    pub(crate) fn scripted(
        seed: u64,
        processes: usize,
        pool: Pool,
        seconds: u64,
        script: Vec<(u64, Scripted)>,
    ) -> Self {
        Self {
            seed,
            processes,
            most_wanted: 0,
            drift: 0,
            latency: MILLI,
            lost: 0,
            late: 0,
            doubled: 0,
            demand_every: 0,
            crash_every: 0,
            pause_every: 0,
            cut_every: 0,
            restarts: Vec::new(),
            switches: Vec::new(),
            least_wanted: 0,
            script,
            calm_from: 0,
            // The shares are compared in no such run.
            measured_from: u64::MAX,
            ends: seconds * SECOND,
            take_every: 100 * MILLI,
            other_pool: pool.clone(),
            change_every: 0,
            pool,
        }
    }

    /// A plan in which everything is random.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let processes = match random.within(0..20) {
            0..10 => random.within(2..9),
            10..17 => random.within(9..33),
            17..19 => random.within(33..101),
            _ => random.within(101..201),
        } as usize;
        let fair = random.once_in(2);
        let partitions = match random.within(0..4) {
            0 => random.within(1..13),
            1 | 2 => random.within(10..41),
            _ => random.within(40..121),
        } as u32;
        // Few partitions for many processes take long to go around.
        let least = if processes > 32 {
            processes
        } else {
            processes / 3
        };
        let partitions = partitions.max(least as u32);
        let lease =
            Duration::from_millis(random.pick(&[1_500, 1_500, 3_000, 3_000, 5_000, 15_000]));
        let interval = Duration::from_millis(random.pick(&[100, 200, 300]));
        let permits = partitions * random.within(5..60) as u32;
        let pool = Pool::builder("simulated", Rate::per_second(permits))
            .partitions(partitions)
            .burst(random.within(1..8) as u32)
            .lease(lease)
            .interval(interval)
            .linger(Duration::from_millis(random.pick(&[0, 100, 300])))
            .fair(fair)
            .build()
            .expect("the settings fit");
        let other_lease = random.pick(&[lease / 2, lease * 2]);
        // The same part of the lease, so that the clocks may drift as far.
        let part = pool.margin().as_nanos() as f64 / lease.as_nanos() as f64;
        let other_pool = pool
            .to_builder()
            .lease(other_lease)
            .margin(other_lease.mul_f64(part) + Duration::from_nanos(10))
            .build()
            .expect("the settings fit");
        let change_every = random.pick(&[0, 0, 5, 20]) * SECOND;
        let longest = if change_every == 0 {
            lease
        } else {
            lease.max(other_lease)
        };
        let lease = longest.as_nanos() as u64;
        let restarts = match random.within(0..5) {
            0 | 1 => 0,
            2 | 3 => 1,
            _ => 2,
        };
        let length = 10 * SECOND + 3 * lease;
        let restarts = (0..restarts).map(|_| {
            let kind = random.pick(&[Restart::TimeToLive, Restart::Everything, Restart::TheNewest]);
            let at = random.within(2 * SECOND..length);
            let away = random.pick(&[0, lease / 4, lease]);
            (at, random.within(0..away + 50 * MILLI), kind)
        });
        let restarts = restarts.collect();
        let calm_from = length;
        // A pause may last for two leases, and what was held before it ends one lease later.
        let measured_from = calm_from + 3 * lease + 4 * SECOND;
        // Partitions that not all can have go around, until the shares are even.
        let turn = 50 * interval.as_nanos() as u64;
        let level = partitions as usize / processes;
        let turns = match (fair, level) {
            (true, 0..4) => (6 * processes as u64)
                .div_ceil(u64::from(partitions))
                .max(2),
            _ => 0,
        };
        let faults = |random: &mut Random, from: &[u64]| random.pick(from);
        Self {
            seed,
            processes,
            most_wanted: random.within(1..u64::from(partitions) + 1) as u32,
            drift: largest_drift(&pool),
            latency: random.pick(&[MILLI, 5 * MILLI, pool.interval().as_nanos() as u64 / 15]),
            lost: faults(&mut random, &[0, 20, 200]),
            late: faults(&mut random, &[0, 20, 200]),
            doubled: faults(&mut random, &[0, 20, 200]),
            demand_every: random.pick(&[2, 10, 30]) * SECOND,
            crash_every: random.pick(&[0, 20, 60]) * SECOND,
            pause_every: random.pick(&[0, 10, 60]) * SECOND,
            cut_every: random.pick(&[0, 20, 60]) * SECOND,
            restarts,
            switches: Vec::new(),
            least_wanted: 0,
            script: Vec::new(),
            calm_from,
            measured_from,
            ends: measured_from + turns * turn + 3 * SECOND,
            take_every: (processes as u64 / 20).max(1) * 50 * MILLI,
            other_pool,
            change_every,
            pool,
        }
    }
}

impl Plan {
    /// A random plan in which the members leave a server and come back to it, several times. All of
    /// them take part all the time: each wants a partition, and none is stopped or cut off.
    pub(crate) fn there_and_back(seed: u64) -> Self {
        let plan = Self::random(seed);
        let mut random = Random::new(!seed);
        let lease = plan.pool.lease().as_nanos() as u64;
        let interval = plan.pool.interval().as_nanos() as u64;
        let mut at = 6 * SECOND;
        let switches = (0..random.within(2..8)).map(|_| {
            let stays = [2 * interval, lease / 3, lease, 3 * lease];
            let longest = random.pick(&stays);
            at += random.within(MILLI..longest);
            at
        });
        let switches: Vec<u64> = switches.collect();
        let lasts = switches.last().map_or(0, |last| last + 3 * lease);
        Self {
            processes: plan.processes.min(12),
            // As many as there are processes have a partition, and all want one.
            most_wanted: plan.most_wanted.max(1),
            least_wanted: 1,
            lost: 0,
            late: 0,
            crash_every: 0,
            pause_every: 0,
            cut_every: 0,
            change_every: 0,
            other_pool: plan.pool.clone(),
            restarts: Vec::new(),
            calm_from: lasts,
            measured_from: u64::MAX,
            ends: lasts + SECOND,
            take_every: 50 * MILLI,
            switches,
            ..plan
        }
    }
}

/// The drift at which a member that is slow, and a store that is fast by as much, use up the
/// margin: `lease - margin` of the member is as long as `lease` of the store.
pub(crate) fn largest_drift(pool: &Pool) -> i64 {
    let (lease, margin) = (pool.lease().as_nanos(), pool.margin().as_nanos());
    (margin * 1_000_000_000 / (2 * lease - margin)) as i64
}
