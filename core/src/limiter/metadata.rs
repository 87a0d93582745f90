//! What a limiter knows about a decision: typed values by name, without allocation.
//!
//! In the .NET rate limiting proposal, each lease carries a dictionary of objects with string keys.
//! Here a [`Name`] has a type, a limiter *offers* values when it is asked ([`Read::offer`]),
//! and nothing is stored.
//!
//! ```
//! use portcullis_core::metadata::{REASON_PHRASE, RETRY_AFTER};
//! use portcullis_core::{Rate, Retry, Timestamp, TokenBucket};
//!
//! let bucket = TokenBucket::new(Rate::per_second(2), 1);
//! let now = Timestamp::ZERO;
//! bucket.try_acquire_at(now, 1).unwrap();
//! let denied = bucket.try_acquire_at(now, 1).unwrap_err();
//!
//! assert_eq!(
//!     RETRY_AFTER.of_denied(&bucket, now, denied),
//!     Some(Retry::At(Timestamp::from_millis(500)))
//! );
//! assert_eq!(
//!     REASON_PHRASE.of_denied(&bucket, now, denied),
//!     Some("not enough permits available")
//! );
//! assert_eq!(
//!     RETRY_AFTER.of_granted(&bucket, now),
//!     None,
//!     "a grant has no time to retry"
//! );
//! ```

use core::any::Any;
use core::fmt;
use core::marker::PhantomData;

use crate::limiter::denied::{Denied, Retry};
use crate::limiter::{Limiter, LimiterExt, Read, Reading};
use crate::time::timestamp::Timestamp;

/// When to retry, for a denial.
///
/// ```
/// # use portcullis_core::{Concurrency, Retry, Timestamp, metadata};
/// let limit = Concurrency::new(1);
/// let _held = limit.try_acquire(1).unwrap();
/// let denied = limit.try_acquire(1).unwrap_err();
/// let retry = metadata::RETRY_AFTER.of_denied(&limit, Timestamp::ZERO, denied);
/// assert_eq!(retry, Some(Retry::OnRelease));
/// ```
pub const RETRY_AFTER: Name<Retry> = Name::new("RETRY_AFTER");
/// Why a request was denied, in a few words.
///
/// ```
/// # use portcullis_core::{Concurrency, Retry, Timestamp, metadata};
/// let limit = Concurrency::new(1);
/// let _held = limit.try_acquire(1).unwrap();
/// let denied = limit.try_acquire(1).unwrap_err();
/// let reason = metadata::REASON_PHRASE.of_denied(&limit, Timestamp::ZERO, denied);
/// assert_eq!(reason, Some("not enough permits available"));
/// ```
pub const REASON_PHRASE: Name<&'static str> = Name::new("REASON_PHRASE");
/// How much of the limiter is in use.
///
/// ```
/// # use portcullis_core::{Concurrency, Retry, Timestamp, metadata};
/// let limit = Concurrency::new(1);
/// let _held = limit.try_acquire(1).unwrap();
/// let denied = limit.try_acquire(1).unwrap_err();
/// let used = metadata::USED_SHARE
///     .of_denied(&limit, Timestamp::ZERO, denied)
///     .unwrap();
/// assert_eq!((used.permits, used.capacity), (1, 1));
/// ```
pub const USED_SHARE: Name<Used> = Name::new("USED_SHARE");
/// Until when a penalty is in force. Offered by a [`Penalty`](crate::Penalty) that is in force, and
/// so by a composition that contains one: by its first, if there are several.
///
/// ```
/// # use core::time::Duration;
/// # use portcullis_core::{Concurrency, Penalty, Timestamp, metadata};
/// let limit = Penalty::new(Concurrency::new(1), Duration::from_secs(60));
/// let (now, until) = (Timestamp::from_secs(1), Timestamp::from_secs(9));
/// assert_eq!(metadata::PENALIZED_UNTIL.of_granted(&limit, now), None);
/// limit.penalize_at(now, until);
/// assert_eq!(metadata::PENALIZED_UNTIL.of_granted(&limit, now), Some(until));
/// ```
pub const PENALIZED_UNTIL: Name<Timestamp> = Name::new("PENALIZED_UNTIL");

