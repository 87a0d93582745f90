//! Random requests, compared with a plain simulation of the limits and the queues.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use portcullis_core::Timestamp;
use portcullis_policy::{
    Algorithm, Decision, Key, Limit, Policy, QueueEnd, QueueOrder, Request, Rule,
};

use super::support::{Task, Time, run};

/// A limit of the simulation. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Plain {
    Window {
        count: u64,
        period: u64,
    },
    AtOnce {
        count: u64,
    },
    /// One permit every `interval`.
    Bucket {
        burst: u64,
        interval: u64,
    },
}

/// The state of a limit for one key.
#[derive(Clone, Copy, Default)]
struct State {
    /// The window that `used` counts for.
    window: u64,
    used: u64,
    /// When a bucket is full again.
    full_at: u64,
}

impl Plain {
    fn limit(self) -> Limit {
        let millis = Duration::from_millis;
        match self {
            Self::Window { count, period } => {
                Limit::per(count, millis(period)).algorithm_of(Algorithm::FixedWindow)
            }
            Self::AtOnce { count } => Limit::at_once(count as u32),
            Self::Bucket { burst, interval } => Limit::per(1, millis(interval)).burst(burst),
        }
    }

    fn capacity(self) -> u64 {
        match self {
            Self::Window { count, .. } | Self::AtOnce { count } => count,
            Self::Bucket { burst, .. } => burst,
        }
    }

    fn allows(self, state: State, now: u64, n: u64) -> bool {
        match self {
            Self::Window { count, period } => {
                let used = if state.window == now / period {
                    state.used
                } else {
                    0
                };
                used + n <= count
            }
            Self::AtOnce { count } => state.used + n <= count,
            Self::Bucket { burst, interval } => {
                state.full_at.max(now) + n * interval <= now + burst * interval
            }
        }
    }

