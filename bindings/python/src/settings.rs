//! The settings of a limit, which the classes are made of, and how a process opens it: a limit that
//! was declared has no state until it is used, and gives its settings to what it is passed to.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::keyed::{AnyRules, IntoRules, RulesAtRunTime};
use portcullis_core::queue::QueueKeys;
use portcullis_core::{
    AllOf, Concurrency, FixedWindow, Keyed, KeyedList, Limiter, SlidingWindow, TokenBucket,
};
use pyo3::PyResult;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};

use crate::door::{Door, Each, One, Own};
use crate::errors::refused;
use crate::key::Mixed;
use crate::rate::Rate;
#[cfg(target_os = "linux")]
use crate::shared_file;

/// The most segments of a sliding window.
pub(crate) const SEGMENTS: usize = 8;

/// The most limits of an `AllOf`.
const PARTS: usize = 8;

/// How long a bucket may be idle before it can be noticed that its word wraps.
const TEN_YEARS: Duration = Duration::from_hours(10 * 365 * 24);

/// The settings of a limit.
#[derive(Clone, Debug)]
pub(crate) enum Settings {
    TokenBucket {
        rate: Rate,
        burst: u64,
    },
    FixedWindow {
        rate: Rate,
    },
    SlidingWindow {
        rate: Rate,
        segments: u32,
    },
    Concurrency {
        limit: u32,
    },
    AllOf(Vec<Settings>),
    /// A limit that processes share by its name.
    Shared {
        name: String,
        limit: Box<Settings>,
    },
}

/// A limiter of any kind, as a part of another.
type AnyLimiter = Box<dyn Limiter + Send + Sync>;

/// Opens a limit for this process.
pub(crate) type Opened = Box<dyn Fn() -> PyResult<Box<dyn Door>> + Send + Sync>;

