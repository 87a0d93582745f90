//! A client's own throttle: it stops sending what its service would refuse.
//!
//! State: for each of 16 slices of the window four counts, each with the slice that it is of.
//!
//! ```text
//! count   31      22 21                0      requests: made, sent or not
//!        +----------+------------------+      accepted: of these, the service accepted
//!        | slice    |  count           |      refused:  it pushed back, or this throttle did
//!        +----------+------------------+
//! ```
//!
//! A request counts in the slice in which it was *made*, at once; its end counts in that slice too.
//! What is neither accepted nor refused is out. Transitions: a count of an older slice is set to
//! that of the new one by the first who adds to it, in the same exchange.
//!
//! ```text
//! requests R = accepted + refused + those that are out for longer than the patience, if none of
//!              the window was accepted after it
//! rejected with the probability (R - K x accepted) / (R + 1), at most `most`
//! ```
//!
//! Invariant: while nothing is refused and everything ends within the patience, `R` is the number
//! of those accepted, and nothing is rejected: not in a burst after silence either, of which
//! nothing has ended yet. An acceptance that comes after the patience counts once more, as a late
//! one of now, and as accepted now if its slice is over. While there are late ones in the window,
//! what is out is not taken for refused: so a service that is slow, even slower than the window, is
//! not given up for ever.

use crate::outcome::Outcome;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;
use core::error::Error;
use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use portcullis_core::builder::Setting;
use portcullis_core::{SettingsError, Timestamp};

const SLICES: u64 = 16;
const COUNT_BITS: u32 = 22;
const COUNT: u32 = (1 << COUNT_BITS) - 1;
/// The golden ratio of 2^32: its multiples are spread evenly, however many there are.
const STEP: u32 = 0x9e37_79b9;

/// Rejects requests of a client, in proportion to what its service refuses: the client-side
/// throttling of Google's SRE book.
///
/// With `K` of 2, the default, a service that accepts 100 requests each second gets about 200, of
/// however many the client has. A service that accepts everything gets everything. What is refused
/// costs the service little less than what it serves, so less of it lets it serve more.
///
/// It goes beside an [`Adaptive`](crate::Adaptive) limit: that one is for the service, and this one
/// for its clients.
///
/// **Bounds.** While nothing is refused, and everything ends within the
/// [patience](ThrottleBuilder::patience), nothing is rejected. At least a tenth of the requests is
/// always sent ([`most`](ThrottleBuilder::most)), so the end of an outage is noticed: within two
/// windows everything is sent again.
///
/// **Cost.** Two atomic additions for each request, and reads of 64 words. Nothing locks, waits or
/// allocates. More than 4,194,303 requests in a sixteenth of the window count as so many.
///
/// Source: Beyer et al., *Site Reliability Engineering*, chapter 21. Its formula counts a request
/// that is still out as refused. Then the second request of a burst after silence is rejected with
/// a probability of one half. Here it counts once it is out for longer than the patience.
///
/// ```
/// use core::time::Duration;
/// use portcullis_adaptive::{Outcome, Throttle};
/// use portcullis_core::Timestamp;
///
/// let throttle = Throttle::builder().window(Duration::from_secs(60)).build()?;
///
/// let mut now = Timestamp::from_secs(1);
/// let mut sent = 0;
/// for _ in 0..10_000 {
///     now = now.saturating_add(Duration::from_millis(1));
///     if let Ok(request) = throttle.try_send_at(now) {
///         sent += 1;
///         // The service accepts one in ten of 1,000 each second.
///         let outcome = if sent % 10 == 0 { Outcome::Succeeded } else { Outcome::PushedBack };
///         request.end_at(now, outcome);
///     }
/// }
/// assert!(sent < 3_000, "{sent} of 10,000 were sent");
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub struct Throttle {
    slices: [Slice; SLICES as usize],
    turn: AtomicU32,
    slice_nanos: u64,
    /// The number of slices whose requests may be out.
    patience: u64,
    multiplier: f32,
    most: f32,
}

#[derive(Debug)]
struct Slice {
    requests: AtomicU32,
    accepted: AtomicU32,
    refused: AtomicU32,
    late: AtomicU32,
}

