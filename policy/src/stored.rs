//! Rules whose limits have their state in a counter store.
//!
//! ```text
//! request -> Policy::decide: rules in this process answer at once; a rule with a store: Stored
//!                                                                       |
//!               the key as text, one id for each limit  <---------------+
//!                                  |
//!                                  v
//!               CounterStore: takes from all limits of the rule, or from none ---> StoredDecision
//! ```
//!
//! **Ids.** `{RULE:KEY}N` is the limit `N` of a rule for a key. In a Redis cluster, the text in
//! braces makes all limits of a request lie in one slot. The key is what
//! [`KeyOf`](crate::key::KeyOf) hashes, byte by byte, so that all processes have the same ids and
//! no two keys have one.

use core::fmt::{self, Write as _};
use core::hash::Hasher;
use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_counters::{CounterLimit, CounterLimitError, CounterStore};

use crate::limit::Limit;
use crate::nearest::nearest;
use crate::request::Kind;
use crate::rule::{Rule, RuleError};

/// The longest key of a request that the ids in a store spell out, in bytes, with a few bytes for
/// each part of the key. Of a longer one, such as a token, they contain the SHA-256 digest (FIPS
/// 180-4).
pub const MAX_STORED_KEY_LEN: usize = 1_024;

/// Counter stores by name, for rules that are [stored](Rule::stored_in) in one of them.
///
/// ```
/// use portcullis_core::MonotonicClock;
/// use portcullis_counters::MemoryCounters;
/// use portcullis_policy::{Key, Policy, Request, Rule, Stores};
/// use std::sync::Arc;
///
/// # futures_executor::block_on(async {
/// let store = MemoryCounters::new(10_000, MonotonicClock::new());
/// let stores = Stores::new().with("shared", Arc::new(store));
/// let rule = Rule::new("clients").key(Key::header("X-Api-Key"));
/// let policy = Policy::new([rule.limit("2/h".parse()?).stored_in("shared")]).unwrap();
/// let policy = policy.with_stores(stores).unwrap();
///
/// let headers = [("X-Api-Key", "a")];
/// let request = Request::new("GET", "/").headers(&headers);
/// let clock = MonotonicClock::new();
/// assert!(policy.decide_stored(clock, &request).await?.is_allowed());
/// assert!(policy.decide_stored(clock, &request).await?.is_allowed());
/// assert!(!policy.decide_stored(clock, &request).await?.is_allowed());
/// # Ok::<(), Box<dyn core::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Stores(Arc<BTreeMap<Box<str>, Arc<dyn CounterStore>>>);

impl Stores {
    /// No stores.
    ///
    /// ```
    /// # use portcullis_policy::Stores;
    /// assert_eq!(Stores::new().names().count(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a store, or replaces the one with this name.
    ///
    /// ```
    /// # use portcullis_core::MonotonicClock;
    /// # use portcullis_counters::MemoryCounters;
    /// # use portcullis_policy::Stores;
    /// # use std::sync::Arc;
    /// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
    /// assert!(Stores::new().with("shared", store).names().eq(["shared"]));
    /// ```
    #[must_use]
    pub fn with(mut self, name: &str, store: Arc<dyn CounterStore>) -> Self {
        Arc::make_mut(&mut self.0).insert(name.into(), store);
        self
    }

    /// Returns the names, in the order of the alphabet.
    ///
    /// ```
    /// # use portcullis_policy::Stores;
    /// assert!(Stores::new().names().next().is_none());
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// Returns the store with a name.
    ///
    /// ```
    /// # use portcullis_policy::Stores;
    /// assert!(Stores::new().get("shared").is_none());
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn CounterStore>> {
        self.0.get(name)
    }

