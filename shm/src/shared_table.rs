//! A table of limiters by key, whose lines lie in a file that processes share.
//!
//! The state of a table is its lines, and nothing else: a key's slot has its tag and its state, and
//! the hash of a key needs the seed, which is the same for all processes because the file has it.
//! The counters of a table's [statistics](portcullis_core::keyed::KeyedStatistics) are the
//! process's own.
//!
//! A process that is killed while it claims a slot leaves the slot claimed.
//! [`recover`](SharedTable::recover) vacates it.
//!
//! The settings have versions, as those of a limiter: see [`versions`](crate::versions). They
//! decide how the state in a slot is read, so each version has lines of its own: those with an even
//! number the second ones, which the first change adds to the file. A change, under a lock:
//!
//! 1. closes the lines of the next version, writes its settings, and stamps it as pending;
//! 2. stamps the version before as superseded. From here on no version decides;
//! 3. hands all keys over to the lines of the next version, and closes those before
//!    ([`Keyed::hand_over_to`]);
//! 4. stamps the next version as in force.
//!
//! A process looks at the stamp, then at a slot, and then exchanges the slot.
//!
//! Invariant: a grant that counts is in the state that step 3 hands over, or was made after step 4.
//! A grant ends by an exchange of a slot that it has read or claimed. If that comes before the
//! exchange which closes the slot, step 3 reads it; otherwise it fails, because a closed slot stays
//! closed. So no change waits for a claim.
//!
//! A process may be killed or stopped between any two steps, and within step 3. Before step 2
//! nothing has happened. Steps 3 and 4 need no lock: another process does them at once if it gets
//! the lock, because the one that began is dead, and otherwise once they take longer than
//! [`HELP_AFTER`], because that one may be stopped. A process that is stopped in step 3 and goes on
//! later finds the slots of the next version open, and changes none.
//!
//! Lines are used again by the change after the next, not within a minute. So a process that stops
//! for less than that between its look at the stamp and its exchange meets no state of later
//! settings.

use core::fmt::{self, Debug};
use core::hash::Hash;
use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use portcullis_core::keyed::{
    ClockedKey, FixedWindowRules, IntoRules, KeyedRules, Line, MovableRules, PendingClaim, Seed,
    TokenBucketRules,
};
use portcullis_core::{
    Clock, Clocked, FixedWindow, Keyed, MonotonicClock, SettingsError, Timestamp, TokenBucket,
};

use crate::error::OpenError;
use crate::fault;
use crate::following::{self, Following, Version as _};
use crate::header::{FileKind, HEADER};
use crate::mapping::{END, END_BYTES, MappedLines, MappedVersions, Mapping, VERSIONS};
use crate::member::ChangeLock;
use crate::shared_file::{Contents, Patience, SharedFile};
use crate::shared_limiter::sealed::Described;
use crate::shared_limiter::{AGE, Shareable, fingerprint};
use crate::versions::{self, Newest, Settings, Version};

/// How long a slot must have been idle before another key may have it. Processes are stopped for
/// longer than threads are paused.
const STALENESS: Duration = Duration::from_secs(10);

/// How long after the beginning of a change, in milliseconds, others help the process that began
/// it.
const HELP_AFTER: u64 = 500;

/// The most claims that a process watches at once. More are pending only in a damaged file.
const MOST_PENDING: usize = 4096;