impl Throttle {
    /// Returns a builder with the default settings.
    pub const fn builder() -> ThrottleBuilder {
        ThrottleBuilder {
            window: Duration::from_mins(2),
            patience: Duration::from_secs(30),
            multiplier: 2.0,
            most: 0.9,
        }
    }

    /// Asks at `now` whether to send a request. Call [`Sent::end_at`] when it has ended.
    ///
    /// # Errors
    ///
    /// [`Throttled`] if the request is not to be sent. It counts as one that the service refused.
    #[inline]
    pub fn try_send_at(&self, now: Timestamp) -> Result<Sent<&Self>, Throttled> {
        Sent::try_send_at(self, now)
    }

    /// Returns the probability with which a request at `now` is rejected, 0 to
    /// [`most`](ThrottleBuilder::most).
    pub fn probability_at(&self, now: Timestamp) -> f32 {
        let newest = self.slice_of(now);
        let (mut ended, mut accepted, mut out, mut late) = (0.0, 0.0, 0.0, 0);
        for age in 0..SLICES.min(newest + 1) {
            let number = newest - age;
            let slice = self.slice(number);
            let counts = [
                &slice.requests,
                &slice.accepted,
                &slice.refused,
                &slice.late,
            ];
            let [all, yes, no, after] = counts.map(|count| read(count.load(Relaxed), number));
            ended += (yes + no) as f32;
            accepted += yes as f32;
            late += after;
            if age > self.patience {
                out += all.saturating_sub(yes + no) as f32;
            }
        }
        let requests = if late > 0 { ended } else { ended + out };
        let share = (requests - self.multiplier * accepted) / (requests + 1.0);
        share.clamp(0.0, self.most)
    }

    fn slice_of(&self, now: Timestamp) -> u64 {
        now.as_nanos() / self.slice_nanos
    }

    fn slice(&self, number: u64) -> &Slice {
        &self.slices[(number % SLICES) as usize]
    }

    fn is_rejected(&self, now: Timestamp) -> bool {
        let share = self.probability_at(now);
        if share <= 0.0 {
            return false;
        }
        let drawn = self.turn.fetch_add(STEP, Relaxed);
        // 24 bits are exact.
        ((drawn >> 8) as f32) < share * 16_777_216.0
    }

    fn end(&self, made: Timestamp, now: Timestamp, outcome: Outcome) {
        let (number, newest) = (self.slice_of(made), self.slice_of(now));
        let slice = self.slice(number);
        match outcome {
            Outcome::Ignored => add(&slice.requests, number, -1),
            Outcome::PushedBack => add(&slice.refused, number, 1),
            Outcome::Succeeded | Outcome::Failed => {
                let age = newest.saturating_sub(number);
                let counted = if age < SLICES { number } else { newest };
                add(&self.slice(counted).accepted, counted, 1);
                if age > self.patience {
                    add(&self.slice(newest).late, newest, 1);
                }
            }
        }
    }
}

/// Returns what `word` counts in slice `number`.
fn read(word: u32, number: u64) -> u32 {
    if word >> COUNT_BITS == tag(number) {
        word & COUNT
    } else {
        0
    }
}

/// Which slice a count is of, of 1,023. A count of none has 0.
fn tag(number: u64) -> u32 {
    (number / SLICES % 1_023) as u32 + 1
}

