//! Moves the limiters of all keys to a table with other settings, while other threads take.
//!
//! ```text
//! slot before     slot of the table that the keys leave     the same slot of the other table
//! vacant          closed                                    closed  -> vacant
//! held            closed, with the key's tag                closed  -> claimed -> held
//! claimed         waits until the claim is over
//! in use          waits until no call works on the limiter (in a `KeyedArray`)
//! ```
//!
//! The table that keys move to has the same number of lines and the same hasher, so a key has the
//! same address in both. Its slots are closed at first. A closed slot is neither held nor vacant
//! nor claimed, and stays so: no take and no claim changes it. To a search it looks like a claim.
//!
//! One thread moves the slots one after another, in three steps for a slot that is held:
//!
//! 1. It marks the slot of the other table as claimed for the key.
//! 2. It closes the slot, by a compare-exchange of the word that it read. If a take has changed the
//!    word in between, it starts again at step 1.
//! 3. It holds the slot of the other table, with the state converted to the other settings. In a
//!    `KeyedArray` the limiter of that slot goes on with the state of the one before; no call works
//!    on either at that moment.
//!
//! A key *has moved* if a slot is closed with its tag, or if all slots that it could use are
//! closed. This remains so. Callers take a key's permits from the table that the key has not moved
//! from.
//!
//! Invariant: *no permit of a key can be taken from both tables.* If a slot is closed with the
//! key's tag, no slot can be claimed for the key in the table that it left, because a claim reads
//! the tag; and in the other table the key's slot was claimed before, so no second one can be
//! claimed for it. If all slots of a key are closed without its tag, the key held none, and neither
//! can claim one.
//!
//! In memory that processes share, a process may be killed or stopped between any two steps.
//! Between steps 2 and 3 it would take the state with it. So there the keys are *handed over*, by
//! any number of processes at once, and no call uses the other table before one of them has passed
//! all slots:
//!
//! ```text
//! slot before     slot of the table that the keys leave     the same slot of the other table
//! vacant          closed                                    closed  -> vacant
//! claimed         closed: the claim is revoked              closed  -> vacant
//! held            frozen: not held, with tag and state      closed  -> held
//! ```
//!
//! Each is one exchange. A slot that is frozen or closed stays as it is. So the next process
//! reads what is to be handed over, and all of them hand over the same state. Invariant: a slot of
//! the other table is written once, because it is closed only before that. A process that was
//! stopped in the middle, and goes on when the other table is in use, changes nothing there.
//!
//! A table with several limits for each key: see [`keyed_list`](super::keyed_list).

use core::hash::BuildHasher;

use crate::keyed::keyed_array::{KeyedArray, has_users};
use crate::keyed::line::{self, Address, Found, Held, Line, Width};
use crate::keyed::{Keyed, KeyedRules};
use crate::rules::{Moved, moved};
use crate::time::timestamp::Timestamp;

/// The rules of a [`Keyed`] table whose keys can move to a table with other settings: those whose
/// permits return by time, `TokenBucketRules` and `FixedWindowRules`. Sealed. See
/// [`Keyed::move_to`].
///
/// A limit whose permits return by release needs no other table: set its limit instead
/// ([`ConcurrencyRules::set_limit`](crate::keyed::ConcurrencyRules::set_limit)).
///
/// ```compile_fail,E0277
/// # use portcullis_core::{Keyed, Timestamp};
/// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
/// let lines = |line: fn() -> Line| (0..64).map(|_| line()).collect::<Vec<_>>();
/// let before = Keyed::new(ConcurrencyRules::new(1), lines(Line::new), Seed::new());
/// let after = Keyed::new(ConcurrencyRules::new(2), lines(Line::closed), Seed::new());
/// before.move_to(&after, Timestamp::ZERO);
/// ```
///
/// ```
/// # use portcullis_core::Rate;
/// # use portcullis_core::keyed::{MovableRules, TokenBucketRules};
/// fn has_some(_: impl MovableRules) {}
/// has_some(TokenBucketRules::new(Rate::per_second(10), 3));
/// ```
#[diagnostic::on_unimplemented(
    message = "the keys of a table with `{Self}` cannot move to another table",
    label = "expected a table with `TokenBucketRules` or `FixedWindowRules`",
    note = "change a concurrency limit in its table: `table.rules().set_limit(limit)`"
)]
pub trait MovableRules: KeyedRules + Moved {}

