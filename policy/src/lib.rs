//! Rate limiting policies: rules that match requests, limits for each key, and decisions.
//!
//! ```
//! use portcullis_core::Timestamp;
//! use portcullis_policy::{Conditions, Key, Limit, Policy, Request, Rule};
//!
//! let policy = Policy::new([
//!     // Per address: 5 logins per minute, and 20 per hour.
//!     Rule::new("login")
//!         .when(Conditions::new().methods(["POST"]).paths(["/login"]))
//!         .key(Key::address())
//!         .limit("5/m".parse()?)
//!         .limit("20/h".parse()?),
//!     // Per API key: 100 requests per second, and 10 uploads at once.
//!     Rule::new("uploads")
//!         .when(Conditions::new().methods(["PUT"]).paths(["/v1/*/blobs/**"]))
//!         .key(Key::header("X-Api-Key"))
//!         .limit("100/s".parse()?)
//!         .limit(Limit::at_once(10)),
//! ])
//! .unwrap();
//!
//! let now = Timestamp::from_secs(1);
//! // However the path is spelled.
//! let login = Request::new("POST", "//%6Cogin/").address("192.0.2.7".parse().unwrap());
//! assert!(policy.decide_at(now, &login.cost(5)).is_allowed());
//! let denied = policy.decide_at(now, &login);
//! assert_eq!(denied.rule().unwrap().name(), "login");
//! assert_eq!(denied.retry().unwrap().wait_from(now).unwrap().as_secs(), 12);
//! # Ok::<(), portcullis_policy::PeriodError>(())
//! ```
//!
//! # The terms
//!
//! - A [`Request`] is what is asked: a method, a path, a host, an address, headers and other
//!   properties, as borrowed text. It has no types of an HTTP library, so a job or a message can be
//!   one too.
//! - A [`Rule`] has [`Conditions`], which say for which requests it is, and limits.
//! - A [`Limit`] is a number of permits per period, or at once.
//! - A [`Key`] says which requests share the limits of a rule: those from one address, for example,
//!   or with one value of a header.
//! - A [`Policy`] is a set of rules in force, with the state of their limits.
//! - A [`Decision`] is its answer to one request. It holds the permits of limits at once until it
//!   is dropped.
//! - A [`Threshold`] of a rule puts a decision of the user's choice in force, while much activity
//!   is reported and for a time after.
//! - [`Statistics`] count decisions: of each rule, of the most denied keys, and of resources.
//! - A [`Hold`] is a decision on an estimated cost, which is settled when the cost is known.
//! - A [`CounterStore`](portcullis_counters::CounterStore) keeps the state of limits outside a
//!   policy.
//! - A rule can have the state of its limits in such a store, by name:
//!   [`Policy::decide_stored`] asks it.
//! - A [queue](Limit::queue) of a limit lets requests wait for permits: `Policy::acquire`.
//!
//! # How a request is decided
//!
//! ```text
//! Request --- path ---> PathRules: its readings
//!    |                      |
//!    +----- method, host, address, tier, properties
//!    |                      v
//!    |                  Matcher: rules that match, lowest priority number first
//!    |                      v
//!    +--- parts of the key ---> one hash ---> the address of the key
//!                           |                      |
//!                           v                      v
//!            Rule, or its override -> Store: tables of limits; takes from all or from none
//!                                                  |
//!                                                  v
//!                                              Decision
//! ```
//!
//! - **Definition and state are apart.** A [`Rule`] is plain data. Its state is a store of tables,
//!   which knows nothing of requests: only addresses of keys, times and numbers of permits. The
//!   [`Matcher`] knows nothing of limits: only indices of rules.
//! - **A policy does not change.** Its rules, the matcher and the tables are created together, and
//!   then only the words in the tables change. So a decision never sees a part of a rule set, and
//!   threads share a policy without a lock.
//! - **Allocations.** [`Policy::new`] allocates everything: the matcher, and tables of a fixed
//!   size. A match and a decision allocate nothing. [`Policy::explain_at`] does.
//! - **Memory.** The tables of all rules take at most [`PolicySettings::table_bytes`]:
//!   [`Policy::table_bytes`] tells how much they take. A policy that needs more is refused.
//! - **Computed on request.** When to retry, and what remains, are computed when they are asked
//!   for. So a denial costs no more than a grant. [`Policy::decide_explained_at`] computes them
//!   with the decision, from the state that it left.
//! - **Time is an argument**, as in `portcullis-core`. A decision uses one `now` for all limits.
//!
//! # Features
//!
//! - `toml` and `json`: `Policy::from_toml` and `Policy::from_json`, with errors that point into
//!   the file. With `json`, `Imported` reads the files of other systems.
//! - `tracing`: `DecisionLog`, events of decisions for subscribers of the crate `tracing`, with a
//!   limit on those of denials.
//! - `metrics`: `Metrics`, six instruments for recorders of the crate `metrics`.
//! - `live`: `LivePolicy`, which is replaced while it decides, and `RuleSource`; with `toml` or
//!   `json`, `FileSource`.
//! - `queue`: requests that wait for permits, by `Policy::acquire` and `Policy::blocking_acquire`.
//!   Enables `live`.
//! - `wait`: `LivePolicy::changed` and `LivePolicy::blocking_changed`. Enables `live`.
//!
//! # Policies that change
//!
//! A `LivePolicy` (feature `live`) is replaced while other threads decide by it:
//!
//! ```text
//! RuleSource: code, a file, or your own
//!      |                                       decisions
//!      v                                           |
//! Policy: all rules are valid, or all errors       v
//!      |                                       LivePolicy ---> the policy in force
//!      +--- replace_at, refresh_at ------------>   |
//!             rules of the same name and key       +---> who waits for a change
//!             keep what was taken
//! ```
//!
//! - **All or nothing.** Rules that are not valid never become a policy, so the one before stays in
//!   force. A decision is by one policy.
//! - **What was taken stays taken**, and a raised limit counts at once. The documentation of
//!   `LivePolicy` lists what a change keeps.
//! - **Polled, not pushed.** The caller decides when a source is read. There is no thread of this
//!   library. Content with the same tag is not read again.
//!
//! # Requests that wait
//!
//! With the feature `queue`, `Policy::acquire` is a future. It decides a request as
//! [`Policy::decide_at`] does. If only limits with a [queue](Limit::queue) deny it, the request
//! waits until they have its permits:
//!
//! ```text
//! request ---> decided at once: allowed, or denied by a limit without a queue
//!    |
//!    +-------> waits in the queue of its key ---> allowed, in the order of the queue
//!                   |
//!                   +---> denied: the queue is full, a newer request took its place, its deadline
//!                         passed, or a limit without a queue denies in the meantime
//! ```
//!
//! - **One queue for each key of a rule**, for all limits of the rule. A request that waits holds
//!   nothing, and takes from all limits or from none.
//! - **The order holds.** While a request waits, no other method of the policy overtakes it, unless
//!   the [order](QueueOrder) says so.
//! - **Any executor.** A timer drives each queue, by default from a thread. `Policy::with_timer`
//!   chooses another timer. A task that waits and is not polled delays no other one, except for the
//!   permits of an [`at_once`](Limit::at_once) limit that were granted to it: they belong to the
//!   task until its wait is polled or dropped.
//! - **Threads wait in the same queues**, with `Policy::blocking_acquire`, without a runtime.
//! - **Bounded.** Each key has a limit of permits that requests wait for, and each queue a limit of
//!   requests for all keys. A request that waits is stored in its future.
//!
//! # Guarantees
//!
//! - **Bound.** No key is granted more than the limits of its rule allow: those of the limiters of
//!   `portcullis-core`, whatever requests run concurrently.
//! - **All or nothing.** A request takes from all limits of its rule or from none.
//! - **Settlements.** Returned permits never let a bound be exceeded. An estimate that was too low
//!   can: see [`Hold`] for by how much.
//! - **No slow requests.** No path, host, header or key makes a match slow: see [`Matcher`].
//! - **No pushing out.** A table that is full denies new keys. It never forgets a key in use.
//! - **No other spelling.** A rule cannot be evaded by a path that the service reads in another way
//!   than the rules. By default a path that services read differently is judged by all its
//!   readings: it takes from the limits of the only rule that limits it, or is denied if several
//!   do. [`PathRules`] say what the service does with `.`, `..` and empty components
//!   ([`PathReading`]), with upper and lower case, and with `%2F`.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[macro_use]
mod shows;

