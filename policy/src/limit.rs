//! One limit of a rule: what it allows, and the limiter that keeps it.

use core::fmt;
#[cfg(feature = "live")]
use core::mem;
use core::str::FromStr;
use core::time::Duration;

use portcullis_core::builder::{SlidingWindowBuilder, TokenBucketBuilder};
use portcullis_core::keyed::{
    ConcurrencyRules, FixedWindowRules, IntoRules, Line, Refunds, TokenBucketRules,
};
use portcullis_core::{
    Concurrency, CooldownWindow, FixedWindow, Rate, SettingsError, SlidingWindow, TokenBucket,
};

use crate::period::{PeriodError, parse_count, parse_period, period_text};
use crate::rule::MAX_LIMITS;

/// The largest number of segments of a sliding window.
pub const MAX_SEGMENTS: u32 = 64;

/// How a limit counts permits in its period.
///
/// ```
/// use portcullis_policy::{Algorithm, Limit};
/// let limit: Limit = "100/1m".parse()?;
/// assert_eq!(limit.algorithm(), Algorithm::TokenBucket);
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Permits return continuously. At most `burst + rate × t` in any span of time `t`.
    #[default]
    TokenBucket,
    /// At most N in each window of a grid that begins at time 0.
    FixedWindow,
    /// At most N in each window; a window begins with the first request after the end of the window
    /// before.
    WindowFromRequest,
    /// At most N in any `segments` consecutive segments, which together are as long as a period.
    SlidingWindow {
        /// The number of segments, 1 to [`MAX_SEGMENTS`].
        segments: u32,
    },
}

/// Which of the requests that wait for a limit gets its permits first: see [`Limit::queue`].
///
/// ```
/// use portcullis_policy::QueueOrder;
/// assert_eq!(QueueOrder::default(), QueueOrder::OldestFirst);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueOrder {
    /// The oldest one. While a request waits, later requests of the same key get no permits. A
    /// request that finds the queue full is denied.
    #[default]
    OldestFirst,
    /// The newest one. Later requests take permits that are available, ahead of those that wait. A
    /// request that finds the queue full evicts those that have waited longest.
    NewestFirst,
}

/// One limit of a rule: a number of permits per period, or a number of permits in use at once.
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::{Algorithm, Limit};
///
/// let bucket = "100/1m".parse::<Limit>()?.burst(20).named("per minute");
/// let window = Limit::per(1_000, Duration::from_secs(3_600)).algorithm_of(Algorithm::FixedWindow);
/// let uploads = Limit::at_once(3);
/// assert_eq!((bucket.count(), uploads.count()), (100, 3));
/// # let _ = window;
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: Option<Box<str>>,
    count: u64,
    /// `None` for permits at once.
    period: Option<Duration>,
    algorithm: Algorithm,
    burst: Option<u64>,
    /// The permits of the first decision, if they are not the burst.
    initial: Option<u64>,
    /// Whether all permits of a period come in at its end.
    stepwise: bool,
    /// Whether a sliding window holds in any span as long as a period.
    strict: bool,
    wait: Option<Duration>,
    debt: Option<u64>,
    /// In permits. 0 if no request waits.
    queue: u64,
    queue_order: Option<QueueOrder>,
}

impl Limit {
    /// `count` permits per `period`. A limit of 0 permits denies every request: see
    /// [`at_once`](Self::at_once).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::per(10, Duration::from_secs(1)).to_string(), "10/s");
    /// ```
    #[must_use]
    pub const fn per(count: u64, period: Duration) -> Self {
        Self::new(count, Some(period))
    }