    fn take(self, state: &mut State, now: u64, n: u64) {
        match self {
            Self::Window { period, .. } => {
                if state.window != now / period {
                    (state.window, state.used) = (now / period, 0);
                }
                state.used += n;
            }
            Self::AtOnce { .. } => state.used += n,
            Self::Bucket { interval, .. } => {
                state.full_at = state.full_at.max(now) + n * interval;
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Rules {
    /// Each limit, and whether it has a queue.
    limits: Vec<(Plain, bool)>,
    queue: u64,
    order: QueueOrder,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Waits,
    Allowed(Option<QueueEnd>),
    Denied(Option<QueueEnd>),
    /// Cancelled or released.
    Gone,
}

#[derive(Default)]
struct OfKey {
    states: Vec<State>,
    /// The head first.
    waiting: VecDeque<usize>,
}

struct Simulation {
    rules: Rules,
    now: u64,
    keys: HashMap<usize, OfKey>,
    /// The key, the cost, the deadline and the fate of each request.
    requests: Vec<(usize, u64, u64, Fate)>,
}

impl Simulation {
    fn judge(&self, key: usize, n: u64, is_final: bool) -> bool {
        let states = &self.keys[&key].states;
        let mut limits = self.rules.limits.iter().zip(states);
        limits.all(|((limit, has_queue), state)| {
            is_final && *has_queue || limit.allows(*state, self.now, n)
        })
    }

    /// Whether all limits allow.
    fn allows(&self, key: usize, n: u64) -> bool {
        self.judge(key, n, false)
    }

    /// Whether a limit without a queue denies.
    fn denies_for_good(&self, key: usize, n: u64) -> bool {
        !self.judge(key, n, true)
    }

    fn take(&mut self, key: usize, n: u64) {
        let of_key = self.keys.get_mut(&key).unwrap();
        for ((limit, _), state) in self.rules.limits.iter().zip(&mut of_key.states) {
            limit.take(state, self.now, n);
        }
    }

    /// Whether requests of a key wait ahead of a new one.
    fn is_ahead(&mut self, key: usize) -> bool {
        let limits = self.rules.limits.len();
        let of_key = self.keys.entry(key).or_default();
        of_key.states.resize(limits, State::default());
        self.rules.order == QueueOrder::OldestFirst && !of_key.waiting.is_empty()
    }

    /// Decides a request that does not wait.
    fn decide(&mut self, key: usize, n: u64) {
        let fate = if !self.is_ahead(key) && self.allows(key, n) {
            self.take(key, n);
            Fate::Allowed(None)
        } else {
            Fate::Denied(None)
        };
        self.requests.push((key, n, u64::MAX, fate));
    }

    fn acquire(&mut self, key: usize, n: u64, deadline: u64) {
        let is_ahead = self.is_ahead(key);
        let id = self.requests.len();
        let fate = if !is_ahead && self.allows(key, n) {
            self.take(key, n);
            Fate::Allowed(None)
        } else if !is_ahead && self.denies_for_good(key, n) {
            Fate::Denied(None)
        } else {
            self.enter(key, id, n)
        };
        self.requests.push((key, n, deadline, fate));
    }

    fn enter(&mut self, key: usize, id: usize, n: u64) -> Fate {
        let Rules { queue, order, .. } = self.rules;
        let of_key = self.keys.get_mut(&key).unwrap();
        loop {
            let costs = of_key.waiting.iter().map(|&other| self.requests[other].1);
            if costs.sum::<u64>() + n <= queue {
                break;
            }
            if n > queue || order == QueueOrder::OldestFirst {
                return Fate::Denied(Some(QueueEnd::Full));
            }
            let oldest = of_key.waiting.pop_back().unwrap();
            self.requests[oldest].3 = Fate::Denied(Some(QueueEnd::Evicted));
        }
        match order {
            QueueOrder::OldestFirst => of_key.waiting.push_back(id),
            _ => of_key.waiting.push_front(id),
        }
        Fate::Waits
    }

    /// Grants the requests that wait for a key.
    fn serve(&mut self, key: usize) {
        while let Some(&head) = self.keys[&key].waiting.front() {
            let n = self.requests[head].1;
            let fate = if self.allows(key, n) {
                self.take(key, n);
                Fate::Allowed(Some(QueueEnd::Granted))
            } else if self.denies_for_good(key, n) {
                Fate::Denied(Some(QueueEnd::Denied))
            } else {
                break;
            };
            self.requests[head].3 = fate;
            self.keys.get_mut(&key).unwrap().waiting.pop_front();
        }
    }

    fn tick(&mut self) {
        self.now += 1;
        for key in self.keys.keys().copied().collect::<Vec<_>>() {
            self.serve(key);
            let late = |id: &usize| self.requests[*id].2 <= self.now;
            let late: Vec<usize> = self.keys[&key]
                .waiting
                .iter()
                .copied()
                .filter(late)
                .collect();
            for id in late {
                self.requests[id].3 = Fate::Denied(Some(QueueEnd::Late));
                self.keys
                    .get_mut(&key)
                    .unwrap()
                    .waiting
                    .retain(|&other| other != id);
                self.serve(key);
            }
        }
    }

    /// Drops the future of a request, or its decision.
    fn give_up(&mut self, id: usize) {
        let (key, n, _, fate) = self.requests[id];
        let of_key = self.keys.get_mut(&key).unwrap();
        match fate {
            Fate::Waits => of_key.waiting.retain(|&other| other != id),
            Fate::Allowed(_) => {
                for ((limit, _), state) in self.rules.limits.iter().zip(&mut of_key.states) {
                    if let Plain::AtOnce { .. } = limit {
                        state.used -= n;
                    }
                }
            }
            _ => {}
        }
        self.requests[id].3 = Fate::Gone;
        self.serve(key);
    }
}

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn rules(&mut self) -> Rules {
        let mut limits: Vec<_> = (0..=self.below(3))
            .map(|_| {
                let count = 1 + self.below(4);
                let limit = match self.below(3) {
                    0 => Plain::Window {
                        count,
                        period: 1 + self.below(40),
                    },
                    1 => Plain::AtOnce { count },
                    _ => Plain::Bucket {
                        burst: count,
                        interval: 1 + self.below(20),
                    },
                };
                (limit, self.below(3) > 0)
            })
            .collect();
        limits[0].1 = true;
        let order = match self.below(2) {
            0 => QueueOrder::OldestFirst,
            _ => QueueOrder::NewestFirst,
        };
        if order == QueueOrder::NewestFirst {
            // A newer request may exhaust a limit without a queue. An older one then learns of it
            // when it is tried again.
            for (_, has_queue) in &mut limits {
                *has_queue = true;
            }
        }
        Rules {
            limits,
            queue: 1 + self.below(6),
            order,
        }
    }
}

type Decided<'p> = (Option<QueueEnd>, Decision<'p>);

fn fate(task: &Task<'_, Decided<'_>>) -> Fate {
    match &task.output {
        None if task.is_pending() => Fate::Waits,
        None => Fate::Gone,
        Some((end, decision)) if decision.is_allowed() => Fate::Allowed(*end),
        Some((end, _)) => Fate::Denied(*end),
    }
}

#[test]
fn random_requests_are_decided_as_by_a_plain_simulation() {
    let mut waits = 0;
    for seed in 0..600 {
        waits += compare(seed);
    }
    assert!(waits > 10_000, "only {waits} requests waited");
}

/// Returns how many requests waited.
fn compare(seed: u64) -> usize {
    let mut random = Random(seed);
    let rules = random.rules();
    let time = Time::default();
    let rule = Rule::new("all").key(Key::path());
    let rule = rules.limits.iter().fold(rule, |rule, (limit, has_queue)| {
        rule.limit(if *has_queue {
            limit.limit().queue(rules.queue).queue_order(rules.order)
        } else {
            limit.limit()
        })
    });
    let timers = time.clone();
    let policy = Policy::new([rule]).unwrap();
    let policy = policy.with_timer(move || timers.timer());
    // A deadline that cannot be met is refused at once if the limits return permits by time.
    let has_deadlines = rules
        .limits
        .iter()
        .all(|(limit, _)| matches!(limit, Plain::AtOnce { .. }));
    let capacity = rules.limits.iter().map(|(limit, _)| limit.capacity()).min();
    let mut plain = Simulation {
        rules: rules.clone(),
        now: 0,
        keys: HashMap::new(),
        requests: Vec::new(),
    };
    let paths = ["/a", "/b", "/c"];
    let mut tasks: Vec<Task<'_, Decided<'_>>> = Vec::new();
    let mut waited = 0;
    for step in 0..150 {
        match random.below(10) {
            0..4 => {
                let key = random.below(3) as usize;
                let n = 1 + random.below(capacity.unwrap());
                let mut deadline = u64::MAX;
                if has_deadlines && random.below(2) == 0 {
                    // All different: which of two that end at the same time ends first is open.
                    deadline = plain.now + 1 + random.below(30);
                    while plain.requests.iter().any(|other| other.2 == deadline) {
                        deadline += 1;
                    }
                }
                let until = match deadline {
                    u64::MAX => Timestamp::MAX,
                    millis => Timestamp::from_millis(millis),
                };
                let request = Request::new("GET", paths[key]).cost(n as u32);
                if random.below(5) == 0 {
                    let decision = policy.decide_at(time.now(), &request);
                    tasks.push(Task::new(async move { (None, decision) }));
                    plain.decide(key, n);
                } else {
                    let wait = policy.acquire(&request).until(until);
                    tasks.push(Task::new(async move {
                        let decision = wait.await;
                        (decision.end(), decision.into_decision())
                    }));
                    plain.acquire(key, n, deadline);
                }
                waited += usize::from(plain.requests.last().unwrap().3 == Fate::Waits);
            }
            4..7 if !tasks.is_empty() => {
                let id = random.below(tasks.len() as u64) as usize;
                tasks[id].cancel();
                tasks[id].output = None;
                plain.give_up(id);
            }
            _ => {
                for _ in 0..=random.below(8) {
                    time.advance(Duration::from_millis(1));
                    plain.tick();
                    run(&mut tasks);
                }
            }
        }
        run(&mut tasks);
        for (id, (task, expected)) in tasks.iter().zip(&plain.requests).enumerate() {
            let seen = fate(task);
            assert_eq!(
                seen, expected.3,
                "seed {seed}, step {step}, request {id}: {rules:?}"
            );
        }
    }
    let counts = policy.queue_counts("all").unwrap();
    let waiting = plain
        .keys
        .values()
        .map(|key| key.waiting.len())
        .sum::<usize>();
    assert_eq!(counts.waiters as usize, waiting);
    waited
}
