//! Thresholds of activity: decisions that stand while much was reported, and for a time after.
//!
//! **State** of a key, in tables with one address for all:
//!
//! - for each length of window a sliding window of the core, which counts up to [`MOST`];
//! - for each threshold that holds a window of one permit, which is open while the hold is on.
//!
//! **Transitions.** A report takes its number from the sliding windows: as many as there are left,
//! if it is too large. Then it reads each sum. For each threshold that the sum reaches, it takes
//! the permit of the hold. That opens the window of the hold, or is denied while it is open.
//!
//! **Invariant.** A hold that is open began with a report that reached the threshold, and ends its
//! length after that. A threshold is in force while its sum reaches it, or its hold is open.
//!
//! Nothing is ever denied to a caller: the limiters only count.

use core::fmt;
use core::time::Duration;
use std::hash::RandomState;
use std::sync::Arc;

use portcullis_core::keyed::{Address, FixedWindowRules, TableKey};
use portcullis_core::{Denied, Keyed, Limiter, SettingsError, SlidingWindow, Timestamp};

use crate::key::KeyOf;
use crate::limit::{bytes_per_key, table_bytes};
use crate::store::{Limiters, Words, hold_rules, limiters, lines_for};

/// The largest number of thresholds of a rule.
pub const MAX_THRESHOLDS: usize = 8;

/// The largest number of segments of a threshold's window.
pub const MAX_THRESHOLD_SEGMENTS: u32 = 16;

/// The largest sum that is counted in a window.
const MOST: u64 = u32::MAX as u64;

type Window = SlidingWindow<{ MAX_THRESHOLD_SEGMENTS as usize }>;

/// A threshold of a [`Rule`](crate::Rule): so much activity within a window of time puts a decision
/// in force.
///
/// A decision is a name of the user's choice, such as `throttle`, `deny` or `captcha`. It is
/// advice: the caller asks which decisions are in force
/// ([`in_force_at`](crate::Policy::in_force_at)), and acts on them. The limits of a rule do not
/// look at its thresholds, and thresholds do not count requests: activity is what the caller
/// reports ([`report_at`](crate::Policy::report_at)), also after the fact.
///
/// A rule may have several thresholds. Those with the same window and segments share one count.
/// Several decisions may be in force at once.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Timestamp;
/// use portcullis_policy::{Key, Policy, Request, Rule, Threshold};
///
/// let window = Duration::from_secs(10);
/// let policy = Policy::new([Rule::new("failed logins")
///     .key(Key::address())
///     .threshold(Threshold::new(3, window, "captcha").holding_for(Duration::from_secs(60)))
///     .threshold(Threshold::new(10, window, "deny").holding_for(Duration::from_secs(600)))])
/// .unwrap();
///
/// let login = Request::new("POST", "/login").address("192.0.2.7".parse().unwrap());
/// let at = Timestamp::from_secs;
/// let is_in_force = |now, decision| policy.is_in_force_at(now, &login, decision).unwrap();
/// policy.report_at(at(1), &login, 2);
/// assert!(!is_in_force(at(1), "captcha"));
/// policy.report_at(at(2), &login, 1);
/// assert!(is_in_force(at(61), "captcha") && !is_in_force(at(61), "deny"));
/// assert!(!is_in_force(at(62), "captcha"));
/// ```
///
/// # Bounds
///
/// A window is divided into segments, and lies on the grid of the segments that begins at time 0.
/// The sum is that of the segment of `now` and of those before it that belong to the window.
///
/// - The sum contains all activity of the last `window - window / segments`, and none that is older
///   than `window`. A report at an older time than an earlier one counts at the newest time.
/// - The decision is in force from the report that reaches the value, for at least the
///   [`hold`](Self::hold), and as long as the sum reaches the value. If the sum still reaches the
///   value at a report after the hold has ended, a new hold begins.
/// - A hold may end late, by up to a billionth of its length, or by 1 ns if that is more.
/// - A sum counts up to 4,294,967,295. What is reported beyond it is not counted.
/// - While threads report at the same time, the sum may still contain a segment that has just left
///   the window, so a hold may begin that is due to that segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    value: u32,
    window: Duration,
    decision: Box<str>,
    hold: Duration,
    segments: u32,
}