    /// `count` permits at once. They return when the [`Decision`](crate::Decision) is dropped.
    ///
    /// A limit of 0, here and in [`per`](Self::per), denies every request, and says
    /// [`Retry::Never`]: it closes an endpoint, or in an [override](crate::Rule::override_key) one
    /// client. Such a denial is [`Denied::ExceedsCapacity`]. It takes from no limit, starts no
    /// [penalty](crate::Rule::penalty), and no request waits for it. If a
    /// change by a `LivePolicy` raises the limit again, what was taken before is still taken;
    /// meanwhile as much returns as with a limit of 1.
    ///
    /// ```
    /// # use portcullis_core::{Retry, Timestamp};
    /// # use portcullis_policy::{Key, Limit, Policy, Request, Rule};
    /// let rule = Rule::new("tenants").key(Key::tier()).limit("100/m".parse()?);
    /// let policy = Policy::new([rule.override_key(["closed"], [Limit::at_once(0)])]).unwrap();
    /// let request = Request::new("GET", "/").tier("closed");
    /// let decision = policy.decide_at(Timestamp::from_secs(1), &request);
    /// assert_eq!(decision.retry(), Some(Retry::Never));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    ///
    /// [`Retry::Never`]: portcullis_core::Retry::Never
    /// [`Denied::ExceedsCapacity`]: portcullis_core::Denied::ExceedsCapacity
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).to_string(), "3 at once");
    /// ```
    #[must_use]
    pub const fn at_once(count: u32) -> Self {
        Self::new(count as u64, None)
    }

    const fn new(count: u64, period: Option<Duration>) -> Self {
        Self {
            name: None,
            count,
            period,
            algorithm: Algorithm::TokenBucket,
            burst: None,
            initial: None,
            stepwise: false,
            strict: false,
            wait: None,
            debt: None,
            queue: 0,
            queue_order: None,
        }
    }

    /// Sets the name, for headers and messages.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).named("uploads").name(), Some("uploads"));
    /// ```
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the algorithm. Default [`Algorithm::TokenBucket`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{Algorithm, Limit};
    /// let limit = Limit::per(10, Duration::from_secs(1)).algorithm_of(Algorithm::FixedWindow);
    /// assert_eq!(limit.algorithm(), Algorithm::FixedWindow);
    /// ```
    #[must_use]
    pub const fn algorithm_of(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets the burst of a token bucket: how many permits can be available at once. Default: the
    /// count.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::per(10, Duration::from_secs(1)).burst(3).capacity(), 3);
    /// ```
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets how many permits of a token bucket are available at the first decision of its rule, or
    /// at the first change of a `LivePolicy` before it. Default: the [burst](Self::burst), which is
    /// the most. With 0, the first request is denied. Only with [`Algorithm::TokenBucket`].
    ///
    /// Only in a rule whose requests all share the limit, because it has no
    /// [`key`](crate::Rule::key), and in an [override](crate::Rule::override_key). A rule with a
    /// key forgets a key when all its permits have returned, and would take them away when the key
    /// comes back. A limit that goes on after a change of the policy does not start again.
    ///
    /// **Bound.** At most `initial + rate × t` in the time `t` from the first decision on, and at
    /// any time the bound of the algorithm.
    ///
    /// # Cost
    ///
    /// The first decision of the rule also takes the permits that the limit starts without. Other
    /// decisions of the rule wait for that, so the first one is not lock-free. Later ones read one
    /// more word.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// // A service that has just started warms up: 2 requests, then 10 per second.
    /// let limit = "10/s".parse::<Limit>()?.burst(50).initial(2);
    /// let policy = Policy::new([Rule::new("all").limit(limit)]).unwrap();
    /// let decide = |millis, cost| {
    ///     let request = Request::new("GET", "/").cost(cost);
    ///     policy.decide_at(Timestamp::from_millis(millis), &request).is_allowed()
    /// };
    /// assert!(decide(60_000, 2));
    /// assert!(!decide(60_000, 1));
    /// assert!(decide(60_100, 1));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub const fn initial(mut self, permits: u64) -> Self {
        self.initial = Some(permits);
        self
    }

    /// Lets the permits of a token bucket come in by steps: all permits of a period at its end.
    /// Default: they come in continuously. Periods are counted from [`Timestamp::ZERO`]. Only with
    /// [`Algorithm::TokenBucket`].
    ///
    /// **Bound.** At most `burst + count × k` in any span of time, where `k` is the number of
    /// periods that end in it.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Limit, Policy, Request, Rule};
    /// // 20 permits each 200 ms: a client may use 50 at once.
    /// let limit = Limit::per(20, Duration::from_millis(200)).burst(50).stepwise();
    /// let policy = Policy::new([Rule::new("all").limit(limit)]).unwrap();
    /// let decide = |millis, cost| {
    ///     let request = Request::new("GET", "/").cost(cost);
    ///     policy.decide_at(Timestamp::from_millis(millis), &request).is_allowed()
    /// };
    /// assert!(decide(1_000, 50));
    /// assert!(!decide(1_199, 1));
    /// assert!(decide(1_200, 20));
    /// ```
    ///
    /// [`Timestamp::ZERO`]: portcullis_core::Timestamp::ZERO
    #[must_use]
    pub const fn stepwise(mut self) -> Self {
        self.stepwise = true;
        self
    }

    /// Lets a sliding window hold in any span of time as long as a period, wherever it begins.
    /// Default: in spans that begin with a segment. A permit returns a segment later than by
    /// default. Only with [`Algorithm::SlidingWindow`], of at most [`MAX_SEGMENTS`]` - 1` segments,
    /// and not in a store.
    ///
    /// **Bound.** At most the count in any span of one period. When a live policy makes a window
    /// strict, what was taken before counts as far as the window before knew it.
    ///
    /// ```
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_policy::{Algorithm, Limit, Policy, Request, Rule};
    /// let limit = "2/10s".parse::<Limit>()?;
    /// let limit = limit.algorithm_of(Algorithm::SlidingWindow { segments: 2 }).strict();
    /// let policy = Policy::new([Rule::new("all").limit(limit)]).unwrap();
    /// let decide = |secs, cost| {
    ///     let request = Request::new("GET", "/").cost(cost);
    ///     policy.decide_at(Timestamp::from_secs(secs), &request).is_allowed()
    /// };
    /// assert!(decide(24, 2));
    /// // By default, the segment of 20 s to 25 s would have left the window.
    /// assert!(!decide(30, 1));
    /// assert!(decide(35, 2));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub const fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Sets how long all requests are denied after one over the limit, instead of until the end of
    /// the window. It may be shorter or longer than the period. Only with
    /// [`Algorithm::WindowFromRequest`].
    ///
    /// If several limits of a rule deny a request, the first one decides, in the order of the
    /// limits. Only that one starts its wait.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::{Algorithm, Limit};
    /// let _ = Limit::per(3, Duration::from_secs(1))
    ///     .algorithm_of(Algorithm::WindowFromRequest)
    ///     .wait(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets how many permits a token bucket may owe after a [settlement](crate::Hold) of more than
    /// was estimated. It then denies until they have returned. Default 0. Only with a
    /// [`Rule::hold`](crate::Rule::hold).
    ///
    /// **Bound.** At most `burst + debt + rate × t` in any span of time `t`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Limit;
    /// let _ = Limit::per(10, Duration::from_secs(1)).debt(20);
    /// ```
    #[must_use]
    pub const fn debt(mut self, debt: u64) -> Self {
        self.debt = Some(debt);
        self
    }

    /// Lets requests wait for permits of this limit: requests of one key for up to `permits`
    /// permits at a time. A request for 0 permits counts as one for 1. Default 0: no request waits.
    /// Needs the feature `queue`.
    ///
    /// If no limit of a rule of [`Kind::Ingress`](crate::Kind::Ingress) or
    /// [`Kind::Egress`](crate::Kind::Egress) has a queue, each of them has one for any number of
    /// permits, oldest first: bytes of a body are delayed, not denied.
    ///
    /// Requests wait in `Policy::acquire`. With other methods, such as
    /// [`Policy::decide_at`](crate::Policy::decide_at), a request never waits, and is denied
    /// instead.
    ///
    /// The requests of a key wait in one queue for all limits of the rule, because a request takes
    /// its permits from all limits or from none. If several limits of a rule have a queue, their
    /// orders must be the same, and the smallest of the numbers of permits counts.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).queue(10).queue_limit(), 10);
    /// ```
    #[must_use]
    pub const fn queue(mut self, permits: u64) -> Self {
        self.queue = permits;
        self
    }

    /// Sets which of the requests that wait gets permits first. Default
    /// [`QueueOrder::OldestFirst`]. Only with a [`queue`](Self::queue).
    ///
    /// ```
    /// # use portcullis_policy::{Limit, QueueOrder};
    /// let limit = Limit::at_once(3).queue(10).queue_order(QueueOrder::NewestFirst);
    /// assert_eq!(limit.order(), QueueOrder::NewestFirst);
    /// ```
    #[must_use]
    pub const fn queue_order(mut self, order: QueueOrder) -> Self {
        self.queue_order = Some(order);
        self
    }

    /// How many permits a settlement may owe.
    pub(crate) const fn debt_permits(&self) -> u64 {
        match self.debt {
            Some(debt) => debt,
            None => 0,
        }
    }

    /// Whether the limit denies every request.
    pub(crate) const fn is_closed(&self) -> bool {
        self.count == 0
    }

    /// The limit that keeps the state of a limit of 0, which denies before it is asked: the same
    /// kind, with one permit. So what was taken before the limit was lowered to 0 stays taken.
    fn opened(&self) -> Option<Self> {
        self.is_closed().then(|| Self {
            count: 1,
            burst: None,
            initial: None,
            ..self.clone()
        })
    }

    /// Whether a debt is set.
    pub(crate) fn has_debt(&self) -> bool {
        self.debt.is_some()
    }

    /// Returns the name, if one was set.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).name(), None);
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the number of permits per period, or at once.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).count(), 3);
    /// ```
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the period, or `None` for permits at once.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).period(), None);
    /// ```
    pub const fn period(&self) -> Option<Duration> {
        self.period
    }

    /// Returns whether permits are held until a request ends: those of a limit at once, unless it
    /// is 0 and denies always.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert!(Limit::at_once(3).is_held());
    /// assert!(!Limit::at_once(0).is_held());
    /// assert!(!"5/m".parse::<Limit>()?.is_held());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub const fn is_held(&self) -> bool {
        self.period.is_none() && self.count > 0
    }

    /// Returns the algorithm. It has no meaning for permits at once.
    ///
    /// ```
    /// # use portcullis_policy::{Algorithm, Limit};
    /// assert_eq!(Limit::at_once(3).algorithm(), Algorithm::TokenBucket);
    /// ```
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the largest number of permits that can be available at once: the burst of a token
    /// bucket, otherwise the count.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).capacity(), 3);
    /// ```
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.count,
        }
    }

    /// Returns the number of permits of the first decision: the [capacity](Self::capacity), unless
    /// [`initial`](Self::initial) is set.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// let limit: Limit = "20/s".parse()?;
    /// assert_eq!((limit.initial_permits(), limit.initial(5).initial_permits()), (20, 5));
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub const fn initial_permits(&self) -> u64 {
        match self.initial {
            Some(initial) => initial,
            None => self.capacity(),
        }
    }

    /// The permits that a limit, whose settings were checked, starts without.
    pub(crate) const fn missing(&self) -> u32 {
        self.capacity().saturating_sub(self.initial_permits()) as u32
    }

    /// Whether the permits of the first decision are set.
    pub(crate) const fn has_initial(&self) -> bool {
        self.initial.is_some()
    }

    /// Returns whether all permits of a period come in at its end.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// let limit: Limit = "20/200ms".parse()?;
    /// assert!(!limit.is_stepwise());
    /// assert!(limit.stepwise().is_stepwise());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub const fn is_stepwise(&self) -> bool {
        self.stepwise
    }

    /// Returns whether a sliding window holds in any span: see [`strict`](Self::strict).
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// let limit: Limit = "20/m".parse()?;
    /// assert!(!limit.is_strict());
    /// assert!(limit.strict().is_strict());
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub const fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns for how long a denial denies all requests of its key: see [`wait`](Self::wait).
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_policy::Limit;
    /// let limit = Limit::per(5, Duration::from_secs(60));
    /// assert_eq!(limit.wait_time(), None);
    /// let wait = Duration::from_secs(9);
    /// assert_eq!(limit.wait(wait).wait_time(), Some(wait));
    /// ```
    pub const fn wait_time(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns for how many permits requests of one key can wait. 0 if no request waits.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// assert_eq!(Limit::at_once(3).queue_limit(), 0);
    /// ```
    pub const fn queue_limit(&self) -> u64 {
        self.queue
    }

    /// Returns which of the requests that wait gets permits first.
    ///
    /// ```
    /// # use portcullis_policy::{Limit, QueueOrder};
    /// assert_eq!(Limit::at_once(3).order(), QueueOrder::OldestFirst);
    /// ```
    pub const fn order(&self) -> QueueOrder {
        match self.queue_order {
            Some(order) => order,
            None => QueueOrder::OldestFirst,
        }
    }

    /// Returns this limit with its count, its burst and its initial permits multiplied by
    /// `part / whole`. The results are rounded up, and cut to 64 bits. The period stays. A `part`
    /// of 0 gives a limit of 0, which denies every request.
    ///
    /// # Panics
    ///
    /// If `whole` is 0.
    ///
    /// ```
    /// # use portcullis_policy::Limit;
    /// // The share of one of three servers.
    /// assert_eq!("100/1m".parse::<Limit>()?.scaled(1, 3).count(), 34);
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[must_use]
    pub fn scaled(mut self, part: u64, whole: u64) -> Self {
        self.count = scale(self.count, part, whole);
        self.burst = self.burst.map(|burst| scale(burst, part, whole));
        self.initial = self.initial.map(|initial| scale(initial, part, whole));
        if self.is_closed() {
            (self.burst, self.initial) = (None, None);
        }
        self
    }

    /// Whether this limit can go on with the state of a table that has the limit `before`: the
    /// smaller the number, the more they have in common. `None` if it cannot.
    #[cfg(feature = "live")]
    pub(crate) fn kinship(&self, before: &Self) -> Option<u8> {
        // All fields are named: a new one does not compile until it is in one of the two lists.
        let settings = |of: &Self| {
            let Self {
                name: _,
                // A limit that goes on has its permits.
                initial: _,
                queue: _,
                queue_order: _,
                count,
                period,
                algorithm,
                burst,
                stepwise,
                strict,
                wait,
                debt,
            } = *of;
            (
                count, period, algorithm, burst, stepwise, strict, wait, debt,
            )
        };
        let kind = |of: &Self| {
            let algorithm = mem::discriminant(&of.algorithm);
            (of.period.is_some(), algorithm, of.wait.is_some())
        };
        if settings(self) == settings(before) {
            Some(0)
        } else if kind(self) != kind(before) {
            None
        } else if self.name.is_some() && self.name == before.name {
            Some(1)
        } else if self.period == before.period {
            Some(2)
        } else {
            Some(3)
        }
    }

    /// A token bucket with this count, which is the limit's, and a debt.
    fn bucket(&self, count: u32, period: Duration, debt: u64) -> TokenBucketBuilder {
        let rate = Rate::new(count, period);
        let bucket = TokenBucket::builder(rate, self.capacity()).debt(debt);
        if self.stepwise {
            bucket.stepwise()
        } else {
            bucket
        }
    }

    /// The rules of a token bucket that can also owe `owed` permits, which were taken before its
    /// limit was lowered. The settings were checked.
    ///
    /// A bucket whose rate is much lower than before may have no room for them in its word. Then it
    /// counts time in longer ticks, up to the time in which a permit returns.
    /// `before` is the tick of the rules before.
    #[cfg(feature = "live")]
    pub(crate) fn bucket_owing(&self, owed: u64, before: Duration) -> Option<TokenBucketRules> {
        if let Some(open) = self.opened() {
            return open.bucket_owing(owed, before);
        }
        let (count, period) = (u32::try_from(self.count).ok()?, self.period?);
        let bucket = |owed: u64| self.bucket(count, period, owed);
        let with_room = |owed: u64, tick: Duration| {
            // A key that moves loses what comes in in a tick, and a part of a permit.
            let longest = tick.max(before).as_nanos();
            let in_a_tick = longest * u128::from(count) / period.as_nanos().max(1);
            let more = u64::try_from(in_a_tick).ok()?.checked_add(2)?;
            let rules = bucket(owed.checked_add(more)?).tick(tick).rules();
            rules.ok()
        };
        let by_default = |owed: u64| with_room(owed, bucket(owed).rules().ok()?.timing().tick);
        let longest = u64::try_from(period.as_nanos() / u128::from(count.max(1))).ok()?;
        let ticks = (11..19).map(|power| 10_u64.pow(power));
        let mut ticks = ticks.take_while(|&tick| tick <= longest);
        by_default(owed)
            .or_else(|| ticks.find_map(|tick| with_room(owed, Duration::from_nanos(tick))))
            // As much as there is room for.
            .or_else(|| (1..64).find_map(|half| by_default(owed >> half)))
    }

    /// Chooses the limiter, and checks the settings.
    pub(crate) fn compile(&self) -> Result<Compiled, LimitProblem> {
        if let Some(open) = self.opened() {
            for (setting, value) in [("burst", self.burst), ("initial", self.initial)] {
                if value.is_some() {
                    return Err(LimitProblem::Closed(setting));
                }
            }
            return open.compile();
        }
        if self.queue > 0 && !cfg!(feature = "queue") {
            return Err(LimitProblem::NoQueue);
        }
        if self.queue == 0 && self.queue_order.is_some() {
            return Err(LimitProblem::OrderWithoutQueue);
        }
        self.refuse_unused()?;
        let Some(period) = self.period else {
            let count = u32::try_from(self.count).unwrap_or(u32::MAX);
            let rules = Concurrency::builder(count).build()?.into_rules()?;
            return Ok(Compiled::AtOnce(rules));
        };
        if period.is_zero() {
            return Err(LimitProblem::ZeroPeriod);
        }
        match self.algorithm {
            Algorithm::TokenBucket => self.compile_bucket(period),
            Algorithm::FixedWindow => {
                let window = FixedWindow::builder(self.count, period);
                Ok(Compiled::Window(window.rules()?))
            }
            Algorithm::WindowFromRequest => self.compile_window_from_request(period),
            Algorithm::SlidingWindow { segments } => {
                let (count, is_strict) = (self.count, self.strict);
                let window = Sliding {
                    count,
                    period,
                    segments,
                    is_strict,
                };
                // Built once here, so that the table cannot fail to build it.
                window.builder().build()?;
                Ok(Compiled::Sliding(window))
            }
        }
    }

    /// Refuses the first setting that has no effect on this kind of limit. A setting without an
    /// effect would let a user believe in a bound that does not hold.
    fn refuse_unused(&self) -> Result<(), LimitProblem> {
        let is_at_once = self.period.is_none();
        let is = |algorithm| !is_at_once && self.algorithm == algorithm;
        let is_bucket = is(Algorithm::TokenBucket);
        let refill = ("refill", self.stepwise, is_bucket);
        let is_sliding = matches!(self.algorithm, Algorithm::SlidingWindow { .. });
        let strict = ("strict", self.strict, is_sliding && !is_at_once);
        let wait = (
            "wait",
            self.wait.is_some(),
            is(Algorithm::WindowFromRequest),
        );
        let debt = ("debt", self.debt.is_some(), is_bucket);
        // In the order in which a user is told of the first one.
        let [third, fourth, fifth] = if is_at_once {
            [refill, wait, debt]
        } else {
            [debt, refill, wait]
        };
        let settings = [
            ("burst", self.burst.is_some(), is_bucket),
            ("initial", self.initial.is_some(), is_bucket),
            third,
            fourth,
            fifth,
            strict,
            (
                "algorithm",
                self.algorithm != Algorithm::default(),
                !is_at_once,
            ),
        ];
        let mut unused = settings.iter();
        match unused.find(|(_, is_set, has_effect)| *is_set && !has_effect) {
            Some((setting, ..)) => Err(LimitProblem::Unused(setting)),
            None => Ok(()),
        }
    }

    /// A token bucket, with its initial permits checked.
    fn compile_bucket(&self, period: Duration) -> Result<Compiled, LimitProblem> {
        let count = u32::try_from(self.count).map_err(|_| LimitProblem::LargeCount)?;
        let bucket = self.bucket(count, period, self.debt_permits());
        let rules = bucket.rules()?;
        let (initial, burst) = (self.initial_permits(), self.capacity());
        // One take of the missing permits begins the limit, and a take is of a `u32`.
        let least = burst.saturating_sub(u32::MAX.into());
        if !(least..=burst).contains(&initial) {
            return Err(LimitProblem::Initial { least, burst });
        }
        Ok(Compiled::Bucket(rules))
    }

    /// A window that begins with a request: with a wait after it, or without.
    fn compile_window_from_request(&self, period: Duration) -> Result<Compiled, LimitProblem> {
        let count = self.count;
        let Some(wait) = self.wait else {
            let window = FixedWindow::builder(count, period);
            let window = window.started_by_first_request().tick(tick_of(period));
            return Ok(Compiled::Window(window.rules()?));
        };
        // Built once here, so that the table cannot fail to build it.
        CooldownWindow::builder(count, period).wait(wait).build()?;
        Ok(Compiled::Cooldown {
            count,
            period,
            wait,
        })
    }
}