impl<R: KeyedRules + Moved> MovableRules for R {}

impl<R: KeyedRules, M: AsRef<[Line]>, S: BuildHasher> Keyed<R, M, S> {
    /// Moves all keys to the table `to`, which has other settings, while other threads take permits
    /// from either. Returns the number of slots that it could not move yet, because another thread
    /// was claiming them at that moment: call it again until it returns 0.
    ///
    /// `to` needs the same hasher, with the same seed, and the same number of lines. Create each
    /// line with [`Line::closed`]. While keys move, and afterward, take permits as follows: first
    /// from this table. If that is denied with [`Denied::Crowded`](crate::Denied::Crowded), and the
    /// key [has moved](Self::has_moved), take from `to`.
    ///
    /// **What moves.** The permits that are in use stay in use, under the new settings: if 4 of a
    /// burst of 10 are taken, 16 of a burst of 20 remain. What was replenished before `now` counts
    /// at the old rate.
    ///
    /// - If more permits are taken from a token bucket than its new burst, the bucket owes the
    ///   rest, as far as its [debt](crate::builder::TokenBucketBuilder::debt) allows. What is
    ///   beyond the debt is forgotten.
    /// - A token bucket counts in whole [ticks](crate::keyed::TokenBucketRules::timing). So a move
    ///   may delay the permits that come back by up to one tick of each table. Rounding grants none
    ///   early. If the rate is raised in the middle of a tick of this table, the part of the tick
    ///   before `now` counts at the old rate.
    /// - A fixed window with the same length and kind keeps its end. If more is taken from it than
    ///   the new limit, it is exhausted. A count beyond the [largest
    ///   limit](crate::builder::FixedWindowBuilder::max_limit) is cut to that; if it is moved
    ///   again, the window is exhausted under any limit. If the length changes and the window has
    ///   not ended, a new window begins at `now`, with the count of the old one.
    ///
    /// **Bound.** A key is granted no more than the larger of both settings allows, whatever takes
    /// run concurrently, unless something is forgotten. During the first tick of `to` after the
    /// move, the staleness is one tick shorter.
    ///
    /// Permits that are refunded after their key has moved are not returned; they return by time.
    /// Once a key has moved, this table no longer knows its state: for example, the number of
    /// available permits that it reports is meaningless.
    ///
    /// Run one call at a time for a table. Until a call has returned 0, some keys are denied with
    /// `Crowded`.
    ///
    /// # Panics
    ///
    /// If the tables differ in their numbers of lines. The rules must be [`MovableRules`]: their
    /// permits return by time.
    ///
    /// # Cost
    ///
    /// Reads and writes both tables. Makes no other call wait.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Limiter, Rate, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
    /// let lines = |line: fn() -> Line| (0..64).map(|_| line()).collect::<Vec<_>>();
    /// let rules = |burst| TokenBucketRules::new(Rate::per_second(1), burst);
    /// let before = Keyed::new(rules(10), lines(Line::new), Seed::new());
    /// let now = Timestamp::from_secs(9);
    /// let _ = before.key("alice").try_acquire_at(now, 4)?;
    ///
    /// let after = Keyed::new(rules(20), lines(Line::closed), Seed::new());
    /// assert_eq!(before.move_to(&after, now), 0);
    /// let alice = before.key("alice");
    /// assert!(alice.try_acquire_at(now, 1).is_err() && before.has_moved(alice.address()));
    /// assert_eq!(after.key("alice").available_at(now), 16);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn move_to<L: AsRef<[Line]>, H: BuildHasher>(
        &self,
        to: &Keyed<R, L, H>,
        now: Timestamp,
    ) -> usize
    where
        R: MovableRules,
    {
        let (before, after) = (self.table.lines(), to.table.lines());
        assert_eq!(
            before.len(),
            after.len(),
            "the tables differ in their numbers of lines"
        );
        let convert = |held: Held| self.moved(to, held.state(), now);
        line::entries_from(before, 0, Width::ONE)
            .zip(line::entries_from(after, 0, Width::ONE))
            .filter(|(from, into)| {
                self.settle_at(from.at, now);
                to.settle_at(into.at, now);
                !from.move_to(*into, |_| false, convert)
            })
            .count()
    }

    /// Hands all keys over to the table `to`, which has other settings, and which no call uses yet.
    /// Returns the number of slots that it could not hand over, because another thread kept writing
    /// them: call it again until it returns 0. Then use `to` instead of this table, whose slots are
    /// all closed.
    ///
    /// For tables in memory that processes share, with [revocable
    /// claims](Self::with_revocable_claims). [Close](Line::close) the lines of `to` before the
    /// first call. What moves, and the bound, are those of [`move_to`](Self::move_to). Other than
    /// there, a key is denied with [`Denied::Crowded`](crate::Denied::Crowded) from its own
    /// hand-over on, until its callers use `to`. In return any number of threads and processes may
    /// make the same call at once, also when others use `to` already, and each may be killed or
    /// stopped at any instruction: nothing is lost, and nothing is handed over twice. A first grant
    /// of a key that is under way is revoked.
    ///
    /// # Panics
    ///
    /// If the tables differ in their numbers of lines.
    ///
    /// # Cost
    ///
    /// Reads and writes both tables. Makes no other call wait.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Limiter, Rate, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
    /// let table = |burst, line: fn() -> Line| {
    ///     let lines = (0..64).map(|_| line()).collect::<Vec<_>>();
    ///     let rules = TokenBucketRules::new(Rate::per_second(1), burst);
    ///     Keyed::new(rules, lines, Seed::new()).with_revocable_claims()
    /// };
    /// let (before, after) = (table(10, Line::new), table(20, Line::closed));
    /// let now = Timestamp::from_secs(9);
    /// let _ = before.key("alice").try_acquire_at(now, 4)?;
    ///
    /// assert_eq!(before.hand_over_to(&after, now), 0);
    /// assert!(before.key("alice").try_acquire_at(now, 1).is_err());
    /// assert_eq!(after.key("alice").available_at(now), 16);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn hand_over_to<L: AsRef<[Line]>, H: BuildHasher>(
        &self,
        to: &Keyed<R, L, H>,
        now: Timestamp,
    ) -> usize
    where
        R: MovableRules,
    {
        let (before, after) = (self.table.lines(), to.table.lines());
        assert_eq!(
            before.len(),
            after.len(),
            "the tables differ in their numbers of lines"
        );
        let convert = |held: Held| self.moved(to, held.state(), now);
        line::entries_from(before, 0, Width::ONE)
            .zip(line::entries_from(after, 0, Width::ONE))
            .filter(|(from, into)| {
                self.settle_at(from.at, now);
                to.settle_at(into.at, now);
                !from.hand_over(*into, convert)
            })
            .count()
    }

    fn moved<L, H>(&self, to: &Keyed<R, L, H>, state: u64, now: Timestamp) -> u64 {
        moved(&self.rules, &to.rules, state, (now, to.table.since(now)))
    }

    /// Returns whether the key with this address has moved to another table: see
    /// [`move_to`](Self::move_to). Once it returns `true`, it always does.
    ///
    /// # Cost
    ///
    /// Reads two lines.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate};
    /// # use portcullis_core::keyed::{Line, Seed, TokenBucketRules};
    /// let rules = TokenBucketRules::new(Rate::per_second(1), 10);
    /// let table = Keyed::new(rules, Line::for_keys(100), Seed::new());
    /// assert!(!table.has_moved(table.key("alice").address()));
    /// ```
    pub fn has_moved(&self, key: Address) -> bool {
        key.has_moved(self.table.lines(), Width::ONE)
    }
}

