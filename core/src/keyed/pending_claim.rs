//! Claims that were begun and not ended, because their process was killed.
//!
//! A thread that claims a slot holds it or withdraws within a few instructions: see
//! [`line`](super::line). In memory that processes share, a process may be killed in between. The
//! slot then remains claimed: no key can use it, and the key for which it was claimed is denied.
//!
//! A claim has no owner that another process could look up. So a caller observes: a claim that is
//! the same whenever it is looked at, for longer than any call takes, is abandoned, and its slot
//! becomes vacant. If the claiming thread was only paused and goes on, its claim fails in a table
//! with revocable claims, unless its key claims the same slot again at that moment. In any other
//! table it writes a slot that another key may have by then. Law: the bound of a table holds for
//! pauses up to its staleness. Wait that long.

use crate::keyed::line::{Entry, Line, Width, entries_from, entry};

/// A claim of a slot that was under way when the slot was read: see [`Keyed`](crate::Keyed).
///
/// For tables in memory that processes share. There a process may be killed in the middle of a
/// claim. In a table of one process, no claim needs this.
///
/// Damaged words that no call could have written count as claims too. So do closed slots: do not
/// use this type on tables between which keys [move](crate::Keyed::move_to).
///
/// ```
/// use portcullis_core::keyed::{Line, PendingClaim};
/// let lines = Line::for_keys(100);
/// assert_eq!(PendingClaim::all(&lines).count(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingClaim {
    at: usize,
    word: u64,
}

impl PendingClaim {
    /// Returns all claims that are under way, in ascending order.
    ///
    /// # Cost
    ///
    /// Reads all lines.
    ///
    /// ```
    /// # use portcullis_core::keyed::{Line, PendingClaim};
    /// // A closed slot counts as a claim.
    /// let lines = [Line::new(), Line::closed()];
    /// assert_eq!(PendingClaim::all(&lines).count(), 7);
    /// ```
    pub fn all(lines: &[Line]) -> impl Iterator<Item = Self> {
        entries_from(lines, 0, Width::ONE).filter_map(|entry| {
            let word = entry.unheld()?;
            Some(Self { at: entry.at, word })
        })
    }

    /// Returns whether the claim is still under way. Another claim of the same slot for the same
    /// key looks the same.
    ///
    /// ```
    /// # use portcullis_core::keyed::{Line, PendingClaim};
    /// let lines = [Line::closed()];
    /// let claim = PendingClaim::all(&lines).next().unwrap();
    /// assert!(claim.is_pending(&lines));
    /// ```
    #[must_use]
    pub fn is_pending(&self, lines: &[Line]) -> bool {
        self.entry(lines).and_then(Entry::unheld) == Some(self.word)
    }

    /// Vacates the slot, if the claim is still under way. Returns whether it did; it may also fail
    /// spuriously.
    ///
    /// Call this only if the claim has been [pending](Self::is_pending) whenever it was looked at,
    /// for longer than the [staleness](crate::Keyed::staleness) of the table.
    ///
    /// ```
    /// # use portcullis_core::keyed::{Line, PendingClaim};
    /// let lines = [Line::closed()];
    /// let claim = PendingClaim::all(&lines).next().unwrap();
    /// while claim.is_pending(&lines) {
    ///     claim.abandon(&lines);
    /// }
    /// assert_eq!(PendingClaim::all(&lines).count(), 6);
    /// ```
    pub fn abandon(&self, lines: &[Line]) -> bool {
        self.entry(lines)
            .is_some_and(|entry| entry.vacate_from(self.word))
    }

    fn entry<'t>(&self, lines: &'t [Line]) -> Option<Entry<'t>> {
        entry(lines, self.at, Width::ONE)
    }
}