/// The unit in which a table counts the time of a window of this length that begins with a request.
/// It is the largest power of ten of 1 ns that makes the window longer by at most a ten-thousandth.
///
/// The word of a key has room for a count and a time. By default, a table would count the windows
/// of a large limit in longer units, up to the length of the window. With this unit, a limit for
/// which there is no room is refused.
pub(crate) fn tick_of(window: Duration) -> Duration {
    let most = window.as_nanos() / 20_000;
    let ticks = (0..=9).map(|power| 10_u64.pow(power));
    let tick = ticks.take_while(|&tick| u128::from(tick) <= most).last();
    Duration::from_nanos(tick.unwrap_or(1))
}

/// Checks the limits of a rule or of a key. `refuse` takes the index of a limit that is not valid,
/// or `None` if there are too many, and what is wrong.
pub(crate) fn compile_all(
    limits: &[Limit],
    mut refuse: impl FnMut(Option<usize>, String),
) -> Vec<Compiled> {
    if limits.len() > MAX_LIMITS {
        refuse(None, format!("a rule has at most {MAX_LIMITS} limits"));
    }
    let queues = limits.iter().enumerate();
    let mut queues = queues.filter(|(_, limit)| limit.queue > 0);
    if let Some((first, Limit { queue_order, .. })) = queues.next() {
        let order = queue_order.unwrap_or_default();
        for (other, _) in queues.filter(|(_, limit)| limit.order() != order) {
            let problem = format!(
                "queue_order must be that of limits[{first}]: the requests of a key wait in one \
                 queue for all limits"
            );
            refuse(Some(other), problem);
        }
    }
    let compiled = limits.iter().enumerate().filter_map(|(index, limit)| {
        let problem = |problem: LimitProblem| refuse(Some(index), problem.to_string());
        limit.compile().map_err(problem).ok()
    });
    compiled.collect()
}