impl Threshold {
    /// A threshold that is reached by a sum of `value`, at least 1, within `window`. The window has
    /// 10 segments, and the decision no hold.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// let threshold = Threshold::new(100, Duration::from_secs(10), "throttle");
    /// assert_eq!((threshold.value(), threshold.decision()), (100, "throttle"));
    /// ```
    #[must_use]
    pub fn new(value: u32, window: Duration, decision: &str) -> Self {
        Self {
            value,
            window,
            decision: decision.into(),
            hold: Duration::ZERO,
            segments: 10,
        }
    }

    /// Sets how long the decision is in force at least, once the threshold is reached. 0 means that
    /// it is in force only while the threshold is reached.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// let hold = Duration::from_secs(5);
    /// let threshold = Threshold::new(100, Duration::from_secs(10), "throttle").holding_for(hold);
    /// assert_eq!(threshold.hold(), hold);
    /// ```
    #[must_use]
    pub const fn holding_for(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sets the number of segments of the window, 1 to [`MAX_THRESHOLD_SEGMENTS`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// let threshold = Threshold::new(100, Duration::from_secs(60), "throttle").in_segments(6);
    /// assert_eq!(threshold.segments(), 6);
    /// ```
    #[must_use]
    pub const fn in_segments(mut self, segments: u32) -> Self {
        self.segments = segments;
        self
    }

    /// Returns the sum that reaches the threshold.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// assert_eq!(Threshold::new(100, Duration::from_secs(10), "deny").value(), 100);
    /// ```
    pub const fn value(&self) -> u32 {
        self.value
    }

    /// Returns the length of the window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// let window = Duration::from_secs(10);
    /// assert_eq!(Threshold::new(100, window, "deny").window(), window);
    /// ```
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Returns the name of the decision.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// assert_eq!(Threshold::new(100, Duration::from_secs(10), "deny").decision(), "deny");
    /// ```
    pub fn decision(&self) -> &str {
        &self.decision
    }

    /// Returns how long the decision is in force at least.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// assert!(Threshold::new(100, Duration::from_secs(10), "deny").hold().is_zero());
    /// ```
    pub const fn hold(&self) -> Duration {
        self.hold
    }

    /// Returns the number of segments of the window.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_policy::Threshold;
    /// assert_eq!(Threshold::new(100, Duration::from_secs(10), "deny").segments(), 10);
    /// ```
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// The rules of the hold, if there is one.
    fn rules_of_hold(&self) -> Result<Option<FixedWindowRules>, SettingsError> {
        if self.hold.is_zero() {
            return Ok(None);
        }
        hold_rules(self.hold).map(Some)
    }

    /// The window that counts for this threshold.
    fn window_of(&self) -> Result<Window, String> {
        if self.value == 0 {
            return Err("the value must be at least 1".into());
        }
        if self.decision.is_empty() {
            return Err("the decision must have a name".into());
        }
        if self.window.is_zero() {
            return Err("the window must be longer than 0".into());
        }
        let window = Window::builder(MOST, self.window, self.segments).build();
        window.map_err(|error| error.to_string())
    }
}

/// The state of all thresholds of a rule.
pub(crate) struct Activity {
    windows: Box<[Limiters<Window>]>,
    levels: Box<[Level]>,
}

/// The state of one threshold.
struct Level {
    value: u64,
    /// The index of its window.
    window: usize,
    hold: Option<Words<FixedWindowRules>>,
}

/// The settings of thresholds, known to be valid.
pub(crate) struct Compiled<'r> {
    /// The thresholds, each with the index of its window and the rules of its hold.
    levels: Vec<(u64, usize, Option<FixedWindowRules>)>,
    /// For each window a threshold that has it.
    windows: Vec<&'r Threshold>,
}

impl<'r> Compiled<'r> {
    /// Checks the thresholds of a rule. `refuse` takes the index of one that is not valid, or
    /// `None` if there are too many, and what is wrong.
    pub(crate) fn new(
        thresholds: &'r [Threshold],
        mut refuse: impl FnMut(Option<usize>, String),
    ) -> Self {
        let mut this = Self {
            levels: Vec::new(),
            windows: Vec::new(),
        };
        if thresholds.len() > MAX_THRESHOLDS {
            refuse(
                None,
                format!("a rule has at most {MAX_THRESHOLDS} thresholds"),
            );
        }
        for (index, threshold) in thresholds.iter().enumerate() {
            let hold = match (threshold.window_of(), threshold.rules_of_hold()) {
                (Err(problem), _) => {
                    refuse(Some(index), problem);
                    continue;
                }
                (_, Err(error)) => {
                    refuse(Some(index), format!("hold: {error}"));
                    continue;
                }
                (Ok(_), Ok(hold)) => hold,
            };
            let is_same = |other: &&Threshold| {
                (other.window, other.segments) == (threshold.window, threshold.segments)
            };
            let window = this.windows.iter().position(is_same).unwrap_or_else(|| {
                this.windows.push(threshold);
                this.windows.len() - 1
            });
            this.levels.push((threshold.value.into(), window, hold));
        }
        this
    }