/// Adds to a count of slice `number`, unless it is of a later one already.
fn add(count: &AtomicU32, number: u64, change: i32) {
    let tag = tag(number);
    // Fails only if a newer slice has the place: then this one is over.
    let _ = count.fetch_update(Relaxed, Relaxed, |word| {
        let old = word >> COUNT_BITS;
        let ahead = (old + 1_023 - tag) % 1_023;
        if old != 0 && (1..512).contains(&ahead) {
            return None;
        }
        let counted = if old == tag { word & COUNT } else { 0 };
        Some(tag << COUNT_BITS | counted.saturating_add_signed(change).min(COUNT))
    });
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("multiplier", &self.multiplier)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Throttle`]. Created by [`Throttle::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ThrottleBuilder {
    window: Duration,
    patience: Duration,
    multiplier: f32,
    most: f32,
}

impl ThrottleBuilder {
    /// Sets for how long requests count. The default is 2 minutes. It moves on by sixteenths.
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets how long a request may be out before it counts as refused, at most half of the window:
    /// the client's time-out. The default is 30 s.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets `K`, from 1 to 100: how many times what the service accepts it gets, of which the rest
    /// is refused. The default is 2. With less it gets less to refuse, and the client notices later
    /// that it accepts more.
    pub const fn multiplier(mut self, multiplier: f32) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// Sets the highest probability, below 1. The default is 0.9: one in ten is sent.
    pub const fn most(mut self, most: f32) -> Self {
        self.most = most;
        self
    }

    /// Builds the throttle.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the window is shorter than 16 ns or than twice the patience, `K` is not
    /// from 1 to 100, or the highest probability is not from 0 to 1, without 1.
    pub fn build(self) -> Result<Throttle, SettingsError> {
        let too_large = |setting, max| SettingsError::TooLarge { setting, max };
        let window = u64::try_from(self.window.as_nanos()).unwrap_or(u64::MAX);
        let slice_nanos = window / SLICES;
        if slice_nanos == 0 {
            let setting = Setting::Window;
            return Err(SettingsError::Zero { setting });
        }
        if self.patience > self.window / 2 {
            return Err(too_large(Setting::Wait, window / 2));
        }
        if !(1.0..=100.0).contains(&self.multiplier) {
            return Err(too_large(Setting::Rate, 100));
        }
        if !(0.0..1.0).contains(&self.most) {
            return Err(too_large(Setting::Threshold, 0));
        }
        let patience = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
        Ok(Throttle {
            slices: core::array::from_fn(|_| Slice {
                requests: AtomicU32::new(0),
                accepted: AtomicU32::new(0),
                refused: AtomicU32::new(0),
                late: AtomicU32::new(0),
            }),
            turn: AtomicU32::new(0),
            slice_nanos,
            patience: patience.div_ceil(slice_nanos),
            multiplier: self.multiplier,
            most: self.most,
        })
    }
}

/// A request that a [`Throttle`] let pass.
///
/// [`end_at`](Self::end_at) tells how it ended. A drop tells [`Outcome::Ignored`]: the request
/// counts as one that was not made.
#[must_use = "a request that is dropped tells nothing"]
pub struct Sent<P: Deref<Target = Throttle>> {
    throttle: P,
    made: Timestamp,
    told: bool,
}

impl<P: Deref<Target = Throttle>> Sent<P> {
    /// Asks as [`Throttle::try_send_at`] does, and keeps the pointer: for example an `Arc`.
    ///
    /// # Errors
    ///
    /// [`Throttled`] if the request is not to be sent.
    #[inline]
    pub fn try_send_at(throttle: P, now: Timestamp) -> Result<Self, Throttled> {
        let number = throttle.slice_of(now);
        let slice = throttle.slice(number);
        let is_rejected = throttle.is_rejected(now);
        add(&slice.requests, number, 1);
        if is_rejected {
            add(&slice.refused, number, 1);
            return Err(Throttled);
        }
        Ok(Self {
            throttle,
            made: now,
            told: false,
        })
    }

    /// Tells at `now` how the request ended. [`Outcome::PushedBack`] counts as refused: a 429 or
    /// 503, a time-out, a connection that was not made. Every other reply counts as accepted.
    pub fn end_at(mut self, now: Timestamp, outcome: Outcome) {
        self.told = true;
        self.throttle.end(self.made, now, outcome);
    }
}

impl<P: Deref<Target = Throttle>> Drop for Sent<P> {
    fn drop(&mut self) {
        if !self.told {
            self.throttle.end(self.made, self.made, Outcome::Ignored);
        }
    }
}

impl<P: Deref<Target = Throttle>> fmt::Debug for Sent<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

/// A [`Throttle`] rejected the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttled;

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not sent: the service refuses too many requests")
    }
}

impl Error for Throttled {}
