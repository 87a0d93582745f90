//! The settings of a limit, which the classes are made of: a limit that was declared has no state
//! until it is used, and gives its settings to what it is passed to.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use portcullis_core::builder::Setting;
use portcullis_core::keyed::{AnyRules, IntoRules, RulesAtRunTime};
use portcullis_core::queue::QueueKeys;
use portcullis_core::{
    AllOf, Concurrency, FixedWindow, Keyed, KeyedList, Limiter, SettingsError, SlidingWindow,
    TokenBucket,
};
use pyo3::PyResult;
use pyo3::exceptions::{PyTypeError, PyValueError};

use crate::door::{Door, Each, One, Own};
use crate::key::Mixed;
use crate::rate::Rate;

/// The most segments of a sliding window.
pub(crate) const SEGMENTS: usize = 8;

/// The most limits of an `AllOf`.
pub(crate) const PARTS: usize = 8;

/// The settings of a limit.
#[derive(Clone, Debug)]
pub(crate) enum Settings {
    TokenBucket { rate: Rate, burst: u64 },
    FixedWindow { rate: Rate },
    SlidingWindow { rate: Rate, segments: u32 },
    Concurrency { limit: u32 },
    AllOf(Vec<Settings>),
}

/// A limiter of any kind, as a part of another.
pub(crate) type AnyLimiter = Box<dyn Limiter + Send + Sync>;

/// Names the argument that a setting is.
pub(crate) fn refused(error: SettingsError) -> pyo3::PyErr {
    let text = match error {
        SettingsError::Zero { setting } => format!("{} must be at least 1", argument(setting)),
        SettingsError::TooLarge { setting, max } => {
            format!("{} must be at most {max}", argument(setting))
        }
        other => other.to_string(),
    };
    PyValueError::new_err(text)
}

const fn argument(setting: Setting) -> &'static str {
    match setting {
        Setting::Burst => "burst",
        Setting::Limit => "the limit",
        Setting::Segments => "segments",
        Setting::Limits => "the number of limits",
        _ => "a setting of the rate",
    }
}

fn rate_of(rate: &Rate) -> portcullis_core::Rate {
    portcullis_core::Rate::new(rate.count, rate.period)
}

impl Settings {
    /// Whether permits return by release, so that they must be held.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Concurrency { .. } => true,
            Self::AllOf(parts) => parts.iter().any(Self::is_held),
            _ => false,
        }
    }

    pub(crate) fn bucket(rate: &Rate, burst: u64) -> PyResult<TokenBucket> {
        let built = TokenBucket::builder(rate_of(rate), burst).build();
        built.map_err(refused)
    }

    pub(crate) fn window(rate: &Rate) -> PyResult<FixedWindow> {
        let built = FixedWindow::builder(rate.count.into(), rate.period).build();
        built.map_err(refused)
    }

    /// Creates the limiter of a part.
    fn limiter(&self) -> PyResult<AnyLimiter> {
        Ok(match self {
            Self::TokenBucket { rate, burst } => Box::new(Self::bucket(rate, *burst)?),
            Self::FixedWindow { rate } => Box::new(Self::window(rate)?),
            Self::SlidingWindow { rate, segments } => Box::new(sliding(rate, *segments)?),
            Self::Concurrency { limit } => Box::new(concurrency(*limit)?),
            Self::AllOf(parts) => {
                let parts = parts.iter().map(Self::limiter);
                all_of(parts.collect::<PyResult<_>>()?)?
            }
        })
    }

    /// Creates what this process asks.
    pub(crate) fn open(&self, max_waiting: u64) -> PyResult<Opened> {
        match self.clone() {
            // The commonest ones are asked without a look at their type.
            Self::TokenBucket { rate, burst } => self.opened(
                move || Self::bucket(&rate, burst).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            Self::FixedWindow { rate } => self.opened(
                move || Self::window(&rate).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            Self::Concurrency { limit } => self.opened(
                move || concurrency(limit).map(Arc::new),
                one::<_, false>(max_waiting),
            ),
            other => self.opened(
                move || other.limiter().map(Arc::from),
                one::<dyn Limiter + Send + Sync, false>(max_waiting),
            ),
        }
    }

    /// Creates a limit for each of `keys` keys.
    pub(crate) fn open_for_keys(&self, keys: usize, max_waiting: u64) -> PyResult<Opened> {
        if let Self::AllOf(parts) = self.clone() {
            let table = move || {
                let rules = parts
                    .iter()
                    .map(Self::rules)
                    .collect::<PyResult<Vec<_>>>()?;
                let rules = RulesAtRunTime::new(rules).map_err(refused)?;
                Ok(Arc::new(KeyedList::for_keys_with_hasher(
                    rules,
                    keys,
                    Mixed::new(),
                )))
            };
            return self.opened(table, each::<_, false>(max_waiting));
        }
        // The commonest one is asked without a look at its kind.
        if let Self::TokenBucket { rate, burst } = self.clone() {
            let table = move || {
                let rules = Self::bucket(&rate, burst)?.into_rules().map_err(refused)?;
                Ok(Arc::new(Keyed::for_keys_with_hasher(
                    rules,
                    keys,
                    Mixed::new(),
                )))
            };
            return self.opened(table, each::<_, false>(max_waiting));
        }
        let one = self.clone();
        let table = move || {
            let rules = one.rules()?;
            Ok(Arc::new(Keyed::for_keys_with_hasher(
                rules,
                keys,
                Mixed::new(),
            )))
        };
        self.opened(table, each::<_, false>(max_waiting))
    }

    /// Opens a limit by `make`, and asks it by `door`. A forked process has what its parent took of
    /// permits that return by time, and makes a queue of its own for them. What the parent holds,
    /// the child does not: it makes the limit again.
    pub(crate) fn opened<L: Send + Sync + ?Sized + 'static>(
        &self,
        make: impl Fn() -> PyResult<Arc<L>> + Send + Sync + 'static,
        door: impl Fn(Arc<L>) -> Box<dyn Door> + Send + Sync + 'static,
    ) -> PyResult<Opened> {
        if self.is_held() {
            return Ok(Box::new(move || Ok(door(make()?))));
        }
        let limit = make()?;
        Ok(Box::new(move || Ok(door(Arc::clone(&limit)))))
    }

    /// The rules of a table.
    pub(crate) fn rules(&self) -> PyResult<AnyRules> {
        Ok(match self {
            Self::TokenBucket { rate, burst } => Self::bucket(rate, *burst)?
                .into_rules()
                .map_err(refused)?
                .into(),
            Self::FixedWindow { rate } => Self::window(rate)?.into_rules().map_err(refused)?.into(),
            Self::Concurrency { limit } => {
                concurrency(*limit)?.into_rules().map_err(refused)?.into()
            }
            Self::SlidingWindow { .. } | Self::AllOf(_) => {
                return Err(PyTypeError::new_err(
                    "a limit for each key is a TokenBucket, a FixedWindow, a Concurrency, or an \
                     AllOf of these",
                ));
            }
        })
    }
}

