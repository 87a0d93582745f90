//! What a limit would have found in requests that were served already.

use crate::adaptive::{Adaptive, Explanation, Held};
use crate::controller::Controller;
use crate::outcome::Outcome;
use crate::simulate::ScenarioError;
use core::time::Duration;
use portcullis_core::Timestamp;

/// Requests that were served: when each began, how long it took, and how it ended.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Log {
    /// The requests, in the order in which they began.
    pub requests: Vec<LoggedRequest>,
}

/// A request that was served.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoggedRequest {
    /// When it began, in seconds since any origin.
    pub start: f64,
    /// How many seconds it took.
    pub seconds: f64,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a limit would have found.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The last decision.
    pub last: Explanation,
    /// The lowest limit after the first quarter of the requests.
    pub lowest: u32,
    /// The highest one after it.
    pub highest: u32,
    /// The share of the requests after it that began over the limit.
    pub over: f64,
    /// The most requests at once.
    pub most_in_flight: u32,
}

/// When a request in flight ends, and how.
type Ending<'a, C> = (f64, Outcome, Held<&'a Adaptive<C>, C>);

impl Log {
    /// Reads lines of a start and a duration in seconds, and a status of HTTP, with spaces, tabs or
    /// commas between them. What follows them on a line is ignored, and so are empty lines and
    /// those that begin with `#`. The status may be missing: then the request succeeded.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`] with the number of the first line that is malformed.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let lines = text.lines().zip(1_usize..);
        let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let mut requests = lines
            .map(|(line, number)| {
                LoggedRequest::parse(line).ok_or_else(|| {
                    let must = "a start and a duration in seconds, and a status";
                    ScenarioError::new(format!("line {number} must be {must}"))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        requests.sort_by(|a, b| a.start.total_cmp(&b.start));
        Ok(Self { requests })
    }

    /// Lets `controller` watch the requests, from a limit of `initial` on. It denies nothing: a log
    /// does not tell how long the others would have taken without those that it would have denied.
    ///
    /// # Panics
    ///
    /// If the initial limit exceeds what a limit can be.
    pub fn run<C: Controller>(&self, controller: &C, initial: u32) -> Found {
        let builder = Adaptive::builder(initial).ceiling(1_000_000);
        let limit = builder
            .controller(controller.clone())
            .shadow()
            .build()
            .expect("the initial limit fits");
        let origin = self.requests.first().map_or(0.0, |first| first.start);
        let at = |seconds: f64| {
            let since = Duration::try_from_secs_f64(seconds - origin).unwrap_or_default();
            Timestamp::from_secs(1).saturating_add(since)
        };
        // The ends of those in flight; the last one is the next.
        let mut ends: Vec<Ending<'_, C>> = Vec::new();
        let settled = self.requests.len() / 4;
        let (mut lowest, mut highest) = (u32::MAX, 0);
        let (mut over, mut most) = (0.0, 0);
        for (number, request) in self.requests.iter().enumerate() {
            while let Some((end, outcome, held)) = ends.pop_if(|next| next.0 <= request.start) {
                held.end_at(at(end), outcome);
            }
            let now = limit.explain();
            most = most.max(now.in_use + 1);
            if number >= settled {
                lowest = lowest.min(now.limit);
                highest = highest.max(now.limit);
                over += f64::from(u8::from(now.in_use >= now.limit));
            }
            if let Ok(held) = limit.try_acquire_at(at(request.start), 1) {
                let end = request.start + request.seconds;
                let place = ends.partition_point(|other| other.0 > end);
                ends.insert(place, (end, request.outcome, held));
            }
        }
        while let Some((end, outcome, held)) = ends.pop() {
            held.end_at(at(end), outcome);
        }
        Found {
            last: limit.explain(),
            lowest: lowest.min(highest),
            highest,
            over: over / ((self.requests.len() - settled) as f64).max(1.0),
            most_in_flight: most,
        }
    }
}

impl LoggedRequest {
    fn parse(line: &str) -> Option<Self> {
        let separates = |c: char| c.is_ascii_whitespace() || c == ',';
        let mut fields = line.split(separates).filter(|field| !field.is_empty());
        let mut number = || fields.next()?.parse::<f64>().ok().filter(|n| n.is_finite());
        let (start, seconds) = (number()?, number().filter(|seconds| *seconds >= 0.0)?);
        let status = fields
            .next()
            .map_or(Some(200), |status| status.parse().ok())?;
        let outcome = match status {
            503 | 504 => Outcome::PushedBack,
            429 => Outcome::Ignored,
            100..=499 => Outcome::Succeeded,
            500..=599 => Outcome::Failed,
            _ => return None,
        };
        Some(Self {
            start,
            seconds,
            outcome,
        })
    }
}