impl SharedFile {
    /// Opens the table in the file, or creates the file with an empty table: `keys` keys can be in
    /// use at once, each with the settings of `limiter`.
    ///
    /// Of new keys, at most 1 in 1,000,000 finds no slot while `keys` keys or fewer have one: see
    /// [`Line::for_keys`]. A key keeps its slot until its limiter has been idle for 10 s.
    ///
    /// **Changes.** If the file has other settings of the same kind of limiter for as many keys,
    /// and this process is [`changing`](Self::changing) them, they become those of `limiter` for
    /// all processes. What is in use stays in use: see [`Keyed::move_to`]. So the bound of a key
    /// over a time with changes is that of the largest settings. While the keys move, less than
    /// a second for a million keys, all requests are denied with
    /// [`Denied::Crowded`](portcullis_core::Denied::Crowded). A process that dies in the middle of
    /// a change leaves it to the others, and one that is stopped does so after half a second; while
    /// it is stopped, they cannot begin another one ([`OpenError::Busy`]).
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind or for
    /// another number of keys. [`OpenError::Changes`] at the second change within a minute.
    /// [`OpenError::Settings`] if the settings do not fit the 43 bits that a slot has for a state.
    /// [`OpenError::TooLarge`] above 48 million keys, and for a change above 24 million. See
    /// [`OpenError`] for the others.
    ///
    /// # Cost
    ///
    /// The file takes 43 bytes per key, and 14 KiB more. The process that creates it writes them
    /// all, so that no memory is missing later. The first change adds 43 bytes per key.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-table")?;
    /// // In each process: 10 permits per second for each user, at most 2 at once.
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 100_000)?;
    /// assert!(users.key("alice").try_acquire(2).is_ok());
    /// assert!(users.key("alice").try_acquire(1).is_err());
    /// assert!(users.key("bob").try_acquire(1).is_ok());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn table<L, R>(&self, limiter: L, keys: usize) -> Result<SharedTable<R>, OpenError>
    where
        L: Shareable + IntoRules<Rules = R>,
        R: MovableRules + Debug,
    {
        let describe = |limiter: &str| format!("table for {keys} keys: {limiter}");
        let described = describe(&Described::described(&limiter));
        let (words, room) = (limiter.words(), limiter.room());
        let rules = IntoRules::into_rules(limiter)?;
        let settings = Settings {
            words,
            fingerprint: fingerprint(&rules),
            room: 0,
        };
        let lines = Line::count_for_keys(keys);
        let bytes = (lines as u64).saturating_mul(size_of::<Line>() as u64);
        let contents = Contents {
            kind: FileKind::Table,
            identity: format!("{} for {keys} keys in {lines} lines", L::FAMILY),
            settings: described.clone(),
            first: versions::first(0, &settings),
            bytes: bytes.saturating_add(LINES_AT as u64),
        };
        let (mapping, header) = self.open(&contents)?;
        let areas = Areas {
            versions: MappedVersions::new(mapping),
            file: self.clone(),
            lines,
            seed: header.seed,
            second: OnceLock::new(),
            helping: Mutex::new(()),
            rules: rules_of::<L, R>,
        };
        let mut patience = Patience::new();
        let versions = &areas.versions;
        loop {
            let damaged = || OpenError::Damaged {
                path: self.path().to_owned(),
                what: "its settings are those of no limiter",
            };
            let number = match versions::newest(versions.all()) {
                Newest::InForce(number) => number,
                Newest::Changing(before) => {
                    if !areas.complete(before) {
                        return Err(damaged());
                    }
                    patience.wait(self)?;
                    continue;
                }
                Newest::Damaged => return Err(damaged()),
            };
            match areas.known(number) {
                Some(known) if known.settings.fingerprint == settings.fingerprint => {
                    return Ok(SharedTable {
                        following: Following::new(known),
                        areas,
                        pending: Mutex::new((0, Vec::new())),
                    });
                }
                // What another process reads must be these rules.
                Some(known) if self.changing && rules_of::<L, R>(&settings).is_some() => {
                    let room = room.max(known.room);
                    if !areas.change(&known, &Settings { room, ..settings })? {
                        patience.wait(self)?;
                    }
                }
                Some(known) => {
                    return Err(OpenError::OtherSettings {
                        path: self.path().to_owned(),
                        found: describe(&known.described),
                        wanted: described,
                    });
                }
                None if versions.numbered(number).get().is_in_force(number) => {
                    return Err(damaged());
                }
                None => patience.wait(self)?,
            }
        }
    }
}

/// Where the lines begin, after the versions of the settings.
const LINES_AT: usize = VERSIONS * size_of::<Version>();
/// Between the first lines and the second ones lies the end of the file as it was created.
const GAP: usize = size_of::<Line>();

/// The rules that settings give, their text, and how many permits may be in use under them.
type Read<R> = (R, String, u64);

/// How settings become rules.
type Reads<R> = fn(&Settings) -> Option<Result<Read<R>, SettingsError>>;

/// The rules that these settings give. `None` if no limiter wrote them.
fn rules_of<L, R>(settings: &Settings) -> Option<Result<Read<R>, SettingsError>>
where
    L: Shareable + IntoRules<Rules = R>,
    R: MovableRules + Debug,
{
    let mut declared = L::with_words(&settings.words, 0).enumerate();
    let (nth, described, room) = declared.find_map(|(nth, limiter)| {
        let limiter = limiter.ok()?;
        let (described, room) = (Described::described(&limiter), limiter.room());
        let rules = IntoRules::into_rules(limiter).ok()?;
        (fingerprint(&rules) == settings.fingerprint).then_some((nth, described, room))
    })?;
    let limiter = L::with_words(&settings.words, settings.room).nth(nth)?;
    let rules = limiter.and_then(IntoRules::into_rules);
    Some(rules.map(|rules| (rules, described, room.max(settings.room))))
}

