//! How a runner slows down when the service says that it is overloaded.
//!
//! State:
//!
//! - `paused_until`: nothing is released before this time;
//! - `base`: the speed at the end of the last pause that slowed down, and `since`, that end;
//! - `rest`: the part of a permit that the last charge has left over.
//!
//! The speed is `base` at `since`, grows evenly to full speed in the recovery time, and stays
//! there. Operations that cost `c` permits take `c / speed` permits, so the limiter itself makes
//! the runner slow: there is no second clock or limit. `rest` carries the remainder, so that
//! nothing is rounded away.
//!
//! Invariant: a charge is never less than the cost.

use core::time::Duration;

use portcullis_core::Timestamp;

/// Full speed. Speeds are counted in this many parts.
const FULL: u64 = 1 << 16;
/// The lowest speed: a 64th.
const LOWEST: u64 = FULL / 64;

/// How a runner reacts when the service says that it is overloaded.
///
/// 1. **Pause.** Nothing is released until the time that the service has asked for (`Retry-After`),
///    or for [`pause`](Self::pause) if it has asked for none. A reply that asks for a later time
///    extends the pause.
/// 2. **Slower.** After the pause, the speed is a part of what it was: [`percent`](Self::percent).
///    Replies to what was sent before the end of a pause belong to the overload that caused the
///    pause, and do not lower the speed again. The lowest speed is a 64th of the full one.
/// 3. **The way back.** From the end of the pause, the speed grows evenly up to the full speed, in
///    the time of [`recovery`](Self::recovery).
///
/// At half speed each operation takes twice its cost from the limiter. The capacity that the runner
/// does not use stays unused.
///
/// Source: multiplicative decrease and additive increase, as in RFC 5681; the pause of go-batcher.
///
/// ```
/// use core::time::Duration;
/// use portcullis_jobs::SlowDown;
///
/// let slow_down = SlowDown::new().pause(Duration::from_secs(1)).percent(75);
/// # let _ = slow_down;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDown {
    pause: Duration,
    percent: u32,
    recovery: Duration,
}

impl SlowDown {
    /// Creates the default: a pause of 500 ms, then half the speed, and a recovery in 10 s.
    ///
    /// ```
    /// # use portcullis_jobs::SlowDown;
    /// assert_eq!(SlowDown::new(), SlowDown::default());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pause: Duration::from_millis(500),
            percent: 50,
            recovery: Duration::from_secs(10),
        }
    }

    /// Sets the pause if the service does not say when to retry. Default 500 ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_jobs::SlowDown;
    /// let patient = SlowDown::new().pause(Duration::from_secs(5));
    /// # let _ = patient;
    /// ```
    #[must_use]
    pub const fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets the speed after an overload, in percent of the speed before. Default 50. From 1 to 100;
    /// with 100, the runner only pauses. Other numbers count as the nearest of these.
    ///
    /// ```
    /// # use portcullis_jobs::SlowDown;
    /// // The service states its limit exactly: a pause is enough.
    /// let exact = SlowDown::new().percent(100);
    /// # let _ = exact;
    /// ```
    #[must_use]
    pub const fn percent(mut self, percent: u32) -> Self {
        self.percent = match percent {
            0 => 1,
            1..=100 => percent,
            _ => 100,
        };
        self
    }

    /// Sets the time from the end of the pause to the full speed, however low the speed was.
    /// Default 10 s.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_jobs::SlowDown;
    /// let slow = SlowDown::new().recovery(Duration::from_secs(60));
    /// # let _ = slow;
    /// ```
    #[must_use]
    pub const fn recovery(mut self, recovery: Duration) -> Self {
        self.recovery = recovery;
        self
    }
}

impl Default for SlowDown {
    fn default() -> Self {
        Self::new()
    }
}

/// The state that the head of this file describes.
#[derive(Debug)]
pub(crate) struct Overload {
    settings: SlowDown,
    paused_until: Timestamp,
    base: u64,
    since: Timestamp,
    rest: u64,
}

impl Overload {
    pub(crate) const fn new(settings: SlowDown) -> Self {
        Self {
            settings,
            paused_until: Timestamp::ZERO,
            base: FULL,
            since: Timestamp::ZERO,
            rest: 0,
        }
    }

    /// Returns the end of the pause, if the runner pauses at `now`.
    pub(crate) fn paused(&self, now: Timestamp) -> Option<Timestamp> {
        (now < self.paused_until).then_some(self.paused_until)
    }

    /// Pauses at the caller's wish, without slowing down. Has no effect during a pause. Returns the
    /// time.
    pub(crate) fn pause(&mut self, now: Timestamp, wish: Option<Duration>) -> Option<Duration> {
        if self.paused(now).is_some() {
            return None;
        }
        let pause = wish.unwrap_or(self.settings.pause);
        self.paused_until = now.saturating_add(pause);
        Some(pause)
    }

    /// Reacts to a reply that says that the service is overloaded, to what was sent at `sent`.
    /// Returns the time of a pause that begins or becomes longer.
    pub(crate) fn overloaded(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        let is_new = sent >= self.paused_until;
        if !is_new && retry_after.is_none() {
            // The runner has already paused for this overload.
            return None;
        }
        let pause = retry_after.unwrap_or(self.settings.pause);
        let until = now.saturating_add(pause);
        if !is_new && until <= self.paused_until {
            return None;
        }
        // During a pause, this is the speed that it will end with.
        self.base = self.speed(now);
        if is_new {
            let percent = u64::from(self.settings.percent);
            self.base = (self.base * percent / 100).max(LOWEST);
        }
        self.paused_until = until;
        self.since = until;
        Some(pause)
    }

