//! A limiter whose state word lies in a file that processes share. [`versions`](crate::versions)
//! describes how its settings change.

use core::fmt::{self, Debug};
use core::time::Duration;

use portcullis_core::builder::{FixedWindowBuilder, TokenBucketBuilder};
use portcullis_core::limiter::{Answer, Ask, Back, Hints, LimiterId, Read, Reading, Returned};
use portcullis_core::queue::{QueueLimiter, Replenishing};
use portcullis_core::state::{Attached, Detach, NativeWord, StateWord};
use portcullis_core::{
    Clock, Denied, FixedWindow, Lease, Limiter, LimiterExt, MonotonicClock, Rate, Retry,
    SettingsError, Timestamp, TokenBucket,
};

use crate::error::OpenError;
use crate::following::{self, Following, Undecided, Version as _};
use crate::header::{FileKind, fnv};
use crate::mapping::{MappedVersion, MappedVersions, VERSIONS};
use crate::member::ChangeLock;
use crate::shared_file::{Contents, Patience, SharedFile};
use crate::versions::{self, Newest, Settings, Version, WORDS};
use sealed::Described;

/// How long a version of the settings is not used again, in milliseconds.
pub(crate) const AGE: u64 = 60_000;
/// How often a decision is repeated because the settings changed during it.
const ATTEMPTS: usize = 8;
/// A limiter that processes can share: [`TokenBucket`] and [`FixedWindow`]. Sealed.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::FixedWindow;
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-shareable")?;
/// let window = file.limiter(FixedWindow::new(5, Duration::from_secs(1)))?;
/// assert_eq!(window.rules().limit(), 5);
/// # drop(window);
/// file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
pub trait Shareable: Detach<Word = NativeWord, Rules: Debug> + sealed::Described {}

pub(crate) mod sealed {
    use portcullis_core::SettingsError;

    use crate::versions::WORDS;

    /// Settings as text, for people, and as words, for other processes.
    pub trait Described: Sized {
        /// What files of this kind of limiter have in common.
        const FAMILY: &'static str;
        fn described(&self) -> String;
        /// All settings that determine the rules.
        fn words(&self) -> [u64; WORDS];
        /// How many permits may be in use.
        fn room(&self) -> u64;
        /// Limiters with these settings, whose states can count `room` permits. One of them has the
        /// rules of the limiter that wrote them: a setting may be a default that cannot be set.
        fn with_words(
            words: &[u64; WORDS],
            room: u64,
        ) -> impl Iterator<Item = Result<Self, SettingsError>>;
    }
}

/// A duration in nanoseconds.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const TOKEN_BUCKET: u64 = 1;
const FIXED_WINDOW: u64 = 2;

impl Shareable for TokenBucket {}

impl Described for TokenBucket {
    const FAMILY: &'static str = "token bucket";

    fn described(&self) -> String {
        let (permits, period) = (self.rate().permits(), self.rate().period());
        format!(
            "token bucket, {permits} permits per {period:?}, burst {}, debt {}, tick {:?}, \
             staleness {:?}",
            self.burst(),
            self.debt(),
            self.timing().tick,
            self.timing().staleness
        )
    }

    fn words(&self) -> [u64; WORDS] {
        let rate = self.rate();
        // At an unlimited rate, any burst gives the same rules.
        let burst = if rate.is_unlimited() { 1 } else { self.burst() };
        let mut words = [0; WORDS];
        words[..8].copy_from_slice(&[
            TOKEN_BUCKET,
            rate.permits(),
            nanos(rate.period()),
            burst,
            self.debt(),
            nanos(self.timing().tick),
            nanos(self.timing().staleness),
            self.timing().origin.as_nanos(),
        ]);
        words
    }

    fn room(&self) -> u64 {
        if self.rate().is_unlimited() {
            return 0;
        }
        self.burst().saturating_add(self.debt())
    }