fn scale(count: u64, part: u64, whole: u64) -> u64 {
    let scaled = (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The memory of a table for each key, as of [`Line::for_keys`]. `limiter` is the size of the
/// limiter that a key has besides its word.
pub(crate) const fn bytes_per_key(limiter: usize) -> usize {
    43 + limiter * 43 / 8
}

/// The memory of a table for `keys` keys, or for the one key that all requests share. Each line has
/// eight limiters.
pub(crate) fn table_bytes(keys: Option<usize>, limiter: usize) -> usize {
    let lines = Line::count_for_keys(keys.unwrap_or(1));
    lines.saturating_mul(size_of::<Line>() + 8 * limiter)
}

/// The number of limits that share a table, of those that can: see [`store`](crate::store). The
/// others have tables of their own.
pub(crate) fn shared(limits: &[Compiled]) -> usize {
    match limits.iter().filter(|limit| limit.can_share()).count() {
        1 => 0,
        limits => limits,
    }
}

/// The words of an entry that several limits share, besides one for each of them.
fn spare_words(limits: &[Compiled]) -> usize {
    match shared(limits) {
        0 => 0,
        shared => shared.next_power_of_two() - shared,
    }
}

/// The memory of the tables of limits for each key, as of [`Line::for_keys_of`]. `is_held` if
/// permits can be returned by settlements.
pub(crate) fn all_bytes_per_key(limits: &[Compiled], is_held: bool) -> usize {
    let each = limits.iter().map(|limit| limit.bytes_per_key(is_held));
    each.sum::<usize>() + spare_words(limits) * bytes_per_key(0)
}

/// The memory of the tables of limits for `keys` keys, or for the one key that all requests share.
pub(crate) fn all_bytes(limits: &[Compiled], keys: Option<usize>, is_held: bool) -> usize {
    let each = limits.iter().map(|limit| limit.bytes(keys, is_held));
    let spare = spare_words(limits).saturating_mul(table_bytes(keys, 0));
    each.fold(spare, usize::saturating_add)
}

/// The settings of a limiter, known to be valid.
pub(crate) enum Compiled {
    Bucket(TokenBucketRules),
    Window(FixedWindowRules),
    AtOnce(ConcurrencyRules),
    Cooldown {
        count: u64,
        period: Duration,
        wait: Duration,
    },
    Sliding(Sliding),
}

/// The settings of a sliding window.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Sliding {
    pub(crate) count: u64,
    pub(crate) period: Duration,
    pub(crate) segments: u32,
    pub(crate) is_strict: bool,
}

impl Sliding {
    pub(crate) fn builder(self) -> SlidingWindowBuilder<{ MAX_SEGMENTS as usize }> {
        let builder = SlidingWindow::builder(self.count, self.period, self.segments);
        if self.is_strict {
            builder.strict()
        } else {
            builder
        }
    }
}

impl Compiled {
    /// Whether the state is one word, whose permits return by time: then it can share an entry of a
    /// table with other limits.
    pub(crate) const fn can_share(&self) -> bool {
        matches!(self, Self::Bucket(_) | Self::Window(_))
    }

    /// The memory of a table for each key, if the limit has one of its own. `is_held` if permits
    /// can be returned by settlements.
    fn bytes_per_key(&self, is_held: bool) -> usize {
        bytes_per_key(self.limiter()) + self.refunds(is_held)
    }

    /// The memory of a table of its own.
    fn bytes(&self, keys: Option<usize>, is_held: bool) -> usize {
        let refunds = keys.unwrap_or(1).saturating_mul(self.refunds(is_held));
        table_bytes(keys, self.limiter()).saturating_add(refunds)
    }

    /// The size of a limiter of a key, besides its word.
    fn limiter(&self) -> usize {
        match self {
            Self::Bucket(_) | Self::Window(_) | Self::AtOnce(_) => 0,
            Self::Cooldown { .. } => size_of::<CooldownWindow>(),
            Self::Sliding(_) => size_of::<SlidingWindow<{ MAX_SEGMENTS as usize }>>(),
        }
    }

    fn refunds(&self, is_held: bool) -> usize {
        match self {
            Self::Bucket(_) if is_held => size_of::<Refunds>(),
            _ => 0,
        }
    }
}

/// Shows a rate as [`FromStr`] reads it, in the largest unit that fits: `5/m`, `100/10s`.
///
/// ```
/// use portcullis_policy::Limit;
/// for rate in ["5/m", "100/10s", "5/500ms", "1/h", "20/2d"] {
///     assert_eq!(rate.parse::<Limit>()?.to_string(), rate);
/// }
/// assert_eq!("5/60s".parse::<Limit>()?.to_string(), "5/m");
/// # Ok::<(), portcullis_policy::PeriodError>(())
/// ```
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period {
            Some(period) => write!(f, "{}/{}", self.count, period_text(period)),
            None => write!(f, "{} at once", self.count),
        }
    }
}