/// The permits of a limiter that are in use, and its capacity.
///
/// ```
/// use portcullis_core::{Concurrency, Timestamp, metadata};
///
/// let limit = Concurrency::new(4);
/// let _lease = limit.try_acquire(3).unwrap();
/// let used = metadata::USED_SHARE
///     .of_granted(&limit, Timestamp::ZERO)
///     .unwrap();
/// assert_eq!((used.permits, used.capacity), (3, 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "more is a value with a name of its own"
)]
pub struct Used {
    /// The permits that are not available.
    pub permits: u64,
    /// The permits that are available when the limiter is idle. Without a limit this is `u64::MAX`,
    /// or the largest number that the word of a token bucket can count.
    pub capacity: u64,
}

impl Used {
    pub(crate) fn of<L: Limiter + ?Sized>(limiter: &L, now: Timestamp) -> Self {
        limiter.read(Read::at(now)).into()
    }
}

impl From<Reading> for Used {
    fn from(reading: Reading) -> Self {
        Self {
            permits: reading.capacity.saturating_sub(reading.available),
            capacity: reading.capacity,
        }
    }
}

/// The name and the type of a piece of metadata. Two names are equal if both their texts and their
/// types are.
///
/// Libraries and applications define names of their own as constants:
///
/// ```
/// use portcullis_core::metadata::Name;
/// const TENANT: Name<u32> = Name::new("com.example.TENANT");
/// assert_eq!(TENANT.text(), "com.example.TENANT");
/// ```
pub struct Name<T> {
    text: &'static str,
    _type: PhantomData<fn() -> T>,
}

impl<T: 'static> Name<T> {
    /// Creates a name for values of type `T`.
    ///
    /// ```
    /// # use portcullis_core::metadata::Name;
    /// const TENANT: Name<u32> = Name::new("com.example.TENANT");
    /// ```
    pub const fn new(text: &'static str) -> Self {
        Self {
            text,
            _type: PhantomData,
        }
    }

    /// Returns the text of the name.
    ///
    /// ```
    /// # use portcullis_core::metadata;
    /// assert_eq!(metadata::RETRY_AFTER.text(), "RETRY_AFTER");
    /// ```
    pub const fn text(self) -> &'static str {
        self.text
    }

    /// Returns the value that `limiter` offers under this name for a request that it granted at
    /// `now`.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp, Unlimited, metadata};
    /// assert_eq!(
    ///     metadata::REASON_PHRASE.of_granted(&Unlimited, Timestamp::ZERO),
    ///     None
    /// );
    /// ```
    pub fn of_granted<L: Limiter + ?Sized>(self, limiter: &L, now: Timestamp) -> Option<T> {
        self.get(|offers| limiter.metadata(now, None, offers))
    }

    /// Returns the value that `limiter` offers under this name for a request that it denied at
    /// `now`.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Retry, Timestamp, metadata};
    /// let limit = Concurrency::new(1);
    /// let _held = limit.try_acquire(1).unwrap();
    /// let denied = limit.try_acquire(1).unwrap_err();
    /// assert!(
    ///     metadata::REASON_PHRASE
    ///         .of_denied(&limit, Timestamp::ZERO, denied)
    ///         .is_some()
    /// );
    /// ```
    pub fn of_denied<L: Limiter + ?Sized>(
        self,
        limiter: &L,
        now: Timestamp,
        denied: Denied,
    ) -> Option<T> {
        self.get(|offers| limiter.metadata(now, Some(denied), offers))
    }

    fn get(self, source: impl FnOnce(&mut Metadata<'_>)) -> Option<T> {
        let mut value: Option<T> = None;
        source(&mut Metadata {
            wanted: Wanted::Value {
                text: self.text,
                into: &mut value,
            },
        });
        value
    }
}

impl<T> Clone for Name<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Name<T> {}

impl<T> fmt::Debug for Name<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({:?})", self.text)
    }
}