    fn with_words(
        words: &[u64; WORDS],
        room: u64,
    ) -> impl Iterator<Item = Result<Self, SettingsError>> {
        let &[
            family,
            permits,
            period,
            burst,
            debt,
            tick,
            staleness,
            origin,
            ..,
        ] = words;
        let rate = match u32::try_from(permits) {
            _ if permits == Rate::UNLIMITED.permits() => Some(Rate::UNLIMITED),
            Ok(permits) => Some(Rate::new(permits, Duration::from_nanos(period))),
            Err(_) => None,
        };
        let rate = rate.filter(|_| family == TOKEN_BUCKET);
        let builders = rate.into_iter().flat_map(move |rate| {
            let plain = TokenBucket::builder(rate, burst)
                .debt(debt.max(room.saturating_sub(burst)))
                .origin(Timestamp::from_nanos(origin));
            let ticking = plain.tick(Duration::from_nanos(tick));
            let staleness = Duration::from_nanos(staleness);
            [
                ticking.staleness(staleness),
                ticking,
                plain.staleness(staleness),
                plain,
            ]
        });
        builders.map(TokenBucketBuilder::build)
    }
}

impl Shareable for FixedWindow {}

impl Described for FixedWindow {
    const FAMILY: &'static str = "fixed window";

    fn described(&self) -> String {
        let start = if self.is_started_by_first_request() {
            "started by the first request"
        } else {
            "on a grid"
        };
        format!(
            "fixed window, limit {}, window {:?} {start}, tick {:?}, staleness {:?}",
            self.limit(),
            self.window(),
            self.timing().tick,
            self.timing().staleness
        )
    }

    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..8].copy_from_slice(&[
            FIXED_WINDOW,
            self.limit(),
            nanos(self.window()),
            self.is_started_by_first_request().into(),
            self.max_limit(),
            nanos(self.timing().tick),
            nanos(self.timing().staleness),
            self.timing().origin.as_nanos(),
        ]);
        words
    }

    fn room(&self) -> u64 {
        self.limit()
    }

    fn with_words(
        words: &[u64; WORDS],
        room: u64,
    ) -> impl Iterator<Item = Result<Self, SettingsError>> {
        let &[
            family,
            limit,
            window,
            is_started,
            most,
            tick,
            staleness,
            origin,
            ..,
        ] = words;
        let is_one = family == FIXED_WINDOW;
        let builders = is_one.then_some(()).into_iter().flat_map(move |()| {
            let plain = FixedWindow::builder(limit, Duration::from_nanos(window))
                .max_limit(most.max(room))
                .origin(Timestamp::from_nanos(origin));
            let plain = if is_started == 0 {
                plain
            } else {
                plain.started_by_first_request()
            };
            let ticking = plain.tick(Duration::from_nanos(tick));
            let staleness = Duration::from_nanos(staleness);
            [
                ticking.staleness(staleness),
                ticking,
                plain.staleness(staleness),
                plain,
            ]
        });
        builders.map(FixedWindowBuilder::build)
    }
}

pub(crate) fn fingerprint(rules: &impl Debug) -> u64 {
    fnv(format!("{rules:?}").as_bytes())
}

/// The rules and the first state of a limiter.
type Parts<L> = (<L as Detach>::Rules, StateWord);

/// The limiter that these settings give, and its text. `None` if no limiter wrote them.
fn parts_of<L: Shareable>(
    settings: &Settings,
) -> Option<Result<(Parts<L>, String), SettingsError>> {
    let mut declared = L::with_words(&settings.words, 0).enumerate();
    let (nth, described) = declared.find_map(|(nth, limiter)| {
        let limiter = limiter.ok()?;
        let described = limiter.described();
        let (rules, _) = limiter.detach();
        (fingerprint(&rules) == settings.fingerprint).then_some((nth, described))
    })?;
    let limiter = L::with_words(&settings.words, settings.room).nth(nth)?;
    Some(limiter.map(|limiter| (limiter.detach(), described)))
}

/// The rules that these settings give, and their text, if a limiter wrote them and they fit.
fn limiter_of<L: Shareable>(settings: &Settings) -> Option<(L::Rules, String)> {
    let ((rules, _), described) = parts_of::<L>(settings)?.ok()?;
    Some((rules, described))
}

/// The text of the settings in the words of a file.
pub(crate) fn described_in(words: &[u64]) -> Option<String> {
    let settings = versions::settings_in(words)?;
    let bucket = limiter_of::<TokenBucket>(&settings).map(|(_, text)| text);
    bucket.or_else(|| Some(limiter_of::<FixedWindow>(&settings)?.1))
}

