//! `--recommend`: for each rule, the smallest limits that deny at most a wanted share.
//!
//! **What is searched.** A rule has one unknown, the count `n` of its largest limit. Its other
//! limits and all bursts keep their proportion to it, rounded up. The share is that of the requests
//! that the limits and the penalty of the rule were asked about, and denied.
//!
//! **How.** A binary search for the smallest `n`, in which each step is a replay of all logs:
//!
//! - `low` is a count that denies too much, at first 0. `high` is one that does not, at first none.
//! - Without a `high`, the next `n` is twice the last. With one, it is the middle of the two.
//! - The search ends when `high` is `low + 1`, or when no limiter can have the next `n`.
//!
//! Invariant: `high` has been replayed and denies at most the share, `low` has been replayed and
//! denies more. A larger limit usually denies less, and then `high` is the smallest. With a
//! penalty, a wait or costs of several permits it may deny more, and there may be a smaller one.
//!
//! **Rules do not disturb each other.** Which rule decides a request does not depend on the limits,
//! within one kind. So the rules of one kind are searched in the same replays. A request that one
//! kind denies is not asked of the next, so each kind is searched with the present limits of the
//! others: one trial for each kind, in the same pass over the logs.

use core::str::FromStr;
use std::path::PathBuf;

use portcullis_policy::{Kind, Limit, Policy, Rule, RuleCounts};

use super::super::args::ReplayArgs;
use super::{KINDS, Trial, is_file};
use crate::failure::Failure;
use crate::replay::{Pass, input};

/// A share of requests, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected a percentage from 0% to 100%, with up to four decimals, such as 1% or 0.05%";
        let parse = || {
            let number = text.strip_suffix('%')?;
            let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
            let is_digits = |text: &str| {
                !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit())
            };
            if !is_digits(whole) || !is_digits(decimals) {
                return None;
            }
            let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
            let millionths = whole.parse::<u32>().ok()? * 10_000 + decimals;
            (millionths <= 1_000_000).then_some(Self(millionths))
        };
        parse().ok_or_else(|| EXPECTED.into())
    }
}

impl Share {
    /// Returns the share in percent.
    pub(crate) fn percent(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }

    fn covers(self, counts: Counts) -> bool {
        let Counts { asked, denied } = counts;
        u128::from(denied) * 1_000_000 <= u128::from(asked) * u128::from(self.0)
    }
}

/// The requests that the limits of a rule were asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) asked: u64,
    pub(crate) denied: u64,
}

impl Counts {
    fn new(counts: &RuleCounts) -> Self {
        let denied = counts.by_limit.iter().sum::<u64>() + counts.penalized;
        Self {
            asked: counts.allowed + denied,
            denied,
        }
    }
}

/// The result for one rule.
#[derive(Clone, Debug)]
pub(crate) enum Recommended {
    /// The rule has no limit that can be searched, or its limits were never asked.
    Nothing,
    /// No count that a limiter can have denies little enough.
    Impossible,
    /// These limits, and what they decide.
    Limits(Vec<Limit>, Counts),
}

/// Rejects logs that can be read only once.
pub(crate) fn refuse_unrepeatable(logs: &[PathBuf]) -> Result<(), Failure> {
    match logs.iter().find(|log| !is_file(log)) {
        Some(log) if input::is_standard_input(log) || log.exists() => {
            Err(Failure::Refused(format!(
                "--recommend reads the logs several times, and {} can be read only once: write it \
                 to a file",
                input::name(log)
            )))
        }
        _ => Ok(()),
    }
}

/// The search for one rule.
struct Search {
    kind: Kind,
    /// The count of the largest limit of the rule as it is.
    present: u64,
    low: u64,
    high: Option<(u64, Counts)>,
    /// The count to replay next. `None` at the end.
    next: Option<u64>,
}

impl Search {
    fn new(rule: &Rule, counts: &RuleCounts, share: Share) -> Self {
        let periods = rule
            .limits()
            .iter()
            .filter(|limit| limit.period().is_some());
        let present = periods.map(Limit::count).max().unwrap_or(0);
        let counts = Counts::new(counts);
        let mut this = Self {
            kind: rule.kind(),
            present,
            low: 0,
            high: None,
            next: None,
        };
        if present > 0 && counts.asked > 0 && rule.is_enabled() {
            this.next = Some(present);
            this.learn(counts, share);
        }
        this
    }