impl<L, A: AsRef<[L]>, M: AsRef<[Line]>, S> KeyedArray<L, A, M, S> {
    /// Moves all keys to the table `to`, whose limiters have other settings, as
    /// [`Keyed::move_to`] does. Returns the number of slots that it could not move yet, because
    /// another thread was claiming them or working on their limiters: call it again until it
    /// returns 0.
    ///
    /// `carry` takes a limiter of `to` and the one that the key has before. It writes the state of
    /// the second to the first, for example with
    /// [`CooldownWindow::go_on_from`](crate::CooldownWindow::go_on_from). No other call works on
    /// either of them in the meantime.
    ///
    /// # Panics
    ///
    /// If the tables differ in their numbers of lines, or of limiters.
    ///
    /// # Cost
    ///
    /// Reads and writes both tables. Makes no other call wait.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{CooldownWindow, KeyedArray, Limiter, Timestamp};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let table = |limit, line: fn() -> Line| {
    ///     let window = || CooldownWindow::new(limit, Duration::from_secs(60), None);
    ///     let lines: Vec<_> = (0..64).map(|_| line()).collect();
    ///     let windows: Vec<_> = (0..512).map(|_| window()).collect();
    ///     KeyedArray::new(window(), windows, lines, Seed::new())
    /// };
    /// let (before, now) = (table(10, Line::new), Timestamp::from_secs(9));
    /// let _ = before.key("alice").take_at(now, 4)?;
    /// let after = table(15, Line::closed);
    /// assert_eq!(before.move_to(&after, |window, old| window.go_on_from(old, now)), 0);
    /// assert_eq!(after.key("alice").available_at(now), 11);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn move_to<B: AsRef<[L]>, N: AsRef<[Line]>, T>(
        &self,
        to: &KeyedArray<L, B, N, T>,
        carry: impl Fn(&L, &L),
    ) -> usize {
        let (before, after) = (self.lines().as_ref(), to.lines().as_ref());
        let (old, new) = (self.limiters().as_ref(), to.limiters().as_ref());
        assert!(
            before.len() == after.len() && old.len() == new.len(),
            "the tables differ in their numbers of lines or limiters"
        );
        let move_slot = |(from, into): (line::Entry<'_>, line::Entry<'_>)| {
            from.move_to(into, has_users, |held| {
                if let (Some(old), Some(new)) = (old.get(from.at), new.get(from.at)) {
                    carry(new, old);
                }
                held.state()
            })
        };
        line::entries_from(before, 0, Width::WITHOUT_CLOCK)
            .zip(line::entries_from(after, 0, Width::WITHOUT_CLOCK))
            .filter(|entries| !move_slot(*entries))
            .count()
    }

    /// Returns the limiter of the key with this address. `None` if the key has no slot.
    ///
    /// For a key that gets a limiter of its own, which goes on with the state of this one. The slot
    /// may be given to another key at any time after the key is idle. Take permits by
    /// [`key`](Self::key) instead.
    ///
    /// # Cost
    ///
    /// Reads two lines.
    ///
    /// ```
    /// # use portcullis_core::{KeyedArray, SlidingWindow, Timestamp};
    /// # use core::time::Duration;
    /// let window = || SlidingWindow::<4>::new(9, Duration::from_secs(4), 4);
    /// let table = KeyedArray::for_keys(window, 100);
    /// let (alice, now) = (table.key("alice"), Timestamp::from_secs(9));
    /// assert!(table.limiter_at(alice.address()).is_none());
    /// assert!(alice.try_acquire_at(now, 4).is_ok());
    /// assert_eq!(table.limiter_at(alice.address()).unwrap().taken_at(now), 4);
    /// ```
    pub fn limiter_at(&self, key: Address) -> Option<&L> {
        match key.find(self.lines().as_ref(), Width::WITHOUT_CLOCK) {
            Found::Held(entry, _) => self.limiters().as_ref().get(entry.at),
            _ => None,
        }
    }

    /// Returns whether the key with this address has moved to another table: see
    /// [`Keyed::has_moved`].
    ///
    /// # Cost
    ///
    /// Reads two lines.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, KeyedArray};
    /// let table = KeyedArray::for_keys(|| Concurrency::new(1), 100);
    /// assert!(!table.has_moved(table.key("alice").address()));
    /// ```
    pub fn has_moved(&self, key: Address) -> bool {
        key.has_moved(self.lines().as_ref(), Width::WITHOUT_CLOCK)
    }
}
