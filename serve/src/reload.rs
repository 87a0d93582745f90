//! Reads the policy file again: from time to time, and when it is told to.
//!
//! A file that is not valid changes nothing, and is reported once, and again to who has it read.
//! That is so too where only its table `serve` is not valid, which a policy ignores.
//!
//! Limits at once are left out: a check is over before its request is. They would count checks, and
//! deny requests while a store is slow, which no rule says.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use portcullis_counters::OnFailure;
use portcullis_policy::{
    Change, FileSource, Kind, Limit, Policy, RefreshError, RuleError, RuleSource, Sourced,
};

use crate::counts::Counts;
use crate::settings::Settings;
use crate::stores;

/// A change of the settings is told, and has no effect.
const RESTART: &str = "the table `serve` has changed: this needs a restart";

/// The policy file, without limits at once.
pub(crate) struct Enforced {
    file: FileSource,
    /// The table `serve` of the file that was read last. `None` before the first one.
    settings: Option<Settings>,
    /// The limits at once of the policy that was read last, each after the name of its rule.
    left_out: Vec<(String, String)>,
    /// What of the policy before is doubtful.
    told: Vec<Doubt>,
}

/// Something that is doubtful in a file, as it is told.
#[derive(PartialEq, Eq)]
enum Doubt {
    OfFile(String),
    /// A limit at once of a rule.
    AtOnce(String, String),
    /// A rule of a kind that this program does not ask.
    NotAsked(String),
    /// A limit of a rule, and the share of it that is less than one permit.
    EmptyShare(String, String, String),
}

impl Doubt {
    fn tell(&self) {
        match self {
            Self::OfFile(text) => tracing::warn!("{text}"),
            Self::AtOnce(rule, limit) => tracing::warn!(
                rule,
                limit,
                "a limit at once is not enforced here: this program does not see when a request \
                 ends. Set it in the proxy, or in the service"
            ),
            Self::NotAsked(rule) => {
                tracing::warn!(rule, "it is not asked: only the kind `request` is");
            }
            Self::EmptyShare(rule, limit, share) => tracing::warn!(
                rule,
                limit,
                "while the store is away, every request is denied: `when_down = \"{share}\"` keeps \
                 no permit of this limit"
            ),
        }
    }
}

impl Enforced {
    pub(crate) fn new(file: &Path) -> Self {
        Self {
            file: FileSource::new(file),
            settings: None,
            left_out: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Warns of what is doubtful in the file, and of rules that do not limit here what they seem
    /// to, except what was told of the file before. Returns whether there is any, except limits at
    /// once: those are for the proxy.
    pub(crate) fn warn(&mut self, policy: &Policy) -> bool {
        let path = self.file.path().display();
        let of_file = policy.warnings().iter();
        let of_file = of_file.map(|doubt| Doubt::OfFile(format!("{path}:{doubt}")));
        let others = policy.rules().filter(|rule| rule.kind() != Kind::Request);
        let others = others.map(|rule| Doubt::NotAsked(rule.name().to_owned()));
        let at_once = self.left_out.iter().cloned();
        let at_once = at_once.map(|(rule, limit)| Doubt::AtOnce(rule, limit));
        let doubts = of_file.chain(at_once).chain(others);
        let doubts: Vec<Doubt> = doubts.chain(self.empty_shares(policy)).collect();
        for doubt in doubts.iter().filter(|doubt| !self.told.contains(doubt)) {
            doubt.tell();
        }
        self.told = doubts;
        let mut told = self.told.iter();
        told.any(|doubt| !matches!(doubt, Doubt::AtOnce(..)))
    }
}

impl Enforced {
    /// The limits of which a share is kept while their store is away, and of which it is 0.
    fn empty_shares(&self, policy: &Policy) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        for rule in policy.rules() {
            let of_store = self.settings.as_ref().zip(rule.store());
            let of_store = of_store.and_then(|(settings, store)| settings.stores.get(store));
            let Some(OnFailure::Share { part, whole }) = of_store.map(|of| of.when_down.0) else {
                continue;
            };
            let is_empty = |limit: &&Limit| {
                let permits = u128::from(limit.capacity());
                permits > 0 && permits * u128::from(part) < u128::from(whole)
            };
            doubts.extend(rule.limits().iter().filter(is_empty).map(|limit| {
                let share = format!("{part}/{whole}");
                Doubt::EmptyShare(rule.name().to_owned(), limit.to_string(), share)
            }));
        }
        doubts
    }

    /// Why the file is refused. Rules with a store that the file describes, and that the program
    /// did not have at its start, are right: what they lack is a restart.
    fn why(&self, error: &RefreshError<String>, started_with: &Settings) -> String {
        let RefreshError::Stores(errors) = error else {
            return error.to_string();
        };
        let described = self.settings.iter();
        let described: Vec<&String> = described.flat_map(|now| now.stores.keys()).collect();
        let lacks_restart = |error: &&RuleError| {
            let store = error.value.as_ref().filter(|_| error.setting == "store");
            store.is_some_and(|store| {
                described.contains(&store) && !started_with.stores.contains_key(store)
            })
        };
        let (lack_restart, wrong): (Vec<_>, Vec<_>) = errors.iter().partition(lacks_restart);
        let mut texts: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        if !lack_restart.is_empty() {
            texts.push(RESTART.into());
        }
        format!("{}: {}", self.file.path().display(), texts.join("; "))
    }
}

impl RuleSource for Enforced {
    type Error = String;