/// Parses `N/PERIOD`, such as `10/s`, `100/1m` or `5/500ms`: see [`parse_period`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::Limit;
/// assert_eq!("100/1m".parse(), Ok(Limit::per(100, Duration::from_secs(60))));
/// assert!("100 per minute".parse::<Limit>().is_err());
/// ```
impl FromStr for Limit {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let (count, period) = text.split_once('/').ok_or(PeriodError::Form)?;
        Ok(Self::per(parse_count(count)?, parse_period(period)?))
    }
}

/// What is wrong with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitProblem {
    Settings(SettingsError),
    /// A setting that the algorithm does not have.
    Unused(&'static str),
    /// A limit that grants nothing, with permits to begin with.
    Closed(&'static str),
    ZeroPeriod,
    LargeCount,
    /// The permits of the first decision are too few or too many.
    Initial {
        least: u64,
        burst: u64,
    },
    /// The library was built without queues.
    NoQueue,
    OrderWithoutQueue,
}

impl From<SettingsError> for LimitProblem {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}

impl fmt::Display for LimitProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::Unused(setting) => {
                write!(
                    f,
                    "{setting} has no effect on this kind of limit: leave it out"
                )
            }
            Self::NoQueue => f.write_str(
                "queue needs the feature `queue` of portcullis-policy: add the feature, or leave \
                 queue out",
            ),
            Self::OrderWithoutQueue => {
                f.write_str("queue_order has no effect without a queue: leave it out, or set queue")
            }
            Self::Initial { least, burst } => {
                write!(f, "initial must be {least} to {burst}, the burst")
            }
            Self::Closed(setting) => write!(
                f,
                "a limit of 0 denies every request: leave {setting} out, or give a count of at \
                 least 1"
            ),
            Self::ZeroPeriod => f.write_str("period must be longer than 0"),
            Self::LargeCount => write!(
                f,
                "the count of a token bucket must be at most {}",
                u32::MAX
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_table_is_that_of_its_lines() {
        for keys in [1, 7, 8, 100, 255, 256, 257, 1_000, 99_999] {
            let bytes = size_of_val(&*Line::for_keys(keys));
            assert_eq!(table_bytes(Some(keys), 0), bytes, "{keys}");
            let by_key = bytes / keys;
            assert!(keys < 10_000 || by_key == bytes_per_key(0), "{by_key}");
        }
        assert_eq!(table_bytes(None, 10), size_of::<Line>() + 80);
        for (limits, keys) in [(2, 100), (3, 1_000), (8, 999)] {
            let compile = |_| Limit::per(1, Duration::from_secs(1)).compile().unwrap();
            let limits: Vec<_> = (0..limits).map(compile).collect();
            let bytes = size_of_val(&*Line::for_keys_of(keys, limits.len()));
            assert_eq!(all_bytes(&limits, Some(keys), false), bytes);
        }
    }
}