/// The text of the settings of each key's limiter in the words of a file.
pub(crate) fn described_in(words: &[u64]) -> Option<String> {
    let settings = versions::settings_in(words)?;
    let bucket = rules_of::<TokenBucket, TokenBucketRules>(&settings);
    let window = || rules_of::<FixedWindow, FixedWindowRules>(&settings)?.ok();
    match bucket {
        Some(bucket) => bucket.ok().map(|(_, described, _)| described),
        None => window().map(|(_, described, _)| described),
    }
}

/// A version of a table, as this process knows it.
struct Known<R: KeyedRules> {
    table: Clocked<SharedKeyed<R>, MonotonicClock>,
    settings: Settings,
    described: String,
    /// How many permits of a key may be in use.
    room: u64,
}

impl<R: KeyedRules> Known<R> {
    fn lines(&self) -> &MappedLines {
        self.table.limiter().lines()
    }
}

impl<R: KeyedRules> following::Version for Known<R> {
    fn number(&self) -> u64 {
        self.lines().number()
    }

    #[inline(always)]
    fn is_in_force(&self) -> bool {
        self.lines().is_in_force()
    }
}

/// The file of a table, and what each of its versions has.
struct Areas<R> {
    versions: MappedVersions,
    file: SharedFile,
    /// The number of lines of a version.
    lines: usize,
    seed: [u64; 2],
    /// The mapping with the second lines, once the file has them.
    second: OnceLock<Arc<Mapping>>,
    /// Held by the thread of this process that completes a change of another one.
    helping: Mutex<()>,
    rules: Reads<R>,
}

impl<R: MovableRules> Areas<R> {
    /// The version with a number, if it is in force and a limiter wrote its settings.
    fn known(&self, number: u64) -> Option<Known<R>> {
        let version = self.versions.numbered(number);
        let settings = version.get().settings();
        if !version.get().is_in_force(number) {
            return None;
        }
        let (rules, described, room) = (self.rules)(&settings)?.ok()?;
        let seed = Seed::new();
        // It is new, so nothing has set it.
        let _set = seed.set(self.seed);
        let table = Keyed::new(rules, self.lines(number)?, seed)
            .with_staleness(STALENESS)
            .with_revocable_claims();
        Some(Known {
            table: Clocked::new(table, MonotonicClock::new()),
            settings,
            described,
            room,
        })
    }

    /// The lines of the version with a number, if the file has them.
    fn lines(&self, number: u64) -> Option<MappedLines> {
        let version = (self.versions.numbered(number), number);
        if !number.is_multiple_of(2) {
            let mapping = Arc::clone(self.versions.mapping());
            return Some(MappedLines::new(mapping, (LINES_AT, self.lines), version));
        }
        if self.second.get().is_none() {
            let file = self.versions.file().try_clone().ok()?;
            if file.metadata().ok()?.len() < self.whole() {
                return None;
            }
            let mapping = Mapping::new(file, self.whole(), self.file.path()).ok()?;
            // Another thread may have set it.
            let _unused = self.second.set(Arc::new(mapping));
        }
        let mapping = self.second.get()?;
        let second = LINES_AT + self.lines * size_of::<Line>() + GAP;
        Some(MappedLines::new(
            Arc::clone(mapping),
            (second, self.lines),
            version,
        ))
    }

    /// The size of the file with the second lines.
    fn whole(&self) -> u64 {
        let lines = (self.lines as u64).saturating_mul(2 * size_of::<Line>() as u64);
        lines.saturating_add((HEADER + LINES_AT + GAP) as u64 + END_BYTES)
    }

