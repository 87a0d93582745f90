//! [`Attached`]: rules, and a state word that lies where the caller puts it.
//!
//! The loops over the word are those of the [`WordLimiter`](crate::rules::word_limiter). The word
//! is the only state. So limiters with equal rules that are attached to one word are one limiter,
//! whichever threads or processes use them.
//!
//! Other processes may write anything into the word. The rules decide about any bits, without an
//! overflow or a panic: `core/tests/attached.rs` has random words.

use crate::leases::lease::Lease;
use crate::limiter::denied::Denied;
use crate::limiter::queue_limiter::replenishing;
use crate::rules::word_limiter::{WordLimiter, around_word};
use crate::rules::{Moved, WordRules};
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::{AtomicWord, NativeWord, Place, Word};

/// The state word of a limiter, apart from its settings.
///
/// [`Detach::detach`] returns it, and an [`Attached`] limiter uses it.
///
/// **Layout.** It is an atomic word and nothing else: an `AtomicU64`, or an `AtomicU32` if `W` has
/// 32 bits, with the same size and alignment. Any bits are valid. So it can lie in memory that
/// several processes map.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_core::state::Detach;
/// let (_, word) = TokenBucket::new(Rate::per_second(10), 3).detach();
/// assert_eq!(size_of_val(&word), size_of::<portcullis_core::state::NativeWord>());
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct StateWord<W: Word = NativeWord>(AtomicWord<W>);

impl<W: Word> StateWord<W> {
    const_unless_loom! {
        /// Creates a word with the bits of `state` that fit.
        ///
        /// ```
        /// # use portcullis_core::state::StateWord;
        /// let word: StateWord<u32> = StateWord::new(1 << 32 | 7);
        /// assert_eq!(word.get(), 7);
        /// ```
        pub const fn new(state: u64) -> Self {
            Self(AtomicWord::new(state & W::MASK))
        }
    }

    /// Returns the bits of the word. `Relaxed`.
    ///
    /// ```
    /// # use portcullis_core::state::StateWord;
    /// let word: StateWord = StateWord::new(7);
    /// assert_eq!(word.get(), 7);
    /// ```
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A reference to a word is the place of the word.
impl<W: Word> AsRef<Self> for StateWord<W> {
    #[inline(always)]
    fn as_ref(&self) -> &Self {
        self
    }
}

/// A limiter whose whole state is one word, so that settings and state can be taken apart. Sealed.
///
/// Implemented by [`TokenBucket`](crate::TokenBucket) and [`FixedWindow`](crate::FixedWindow).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::FixedWindow;
/// use portcullis_core::state::Detach;
/// let (rules, word) = FixedWindow::new(5, Duration::from_secs(1)).detach();
/// assert_eq!((rules.limit(), word.get() & 7), (5, 0));
/// ```
pub trait Detach {
    /// The type of the state word.
    type Word: Word;
    /// The settings, without the state.
    type Rules: Moved<Word = Self::Word>;

    /// Returns the settings and the state.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_core::state::Detach;
    /// let (rules, _word) = TokenBucket::new(Rate::per_second(10), 3).detach();
    /// assert_eq!(rules.burst(), 3);
    /// ```
    fn detach(self) -> (Self::Rules, StateWord<Self::Word>);
}

/// The parts of a limiter.
pub(crate) fn detached<R: WordRules>(limiter: WordLimiter<R>) -> (R, StateWord<R::Word>) {
    let (rules, word) = limiter.into_parts();
    (rules, StateWord(word))
}

/// A place of the caller's.
#[derive(Debug)]
struct At<P>(P);

impl<W: Word, P: AsRef<StateWord<W>>> Place<W> for At<P> {
    #[inline(always)]
    fn word(&self) -> &AtomicWord<W> {
        &self.0.as_ref().0
    }
}

/// A limiter whose state word lies in a place of the caller's, for example in memory that several
/// processes map.
///
/// Limiters that are attached to the same word are one limiter if their rules are equal. With other
/// rules the word means other permits, so give each word to one set of rules.
///
/// - `R` is the type of the rules: the settings, as [`Detach::detach`] returns them.
/// - `P` is the place, which returns the word: `&StateWord`, `Arc<StateWord>`, or a type of the
///   caller's. It must always return the same word.
///
/// **Bound.** That of the limiter which was detached, for all limiters that are attached to the
/// word, and for the times that all of them pass as `now`: all need one clock. The bound holds as
/// long as nothing else writes the word. With any other bits the limiter may deny, or grant as if
/// it had not been used. No bits cause a panic or an endless loop.
///
/// **Cost.** That of the limiter which was detached.
///
/// ```
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
/// use portcullis_core::state::{Attached, Detach};
///
/// let (rules, word) = TokenBucket::new(Rate::per_second(10), 3).detach();
/// let one = Attached::new(rules, &word);
/// let other = Attached::new(rules, &word);
/// let now = Timestamp::from_secs(60);
/// assert!(one.try_acquire_at(now, 2).is_ok());
/// assert!(other.try_acquire_at(now, 2).is_err(), "they are one bucket");
/// assert!(other.try_acquire_at(now, 1).is_ok());
/// ```
#[derive(Debug)]
pub struct Attached<R: Moved, P> {
    limiter: WordLimiter<R, At<P>>,
}

impl<R: Moved, P> Attached<R, P> {
    /// Attaches rules to the word in `place`.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_core::keyed::TokenBucketRules;
    /// use portcullis_core::state::{Attached, Detach, StateWord};
    /// use std::sync::Arc;
    ///
    /// let (rules, word) = TokenBucket::new(Rate::per_second(10), 3).detach();
    /// let bucket: Attached<TokenBucketRules<u64>, Arc<StateWord>> =
    ///     Attached::new(rules, Arc::new(word));
    /// ```
    pub const fn new(rules: R, place: P) -> Self {
        Self {
            limiter: WordLimiter::at(rules, At(place)),
        }
    }