impl SharedFile {
    /// Opens the limiter in the file, or creates the file with this limiter.
    ///
    /// The process that creates the file sets the state to that of `limiter`. In all others the
    /// state of `limiter` does not count.
    ///
    /// **Changes.** If the file has other settings, and this process is
    /// [`changing`](Self::changing) them, the settings become those of `limiter`. What is in use
    /// stays in use, also if it is more than the new settings allow: see
    /// [`Keyed::move_to`](portcullis_core::Keyed::move_to), whose other rules apply. So the bound
    /// over a time with changes is that of the largest settings. Requests that are under way
    /// during a change may be denied with [`Denied::Refused`], and permits that they had taken
    /// return by time. A process that dies or is stopped in the middle of a change leaves it to the
    /// others; while it is stopped, they cannot begin another one ([`OpenError::Busy`]).
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherSettings`] if the file has other settings, also of another kind.
    /// [`OpenError::Changes`] at the 32nd change within a minute. [`OpenError::Settings`] if the
    /// state cannot count what may be in use under the settings before. See [`OpenError`] for the
    /// others.
    ///
    /// # Cost
    ///
    /// About 20 system calls. The file takes 12 KiB of memory, and two descriptors.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_shm::SharedFile;
    ///
    /// let file = SharedFile::named("doc-limiter")?;
    /// // In each process.
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(bucket.try_acquire(20).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), portcullis_shm::OpenError>(())
    /// ```
    pub fn limiter<L: Shareable>(&self, limiter: L) -> Result<SharedLimiter<L>, OpenError> {
        let (described, words, room) = (limiter.described(), limiter.words(), limiter.room());
        let (rules, word) = limiter.detach();
        let fingerprint = fingerprint(&rules);
        let settings = Settings {
            words,
            fingerprint,
            room: 0,
        };
        // What another process reads must be these rules.
        let is_readable = limiter_of::<L>(&settings).is_some();
        let contents = Contents {
            kind: FileKind::Limiter,
            identity: L::FAMILY.to_owned(),
            settings: described.clone(),
            first: versions::first(word.get(), &settings),
            bytes: (VERSIONS * size_of::<Version>()) as u64,
        };
        let (mapping, _) = self.open(&contents)?;
        let versions = MappedVersions::new(mapping);
        let mut patience = Patience::new();
        loop {
            let damaged = || OpenError::Damaged {
                path: self.path().to_owned(),
                what: "its settings are those of no limiter",
            };
            let number = match versions::newest(versions.all()) {
                Newest::InForce(number) => number,
                Newest::Changing(before) => {
                    if !complete::<L>(&versions, before) {
                        return Err(damaged());
                    }
                    patience.wait(self)?;
                    continue;
                }
                Newest::Damaged => return Err(damaged()),
            };
            match Known::<L>::read(&versions, number, Timestamp::ZERO) {
                // Settings with the same rules may differ in their words: defaults.
                Some(known) if known.settings.fingerprint == fingerprint => {
                    return Ok(SharedLimiter {
                        following: Following::new(known),
                        versions,
                    });
                }
                Some(known) if self.changing && is_readable => {
                    // What is in use under any settings before can be counted.
                    let room = room.max(known.room);
                    if !self.change(&versions, &known, &Settings { room, ..settings })? {
                        patience.wait(self)?;
                    }
                }
                Some(known) => {
                    let (_, found) = limiter_of::<L>(&known.settings).ok_or_else(damaged)?;
                    return Err(OpenError::OtherSettings {
                        path: self.path().to_owned(),
                        found,
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

    /// Changes from the version `known` to other settings. Returns `false` if another process is
    /// changing them.
    fn change<L: Shareable>(
        &self,
        versions: &MappedVersions,
        known: &Known<L>,
        settings: &Settings,
    ) -> Result<bool, OpenError> {
        let lock = ChangeLock::take(versions.own_file());
        let Some(_lock) = lock.map_err(|error| self.failed("lock a part of it", error))? else {
            return Ok(false);
        };
        // Another process may have changed them before.
        if versions::newest(versions.all()) != Newest::InForce(known.number) {
            return Ok(false);
        }
        // Once for the version, and once as an unused limiter.
        let parts = [(); 2].map(|()| parts_of::<L>(settings));
        let [Some(parts), Some(others)] = parts else {
            return Ok(false);
        };
        let (((rules, _), _), ((others, word), _)) = (parts?, others?);
        let to = Attached::new(rules, versions.numbered(known.number + 1));
        let unused = Attached::new(others, &word);
        let next = to.place().get();
        let now = MonotonicClock::new().now();
        let clear = || {
            let state: &StateWord = next.as_ref();
            // A decision that was stopped may still change it.
            (0..64).any(|_| unused.move_to_at(now, &to, state.get()));
        };
        let times = (now.as_nanos() / 1_000_000, AGE);
        if !next.supersede(known.version(), known.number, settings, times, clear) {
            return Err(OpenError::Changes {
                path: self.path().to_owned(),
                most: VERSIONS - 1,
            });
        }
        next.complete(known.number, |instead_of| {
            known.attached.move_to_at(now, &to, instead_of);
        });
        Ok(true)
    }
}

/// A version of the settings, as this process knows it.
struct Known<L: Shareable> {
    attached: Attached<L::Rules, MappedVersion>,
    number: u64,
    settings: Settings,
    /// How many permits may be in use.
    room: u64,
    /// When this process came to know it; 0 for the first one. Grants of earlier versions are not
    /// later.
    since: Timestamp,
}

impl<L: Shareable> Known<L> {
    /// Reads the settings of the version with a number. Returns `None` if the version is not in
    /// force any more, or has the settings of no such limiter.
    fn read(versions: &MappedVersions, number: u64, since: Timestamp) -> Option<Self> {
        let version = versions.numbered(number);
        let settings = version.get().settings();
        if !version.get().is_in_force(number) {
            return None;
        }
        let (rules, _) = limiter_of::<L>(&settings)?;
        let declared = L::with_words(&settings.words, 0).find_map(Result::ok)?;
        Some(Self {
            attached: Attached::new(rules, version),
            number,
            settings,
            room: declared.room().max(settings.room),
            since,
        })
    }

    #[inline(always)]
    fn version(&self) -> &Version {
        self.attached.place().get()
    }

    /// Whether a request at `now` may have been judged by earlier settings.
    #[inline(always)]
    fn is_older(&self, now: Timestamp) -> bool {
        now <= self.since && self.since > Timestamp::ZERO
    }
}

impl<L: Shareable> following::Version for Known<L> {
    fn number(&self) -> u64 {
        self.number
    }

    #[inline(always)]
    fn is_in_force(&self) -> bool {
        self.version().is_in_force(self.number)
    }
}

/// Completes a change from the version with the number `before`, whatever has become of the process
/// that began it. Returns `false` if its settings are those of no limiter.
fn complete<L: Shareable>(versions: &MappedVersions, before: u64) -> bool {
    let limiter = |number| {
        let version = versions.numbered(number);
        let (rules, _) = limiter_of::<L>(&version.get().settings())?;
        Some(Attached::new(rules, version))
    };
    let (from, to) = (limiter(before), limiter(before + 1));
    // The settings are those of this change, if it is still under way.
    if versions::newest(versions.all()) != Newest::Changing(before) {
        return true;
    }
    let (Some(from), Some(to)) = (from, to) else {
        return false;
    };
    let now = MonotonicClock::new().now();
    to.place().get().complete(before, |instead_of| {
        from.move_to_at(now, &to, instead_of);
    });
    true
}

/// A limiter whose state word lies in a file: one limiter for all processes that open it.
///
/// Created by [`SharedFile::limiter`]. It is a [`Limiter`]: a part of an
/// [`AllOf`](portcullis_core::AllOf), inside a wrapper, or in a queue.
///
/// **Bound.** That of `L`, for all processes together. [`try_acquire`](Self::try_acquire) reads
/// the clock. A caller that passes a time must take it from a [`MonotonicClock`] or a
/// [`CoarseClock`](portcullis_core::CoarseClock), in all processes.
///
/// **A process that dies** changes nothing: permits that it took return by time, as all others.
///
/// **A hostile process** that writes the file may change the state. Other processes may then grant
/// less, or more: up to what an unused limiter grants, at each change.
///
/// **A file that is truncated** while it is used: the limiter is lost for this process, and denies
/// all requests with [`Denied::Closed`] from then on: see [`is_lost`](Self::is_lost).
///
/// **Settings** may [change](SharedFile::changing). A decision that a change overtakes is made
/// again. The first decision after a change reads the new settings, allocates for them, and locks a
/// mutex of this process: do not use a limiter whose settings change in a signal handler.
///
/// **Cost.** That of `L`, and two loads. One is of a word beside the state, which is written only
/// if settings change. No system call, and nothing that a process that dies could leave locked.
///
/// ```
/// use portcullis_core::{Denied, Rate, TokenBucket};
/// use portcullis_shm::SharedFile;
///
/// let file = SharedFile::named("doc-shared-limiter")?;
/// let open = || file.limiter(TokenBucket::new(Rate::per_minute(1), 3));
/// // As two processes would.
/// let (one, other) = (open()?, open()?);
/// assert!(one.try_acquire(3).is_ok());
/// assert!(matches!(other.try_acquire(1), Err(Denied::Exhausted { .. })));
/// # drop((one, other));
/// # file.remove()?;
/// # Ok::<(), portcullis_shm::OpenError>(())
/// ```
pub struct SharedLimiter<L: Shareable> {
    following: Following<Known<L>>,
    versions: MappedVersions,
}

impl<L: Shareable> SharedLimiter<L> {
    /// Takes `n` permits now. With `n = 0` it takes nothing, and is granted or denied as a request
    /// for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// As `L`, and [`Denied::Closed`] if the file was [lost](Self::is_lost).
    ///
    /// # Cost
    ///
    /// A reading of a [`MonotonicClock`], and that of [`try_acquire_at`](Self::try_acquire_at).
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-try-acquire")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(bucket.try_acquire(20).is_ok());
    /// assert!(bucket.try_acquire(20).is_err());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        self.try_acquire_at(MonotonicClock::new().now(), n)
    }

    /// Takes `n` permits at `now`, which must be from a [`MonotonicClock`] or a
    /// [`CoarseClock`](portcullis_core::CoarseClock).
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cost
    ///
    /// As that of `L`, and one load.
    ///
    /// ```
    /// # use portcullis_core::{Clock, MonotonicClock, Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-try-acquire-at")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// let now = MonotonicClock::new().now();
    /// assert!(bucket.try_acquire_at(now, 20).is_ok());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the settings by which the last decision was made.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-rules")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert_eq!(bucket.rules().burst(), 20);
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn rules(&self) -> &L::Rules {
        self.following.get().attached.rules()
    }

    /// Returns whether this process has found the file truncated. The limiter denies all requests
    /// then, unless its state and its settings remain. Open it again: the damaged file is refused,
    /// until it is removed.
    ///
    /// Requests that were under way in this process at that moment may have been granted as by an
    /// unused limiter.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use portcullis_shm::{OpenError, SharedFile};
    /// # let file = SharedFile::named("doc-is-lost")?;
    /// let bucket = file.limiter(TokenBucket::new(Rate::per_second(100), 20))?;
    /// assert!(!bucket.is_lost());
    /// # drop(bucket);
    /// # file.remove()?;
    /// # Ok::<(), OpenError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.versions.is_lost()
    }

    /// Makes a decision by the settings in force.
    ///
    /// If the file is truncated, all stamps are 0, so no settings are in force.
    #[inline(always)]
    fn ask<T>(
        &self,
        (now, n): (Timestamp, u32),
        denied: impl Fn(Denied) -> T,
        mut ask: impl FnMut(&Known<L>) -> T,
    ) -> T {
        let known = self.following.get();
        let outcome = ask(known);
        if known.is_in_force() {
            return outcome;
        }
        self.ask_again((now, n), denied, ask)
    }

    #[cold]
    #[inline(never)]
    fn ask_again<T>(
        &self,
        (now, n): (Timestamp, u32),
        denied: impl Fn(Denied) -> T,
        mut ask: impl FnMut(&Known<L>) -> T,
    ) -> T {
        for _ in 0..ATTEMPTS {
            match self.follow() {
                Ok(known) => {
                    let outcome = ask(known);
                    if known.is_in_force() {
                        return outcome;
                    }
                }
                Err(Undecided::Closed) => return denied(Denied::Closed { permits: n }),
                Err(Undecided::Changing) => break,
            }
        }
        denied(Denied::Refused { now, permits: n })
    }

    /// Returns the settings in force.
    #[cold]
    fn follow(&self) -> Result<&Known<L>, Undecided> {
        let read = |number| Known::read(&self.versions, number, MonotonicClock::new().now());
        let complete = |before| _ = complete::<L>(&self.versions, before);
        self.following.follow(&self.versions, read, complete)
    }

    /// Returns the settings in force, or the last known ones.
    fn latest(&self) -> &Known<L> {
        let known = self.following.get();
        if known.is_in_force() {
            return known;
        }
        self.follow().unwrap_or(known)
    }
}

impl<L: Shareable> Debug for SharedLimiter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimiter")
            .field("rules", self.rules())
            .finish_non_exhaustive()
    }
}

impl<L: Shareable> Limiter for SharedLimiter<L> {
    #[inline]
    fn decide(&self, mut ask: Ask<'_>) -> Answer {
        let (now, n, seen) = (ask.now(), ask.permits(), ask.detail());
        let denied = |denied| {
            if let Some(seen) = seen {
                let mut detail = self.latest().attached.explain_at(now, n);
                detail.decision = Err(denied);
                seen.set(Some(detail));
            }
            Answer::Denied(denied)
        };
        self.ask((now, n), denied, |known| {
            if known.is_older(now) {
                // A plan may be for earlier settings.
                known.attached.decide(ask.by_ref().without_plan())
            } else {
                known.attached.decide(ask.by_ref())
            }
        })
    }

    /// As `L`. Refunds nothing if the settings have changed since the grant.
    #[inline]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| {
            let known = self.following.get();
            if known.is_older(Timestamp::from_nanos(receipt.time())) {
                return receipt.refunded(0);
            }
            let refund = known.attached.refund_at(now, n, receipt);
            if known.is_in_force() {
                refund
            } else {
                refund.rest.refunded(0)
            }
        })
    }

    /// No permits are available if no settings are in force.
    fn read(&self, read: Read<'_>) -> Reading {
        let now = read.now();
        let available = self.ask((now, 0), |_| 0, |known| known.attached.available_at(now));
        Reading {
            available,
            ..self.latest().attached.read(read)
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Closed { .. } => Retry::Never,
            Denied::Refused { .. } => Retry::After(Duration::from_millis(1)),
            _ => self.latest().attached.retry(denied),
        }
    }

    #[inline]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self.versions.first())
    }

    #[inline]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }
}