impl Settings {
    /// Whether permits return by release, so that they must be held.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Concurrency { .. } => true,
            Self::AllOf(parts) => parts.iter().any(Self::is_held),
            Self::Shared { limit, .. } => limit.is_held(),
            _ => false,
        }
    }

    /// Whether other processes take from it too.
    fn is_shared(&self) -> bool {
        match self {
            Self::Shared { .. } => true,
            Self::AllOf(parts) => parts.iter().any(Self::is_shared),
            _ => false,
        }
    }

    /// Joins limits to one. Those that are joined already count one by one.
    pub(crate) fn all_of(parts: impl IntoIterator<Item = Self>) -> PyResult<Self> {
        let parts = parts.into_iter().flat_map(|part| match part {
            Self::AllOf(parts) => parts,
            part => vec![part],
        });
        let parts: Vec<_> = parts.collect();
        if (1..=PARTS).contains(&parts.len()) {
            Ok(Self::AllOf(parts))
        } else {
            Err(PyValueError::new_err(format!(
                "AllOf takes 1 to {PARTS} limits"
            )))
        }
    }

    /// Creates the limiter.
    fn limiter(&self) -> PyResult<AnyLimiter> {
        Ok(match self {
            Self::TokenBucket { rate, burst } => Box::new(bucket(rate, *burst)?),
            Self::FixedWindow { rate } => Box::new(window(rate)?),
            Self::SlidingWindow { rate, segments } => Box::new(sliding(rate, *segments)?),
            Self::Concurrency { limit } => Box::new(concurrency(*limit)?),
            Self::AllOf(parts) => {
                let parts = parts.iter().map(Self::limiter);
                all_of(parts.collect::<PyResult<_>>()?)
            }
            Self::Shared { name, limit } => limit.limiter_of_host(name)?,
        })
    }

    /// Opens the limiter that processes share by `name`.
    #[cfg(target_os = "linux")]
    fn limiter_of_host(&self, name: &str) -> PyResult<AnyLimiter> {
        Ok(match self {
            Self::TokenBucket { rate, burst } => {
                Box::new(shared_file::limiter(name, bucket(rate, *burst)?)?)
            }
            Self::FixedWindow { rate } => Box::new(shared_file::limiter(name, window(rate)?)?),
            Self::Concurrency { limit } => Box::new(shared_file::concurrency(name, *limit)?),
            Self::AllOf(_) => {
                return Err(PyTypeError::new_err(
                    "share each limit under a name of its own: AllOf(shared(...), shared(...))",
                ));
            }
            Self::SlidingWindow { .. } | Self::Shared { .. } => {
                return Err(PyTypeError::new_err(
                    "processes can share a TokenBucket, a FixedWindow or a Concurrency",
                ));
            }
        })
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "as on Linux")]
    fn limiter_of_host(&self, _: &str) -> PyResult<AnyLimiter> {
        Err(PyTypeError::new_err(
            "processes share limits on Linux alone",
        ))
    }

    /// Checks the settings, and returns how a process opens the limit.
    pub(crate) fn open(&self, max_waiting: u64) -> PyResult<Opened> {
        // The commonest ones are asked without a look at their type.
        match self.clone() {
            Self::TokenBucket { rate, burst } => self.opened(
                move || bucket(&rate, burst).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            Self::FixedWindow { rate } => self.opened(
                move || window(&rate).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            Self::Concurrency { limit } => self.opened(
                move || concurrency(limit).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            other if other.is_shared() => self.opened(
                move || other.limiter().map(Arc::from),
                one::<dyn Limiter + Send + Sync, true>(max_waiting),
            ),
            other => self.opened(
                move || other.limiter().map(Arc::from),
                one::<dyn Limiter + Send + Sync, false>(max_waiting),
            ),
        }
    }

    /// As `open`, with a limit for each of `keys` keys. The table is created at the first use.
    pub(crate) fn open_for_keys(&self, keys: usize, max_waiting: u64) -> PyResult<Opened> {
        if let Self::AllOf(parts) = self {
            let rules = |parts: &[Self]| {
                let rules = parts
                    .iter()
                    .map(Self::rules)
                    .collect::<PyResult<Vec<_>>>()?;
                RulesAtRunTime::new(rules).map_err(refused)
            };
            rules(parts)?;
            let parts = parts.clone();
            let table = move || {
                check_memory(keys * parts.len().next_power_of_two())?;
                let table = KeyedList::for_keys_with_hasher(rules(&parts)?, keys, Mixed::new());
                Ok(Arc::new(table))
            };
            return Ok(self.later(table, each::<_, false>(max_waiting)));
        }
        // The commonest one is asked without a look at its kind.
        if let Self::TokenBucket { rate, burst } = self.clone() {
            let rules = move || builder(&rate, burst).rules().map_err(refused);
            rules()?;
            let table = move || {
                check_memory(keys)?;
                Ok(Arc::new(Keyed::for_keys_with_hasher(
                    rules()?,
                    keys,
                    Mixed::new(),
                )))
            };
            return Ok(self.later(table, each::<_, false>(max_waiting)));
        }
        self.rules()?;
        let one = self.clone();
        let table = move || {
            check_memory(keys)?;
            Ok(Arc::new(Keyed::for_keys_with_hasher(
                one.rules()?,
                keys,
                Mixed::new(),
            )))
        };
        Ok(self.later(table, each::<_, false>(max_waiting)))
    }

    /// As `open_for_keys`, with a table that processes share by `name`.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_for_keys_of_host(
        &self,
        name: &str,
        keys: usize,
        max_waiting: u64,
    ) -> PyResult<Opened> {
        let name = name.to_owned();
        match self.clone() {
            Self::TokenBucket { rate, burst } => {
                let bucket = move || builder(&rate, burst).build().map_err(refused);
                let table = move || shared_file::buckets(&name, bucket()?, keys).map(Arc::new);
                self.opened(table, each::<_, true>(max_waiting))
            }
            Self::FixedWindow { rate } => {
                let table = move || shared_file::windows(&name, window(&rate)?, keys).map(Arc::new);
                self.opened(table, each::<_, true>(max_waiting))
            }
            _ => Err(PyTypeError::new_err(
                "processes can share a TokenBucket or a FixedWindow for each key",
            )),
        }
    }

    /// The rules of a table.
    fn rules(&self) -> PyResult<AnyRules> {
        match self {
            Self::TokenBucket { rate, burst } => builder(rate, *burst).rules().map(Into::into),
            Self::FixedWindow { rate } => window(rate)?.into_rules().map(Into::into),
            Self::Concurrency { limit } => concurrency(*limit)?.into_rules().map(Into::into),
            Self::SlidingWindow { .. } | Self::AllOf(_) | Self::Shared { .. } => {
                return Err(PyTypeError::new_err(
                    "a limit for each key is a TokenBucket, a FixedWindow, a Concurrency, or an \
                     AllOf of these",
                ));
            }
        }
        .map_err(refused)
    }

    /// Opens a limit by `make` now, and asks it by `door`. A forked process has what its parent
    /// took of permits that return by time, and makes a queue of its own for them. What the parent
    /// holds, the child does not: it makes the limit again.
    fn opened<L: Send + Sync + ?Sized + 'static>(
        &self,
        make: impl Fn() -> PyResult<Arc<L>> + Send + Sync + 'static,
        door: impl Fn(Arc<L>) -> Box<dyn Door> + Send + Sync + 'static,
    ) -> PyResult<Opened> {
        let limit = make()?;
        if self.is_held() {
            // Processes that share it count the first one as a member.
            drop(limit);
            return Ok(Box::new(move || Ok(door(make()?))));
        }
        Ok(Box::new(move || Ok(door(Arc::clone(&limit)))))
    }

    /// As `opened`, at the first use.
    fn later<L: Send + Sync + ?Sized + 'static>(
        &self,
        make: impl Fn() -> PyResult<Arc<L>> + Send + Sync + 'static,
        door: impl Fn(Arc<L>) -> Box<dyn Door> + Send + Sync + 'static,
    ) -> Opened {
        if self.is_held() {
            return Box::new(move || Ok(door(make()?)));
        }
        let made = OnceLock::new();
        Box::new(move || {
            if made.get().is_none() {
                // Of several threads, the first one's counts.
                _ = made.set(make()?);
            }
            let limit = made
                .get()
                .map_or_else(&make, |limit| Ok(Arc::clone(limit)))?;
            Ok(door(limit))
        })
    }
}