    /// Changes to other settings from the version `known`. Returns `false` if another process is
    /// changing them.
    fn change(&self, known: &Known<R>, settings: &Settings) -> Result<bool, OpenError> {
        Mapping::check_size(self.whole())?;
        let failed = |tried| move |error| self.file.failed(tried, error);
        let lock =
            ChangeLock::take(self.versions.own_file()).map_err(failed("lock a part of it"))?;
        let Some(_lock) = lock else {
            return Ok(false);
        };
        let number = known.number();
        // Another process may have changed them before.
        if versions::newest(self.versions.all()) != Newest::InForce(number) {
            return Ok(false);
        }
        let Some(rules) = (self.rules)(settings) else {
            return Ok(false);
        };
        rules?;
        let millis = || MonotonicClock::new().now().as_nanos() / 1_000_000;
        // The next version has the lines of the one before.
        let former = self.versions.numbered(number.saturating_sub(1));
        let too_often = || OpenError::Changes {
            path: self.file.path().to_owned(),
            most: 1,
        };
        if former.get().age(millis()).is_some_and(|age| age < AGE) {
            return Err(too_often());
        }
        extend(self.versions.file(), self.whole()).map_err(failed("extend it"))?;
        let Some(lines) = self.lines(number + 1) else {
            return Err(OpenError::TooMany { most: fault::MOST });
        };
        lines.all().iter().for_each(Line::close);
        let (before, next) = (
            self.versions.numbered(number),
            self.versions.numbered(number + 1),
        );
        let is_begun = next
            .get()
            .supersede(before.get(), number, settings, (millis(), AGE), || ());
        if !is_begun {
            return Err(too_often());
        }
        while self.hand_over(number) == HandOver::KeptWritten {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Completes a change from the version with the number `before`, if its process is dead, or has
    /// been at it for long. Returns `false` if its settings are those of no limiter.
    fn complete(&self, before: u64) -> bool {
        let is_dead = matches!(ChangeLock::take(self.versions.own_file()), Ok(Some(_)));
        let millis = MonotonicClock::new().now().as_nanos() / 1_000_000;
        let age = self.versions.numbered(before).get().age(millis);
        if !is_dead && age.is_some_and(|age| age < HELP_AFTER) {
            return true;
        }
        // One thread: the others deny meanwhile.
        let Ok(_helping) = self.helping.try_lock() else {
            return true;
        };
        self.hand_over(before) != HandOver::Unreadable
    }

    /// Steps 3 and 4 of a change. Any number of threads and processes may call it at once.
    fn hand_over(&self, number: u64) -> HandOver {
        let now = MonotonicClock::new().now();
        let keyed = |number| {
            let settings = self.versions.numbered(number).get().settings();
            let (rules, _, _) = (self.rules)(&settings)?.ok()?;
            let lines = self.lines(number)?;
            Some((rules, lines))
        };
        let (from, to) = (keyed(number), keyed(number + 1));
        // The settings are those of this change, if it is still under way.
        if versions::newest(self.versions.all()) != Newest::Changing(number) {
            return HandOver::Done;
        }
        let (Some((old, from)), Some((new, to))) = (from, to) else {
            return HandOver::Unreadable;
        };
        let to = Keyed::new(new, to.all(), Seed::new());
        let left = Keyed::new(old, from.all(), Seed::new()).hand_over_to(&to, now);
        let before = self.versions.numbered(number);
        let age = before.get().age(now.as_nanos() / 1_000_000);
        // A slot that a hostile process keeps writing is left behind after a while.
        if left > 0 && age.is_some_and(|age| u128::from(age) < STALENESS.as_millis()) {
            return HandOver::KeptWritten;
        }
        let next = self.versions.numbered(number + 1);
        next.get().complete(number, |_| ());
        HandOver::Done
    }
}

/// What has become of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandOver {
    /// The next version is in force.
    Done,
    /// A hostile process keeps writing a slot.
    KeptWritten,
    /// The settings are those of no limiter.
    Unreadable,
}

/// Makes the file longer, with zeros that are written, so that no page is missing later, and with
/// the [`END`] at last. A process that dies meanwhile leaves a shorter file.
fn extend(file: &File, bytes: u64) -> io::Result<()> {
    let mut at = file.metadata()?.len();
    if at >= bytes {
        return Ok(());
    }
    let (zeros, end) = ([0; 1 << 14], bytes - END_BYTES);
    while at < end {
        let part = (end - at).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..part], at)?;
        at += part as u64;
    }
    file.write_all_at(&END.to_ne_bytes(), end)
}

/// A table of limiters by key in a file: one table for all processes that open it.
///
/// Created by [`SharedFile::table`].
///
/// **Bound.** Each key is granted no more than its limit allows, by all processes together.
///
/// **A process that dies** changes nothing, with one exception: if it is killed within the few
/// instructions of a key's first grant, the slot remains claimed, and the key is denied with
/// [`Denied::Crowded`](portcullis_core::Denied::Crowded). [`recover`](Self::recover) ends that.
///
/// **Settings** may [change](SharedFile::changing). Call [`key`](Self::key) for each request: a key
/// from before a change is denied with `Denied::Crowded`. The first call after a change reads the
/// new settings, allocates for them, and locks a mutex of this process.
///
/// **A hostile process** that writes the file may change the state of any key. It cannot read the
/// keys, only parts of their hashes.
///
/// **A file that is truncated** while it is used: the table is lost for this process. It denies all
/// requests with `Denied::Crowded` from then on: see [`is_lost`](Self::is_lost). Requests that were
/// under way in this process at that moment may have been granted as by an empty table.
///
/// **Cost.** That of a [`Keyed`] table with a [`Seed`], and a reading of the clock.
pub struct SharedTable<R: KeyedRules> {
    following: Following<Known<R>>,
    areas: Areas<R>,
    /// The version in which this process has seen claims, and when it has seen each first.
    pending: Mutex<(u64, Vec<(PendingClaim, Timestamp)>)>,
}

