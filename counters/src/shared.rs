//! A counter store in memory that the processes of a host share.
//!
//! Records of a file ([`SharedRecords`]): a counter is one number under `c` and its id, and a quota
//! is its numbers under `q` and its id. A call has the lock of the records from its first read to
//! its last write. So this store decides as the one in the memory of a process does.

use core::fmt;
use core::time::Duration;

use portcullis_core::Timestamp;
use portcullis_shm::{LockedRecords, OpenError, RecordsError, SharedFile, SharedRecords};

use crate::charge::Charge;
use crate::decision::StoreDecision;
use crate::error::StoreError;
use crate::limit::{CounterLimit, Shape};
use crate::memory::expiry_from;
use crate::quota::{Judgement, QuotaState};
use crate::store::{Counter, CounterStore, MAX_AGE, QuotaRead, QuotaWrite, StoreFuture};

/// A [`CounterStore`] in a file that the processes of a host map: one store for all of them,
/// without a server. Linux.
///
/// The time is that of `CLOCK_MONOTONIC`, which all processes share. The content outlives them, and
/// ends with a restart of the machine. See [`SharedFile`] for names, permissions and hostile
/// processes, and [`SharedRecords`] for processes that are killed: a request is charged as a whole
/// or not at all, at whatever instruction its process dies.
///
/// It is bounded, as a [`MemoryCounters`](crate::MemoryCounters) is: a new id that finds no room
/// fails with [`StoreError::Full`].
///
/// # Cost
///
/// A lock for all ids, which is held for one request: for a look-up of each id in the heads of 32
/// records, some arithmetic, and two copies of what is written. Every future is ready at once. A
/// call blocks its thread while another process has the lock: usually for a microsecond, for 10 ms
/// if that process is killed with it, and for at most 1 s, after which it fails with
/// [`StoreError::Unavailable`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_counters::{Charge, CounterLimit, CounterStore, SharedCounters};
/// use portcullis_shm::SharedFile;
///
/// # futures_executor::block_on(async {
/// let file = SharedFile::named("doc-shared-store")?;
/// // In each process: 10,000 ids, and windows of up to 8 segments.
/// let store = SharedCounters::open(&file, 10_000, 8)?;
/// let limit = CounterLimit::token_bucket(2, Duration::from_secs(3_600), 2)?;
/// let charge = [Charge::new("alice", &limit, 1)];
/// assert!(store.take(&charge).await?.is_allowed());
/// assert!(store.take(&charge).await?.is_allowed());
/// assert!(!store.take(&charge).await?.is_allowed());
/// # drop(store);
/// # file.remove()?;
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
pub struct SharedCounters {
    records: SharedRecords,
    /// The most segments of a window.
    segments: u32,
}

