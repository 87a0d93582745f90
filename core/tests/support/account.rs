//! What a token bucket has granted, and the bound of its rate and burst over every window.

use core::time::Duration;
use std::collections::BTreeMap;

use portcullis_core::Rate;

/// The granted permits, by the tick in which they count, and the settings that bound them.
pub(crate) struct Account {
    pub(crate) permits: i128,
    pub(crate) period: i128,
    burst: i128,
    pub(crate) tick: u64,
    granted: BTreeMap<u64, i128>,
}

impl Account {
    pub(crate) fn new(rate: Rate, burst: u64, tick: Duration) -> Self {
        Self {
            permits: rate.permits().into(),
            period: rate.period().as_nanos().cast_signed(),
            burst: burst.into(),
            tick: tick.as_nanos() as u64,
            granted: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, instant: u64, n: i128) {
        *self.granted.entry(instant / self.tick).or_default() += n;
    }

    /// Checks every window that begins and ends with a grant. Returns by how much the fullest is
    /// over the rate, in permits times the period.
    pub(crate) fn check(&self, story: &dyn Fn() -> String) -> i128 {
        let granted: Vec<_> = self.granted.iter().map(|(&tick, &n)| (tick, n)).collect();
        let mut fullest = i128::MIN;
        for (first, &(from, _)) in granted.iter().enumerate() {
            let mut sum = 0;
            for &(to, n) in &granted[first..] {
                sum += n;
                let time = i128::from(to - from) * i128::from(self.tick);
                let over = sum * self.period - time * self.permits;
                fullest = fullest.max(over);
                assert!(
                    over <= self.burst * self.period,
                    "{sum} permits in {time} ns, from {from} to {to}\n{}",
                    story()
                );
            }
        }
        fullest
    }
}
