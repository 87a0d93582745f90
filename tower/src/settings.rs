//! The settings of a layer other than who judges: which requests are limited, what they cost, and
//! what their responses state.

#[cfg(feature = "queue")]
use core::time::Duration;
#[cfg(feature = "queue")]
use std::sync::Arc;
#[cfg(feature = "metrics")]
use std::sync::OnceLock;

use http::HeaderMap;
#[cfg(feature = "queue")]
use portcullis_counters::StoreError;
#[cfg(feature = "metrics")]
use portcullis_policy::RuleMetrics;

use crate::decide::Notes;
use crate::denial::DenialSettings;
#[cfg(feature = "fields")]
use crate::fields::Generation;
use crate::forwarded::Clients;
use crate::head::{RequestHead, ResponseHead};
use crate::measured::{Extra, Extras, Measured};

/// The settings of a layer other than who judges.
pub(crate) struct Settings {
    pub(crate) denials: DenialSettings,
    pub(crate) limits_preflights: bool,
    pub(crate) passes: Option<Box<Passes>>,
    pub(crate) cost: Option<Box<Cost>>,
    pub(crate) actual: Option<Box<Actual>>,
    pub(crate) clients: Clients,
    /// How long a request waits at most.
    #[cfg(feature = "queue")]
    pub(crate) most: Option<Duration>,
    #[cfg(feature = "queue")]
    pub(crate) passes_without_store: Option<Arc<PassesWithoutStore>>,
    /// The generation of the header fields that state limits.
    #[cfg(feature = "fields")]
    pub(crate) generation: Generation,
    /// The instruments of requests without a rule, if requests are measured.
    #[cfg(feature = "metrics")]
    pub(crate) without_rule: Option<OnceLock<RuleMetrics>>,
    /// Whether a decision is judged beyond its answer: its response states limits, its request is
    /// measured, or its cost is settled. Known from the other settings when the layer is built, so
    /// that a request of a plain layer looks at one byte.
    pub(crate) asks_more: bool,
}

pub(crate) type Passes = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
pub(crate) type Cost = dyn Fn(&RequestHead<'_>) -> u32 + Send + Sync;
#[cfg(feature = "queue")]
pub(crate) type PassesWithoutStore = dyn Fn(&StoreError) -> bool + Send + Sync;
pub(crate) type Actual = dyn Fn(&ResponseHead<'_>, u32) -> u32 + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Self {
            denials: DenialSettings::new(),
            limits_preflights: true,
            passes: None,
            cost: None,
            actual: None,
            clients: Clients::default(),
            #[cfg(feature = "queue")]
            most: None,
            #[cfg(feature = "queue")]
            passes_without_store: None,
            #[cfg(feature = "fields")]
            generation: Generation::Off,
            #[cfg(feature = "metrics")]
            without_rule: None,
            asks_more: false,
        }
    }
}

impl Settings {
    /// The head of a request, with the address of the client.
    #[inline]
    pub(crate) fn head<'r, B>(&self, request: &'r http::Request<B>) -> RequestHead<'r> {
        self.clients.head(request)
    }

    /// Whether a request is not limited.
    #[inline]
    pub(crate) fn passes(&self, head: &RequestHead<'_>) -> bool {
        head.extensions.get::<NotLimited>().is_some()
            || !self.limits_preflights && head.is_preflight()
            || self.passes.as_ref().is_some_and(|passes| passes(head))
    }

    /// The permits that a request takes.
    #[inline]
    pub(crate) fn cost(&self, head: &RequestHead<'_>) -> u32 {
        self.cost.as_ref().map_or(1, |cost| cost(head))
    }

    /// Sets what follows from the other settings.
    pub(crate) fn complete(&mut self) {
        self.asks_more = self.settles() || self.notes().is_wanted();
    }

    /// What a decision is to note besides its answer: an empty value if that is nothing.
    #[cfg_attr(
        not(any(feature = "fields", feature = "metrics")),
        expect(
            clippy::unused_self,
            reason = "without these features nothing is noted"
        )
    )]
    pub(crate) fn notes(&self) -> Notes {
        #[cfg(feature = "fields")]
        let states = self.generation != Generation::Off;
        #[cfg(not(feature = "fields"))]
        let states = false;
        #[cfg(feature = "metrics")]
        let measures = self.without_rule.is_some();
        #[cfg(not(feature = "metrics"))]
        let measures = false;
        Notes::wanted(states, measures)
    }

    /// What the response gets of what was noted. `None` if nothing was to be noted.
    pub(crate) fn extras(&self, notes: &Notes, is_allowed: bool) -> Extras {
        notes.is_wanted().then(|| {
            Box::new(Extra {
                fields: self.fields(notes),
                measured: self.measured(notes, is_allowed),
            })
        })
    }

    /// The header fields that state the limits.
    #[cfg(feature = "fields")]
    fn fields(&self, notes: &Notes) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if let Some(quotas) = &notes.quotas {
            let now = std::time::SystemTime::now();
            self.generation.write(quotas, now, &mut fields);
        }
        fields
    }

    /// Without the feature `fields` no limits are stated.
    #[cfg(not(feature = "fields"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn fields(&self, _: &Notes) -> HeaderMap {
        HeaderMap::new()
    }

    /// Counts the request. `None` if requests are not measured, or it was denied.
    #[cfg(feature = "metrics")]
    fn measured(&self, notes: &Notes, is_allowed: bool) -> Option<Measured> {
        let instruments = match &*notes.instruments {
            [] => core::slice::from_ref(self.instruments(None)?),
            of_rules => of_rules,
        };
        Measured::decided(instruments, is_allowed)
    }

    /// Without the feature `metrics` requests are not measured.
    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn measured(&self, _: &Notes, _: bool) -> Option<Measured> {
        None
    }

    /// The instruments of a rule, or those without a rule. `None` if requests are not measured.
    #[cfg(feature = "metrics")]
    pub(crate) fn instruments<'a>(
        &'a self,
        of_rule: Option<&'a RuleMetrics>,
    ) -> Option<&'a RuleMetrics> {
        let without_rule = self.without_rule.as_ref()?;
        Some(of_rule.unwrap_or_else(|| without_rule.get_or_init(|| RuleMetrics::new(None))))
    }

    /// Whether the cost is settled when there is a response.
    #[inline]
    pub(crate) fn settles(&self) -> bool {
        self.actual.is_some()
    }

    /// The cost that a response tells of, instead of `estimate`.
    pub(crate) fn actual(&self, head: &ResponseHead<'_>, estimate: u32) -> u32 {
        self.actual
            .as_ref()
            .map_or(estimate, |actual| actual(head, estimate))
    }
}

/// The extension of a request that is not limited. An outer layer or service inserts it.
///
/// ```
/// use portcullis_tower::NotLimited;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(NotLimited);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct NotLimited;