fn builder(rate: &Rate, burst: u64) -> TokenBucketBuilder {
    TokenBucket::builder(portcullis_core::Rate::new(rate.count, rate.period), burst)
}

/// Creates a bucket. If the time per permit is no whole number of nanoseconds, its word may wrap
/// after days, and then the bucket might deny for once. So it counts time in longer ticks then, of
/// at most a thousandth of the time in which it fills.
fn bucket(rate: &Rate, burst: u64) -> PyResult<TokenBucket> {
    let is_long = |bucket: &TokenBucket| bucket.timing().horizon >= TEN_YEARS;
    let fill = rate.period.as_nanos() * u128::from(burst) / u128::from(rate.count);
    let ticks = (1..=9).map(|power| 10_u64.pow(power));
    let ticks = ticks.take_while(|tick| u128::from(*tick) * 1000 <= fill);
    let mut built = builder(rate, burst).build();
    for tick in ticks {
        if built.as_ref().is_ok_and(is_long) {
            break;
        }
        let ticking = builder(rate, burst)
            .tick(Duration::from_nanos(tick))
            .build();
        if ticking.is_ok() {
            built = ticking;
        }
    }
    built.map_err(refused)
}

fn window(rate: &Rate) -> PyResult<FixedWindow> {
    let built = FixedWindow::builder(rate.count.into(), rate.period).build();
    built.map_err(refused)
}

fn sliding(rate: &Rate, segments: u32) -> PyResult<SlidingWindow<SEGMENTS>> {
    let window = SlidingWindow::<SEGMENTS>::builder(rate.count.into(), rate.period, segments);
    window.build().map_err(refused)
}

fn concurrency(limit: u32) -> PyResult<Concurrency> {
    Concurrency::builder(limit).build().map_err(refused)
}

/// Joins limiters to one: 1 to `PARTS` of them.
fn all_of(parts: Vec<AnyLimiter>) -> AnyLimiter {
    type Part = Own<dyn Limiter + Send + Sync, true>;
    let mut parts = parts.into_iter().map(|part| -> Part { Own(part.into()) });
    macro_rules! of {
        ($($count:literal)*) => {
            match parts.len() {
                $($count => Box::new(AllOf::new(core::array::from_fn::<Part, $count, _>(|_| {
                    parts.next().unwrap_or_else(|| unreachable!("there are as many"))
                }))),)*
                _ => unreachable!("the number of parts was checked"),
            }
        };
    }
    of!(1 2 3 4 5 6 7 8)
}

/// Returns an error if there is no memory for a table with so many words.
fn check_memory(words: usize) -> PyResult<()> {
    // A key has 8 bytes, and a table has room for several times as many.
    let bytes = words.saturating_mul(48);
    let mut memory = Vec::<u8>::new();
    memory
        .try_reserve_exact(bytes)
        .map_err(|_| PyMemoryError::new_err(format!("a table of this size needs {bytes} bytes")))
}

/// What is asked of a limiter.
fn one<L, const SHARED: bool>(max_waiting: u64) -> impl Fn(Arc<L>) -> Box<dyn Door>
where
    L: Limiter + Send + Sync + ?Sized + 'static,
{
    move |limiter| Box::new(One::<L, SHARED>::new(limiter, max_waiting))
}

/// What is asked of a limiter for each key.
fn each<T, const SHARED: bool>(max_waiting: u64) -> impl Fn(Arc<T>) -> Box<dyn Door>
where
    T: QueueKeys + Send + Sync + 'static,
{
    move |table| Box::new(Each::<T, SHARED>::new(table, max_waiting))
}

/// As Python would write it.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenBucket { rate, burst } if *burst == u64::from(rate.count) => {
                write!(f, "TokenBucket('{}')", rate.text)
            }
            Self::TokenBucket { rate, burst } => {
                write!(f, "TokenBucket('{}', burst={burst})", rate.text)
            }
            Self::FixedWindow { rate } => write!(f, "FixedWindow('{}')", rate.text),
            Self::SlidingWindow { rate, segments } => {
                write!(f, "SlidingWindow('{}', segments={segments})", rate.text)
            }
            Self::Concurrency { limit } => write!(f, "Concurrency({limit})"),
            Self::AllOf(parts) => {
                f.write_str("AllOf(")?;
                for (index, part) in parts.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{part}")?;
                }
                f.write_str(")")
            }
            Self::Shared { name, limit } => write!(f, "shared('{name}', {limit})"),
        }
    }
}