impl<L: Shareable> Replenishing for SharedLimiter<L> {}

impl<L: Shareable> QueueLimiter for SharedLimiter<L> {
    /// Other processes take from it, besides the queue.
    const SHARED: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_read_as_written<L: Shareable>(limiter: L) {
        let (words, text) = (limiter.words(), limiter.described());
        let (rules, _) = limiter.detach();
        let fingerprint = fingerprint(&rules);
        let settings = Settings {
            words,
            fingerprint,
            room: 0,
        };
        let read = limiter_of::<L>(&settings);
        assert_eq!(read.map(|(_, described)| described), Some(text.clone()));
        let other = Settings {
            fingerprint: fingerprint ^ 1,
            ..settings
        };
        assert!(limiter_of::<L>(&other).is_none(), "{text}");
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        let periods = [1, 7, 1_000, 1_000_000_007, 86_400_000_000_000].map(Duration::from_nanos);
        let second = Duration::from_secs(1);
        for period in periods {
            for permits in [0, 1, 999_999_937] {
                let plain = TokenBucket::builder(Rate::new(permits, period), 7);
                let origin = Timestamp::from_nanos(1_234_567_891);
                for bucket in [
                    plain,
                    plain.debt(5),
                    plain.stepwise(),
                    plain.stepwise().origin(origin),
                    plain.tick(Duration::from_micros(3)),
                    plain.tick(second).origin(origin),
                    plain.staleness(Duration::from_secs(77)),
                    plain.initial(0),
                ] {
                    if let Ok(bucket) = bucket.build() {
                        is_read_as_written(bucket);
                    }
                }
            }
            for limit in [1, 1_000, 1 << 20] {
                let plain = FixedWindow::builder(limit, period);
                let origin = Timestamp::from_nanos(1_234_567_891);
                let started = plain.started_by_first_request();
                for window in [
                    plain,
                    plain.origin(origin),
                    plain.max_limit(1 << 21),
                    plain.staleness(Duration::from_secs(77)),
                    started,
                    started.origin(origin).tick(Duration::from_micros(3)),
                    started.tick(second),
                    started.staleness(second),
                ] {
                    if let Ok(window) = window.build() {
                        is_read_as_written(window);
                    }
                }
            }
        }
        is_read_as_written(TokenBucket::new(Rate::UNLIMITED, 7));
        is_read_as_written(TokenBucket::new(Rate::per_second(3), 1));
    }
}