    /// Learns what the next count decides, and chooses another.
    fn learn(&mut self, counts: Counts, share: Share) {
        let Some(count) = self.next else {
            return;
        };
        if share.covers(counts) {
            self.high = Some((count, counts));
        } else {
            self.low = count;
        }
        self.next = match self.high {
            None => count.checked_mul(2),
            Some((high, _)) if high - self.low > 1 => Some(self.low + (high - self.low) / 2),
            Some(_) => None,
        };
    }
}

/// Returns the result for each rule of the policy of `trial`, in their order. `trial` has judged
/// the logs.
///
/// # Errors
///
/// [`Failure::Refused`] if a log cannot be read again.
pub(crate) fn search(
    args: &ReplayArgs,
    share: Share,
    trial: &Trial,
) -> Result<Vec<Recommended>, Failure> {
    let policy = &trial.policy;
    let counts = trial.statistics.rules();
    let rules = policy.rules().zip(&counts);
    let mut searches: Vec<_> = rules
        .map(|(rule, counts)| Search::new(rule, counts, share))
        .collect();
    while searches.iter().any(|search| search.next.is_some()) {
        let mut trials = Vec::new();
        for kind in KINDS {
            let of_kind = |search: &Search| search.kind == kind && search.next.is_some();
            if searches.iter().any(of_kind) {
                trials.extend(candidate(policy, kind, &mut searches).map(|trial| (kind, trial)));
            }
        }
        let Some((_, first)) = trials.first() else {
            break;
        };
        let mut parsing = first.parsing(args)?;
        Pass::new(args, &mut parsing, |record, waiting| {
            waiting.take(record.key, |request| {
                for (_, trial) in &mut trials {
                    let now = trial.clock.advance(record.time);
                    trial.judge(now, request, record.bytes);
                }
            });
            Ok(())
        })?;
        for (kind, trial) in &trials {
            let counts = trial.statistics.rules();
            for (search, counts) in searches.iter_mut().zip(&counts) {
                if search.kind == *kind {
                    search.learn(Counts::new(counts), share);
                }
            }
        }
    }
    let results = policy.rules().zip(&searches).map(|(rule, search)| {
        match search.high {
            Some((count, counts)) => {
                // A log does not tell how many requests are under way at once.
                let scaled = |limit: &Limit| match limit.period() {
                    Some(_) => limit.clone().scaled(count, search.present),
                    None => limit.clone(),
                };
                Recommended::Limits(rule.limits().iter().map(scaled).collect(), counts)
            }
            None if search.low > 0 => Recommended::Impossible,
            None => Recommended::Nothing,
        }
    });
    Ok(results.collect())
}

/// The policy in which the rules of `kind` have the limits to replay next. A rule that cannot have
/// them ends its search, and the others go on.
fn candidate(policy: &Policy, kind: Kind, searches: &mut [Search]) -> Option<Trial> {
    while searches
        .iter()
        .any(|search| search.kind == kind && search.next.is_some())
    {
        let rules = policy.rules().zip(&*searches);
        let rules = rules.map(|(rule, search)| match search.next {
            Some(next) if search.kind == kind => rule.clone().scaled(next, search.present),
            _ => rule.clone(),
        });
        let errors = match Policy::with_path_rules(rules, policy.path_rules()) {
            Ok(policy) => return Some(Trial::new(policy)),
            Err(errors) => errors,
        };
        for (rule, search) in policy.rules().zip(&mut *searches) {
            if errors.iter().any(|error| *error.rule == *rule.name()) {
                search.next = None;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        let share = |text: &str| text.parse::<Share>().map(|Share(millionths)| millionths);
        assert_eq!(share("1%"), Ok(10_000));
        assert_eq!(share("0.05%"), Ok(500));
        assert_eq!(share("0%"), Ok(0));
        assert_eq!(share("100%"), Ok(1_000_000));
        for text in [
            "",
            "%",
            "1",
            "1.%",
            ".5%",
            "100.0001%",
            "-1%",
            "1.00001%",
            "1e1%",
            "101%",
        ] {
            assert!(
                share(text)
                    .unwrap_err()
                    .starts_with("expected a percentage"),
                "{text}"
            );
        }
        assert!(Share(10_000).covers(Counts {
            asked: 100,
            denied: 1
        }));
        assert!(!Share(10_000).covers(Counts {
            asked: 99,
            denied: 1
        }));
    }
}