fn sliding(rate: &Rate, segments: u32) -> PyResult<SlidingWindow<SEGMENTS>> {
    let built =
        SlidingWindow::<SEGMENTS>::builder(rate.count.into(), rate.period, segments).build();
    built.map_err(refused)
}

fn concurrency(limit: u32) -> PyResult<Concurrency> {
    Concurrency::builder(limit).build().map_err(refused)
}

/// Joins limiters to one.
pub(crate) fn all_of(parts: Vec<AnyLimiter>) -> PyResult<AnyLimiter> {
    macro_rules! of {
        ($($count:literal)*) => {
            match parts.len() {
                $($count => {
                    let parts = parts.into_iter().map(|part| Own::<dyn Limiter + Send + Sync, true>(part.into()));
                    let parts: Vec<_> = parts.collect();
                    let parts = <[_; $count]>::try_from(parts).map_err(|_| ());
                    let parts = parts.map_err(|()| wrong_number())?;
                    Ok(Box::new(AllOf::new(parts)))
                })*
                _ => Err(wrong_number()),
            }
        };
    }
    of!(1 2 3 4 5 6 7 8)
}

fn wrong_number() -> pyo3::PyErr {
    PyValueError::new_err(format!("AllOf takes 1 to {PARTS} limits"))
}

/// What is asked of a limiter.
pub(crate) fn one<L, const SHARED: bool>(max_waiting: u64) -> impl Fn(Arc<L>) -> Box<dyn Door>
where
    L: Limiter + Send + Sync + ?Sized + 'static,
{
    move |limiter| Box::new(One::<L, SHARED>::new(limiter, max_waiting))
}

/// What is asked of a limiter for each key.
pub(crate) fn each<T, const SHARED: bool>(max_waiting: u64) -> impl Fn(Arc<T>) -> Box<dyn Door>
where
    T: QueueKeys + Send + Sync + 'static,
{
    move |table| Box::new(Each::<T, SHARED>::new(table, max_waiting))
}

/// Opens a limit for this process.
pub(crate) type Opened = Box<dyn Fn() -> PyResult<Box<dyn Door>> + Send + Sync>;

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
        }
    }
}

/// Returns a timeout in seconds as a duration; `None` waits for any time.
pub(crate) fn timeout_of(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(
            "timeout must be a number of seconds, not negative",
        ));
    }
    // A longer one than can be told is as good as none.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}
