//! State, in a word of a table: the number of permits in use. The limit is stored once for all
//! words.
//!
//! Invariant: no take leaves more permits in use than the limit at that moment. A take adds to the
//! state and a release subtracts from it. Both are a compare-exchange of a slot of the table.

use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, retry_of};
use crate::limiter::receipt::Receipt;
use crate::rules::{TableRules, Verdict, WordRules};
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{Setting, SettingsError};
use crate::word::{KeyedWord, Word};

/// The rules of a [`Concurrency`](crate::Concurrency) limit, without its state word.
///
/// A [`Keyed`](crate::Keyed) table applies the rules to one word per key. Rules alone hold no
/// permits. The limit can be [changed](Self::set_limit) for all keys at once, while permits are
/// out.
///
/// ```
/// use portcullis_core::{Keyed, Timestamp};
/// use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
///
/// static DOWNLOADS: Keyed<ConcurrencyRules, [Line; 64]> = Keyed::new(
///     ConcurrencyRules::new(1),
///     [const { Line::new() }; 64],
///     Seed::new(),
/// );
///
/// let lease = DOWNLOADS.key("alice").try_acquire_at(Timestamp::ZERO, 1)?;
/// assert!(DOWNLOADS.key("alice").try_acquire_at(Timestamp::ZERO, 1).is_err());
/// drop(lease);
/// assert!(DOWNLOADS.key("alice").try_acquire_at(Timestamp::ZERO, 1).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct ConcurrencyRules {
    limit: AtomicU32,
}

impl ConcurrencyRules {
    const_unless_loom! {
        /// Returns rules that allow at most `limit` permits in use per key, 1 to
        /// [`max_limit`](Self::max_limit).
        ///
        /// # Panics
        ///
        /// If `limit` is 0 or more than `max_limit`. In a constant or a static, this is a compile
        /// error. For a [`SettingsError`] instead, build a
        /// [`Concurrency`](crate::Concurrency) limit, and convert it with
        /// [`IntoRules`](crate::keyed::IntoRules).
        ///
        /// ```
        /// # use portcullis_core::keyed::ConcurrencyRules;
        /// static RULES: ConcurrencyRules = ConcurrencyRules::new(100);
        /// ```
        #[must_use]
        pub const fn new(limit: u32) -> Self {
            match Self::checked(limit) {
                Ok(rules) => rules,
                Err(error) => error.refuse(),
            }
        }
    }

    const_unless_loom! {
        const fn checked(limit: u32) -> Result<Self, SettingsError> {
            if limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            match Self::check(limit) {
                Ok(()) => Ok(Self { limit: AtomicU32::new(limit) }),
                Err(error) => Err(error),
            }
        }
    }

    /// Returns the largest limit that a slot of a table can count: 2^32 - 1, or 2^20 - 1 on targets
    /// without 64-bit atomics.
    ///
    /// ```
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// assert!(ConcurrencyRules::max_limit() >= 1_048_575);
    /// ```
    pub const fn max_limit() -> u32 {
        if KeyedWord::BITS < u32::BITS {
            KeyedWord::MASK as u32
        } else {
            u32::MAX
        }
    }

    const fn check(limit: u32) -> Result<(), SettingsError> {
        if limit > Self::max_limit() {
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: Self::max_limit() as u64,
            });
        }
        Ok(())
    }

    /// Returns the current limit.
    ///
    /// ```
    /// # use portcullis_core::keyed::ConcurrencyRules;
    /// assert_eq!(ConcurrencyRules::new(3).limit(), 3);
    /// ```
    pub fn limit(&self) -> u32 {
        // Relaxed: a take is judged by one value of the limit. The state word orders what permits
        // guard.
        self.limit.load(Relaxed)
    }

    /// Changes the limit of every key, 0 to [`max_limit`](Self::max_limit), and returns the old
    /// one.
    ///
    /// Permits in use stay in use. A key with as many permits in use as the new limit, or more, is
    /// granted none.
    ///
    /// # Errors
    ///
    /// [`SettingsError::TooLarge`] if `limit` is more than `max_limit`. Nothing changes then.
    ///
    /// # Cost
    ///
    /// One swap. A take that runs concurrently may still be judged by the old limit.
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Timestamp};
    /// # use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
    /// let table = Keyed::new(ConcurrencyRules::new(1), Line::for_keys(8), Seed::new());
    /// let _busy = table.key("alice").try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// assert_eq!(table.rules().set_limit(2), Ok(1));
    /// assert!(table.key("alice").try_acquire_at(Timestamp::ZERO, 1).is_ok());
    /// ```
    pub fn set_limit(&self, limit: u32) -> Result<u32, SettingsError> {
        Self::check(limit)?;
        Ok(self.limit.swap(limit, Relaxed))
    }
}

/// A request, and the limit that judges it.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest {
    now: Timestamp,
    n: u32,
    limit: u32,
}

impl WordRules for ConcurrencyRules {
    type Word = KeyedWord;
    type Request = PermitRequest;

    #[inline(always)]
    fn request(&self, now: Timestamp, n: u32) -> Result<PermitRequest, Denied> {
        let limit = self.limit();
        if n.max(1) > limit {
            return Err(Denied::exceeding(n, limit.into()));
        }
        Ok(PermitRequest { now, n, limit })
    }

    #[inline(always)]
    fn judge(&self, held: u64, request: PermitRequest) -> Verdict {
        let PermitRequest { now, n, limit } = request;
        let wanted = u64::from(n.max(1));
        if held + wanted > limit.into() {
            return Verdict::Denied(Denied::Exhausted { now, permits: n });
        }
        if n == 0 {
            Verdict::Allowed
        } else {
            Verdict::Granted(held + wanted)
        }
    }

    fn receipt(&self, _: u64, _: Timestamp) -> Receipt {
        Receipt::NONE
    }

    #[inline]
    fn refund(&self, held: u64, _: Timestamp, n: u32, _: &Receipt) -> Option<u64> {
        held.checked_sub(n.into())
    }

    #[inline(always)]
    fn rest(&self, _: u64, receipt: Receipt) -> Receipt {
        receipt
    }

    fn capacity(&self) -> u64 {
        self.limit().into()
    }

    fn available(&self, held: u64, _: Timestamp) -> u64 {
        u64::from(self.limit()).saturating_sub(held)
    }

    fn idle(&self, held: u64, _: Timestamp) -> Idle {
        if held == 0 { Idle::Now } else { Idle::InUse }
    }

    fn retry(&self, _: u64, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::OnRelease,
            _ => Retry::Never,
        }
    }

    fn detail(&self, held: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        let limit = u64::from(self.limit());
        Detail {
            now,
            decision,
            available: limit.saturating_sub(held),
            capacity: limit,
            time_to_fill: None,
            full_again: if held == 0 {
                Retry::At(now)
            } else {
                Retry::OnRelease
            },
            retry: retry_of(decision, now, |denied| self.retry(held, denied)),
        }
    }
}

impl TableRules for ConcurrencyRules {
    #[inline(always)]
    fn wraps() -> bool {
        false
    }

    #[inline(always)]
    fn releases(&self) -> bool {
        true
    }

    fn fresh(&self, _: Timestamp) -> u64 {
        0
    }

    fn is_forgettable(&self, held: u64, _: Timestamp, _: Timestamp) -> bool {
        held == 0
    }
}
