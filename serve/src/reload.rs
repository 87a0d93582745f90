//! Reads the policy file again: from time to time, and when it is told to.
//!
//! A file that is not valid changes nothing, and is reported once.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use portcullis_policy::{Change, FileSource, Kind, Policy};

use crate::counts::Counts;
use crate::settings::Settings;

/// Reads the file every `poll`, and at once for each message, until the sender is dropped. Blocks.
pub(crate) fn run(
    mut file: FileSource,
    settings: &Settings,
    counts: &Arc<Counts>,
    poll: Duration,
    now: &Receiver<()>,
) {
    let mut reported = String::new();
    loop {
        // A change is read once it was found twice, so that half a file is not. Who says when knows
        // that the file is whole.
        let looks = match now.recv_timeout(poll) {
            Ok(()) => 2,
            Err(RecvTimeoutError::Timeout) => 1,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for _ in 0..looks {
            look(&mut file, settings, counts, &mut reported);
        }
    }
}

fn look(file: &mut FileSource, settings: &Settings, counts: &Arc<Counts>, reported: &mut String) {
    let live = counts.live();
    let now = live.load().now();
    match live.refresh_at(now, file) {
        Ok(None) => {}
        Ok(Some(change)) => {
            reported.clear();
            counts.reloaded(true);
            tell(&change);
            warn(&live.load(), file.path());
            match Settings::read(file.path()) {
                Ok(now) if now == *settings => {}
                Ok(_) => tracing::warn!("the table `serve` has changed: this needs a restart"),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Err(error) => {
            let error = error.to_string();
            // A file that cannot be read is an error each time.
            if error != *reported {
                counts.reloaded(false);
                tracing::error!("the policy before stays in force: {error}");
                *reported = error;
            }
        }
    }
}

fn tell(change: &Change) {
    let names = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(", ");
    tracing::info!(
        generation = change.generation(),
        kept = names(&mut change.kept()),
        begun = names(&mut change.begun()),
        ended = names(&mut change.ended()),
        "a policy is in force"
    );
}

/// Warns of what is doubtful in the file, and of rules that do not limit here what they seem to.
pub(crate) fn warn(policy: &Policy, file: &Path) {
    for doubt in policy.warnings() {
        tracing::warn!("{}:{doubt}", file.display());
    }
    for rule in policy.rules() {
        let name = rule.name();
        if rule.kind() != Kind::Request {
            tracing::warn!(rule = name, "it is not asked: only the kind `request` is");
        }
        for limit in rule
            .limits()
            .iter()
            .filter(|limit| limit.period().is_none())
        {
            tracing::warn!(
                rule = name,
                %limit,
                "a limit at once is not enforced here: this program does not see when a request \
                 ends. Set it in the proxy, or in the service"
            );
        }
    }
}