    /// What is wrong with the stores that rules name, and with the limits that they are to keep.
    pub(crate) fn check<'r>(&self, rules: impl Iterator<Item = &'r Rule>) -> Vec<RuleError> {
        let mut errors = Vec::new();
        for rule in rules {
            let Some(name) = rule.store() else {
                continue;
            };
            let mut refuse = |setting: String, value: Option<&str>, problem: String| {
                errors.push(RuleError {
                    rule: Arc::clone(&rule.name),
                    setting,
                    value: value.map(Into::into),
                    problem,
                });
            };
            let Some(store) = self.get(name) else {
                refuse("store".into(), Some(name), self.unknown(name));
                continue;
            };
            if rule.is_synced() && !store.syncs() {
                let problem = format!("the store `{name}` has no channel to other instances");
                refuse("sync".into(), None, problem);
            }
            each_limit(rule, |setting, limit| {
                let supported = CounterLimit::try_from(limit).map(|limit| store.supports(&limit));
                if let Ok(Err(error)) = supported {
                    refuse(setting, None, error.to_string());
                }
            });
        }
        errors
    }

    fn unknown(&self, name: &str) -> String {
        match nearest(name, self.names()) {
            Some(nearest) => format!("is not known: did you mean `{nearest}`?"),
            None if self.0.is_empty() => "is not known: the program has no stores".into(),
            None => {
                let names: Vec<_> = self.names().collect();
                format!("is not known: expected one of {}", names.join(", "))
            }
        }
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// The limits of a rule as a counter store has them.
pub(crate) struct StoredLimits {
    of_rule: Box<[CounterLimit]>,
    /// The limits of each override.
    instead: Box<[Box<[CounterLimit]>]>,
}

/// Calls `with` for each limit of a rule and of its overrides, with the name of the setting.
fn each_limit(rule: &Rule, mut with: impl FnMut(String, &Limit)) {
    let mut of_limits = |setting: &str, limits: &[Limit]| {
        for (index, limit) in limits.iter().enumerate() {
            with(format!("{setting}[{index}]"), limit);
        }
    };
    of_limits("limits", &rule.limits);
    for (index, this) in rule.overrides.iter().enumerate() {
        of_limits(&format!("overrides[{index}].limits"), &this.limits);
    }
}

/// Refuses the settings of a rule with a store that only rules in this process have.
pub(crate) fn check(rule: &Rule, refuse: &mut impl FnMut(String, String)) {
    if rule.store.is_none() {
        if rule.is_synced && !rule.has_left_out("store") {
            let problem = "has no effect without a store: leave it out, or set a store";
            refuse("sync".into(), problem.into());
        }
        return;
    }
    if rule.lacks_limits() {
        let problem = "has no effect without a limit: leave it out, or add a limit";
        refuse("store".into(), problem.into());
    }
    if matches!(rule.kind(), Kind::Ingress | Kind::Egress) {
        let problem = "not for rules of this kind: bytes are charged in this process";
        refuse("store".into(), problem.into());
    }
    for (setting, is_set) in [
        ("penalty", rule.penalty.is_some()),
        ("hold", rule.hold.is_some()),
    ] {
        if is_set {
            let problem = "is kept in this process: a rule with a store cannot have one";
            refuse(setting.into(), problem.into());
        }
    }
    each_limit(rule, |setting, limit| {
        // What is invalid anywhere is refused elsewhere.
        if let Err(error) = CounterLimit::try_from(limit)
            && !matches!(error, CounterLimitError::Invalid(_))
        {
            refuse(setting, error.to_string());
        }
    });
}

impl StoredLimits {
    /// The limits of a rule that was [checked](check). `None` if it has no store.
    pub(crate) fn new(rule: &Rule) -> Option<Box<Self>> {
        rule.store.as_ref()?;
        let compiled = |limits: &[Limit]| -> Box<[CounterLimit]> {
            limits.iter().flat_map(CounterLimit::try_from).collect()
        };
        let instead = rule.overrides.iter().map(|this| compiled(&this.limits));
        Some(Box::new(Self {
            of_rule: compiled(&rule.limits),
            instead: instead.collect(),
        }))
    }

    /// The limits of an override, or of the rule.
    pub(crate) fn limits_of(&self, instead: Option<u32>) -> &[CounterLimit] {
        let instead = instead.and_then(|index| self.instead.get(index as usize));
        instead.map_or(&self.of_rule, |limits| limits)
    }
}

/// What identifies a key, the same in all processes.
pub(crate) enum KeyText {
    /// Its bytes.
    Spelled(Vec<u8>),
    /// The digest of its bytes, of which there are more than [`MAX_STORED_KEY_LEN`].
    Digest(Box<hmac_sha256::Hash>),
}

impl Default for KeyText {
    fn default() -> Self {
        Self::Spelled(Vec::new())
    }
}

impl KeyText {
    /// Appends it as text. No two keys have the same text: `#` is in none that is spelled out.
    pub(crate) fn append_to(&self, text: &mut String) {
        match self {
            Self::Spelled(bytes) => spell(bytes, text),
            Self::Digest(digest) => {
                text.push('#');
                for byte in digest.clone().finalize() {
                    // Writing to a string does not fail.
                    let _ = write!(text, "{byte:02x}");
                }
            }
        }
    }
}

impl Hasher for KeyText {
    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Spelled(before) if before.len() + bytes.len() <= MAX_STORED_KEY_LEN => {
                before.extend(bytes);
            }
            Self::Spelled(before) => {
                let mut digest = Box::new(hmac_sha256::Hash::new());
                digest.update(&*before);
                digest.update(bytes);
                *self = Self::Digest(digest);
            }
            Self::Digest(digest) => digest.update(bytes),
        }
    }

    fn write_u16(&mut self, n: u16) {
        self.write(&n.to_be_bytes());
    }

    fn write_u32(&mut self, n: u32) {
        self.write(&n.to_be_bytes());
    }

    fn write_u64(&mut self, n: u64) {
        self.write(&n.to_be_bytes());
    }

    fn write_u128(&mut self, n: u128) {
        self.write(&n.to_be_bytes());
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        // Only the bytes are used.
        0
    }
}

/// Appends bytes as text. No two have the same text: all but some ASCII characters are escaped. The
/// end of a part of a key is `|`, and that of a missing one is `!`.
pub(crate) fn spell(bytes: &[u8], text: &mut String) {
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b'@' => {
                text.push(byte.into());
            }
            0xff => text.push('|'),
            0xfe => text.push('!'),
            byte => {
                // Writing to a string does not fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
}