    /// Returns the speed at `now`, in parts of `FULL`.
    fn speed(&self, now: Timestamp) -> u64 {
        let recovery = self.settings.recovery.as_nanos();
        let passed = now.saturating_since(self.since).as_nanos();
        if self.base >= FULL || passed >= recovery {
            return FULL;
        }
        let gained = u128::from(FULL - self.base) * passed / recovery;
        self.base + u64::try_from(gained).unwrap_or(0)
    }

    /// Returns the speed at `now` as a part of the full one.
    #[allow(clippy::cast_precision_loss, reason = "16 bits")]
    pub(crate) fn speed_at(&self, now: Timestamp) -> f64 {
        self.speed(now) as f64 / FULL as f64
    }

    /// Returns the cost that `permits` pay for at `now`, rounded down.
    pub(crate) fn worth(&self, now: Timestamp, permits: u64) -> u64 {
        let parts = u128::from(permits) * u128::from(self.speed(now));
        u64::try_from(parts / u128::from(FULL)).unwrap_or(u64::MAX)
    }

    /// Returns the permits to take for `cost` at `now`, and carries the remainder.
    pub(crate) fn charge(&mut self, now: Timestamp, cost: u64) -> u64 {
        let speed = self.speed(now);
        if speed == FULL {
            return cost;
        }
        let parts = u128::from(cost) * u128::from(FULL) + u128::from(self.rest);
        // Less than `speed`.
        self.rest = u64::try_from(parts % u128::from(speed)).unwrap_or(0);
        u64::try_from(parts / u128::from(speed)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn slow_down() -> SlowDown {
        SlowDown::new().recovery(Duration::from_secs(1))
    }

    #[test]
    fn a_pause_is_not_extended_by_another_without_a_time() {
        let mut overload = Overload::new(slow_down());
        let default = Some(Duration::from_millis(500));
        assert_eq!(overload.overloaded(ms(100), ms(50), None), default);
        assert_eq!(overload.overloaded(ms(200), ms(90), None), None);
        assert_eq!(overload.pause(ms(300), None), None);
        assert_eq!(overload.paused(ms(599)), Some(ms(600)));
        assert_eq!(overload.paused(ms(600)), None);
        assert_eq!(overload.pause(ms(600), None), default);
    }

    #[test]
    fn a_later_retry_after_extends_a_pause_and_an_earlier_one_does_not() {
        let mut overload = Overload::new(slow_down());
        let second = Some(Duration::from_secs(1));
        assert_eq!(overload.overloaded(ms(0), ms(0), second), second);
        let sooner = Some(Duration::from_millis(500));
        assert_eq!(overload.overloaded(ms(100), ms(0), sooner), None);
        assert_eq!(overload.paused(ms(100)), Some(ms(1_000)));
        assert_eq!(overload.overloaded(ms(100), ms(0), second), second);
        assert_eq!(overload.paused(ms(100)), Some(ms(1_100)));
        assert_eq!(overload.charge(ms(1_100), 10), 20, "slower once, by half");
    }

    #[test]
    fn replies_to_what_was_sent_before_the_pause_slow_down_only_once() {
        let mut overload = Overload::new(slow_down());
        let _ = overload.overloaded(ms(0), ms(0), None);
        assert_eq!(overload.overloaded(ms(501), ms(0), None), None);
        assert_eq!(overload.charge(ms(500), 10), 20);
        // A reply to what was sent after the pause does.
        assert!(overload.overloaded(ms(500), ms(500), None).is_some());
        assert_eq!(overload.charge(ms(1_000), 10), 40);
    }

    #[test]
    fn the_speed_grows_evenly_to_the_full_one() {
        let mut overload = Overload::new(slow_down());
        let _ = overload.overloaded(ms(0), ms(0), None);
        let speeds = [500, 750, 1_000, 1_500, 9_000].map(|at| overload.speed(ms(at)) * 8 / FULL);
        assert_eq!(speeds, [4, 5, 6, 8, 8]);
    }

    #[test]
    fn the_remainder_of_a_charge_is_carried() {
        let mut overload = Overload::new(slow_down().percent(75));
        let _ = overload.overloaded(ms(0), ms(0), None);
        // 4 permits for each 3: one at a time as well.
        let charges: u64 = (0..3_000).map(|_| overload.charge(ms(500), 1)).sum();
        assert_eq!(charges, 4_000);
    }

    #[test]
    fn a_charge_is_never_less_than_the_cost_and_the_speed_never_below_the_lowest() {
        let mut overload = Overload::new(slow_down().percent(1));
        for round in 0..4 {
            let at = ms(round * 500);
            let _ = overload.overloaded(at, at, None);
        }
        assert_eq!(overload.charge(ms(2_000), 1), 64);
        for at in 2_000..4_000 {
            assert!(overload.charge(ms(at), 7) >= 7);
        }
        assert_eq!(overload.charge(ms(4_000), 7), 7);
    }
}