/// The table in a [`SharedTable`].
pub type SharedKeyed<R> = Keyed<R, MappedLines, Seed>;

impl<R: MovableRules> SharedTable<R> {
    /// Returns the table under the settings in force, or under the last known ones.
    #[inline]
    fn latest(&self) -> &Known<R> {
        let known = self.following.get();
        if known.is_in_force() {
            return known;
        }
        self.follow()
    }

    #[cold]
    fn follow(&self) -> &Known<R> {
        let areas = &self.areas;
        let read = |number| areas.known(number);
        let complete = |before| _ = areas.complete(before);
        let followed = self.following.follow(&areas.versions, read, complete);
        followed.unwrap_or_else(|_| self.following.get())
    }

    /// Returns the limiter of `key`, which reads the clock. The key takes no slot before its first
    /// grant.
    ///
    /// Processes agree on a key if they pass values with the same `Hash`: the same type, and the
    /// same version of its implementation. Text and bytes do.
    ///
    /// # Cost
    ///
    /// One hash.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-key")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert!(users.key("alice").try_acquire(2).is_ok());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> ClockedKey<&SharedKeyed<R>, &MonotonicClock> {
        self.latest().table.key(key)
    }

    /// Returns the table without the clock, for callers that pass the time. It must be from a
    /// [`MonotonicClock`] or a [`CoarseClock`](portcullis_core::CoarseClock), in all processes. The
    /// table is that of the settings in force: call this method again for each request.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-keyed")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// let now = MonotonicClock::new().now();
    /// assert!(users.keyed().key("alice").try_acquire_at(now, 2).is_ok());
    /// assert_eq!(users.keyed().statistics_at(now).live, 1);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn keyed(&self) -> &SharedKeyed<R> {
        self.latest().table.limiter()
    }

    /// Vacates the slots that processes had claimed when they were killed, and returns their
    /// number. Call it every few seconds, in one process or in several.
    ///
    /// A claim takes less than a microsecond. If a claim is pending at each call for 10 s, its
    /// process is taken for dead. If it was only stopped, in the middle of that microsecond, and
    /// goes on, its claim fails, and it tries again.
    ///
    /// # Cost
    ///
    /// Reads the whole table: a few milliseconds for a million keys.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-recover")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert_eq!(users.recover(), 0);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn recover(&self) -> usize {
        self.recover_at(MonotonicClock::new().now())
    }

    /// As [`recover`](Self::recover), at `now`.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-recover-at")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert_eq!(users.recover_at(MonotonicClock::new().now()), 0);
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn recover_at(&self, now: Timestamp) -> usize {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.latest();
        if known.lines().is_lost() || !known.is_in_force() {
            return 0;
        }
        let lines = known.lines().all();
        let (number, pending) = &mut *pending;
        let mut before = core::mem::take(pending);
        if core::mem::replace(number, known.number()) != known.number() {
            before.clear();
        }
        let mut recovered = 0;
        for claim in PendingClaim::all(lines).take(MOST_PENDING) {
            // Claims come in the order of their slots, so `before` is sorted.
            let seen = before.binary_search_by_key(&claim, |&(earlier, _)| earlier);
            let since = seen.map_or(now, |at| before[at].1);
            let is_over =
                now.as_nanos().saturating_sub(since.as_nanos()) >= STALENESS.as_nanos() as u64;
            if is_over && claim.abandon(lines) {
                recovered += 1;
            } else {
                pending.push((claim, since));
            }
        }
        recovered
    }

    /// Returns whether this process has found the file truncated. The table denies all requests
    /// then.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-table-is-lost")?;
    /// let users = file.table(TokenBucket::new(Rate::per_second(10), 2), 1_000)?;
    /// assert!(!users.is_lost());
    /// # drop(users);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.following.get().lines().is_lost()
    }
}

impl<R: KeyedRules + Debug> Debug for SharedTable<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable")
            .field("rules", self.following.get().table.limiter().rules())
            .finish_non_exhaustive()
    }
}
