//! A table of several processes in a queue: the limiter of one of its keys.
//!
//! It has no state. Each call looks the settings in force up, and then the slot of the key, whose
//! address is the same under all settings.

use core::fmt;
use core::hash::Hash;
use core::time::Duration;

use portcullis_core::keyed::{Address, KeyHash, KeyedRules, MovableRules};
use portcullis_core::limiter::{Answer, Ask, Back, Hints, Read, Reading, Returned};
use portcullis_core::queue::{Keys, QueueKeys, Replenishing};
use portcullis_core::{Denied, Limiter, Retry};

use crate::shared_table::{SharedKeyed, SharedTable};

/// When to ask again for a key that finds no slot: other keys have them, a process was killed while
/// it claimed one, or the settings are changing, which takes less than a second.
const AGAIN: Duration = Duration::from_millis(100);

/// The limiter of one key of a [`SharedTable`], as the queue that owns the table asks it. Use
/// [`SharedTable::key`] without a queue.
///
/// A key that finds no slot ([`Denied::Crowded`]) is to be asked again after 100 ms.
///
/// ```
/// use portcullis_core::{Clock, Limiter, MonotonicClock, Rate, TokenBucket};
/// use portcullis_core::queue::Keys;
/// # use portcullis_shm::{OpenError, SharedFile};
/// # let file = SharedFile::named("doc-shared-key")?;
/// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
/// let address = users.locate(users.hash_of("alice"));
/// assert_eq!(users.limiter_at(&address).available_at(MonotonicClock::new().now()), 2);
/// # drop(users);
/// # file.remove()?;
/// # Ok::<(), OpenError>(())
/// ```
pub struct SharedKey<'t, R: KeyedRules> {
    table: &'t SharedTable<R>,
    address: &'t Address,
}

impl<'t, R: MovableRules> SharedKey<'t, R> {
    /// The limiter under the settings in force.
    #[inline(always)]
    fn latest(&self) -> <SharedKeyed<R> as Keys>::Limiter<'t> {
        self.table.keyed().limiter_at(self.address)
    }
}

impl<R: MovableRules> Limiter for SharedKey<'_, R> {
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        self.latest().decide(ask)
    }

    fn give_back(&self, back: Back<'_>) -> Returned {
        self.latest().give_back(back)
    }

    fn read(&self, read: Read<'_>) -> Reading {
        self.latest().read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Crowded { .. } => Retry::After(AGAIN),
            _ => self.latest().retry(denied),
        }
    }

    #[inline]
    fn hints(&self) -> Hints {
        self.latest().hints()
    }
}

impl<R: MovableRules> Replenishing for SharedKey<'_, R> {}

impl<R: KeyedRules> fmt::Debug for SharedKey<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl<R: MovableRules> Keys for SharedTable<R> {
    type Limiter<'t>
        = SharedKey<'t, R>
    where
        R: 't;

    #[inline]
    fn limiter_at<'t>(&'t self, address: &'t Address) -> SharedKey<'t, R> {
        let table = self;
        SharedKey { table, address }
    }

    #[inline]
    fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        self.keyed().hash_of(key)
    }

    #[inline]
    fn locate(&self, hash: KeyHash) -> Address {
        self.keyed().locate(hash)
    }
}

/// A queue of each process can own the table. Its clock must be a
/// [`MonotonicClock`](portcullis_core::MonotonicClock), as that of the timers of `portcullis-async`
/// is. There is no order among the queues of several processes.
///
/// After a [change](crate::SharedFile::changing) of the settings by another process, a request that
/// waits already is asked again at the time that the former settings gave. After
/// `change(|_| ())` on the queue, it is asked at once.
///
/// ```
/// use portcullis_async::{KeyedQueue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// # use portcullis_shm::SharedFile;
/// # let file = SharedFile::named("doc-queue-of-a-table")?;
/// // In each process: 10 permits per second for each user, of all processes.
/// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 100_000)?;
/// let users = KeyedQueue::new(users, ThreadTimer::new(), 100);
/// let turn = users.key("alice").blocking_acquire(1)?;
/// # drop(turn);
/// # drop(users);
/// # file.remove()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<R: MovableRules> QueueKeys for SharedTable<R> {
    const SHARED: bool = true;

    /// Permits of these limits return by time.
    fn next_held(&self, _: usize) -> Option<usize> {
        None
    }
}
