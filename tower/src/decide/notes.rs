//! What a decision notes besides its result.

#[cfg(feature = "metrics")]
use portcullis_policy::RuleMetrics;

#[cfg(feature = "fields")]
use crate::fields::Quota;

/// What a decision notes besides its result: the limits that the response states, and the
/// instruments that measure the request.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Notes {
    /// The limits, if the response states them.
    #[cfg(feature = "fields")]
    pub(crate) quotas: Option<Vec<Quota<'static>>>,
    /// Whether requests are measured.
    #[cfg(feature = "metrics")]
    pub(crate) is_measured: bool,
    /// The instruments of the rules that an allowed request took from, or of the one that denied.
    #[cfg(feature = "metrics")]
    pub(crate) instruments: Vec<RuleMetrics>,
    /// The instruments of the rule in whose queue the request waits.
    #[cfg(all(feature = "metrics", feature = "queue"))]
    pub(crate) in_queue: Option<RuleMetrics>,
}

impl Notes {
    /// Notes of limits if the response `states` them, and of instruments if they `measure` it.
    pub(crate) fn wanted(states: bool, measures: bool) -> Self {
        let _ = (states, measures);
        Self {
            #[cfg(feature = "fields")]
            quotas: states.then(Vec::new),
            #[cfg(feature = "metrics")]
            is_measured: measures,
            #[cfg(feature = "metrics")]
            instruments: Vec::new(),
            #[cfg(all(feature = "metrics", feature = "queue"))]
            in_queue: None,
        }
    }

    /// Whether anything is to be noted.
    pub(crate) fn is_wanted(&self) -> bool {
        #[cfg(feature = "fields")]
        let states = self.quotas.is_some();
        #[cfg(not(feature = "fields"))]
        let (states, _) = (false, self);
        #[cfg(feature = "metrics")]
        let measures = self.is_measured;
        #[cfg(not(feature = "metrics"))]
        let measures = false;
        states || measures
    }

    /// Notes a limit and what is left of it, if the response states limits.
    #[cfg(feature = "fields")]
    pub fn state(&mut self, quota: Quota<'static>) {
        if let Some(quotas) = &mut self.quotas {
            quotas.push(quota);
        }
    }

    /// The number of limits that are noted.
    pub(crate) fn len(&self) -> usize {
        #[cfg(feature = "fields")]
        let noted = self.quotas.as_ref().map_or(0, Vec::len);
        #[cfg(not(feature = "fields"))]
        let (noted, _) = (0, self);
        noted
    }

    /// Forgets what is left of the limits from number `from` to before number `to`, because the
    /// permits that the request took from them were given back.
    pub(crate) fn forget_states(&mut self, from: usize, to: usize) {
        #[cfg(feature = "fields")]
        if let Some(quotas) = self.quotas.as_mut().and_then(|all| all.get_mut(from..to)) {
            for quota in quotas {
                (quota.available, quota.reset) = (None, None);
            }
        }
        #[cfg(not(feature = "fields"))]
        let _ = (self, from, to);
    }

    /// Notes the instruments of the limits that decided, if requests are measured. If several
    /// decide in order, the last one that has instruments counts.
    #[cfg(feature = "metrics")]
    pub fn measure(&mut self, instruments: impl FnOnce() -> Vec<RuleMetrics>) {
        if self.is_measured {
            let instruments = instruments();
            if !instruments.is_empty() {
                self.instruments = instruments;
            }
        }
    }
}
