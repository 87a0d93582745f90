//! The numbers of a limiter as one value, and the question for them.

use crate::limiter::Idle;
use crate::limiter::denied::Denied;
use crate::limiter::metadata::{Metadata, Name};
use crate::time::timestamp::Timestamp;

/// The question for the numbers of a limiter, and for its metadata: the argument of
/// [`Limiter::read`](crate::Limiter::read).
///
/// A limiter with metadata of its own [offers](Self::offer) it, and then passes the question on to
/// the limiter that it wraps. So a limiter that offers nothing passes on all that its limiter
/// offers. See [`metadata`](mod@crate::metadata).
///
/// ```
/// use portcullis_core::{Concurrency, Limiter, Timestamp};
/// use portcullis_core::limiter::Read;
///
/// let reading = Concurrency::new(3).read(Read::at(Timestamp::ZERO));
/// assert_eq!((reading.available, reading.capacity, reading.held), (3, 3, 0));
/// ```
#[derive(Debug)]
pub struct Read<'a> {
    pub(crate) now: Timestamp,
    pub(crate) denied: Option<Denied>,
    pub(crate) offers: Option<Metadata<'a>>,
}

impl Read<'_> {
    /// Asks for the numbers at `now`.
    #[inline(always)]
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self {
            now,
            denied: None,
            offers: None,
        }
    }

    /// Returns the time.
    #[inline(always)]
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the denial that the metadata is about. `None` if the request was granted, or if the
    /// caller asks for no metadata.
    #[inline(always)]
    #[must_use]
    pub const fn denied(&self) -> Option<Denied> {
        self.denied
    }

    /// Offers the value that `make` returns, under `name`. `make` is called only if the caller asks
    /// for this value. If a name is offered twice, the caller gets the first value.
    ///
    /// ```
    /// # use portcullis_core::metadata::Name;
    /// # use portcullis_core::Timestamp;
    /// # use portcullis_core::limiter::Read;
    /// const TENANT: Name<u32> = Name::new("com.example.TENANT");
    /// Read::at(Timestamp::ZERO).offer(TENANT, || unreachable!("`Read::at` asks for no metadata"));
    /// ```
    #[inline]
    pub fn offer<T: 'static>(&mut self, name: Name<T>, make: impl FnOnce() -> T) {
        if let Some(offers) = &mut self.offers {
            offers.offer(name, make);
        }
    }

    /// Returns the same question, for another limiter.
    #[inline(always)]
    #[must_use]
    pub fn by_ref(&mut self) -> Read<'_> {
        Read {
            now: self.now,
            denied: self.denied,
            offers: self.offers.as_mut().map(Metadata::by_ref),
        }
    }
}

/// The numbers of a limiter at one instant: the result of [`Limiter::read`](crate::Limiter::read).
///
/// A limiter of your own states all of them. A wrapper changes those that it must, and passes on
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[expect(
    clippy::exhaustive_structs,
    reason = "a limiter states all of them; more is metadata"
)]
pub struct Reading {
    /// The permits that are available.
    pub available: u64,
    /// The largest number of permits that can ever be available at once; `u64::MAX` if it is
    /// unknown.
    pub capacity: u64,
    /// Whether the limiter is idle, that is, indistinguishable from a fresh one.
    /// [`Idle::InUse`] if that is unknown. A key of a [`KeyedArray`](crate::KeyedArray) keeps its
    /// slot while its limiter is in use.
    pub idle: Idle,
    /// The permits that are in use and return only by release; 0 if permits return by time. A queue
    /// is [drained] once none are held.
    ///
    /// [drained]: https://docs.rs/portcullis-async
    pub held: u64,
}