    fn load(&mut self, known: Option<&str>) -> Result<Option<Sourced>, String> {
        let sourced = self.file.load(known);
        let Some(sourced) = sourced.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let settings = Settings::read(self.file.path())?;
        if self.settings.as_ref() != Some(&settings) {
            // They are not used: only the start opens stores.
            stores::open(&settings)?;
        }
        self.settings = Some(settings);
        let left_out = &mut self.left_out;
        left_out.clear();
        Ok(Some(sourced.map(|policy| {
            for rule in policy.rules() {
                let limits = rule.limits().iter();
                let at_once = limits.filter(|limit| limit.is_held());
                left_out.extend(at_once.map(|limit| (rule.name().to_owned(), limit.to_string())));
            }
            // A key may have limits at once of its own.
            let has_own = policy.rules().any(|rule| rule.parts().has_overrides);
            if left_out.is_empty() && !has_own {
                policy
            } else {
                policy.without_limits_at_once()
            }
        })))
    }
}

/// Reads the file every `poll`, and at once for each message, until the sender is dropped. Blocks.
/// Must be called in a runtime of tokio.
pub(crate) fn run(
    mut file: Enforced,
    settings: &Settings,
    counts: &Arc<Counts>,
    poll: Duration,
    now: &Receiver<()>,
) {
    loop {
        // A change is read once it was found twice, so that half a file is not. Who says when knows
        // that the file is whole.
        let mut look = || look(&mut file, settings, counts);
        match now.recv_timeout(poll) {
            Ok(()) => {
                if ![look(), look()].contains(&true) {
                    tell_again(&file, counts);
                }
            }
            Err(RecvTimeoutError::Timeout) => _ = look(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Tells what is so since before.
fn tell_again(file: &Enforced, counts: &Counts) {
    match counts.refused_file() {
        Some(file) => tell_why(&file.why),
        None if file.file.is_in_force() => {
            tracing::info!("the policy in force is that of the file");
        }
        None => tracing::info!("the file has just changed: the next look reads it"),
    }
}

/// Returns whether it has told anything.
fn look(file: &mut Enforced, settings: &Settings, counts: &Arc<Counts>) -> bool {
    let live = counts.live();
    let now = live.load().now();
    match live.refresh_at(now, file) {
        Ok(None) => {
            if file.file.is_in_force() {
                counts.file_is_refused(None);
            }
            false
        }
        Ok(Some(change)) => {
            counts.reloaded(true);
            counts.file_is_refused(None);
            tell(&change);
            file.warn(&live.load());
            let lacks_restart = file.settings.as_ref() != Some(settings);
            counts.lacks_restart(lacks_restart);
            if lacks_restart {
                tracing::warn!("{RESTART}");
            }
            true
        }
        Err(error) => {
            let error = file.why(&error, settings);
            // A file that cannot be read is an error each time.
            let before = counts.refused_file();
            let is_new = before.is_none_or(|before| before.why != error);
            if is_new {
                counts.reloaded(false);
                counts.file_is_refused(Some(&error));
                tell_why(&error);
            }
            is_new
        }
    }
}

/// Tells why a file is refused, in one line of the log, however many errors there are.
fn tell_why(error: &str) {
    let error = error.replace('\n', "; ");
    tracing::error!("the policy before stays in force: {error}");
}

fn tell(change: &Change) {
    let names = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(", ");
    let ended = names(&mut change.ended());
    tracing::info!(
        generation = change.generation(),
        kept = names(&mut change.kept()),
        begun = names(&mut change.begun()),
        ended,
        "a policy is in force"
    );
    // A file that was cut off may be valid.
    if !ended.is_empty() {
        tracing::warn!(
            rules = ended,
            "rules are gone: nothing enforces them any more"
        );
    }
}
