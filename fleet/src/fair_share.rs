//! Max-min fair shares, computed by each member alone from the same picture.
//!
//! All demands are met up to a level, and the partitions that are left are one more for some of the
//! members whose demand is higher:
//!
//! ```text
//! share of a member = min(demand, level) + 1 if it is entitled to one more
//! sum over all      = min(partitions, sum of the demands)
//! ```
//!
//! The members that have had one more for the shortest time are entitled to it. A member that has
//! it keeps it until it has had it for a turn longer than the next one, so that leases do not go
//! back and forth. In the long run, members with the same demand have the same, also if there are
//! fewer partitions than members.
//!
//! Source: the fair share of Doorman, in whole partitions and without a master.

use crate::store::Claim;

/// The fair shares of all members in one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShares {
    level: u32,
    /// The largest key that is entitled to one more than the level.
    last: Option<Key>,
    turn: u64,
}

/// What a member has had, less a turn if it has one more than the level now, and its name.
type Key = (i128, u128);

impl FairShares {
    /// Returns the shares of `claims` in `partitions`.
    ///
    /// `turn` is how much more than the next one, in partition-milliseconds, a member must have had
    /// before it gives up a partition that not all can have.
    ///
    /// # Cost
    ///
    /// Linear in the number of members, times the logarithm of the number of partitions. It
    /// allocates a list of the members whose demand is above the level.
    ///
    /// ```
    /// use portcullis_fleet::{Claim, FairShares, MemberId};
    ///
    /// let claim = |member, demand| Claim::new(MemberId(member), demand);
    /// let claims = [claim(1, 20), claim(2, 3), claim(3, 20)];
    /// let shares = FairShares::of(&claims, 12, 15_000);
    /// // The second one needs less than a third. The others share the rest.
    /// assert_eq!(claims.map(|claim| shares.share(&claim)), [5, 3, 4]);
    /// ```
    #[must_use]
    pub fn of(claims: &[Claim], partitions: u32, turn: u64) -> Self {
        let up_to = |level: u32| {
            let each = claims
                .iter()
                .map(|claim| u64::from(claim.demand.min(level)));
            each.sum::<u64>()
        };
        let all = u64::from(partitions);
        // The highest level that the partitions reach.
        let (mut level, mut above) = (0, partitions.saturating_add(1));
        while level + 1 < above {
            let middle = level + (above - level) / 2;
            if up_to(middle) <= all {
                level = middle;
            } else {
                above = middle;
            }
        }
        let mut shares = Self {
            level,
            last: None,
            turn,
        };
        let more = usize::try_from(all - up_to(level)).unwrap_or(usize::MAX);
        if more > 0 {
            let above = claims.iter().filter(|claim| claim.demand > level);
            let mut keys: Vec<Key> = above.map(|claim| shares.key(claim)).collect();
            // At the level of all partitions, no demand may be higher.
            if let Some(last) = more.min(keys.len()).checked_sub(1) {
                shares.last = Some(*keys.select_nth_unstable(last).1);
            }
        }
        shares
    }

    /// Returns the share of one of the members.
    ///
    /// ```
    /// # use portcullis_fleet::{Claim, FairShares, MemberId};
    /// let claim = Claim::new(MemberId(1), 7);
    /// assert_eq!(FairShares::of(&[claim], 20, 15_000).share(&claim), 7);
    /// ```
    #[must_use]
    pub fn share(&self, claim: &Claim) -> u32 {
        let is_entitled =
            claim.demand > self.level && self.last.is_some_and(|last| self.key(claim) <= last);
        claim.demand.min(self.level) + u32::from(is_entitled)
    }

    /// Returns the share that each member has at least, unless its demand is lower.
    ///
    /// ```
    /// # use portcullis_fleet::{Claim, FairShares, MemberId};
    /// let claim = |member| Claim::new(MemberId(member), 9);
    /// assert_eq!(FairShares::of(&[1, 2, 3].map(claim), 8, 15_000).level(), 2);
    /// ```
    #[must_use]
    pub const fn level(&self) -> u32 {
        self.level
    }

    fn key(&self, claim: &Claim) -> Key {
        let turn = if claim.held > self.level {
            self.turn
        } else {
            0
        };
        (i128::from(claim.served) - i128::from(turn), claim.member.0)
    }
}