mod conditions;
mod counter_limit;
#[cfg(feature = "tracing")]
mod decision_log;
#[cfg(any(feature = "toml", feature = "json"))]
mod document;
mod explained;
#[cfg(any(feature = "toml", feature = "json"))]
mod file;
#[cfg(feature = "live")]
mod follow;
#[cfg(feature = "json")]
mod foreign;
mod frequent;
mod hold;
#[cfg(any(feature = "toml", feature = "json"))]
mod judge;
mod key;
mod limit;
#[cfg(feature = "live")]
mod live;
mod matcher;
#[cfg(feature = "metrics")]
mod metrics;
mod nearest;
mod overrides;
mod path;
mod pattern;
mod period;
mod policy;
mod problem;
mod queries;
#[cfg(feature = "queue")]
mod queue;
mod request;
mod rule;
mod settings;
#[cfg(feature = "queue")]
mod sleep;
#[cfg(feature = "live")]
mod source;
mod statistics;
mod store;
mod stored;
mod thresholds;
#[cfg(feature = "queue")]
mod timers;

pub use conditions::{ConditionError, Conditions, Mismatch};
#[cfg(feature = "tracing")]
pub use decision_log::{About, DecisionLog};
pub use explained::{ExplainedDecision, LimitDetail};
#[cfg(feature = "json")]
pub use foreign::Imported;
pub use hold::{Hold, Settled};
pub use key::{Key, KeyPart, KeyValue, KeyValues};
pub use limit::{Algorithm, Limit, MAX_SEGMENTS, QueueOrder};
#[cfg(feature = "live")]
pub use live::{Change, LivePolicy, LoadedPolicy, PolicyReader, SharedPolicy};
pub use matcher::Matcher;
#[cfg(feature = "metrics")]
pub use metrics::{MeasuredLease, MeasuredWait, Metrics, QueueResult, RuleMetrics};
pub use nearest::nearest;
pub use path::{MAX_COMPONENTS, MAX_PATH_LEN, PathError, PathReading, PathRules};
pub use period::{PeriodError, parse_count, parse_period, period_text};
pub use policy::activity::InForce;
pub use policy::answer::RuleAnswer;
pub use policy::consider::{Considered, Explained};
pub use policy::outcome::{Outcome, Status};
pub use policy::owned::{OwnedDecision, OwnedHold};
pub use policy::stored::{StoredDecision, StoredLimit};
pub use policy::{Decision, MAX_SHADOWS, Policy};
#[cfg(feature = "queue")]
pub use portcullis_async::QueueCounts;
#[cfg(any(feature = "toml", feature = "json"))]
pub use problem::FileError;
pub use problem::{MAX_PATTERN_COMPONENTS, MAX_PROPERTIES, Problem};
#[cfg(feature = "queue")]
pub use queue::{
    Acquired, Acquiring, Asking, OwnedAcquiring, OwnedQueuedDecision, OwnedStoredDecision,
    QueueEnd, QueuedDecision,
};
pub use request::{Fields, Kind, Request};
pub use rule::{MAX_LIMITS, MAX_TABLE_BYTES, OnMissing, Rule, RuleError, RuleParts};
pub use settings::{DEFAULT_TABLE_BYTES, PolicySettings};
#[cfg(feature = "queue")]
pub use sleep::Sleep;
#[cfg(all(feature = "live", any(feature = "toml", feature = "json")))]
pub use source::file::{FileSource, FileSourceError};
#[cfg(feature = "live")]
pub use source::{RefreshError, RuleSource, Sourced};
pub use statistics::{MostFrequent, RuleCounts, Statistics};
pub use stored::{MAX_STORED_KEY_LEN, Stores};
pub use thresholds::{MAX_THRESHOLD_SEGMENTS, MAX_THRESHOLDS, Threshold};
#[cfg(feature = "queue")]
pub use timers::MAX_WAITING;