impl SharedCounters {
    /// Opens the store in the file, or creates the file: with room for `max_ids` ids, of counters
    /// and quotas together, and for sliding windows of up to `segments` segments, 1 to 64. A policy
    /// refuses a rule with a window of more segments, and a request with one fails with
    /// [`StoreError::Refused`], as one with more than 64 limits does.
    ///
    /// # Errors
    ///
    /// [`OpenError`], for example if the file has other settings.
    ///
    /// # Cost
    ///
    /// The file takes 80 bytes per id, and 10 more for each segment above 1.
    ///
    /// ```
    /// # use portcullis_counters::SharedCounters;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// let file = SharedFile::named("doc-shared-store-open")?;
    /// let store = SharedCounters::open(&file, 10_000, 1)?;
    /// let other = SharedCounters::open(&file, 20_000, 1);
    /// assert!(matches!(other, Err(OpenError::OtherSettings { .. })));
    /// # drop(store);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn open(file: &SharedFile, max_ids: usize, segments: u32) -> Result<Self, OpenError> {
        // The numbers of a quota: 4 of a bucket, or 3 and one for each segment.
        let numbers = 3_usize.saturating_add(segments.max(1) as usize);
        let records = file.records(max_ids, numbers)?;
        Ok(Self { records, segments })
    }

    /// Returns whether the file was truncated. All calls fail then.
    ///
    /// ```
    /// # use portcullis_counters::SharedCounters;
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-shared-store-lost")?;
    /// assert!(!SharedCounters::open(&file, 10, 1)?.is_lost());
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.records.is_lost()
    }

    fn lock(&self) -> Result<LockedRecords<'_>, StoreError> {
        self.records.lock().map_err(failed)
    }

    fn add(&self, id: &str, expiry: Duration, delta: i64) -> Result<Counter, StoreError> {
        let mut records = self.lock()?;
        let (key, now) = (key(b'c', id), records.now());
        let (value, expires) = match records.read(&key) {
            Some(record) => {
                let value = record.numbers.first().copied().unwrap_or(0).cast_signed();
                let value = value.checked_add(delta).ok_or(StoreError::Overflow)?;
                (value, record.expires)
            }
            None => (delta, expiry_from(now, expiry)),
        };
        let numbers = [value.cast_unsigned()];
        records
            .write(&[(&key, &numbers, expires)])
            .map_err(failed)?;
        Ok(Counter {
            value,
            expires_in: Some(expires.saturating_since(now)),
        })
    }

    fn decide(&self, charges: &[Charge<'_>]) -> Result<StoreDecision, StoreError> {
        let judgement = Judgement::of(charges)?;
        for charge in charges {
            self.supports(charge.limit)?;
        }
        let ids = judgement.ids();
        // Locked from the reads to the write, so that no other process comes between.
        let mut records = self.lock()?;
        let now = records.now();
        let (decision, taken) = judgement.judge(&quotas(&records, &ids), now)?;
        if let Some(taken) = taken {
            let writes = ids.iter().zip(taken).filter_map(|(&id, taken)| {
                let (quota, expiry) = taken?;
                Some((id, quota, expiry))
            });
            write(&mut records, writes)?;
        }
        Ok(decision)
    }

    fn write(&self, read_at: Timestamp, writes: &[QuotaWrite<'_>]) -> Result<bool, StoreError> {
        let mut records = self.lock()?;
        let ids: Vec<&str> = writes.iter().map(|write| write.id).collect();
        let before = writes.iter().map(|write| write.before);
        let is_old = records.now().saturating_since(read_at) > MAX_AGE;
        if is_old || !quotas(&records, &ids).iter().eq(before) {
            return Ok(false);
        }
        let writes = writes.iter();
        let writes = writes.map(|write| (write.id, write.quota.clone(), write.expiry));
        self::write(&mut records, writes)?;
        Ok(true)
    }
}

fn key(kind: u8, id: &str) -> Vec<u8> {
    [&[kind], id.as_bytes()].concat()
}

fn failed(error: RecordsError) -> StoreError {
    match error {
        RecordsError::Full => StoreError::Full,
        RecordsError::TooMany { most } => StoreError::Refused(format!(
            "it needs more than {most} quotas, or numbers in a quota: see `SharedCounters::open`"
        )),
        // Whatever it is, no call of this process gets the records.
        _ => StoreError::Unavailable(error.to_string()),
    }
}

fn quotas(records: &LockedRecords<'_>, ids: &[&str]) -> Vec<QuotaState> {
    let quota = |id: &&str| {
        records
            .read(&key(b'q', id))
            .map(|record| record.numbers.into())
    };
    ids.iter().map(|id| quota(id).unwrap_or_default()).collect()
}

/// Writes quotas, all or none.
fn write<'w>(
    records: &mut LockedRecords<'_>,
    writes: impl Iterator<Item = (&'w str, QuotaState, Duration)>,
) -> Result<(), StoreError> {
    let now = records.now();
    let writes = writes.map(|(id, quota, expiry)| {
        let expires = now.saturating_add(expiry);
        (key(b'q', id), quota, expires)
    });
    let writes: Vec<_> = writes.collect();
    let each = writes.iter();
    let each = each.map(|(key, quota, expires)| (&key[..], quota.values(), *expires));
    let each: Vec<_> = each.collect();
    records.write(&each).map_err(failed)
}

impl CounterStore for SharedCounters {
    fn get_many<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, Vec<Counter>> {
        Box::pin(async move {
            let records = self.lock()?;
            let counter = |id: &&str| match records.read(&key(b'c', id)) {
                Some(record) => Counter {
                    value: record.numbers.first().copied().unwrap_or(0).cast_signed(),
                    expires_in: Some(record.expires.saturating_since(records.now())),
                },
                None => Counter::default(),
            };
            Ok(ids.iter().map(counter).collect())
        })
    }

    fn increment_and_get<'a>(
        &'a self,
        id: &'a str,
        expiry: Duration,
        delta: i64,
    ) -> StoreFuture<'a, Counter> {
        Box::pin(async move { self.add(id, expiry, delta) })
    }

    fn read_quotas<'a>(&'a self, ids: &'a [&'a str]) -> StoreFuture<'a, QuotaRead> {
        Box::pin(async move {
            let records = self.lock()?;
            let (quotas, at) = (quotas(&records, ids), records.now());
            Ok(QuotaRead { quotas, at })
        })
    }

    fn write_quotas<'a>(
        &'a self,
        read_at: Timestamp,
        writes: &'a [QuotaWrite<'a>],
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.write(read_at, writes) })
    }

    fn take<'a>(&'a self, charges: &'a [Charge<'a>]) -> StoreFuture<'a, StoreDecision> {
        Box::pin(async move { self.decide(charges) })
    }

    fn supports(&self, limit: &CounterLimit) -> Result<(), StoreError> {
        let most = self.segments.max(1);
        match limit.shape {
            Shape::Windows { segments, .. } if segments > most.into() => {
                Err(StoreError::Refused(format!(
                    "the store has room for windows of up to {most} segments, not {segments}: see \
                     `SharedCounters::open`"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for SharedCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCounters").finish_non_exhaustive()
    }
}