    /// The memory of the tables for each key, as of `KeyedArray::for_keys`.
    pub(crate) fn bytes_per_key(&self) -> usize {
        self.bytes(bytes_per_key)
    }

    /// The memory of the tables for `keys` keys, or for the one key that all requests share.
    pub(crate) fn table_bytes(&self, keys: Option<usize>) -> usize {
        self.bytes(|limiter| table_bytes(keys, limiter))
    }

    fn bytes(&self, of: impl Fn(usize) -> usize) -> usize {
        let holds = self.levels.iter().filter(|(_, _, hold)| hold.is_some());
        let windows = self.windows.len().saturating_mul(of(size_of::<Window>()));
        windows.saturating_add(holds.count().saturating_mul(of(0)))
    }

    /// Tables for `keys` keys, or for the one key that all requests share. `None` without
    /// thresholds.
    pub(crate) fn activity(self, keys: Option<usize>) -> Option<Arc<Activity>> {
        if self.levels.is_empty() {
            return None;
        }
        let lines = || lines_for(keys);
        let hasher = RandomState::new();
        let table = |threshold: &Threshold| {
            limiters(lines(), hasher.clone(), || {
                Window::new(MOST, threshold.window, threshold.segments)
            })
        };
        let level = |(value, window, hold): (u64, usize, Option<FixedWindowRules>)| Level {
            value,
            window,
            hold: hold.map(|rules| Keyed::new(rules, lines(), hasher.clone())),
        };
        Some(Arc::new(Activity {
            windows: self.windows.into_iter().map(table).collect(),
            levels: self.levels.into_iter().map(level).collect(),
        }))
    }
}

impl Activity {
    /// Where the state of a key is: the same address in all tables.
    pub(crate) fn locate(&self, key: &KeyOf<'_>) -> Option<Address> {
        Some(self.windows.first()?.key(key).address())
    }

    /// Counts activity. Returns whether all windows counted it, and each hold that it begins began.
    pub(crate) fn report(&self, at: Address, now: Timestamp, n: u32) -> bool {
        let mut is_counted = true;
        for (index, table) in self.windows.iter().enumerate() {
            let window = TableKey::at(table, at);
            match window.take_at(now, n) {
                Ok(_) => {}
                Err(Denied::Exhausted { .. }) => {
                    let rest = u32::try_from(window.available_at(now)).unwrap_or(u32::MAX);
                    // Denied if other reports have taken the rest.
                    let _ = window.take_at(now, rest);
                }
                Err(_) => {
                    is_counted = false;
                    continue;
                }
            }
            let sum = sum(window, now);
            let of_window = self.levels.iter().filter(|level| level.window == index);
            for level in of_window.filter(|level| sum >= level.value) {
                if let Some(hold) = &level.hold {
                    // Exhausted while the hold is on.
                    let begun = TableKey::at(hold, at).take_at(now, 1);
                    is_counted &= !matches!(begun, Err(Denied::Crowded { .. }));
                }
            }
        }
        is_counted
    }

    /// The sum for the threshold of this index, whether the sum reaches the threshold, and whether
    /// its hold is on.
    pub(crate) fn level(&self, at: Address, now: Timestamp, index: usize) -> (u64, bool, bool) {
        let level = &self.levels[index];
        let sum = sum(TableKey::at(&self.windows[level.window], at), now);
        let is_held = level.hold.as_ref().is_some_and(|hold| {
            let taken = TableKey::at(hold, at).peek_at(now, 1);
            matches!(taken, Err(Denied::Exhausted { .. }))
        });
        (sum, sum >= level.value, is_held)
    }
}

/// The activity of a key in a window. 0 for a key without room, of which nothing was counted.
fn sum(window: TableKey<&Limiters<Window>>, now: Timestamp) -> u64 {
    match window.peek_at(now, 1) {
        Err(Denied::Crowded { .. }) => 0,
        _ => MOST.saturating_sub(window.available_at(now)),
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity")
            .field("windows", &self.windows.len())
            .field("thresholds", &self.levels.len())
            .finish()
    }
}