    /// Returns the rules.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_core::state::{Attached, Detach};
    /// let (rules, word) = TokenBucket::new(Rate::per_second(10), 3).detach();
    /// assert_eq!(Attached::new(rules, &word).rules().burst(), 3);
    /// ```
    pub const fn rules(&self) -> &R {
        self.limiter.rules()
    }

    /// Returns the place of the word.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_core::state::{Attached, Detach};
    /// let (rules, word) = TokenBucket::new(Rate::per_second(10), 3).detach();
    /// assert_eq!(Attached::new(rules, &word).place().get(), word.get());
    /// ```
    pub const fn place(&self) -> &P {
        &self.limiter.place().0
    }
}

impl<R: Moved, P: AsRef<StateWord<R::Word>>> Attached<R, P> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is granted or denied as a
    /// request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// As the `try_acquire_at` of the limiter which was detached.
    ///
    /// # Cost
    ///
    /// As the `try_acquire_at` of the limiter which was detached.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// # use portcullis_core::state::{Attached, Detach};
    /// let (rules, word) = FixedWindow::new(2, Duration::from_secs(1)).detach();
    /// let window = Attached::new(rules, &word);
    /// assert!(window.try_acquire_at(Timestamp::ZERO, 2).is_ok());
    /// assert!(window.try_acquire_at(Timestamp::ZERO, 1).is_err());
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Sets the word of `to` to the state of this limiter at `now`, under the rules of `to`, if its
    /// bits are still `instead_of`. Returns whether it did.
    ///
    /// What moves is what [`Keyed::move_to`](crate::Keyed::move_to) moves for a key: permits that
    /// are in use stay in use under the other rules. This limiter keeps its word, so it must grant
    /// nothing from then on: what it grants is not in the word of `to`. Receipts of this limiter
    /// are worth nothing to `to`.
    ///
    /// Several threads or processes may make the same call: the first one moves the state. Read the
    /// bits of `to` before the last look at whether it is to be moved at all. Then a call that was
    /// stopped in between, while others moved the state and used `to`, changes nothing.
    ///
    /// # Memory ordering
    ///
    /// The word is read by a read-modify-write, which releases and acquires. So a call that changes
    /// the word after this one has read it, followed by an acquire fence, sees what the caller
    /// wrote before: for example that this limiter is not in force any more. The word of `to` is
    /// exchanged `Relaxed`.
    ///
    /// # Cost
    ///
    /// Two read-modify-writes, and some divisions.
    ///
    /// ```
    /// # use portcullis_core::{Limiter, Rate, Timestamp, TokenBucket};
    /// # use portcullis_core::state::{Attached, Detach, StateWord};
    /// let bucket = |burst| TokenBucket::new(Rate::per_second(1), burst).detach();
    /// let ((few, word), (many, other_word)) = (bucket(10), bucket(20));
    /// let before = Attached::new(few, &word);
    /// let after = Attached::new(many, &other_word);
    /// let now = Timestamp::from_secs(60);
    /// assert!(before.try_acquire_at(now, 4).is_ok());
    /// let unused = other_word.get();
    /// assert!(before.move_to_at(now, &after, unused));
    /// assert_eq!(after.available_at(now), 16);
    /// assert!(after.try_acquire_at(now, 1).is_ok());
    /// assert!(!before.move_to_at(now, &after, unused), "once");
    /// ```
    pub fn move_to_at<Q: AsRef<StateWord<R::Word>>>(
        &self,
        now: Timestamp,
        to: &Attached<R, Q>,
        instead_of: u64,
    ) -> bool {
        let state = self.place().as_ref().0.fetch_add(0, AcqRel);
        let moved = to.rules().moved(self.rules(), state, now);
        to.place().as_ref().0.replace(instead_of, moved, Relaxed)
    }
}

// Limiters that are attached to the same word are one limiter.
around_word! {
    /// As the limiter which was detached.
    [R: Moved, P: AsRef<StateWord<R::Word>>] Attached<R, P> => |limiter| limiter.place().as_ref();
}

replenishing!([R: Moved, P: AsRef<StateWord<R::Word>>] Attached<R, P>);