/// A query for metadata, to which each limiter in turn offers its values.
///
/// ```
/// use portcullis_core::metadata::Name;
/// use portcullis_core::{Denied, Limiter, Retry, Timestamp, Unlimited};
/// use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
///
/// const ROUTE: Name<&str> = Name::new("com.example.ROUTE");
///
/// /// Adds the name of a route to the metadata of its limiter.
/// struct Routed<L>(L, &'static str);
///
/// impl<L: Limiter> Limiter for Routed<L> {
///     fn read(&self, mut read: Read<'_>) -> Reading {
///         read.offer(ROUTE, || self.1);
///         self.0.read(read)
///     }
///     fn decide(&self, ask: Ask<'_>) -> Answer {
///         self.0.decide(ask)
///     }
///     fn give_back(&self, back: Back<'_>) -> Returned {
///         self.0.give_back(back)
///     }
///     fn retry(&self, denied: Denied) -> Retry {
///         self.0.retry(denied)
///     }
/// }
///
/// assert_eq!(
///     ROUTE.of_granted(&Routed(Unlimited, "/login"), Timestamp::ZERO),
///     Some("/login")
/// );
/// ```
pub struct Metadata<'a> {
    wanted: Wanted<'a>,
}

enum Wanted<'a> {
    /// The first value offered as `text`. `into` is an `Option<T>`.
    Value {
        text: &'static str,
        into: &'a mut dyn Any,
    },
    Nth(&'a mut Nth),
}

/// The text of the offer with index `skip`, from 0.
struct Nth {
    skip: usize,
    found: Option<&'static str>,
}

impl Metadata<'_> {
    /// Returns the same query.
    pub(crate) fn by_ref(&mut self) -> Metadata<'_> {
        let wanted = match &mut self.wanted {
            Wanted::Value { text, into } => Wanted::Value {
                text,
                into: &mut **into,
            },
            Wanted::Nth(nth) => Wanted::Nth(nth),
        };
        Metadata { wanted }
    }

    /// Offers the value that `make` returns, under `name`. `make` is called only if this value is
    /// wanted.
    ///
    /// ```
    /// # use portcullis_core::metadata::{Metadata, Name};
    /// const TENANT: Name<u32> = Name::new("com.example.TENANT");
    /// fn metadata(offers: &mut Metadata<'_>) {
    ///     offers.offer(TENANT, || 7);
    /// }
    /// ```
    pub fn offer<T: 'static>(&mut self, name: Name<T>, make: impl FnOnce() -> T) {
        match &mut self.wanted {
            Wanted::Value { text, into } => {
                if *text != name.text {
                    return;
                }
                if let Some(into @ None) = into.downcast_mut::<Option<T>>() {
                    *into = Some(make());
                }
            }
            Wanted::Nth(Nth {
                skip: 0,
                found: found @ None,
            }) => *found = Some(name.text),
            Wanted::Nth(Nth { skip, .. }) => *skip = skip.saturating_sub(1),
        }
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metadata")
    }
}

/// Returns the names that `limiter` offers for a request that it granted or denied at `now`. Each
/// name occurs once, in the order of the offers.
///
/// # Cost
///
/// Asks the limiter again for each name, and again for each earlier name to skip duplicates. The
/// cost is quadratic in the number of names, which is small. It does not allocate.
///
/// ```
/// use portcullis_core::{Concurrency, Timestamp, metadata};
///
/// let limit = Concurrency::new(1);
/// let _lease = limit.try_acquire(1).unwrap();
/// let denied = limit.try_acquire(1).unwrap_err();
/// assert!(metadata::names(&limit, Timestamp::ZERO, Some(denied)).eq([
///     "RETRY_AFTER",
///     "REASON_PHRASE",
///     "USED_SHARE"
/// ]));
/// assert!(metadata::names(&limit, Timestamp::ZERO, None).eq(["USED_SHARE"]));
/// ```
pub fn names<L: Limiter + ?Sized>(
    limiter: &L,
    now: Timestamp,
    denied: Option<Denied>,
) -> impl Iterator<Item = &'static str> {
    let nth = move |skip| {
        let mut nth = Nth { skip, found: None };
        let wanted = Wanted::Nth(&mut nth);
        limiter.metadata(now, denied, &mut Metadata { wanted });
        nth.found
    };
    (0..)
        .map_while(move |i| nth(i).map(|name| (i, name)))
        .filter(move |&(i, name)| (0..i).all(|earlier| nth(earlier) != Some(name)))
        .map(|(_, name)| name)
}
