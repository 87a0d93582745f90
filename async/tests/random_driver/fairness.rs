//! The fairness of a queue with a limit for all keys: how far the grants of two keys that both wait
//! for it are apart, over every span of steps. The bound is that of the documentation of
//! `WithTotal`.

use core::cell::RefCell;

use portcullis_core::keyed::Address;

use crate::chance::fail;

/// The key whose limiter was asked last, and the grants of the total since they were taken.
type Asked = (Option<Address>, Vec<(Address, u32)>);

thread_local! {
    static ASKED: RefCell<Asked> = const { RefCell::new((None, Vec::new())) };
}

/// A request of a key is put to its own limiter.
pub(crate) fn asks(key: Address) {
    ASKED.with_borrow_mut(|asked| asked.0 = Some(key));
}

/// The total, which is asked after the limiter of the key, grants.
pub(crate) fn granted(n: u32) {
    ASKED.with_borrow_mut(|(key, grants)| grants.extend(key.map(|key| (key, n))));
}

/// Returns the grants since the last call.
pub(crate) fn grants() -> Vec<(Address, u32)> {
    ASKED.with_borrow_mut(|asked| core::mem::take(&mut asked.1))
}

/// How far each key is before each other one.
pub(crate) struct Fairness {
    weights: Vec<i64>,
    /// The most permits of a request.
    most: i64,
    /// For the keys `i` and `j`: since both are ready, the grants of `i` times the weight of `j`,
    /// less the reverse; and the smallest such difference so far.
    leads: Vec<Vec<Option<(i64, i64)>>>,
    /// The largest lead, in per cent of the bound of its keys.
    pub(crate) largest: i64,
}

impl Fairness {
    pub(crate) fn new(weights: &[u32], most: u32) -> Self {
        let leads = vec![vec![None; weights.len()]; weights.len()];
        Self {
            weights: weights.iter().copied().map(i64::from).collect(),
            most: i64::from(most.max(1)),
            leads,
            largest: 0,
        }
    }

    /// Checks the grants of a step, in which some keys had a waiter throughout.
    pub(crate) fn step(&mut self, grants: &[(usize, u32)], is_ready: &[bool]) {
        let keys = 0..self.weights.len();
        for i in keys.clone() {
            for j in keys.clone() {
                if i == j || !is_ready[i] || !is_ready[j] {
                    self.leads[i][j] = None;
                }
            }
        }
        for &(key, n) in grants {
            let n = i64::from(n);
            for other in keys.clone() {
                let weights = (self.weights[key], self.weights[other]);
                // G(i) / w(i) - G(j) / w(j) <= 1 + (N - 1) / w(i) + (N - 1) / w(j)
                let bound = weights.0 * weights.1 + (self.most - 1) * (weights.0 + weights.1);
                if let Some((lead, least)) = &mut self.leads[key][other] {
                    *lead += n * weights.1;
                    let ahead = *lead - *least;
                    self.largest = self.largest.max(ahead * 100 / bound);
                    if ahead > bound {
                        fail(format!(
                            "key {key} is {ahead} before key {other}, of at most {bound}"
                        ));
                    }
                }
                if let Some((lead, least)) = &mut self.leads[other][key] {
                    *lead -= n * weights.1;
                    *least = (*least).min(*lead);
                }
            }
        }
        for i in keys.clone() {
            for j in keys.clone() {
                if i != j && is_ready[i] && is_ready[j] && self.leads[i][j].is_none() {
                    self.leads[i][j] = Some((0, 0));
                }
            }
        }
    }
}
