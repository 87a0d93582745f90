//! Events of decisions reach a subscriber, and those of denials are limited.

use core::fmt::{self, Write};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use portcullis_core::{ManualClock, Rate, Retry, Timestamp, TokenBucket};
use portcullis_counters::MemoryCounters;
use portcullis_policy::{About, DecisionLog, Key, OnMissing, Policy, Request, Rule, Stores};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps each event as a level and its fields, one after another.
#[derive(Clone)]
struct Kept {
    least: Level,
    events: Arc<Mutex<Vec<(Level, String)>>>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let separator = if self.0.is_empty() { "" } else { " " };
        let _ = write!(self.0, "{separator}{}={value:?}", field.name());
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "portcullis::decision" && *metadata.level() <= self.least
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let mut events = self.events.lock().unwrap();
        events.push((*event.metadata().level(), fields.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns the events that `f` causes, from `least` on.
fn events(least: Level, f: impl FnOnce()) -> Vec<(Level, String)> {
    let kept = Kept {
        least,
        events: Arc::default(),
    };
    tracing::subscriber::with_default(kept.clone(), f);
    let events = kept.events.lock().unwrap();
    events.clone()
}

fn policy() -> Policy {
    Policy::new([
        Rule::new("new").shadow().limit("2/m".parse().unwrap()),
        Rule::new("clients")
            .key(Key::header("X-Client"))
            .on_missing(OnMissing::Deny)
            .exempt_header("X-Client", ["admin"])
            .limit("3/m".parse().unwrap()),
    ])
    .unwrap()
}

/// Decides and records requests of these clients, one in each second.
fn record(log: &DecisionLog, clients: &[&str]) {
    let policy = policy();
    for (second, client) in (100..).zip(clients) {
        let now = Timestamp::from_secs(second);
        let headers = [("X-Client", client)];
        let request = Request::new("GET", "/secret?token=1").host("api.example.com");
        let request = request
            .headers(&headers)
            .address("192.0.2.7".parse().unwrap());
        let about = About::new()
            .correlation_id("4711")
            .duration(Duration::from_millis(20));
        log.record_at(now, &request, &policy.decide_at(now, &request), about);
    }
}

#[test]
fn a_denial_in_spite_of_which_the_request_passes_is_told_as_one() {
    let events = events(Level::INFO, || {
        let policy = Policy::new([Rule::new("all").limit("0/s".parse().unwrap())]).unwrap();
        let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
        let decision = policy.decide_at(now, &request);
        let about = About::new().shadow(true);
        DecisionLog::new().record_at(now, &request, &decision, about);
    });
    let [(Level::INFO, text)] = &events[..] else {
        panic!("{events:?}");
    };
    let expected = "message=request would be denied outcome=\"denied\" rule=\"all\" limit=0/s";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn what_only_a_store_knows_of_a_denial_is_told() {
    let events = events(Level::WARN, || {
        let store = MemoryCounters::new(100, ManualClock::new());
        let rule = Rule::new("logins").limit("2/m".parse().unwrap());
        let rule = rule.limit("0/h".parse().unwrap()).stored_in("shared");
        let policy = Policy::new([rule]).unwrap();
        let stores = Stores::new().with("shared", Arc::new(store));
        let policy = policy.with_stores(stores).unwrap();
        let (now, request) = (Timestamp::from_secs(1), Request::new("GET", "/"));
        let asked = policy.decide_stored(ManualClock::new(), &request);
        let decision = futures_executor::block_on(asked).unwrap();
        let about = About::new()
            .limit(decision.denied_in_store().unwrap())
            .retry(Retry::After(Duration::from_secs(57)));
        DecisionLog::new().record_at(now, &request, decision.decision(), about);
    });
    let [(Level::WARN, text)] = &events[..] else {
        panic!("{events:?}");
    };
    assert!(text.contains("rule=\"logins\" limit=0/h "), "{text}");
    assert!(text.contains("retry_after_s=57.0"), "{text}");
}

#[test]
fn each_decision_has_an_event_with_its_fields() {
    let events = events(Level::DEBUG, || {
        record(&DecisionLog::new(), &["a", "a", "a", "a", "", "admin"]);
    });
    let common = "method=\"GET\" host=\"api.example.com\" cost=1";
    let about = "correlation_id=\"4711\" duration_s=0.02";
    let expected = [
        (
            Level::DEBUG,
            format!(
                "message=request allowed outcome=\"allowed\" rule=\"clients\" {common} {about}"
            ),
        ),
        (
            Level::DEBUG,
            format!(
                "message=request allowed outcome=\"allowed\" rule=\"clients\" {common} {about}"
            ),
        ),
        (
            Level::INFO,
            format!(
                "message=a shadow rule would deny the request outcome=\"shadow denied\" \
                 rule=\"new\" limit=2/m {common} {about} left_out=0"
            ),
        ),
        (
            Level::WARN,
            format!(
                "message=request denied outcome=\"denied\" rule=\"clients\" limit=3/m {common} \
                 retry_after_s=17.0 {about} left_out=0"
            ),
        ),
        (
            Level::WARN,
            format!(
                "message=request denied outcome=\"unidentified\" rule=\"clients\" {common} {about} \
                 left_out=0"
            ),
        ),
        (
            Level::INFO,
            format!(
                "message=a shadow rule would deny the request outcome=\"shadow denied\" \
                 rule=\"new\" limit=2/m {common} {about} left_out=0"
            ),
        ),
    ];
    assert_eq!(events, expected);
}

#[test]
fn events_of_denials_are_limited_and_those_left_out_are_counted() {
    let log = DecisionLog::with_limit(TokenBucket::new(Rate::new(1, Duration::from_secs(10)), 2));
    let clients = vec!["a"; 30];
    let events = events(Level::WARN, || record(&log, &clients));
    let left_out: Vec<_> = events
        .iter()
        .map(|(_, fields)| fields.rsplit_once("left_out=").unwrap().1)
        .collect();
    // 27 denials from second 103 on, of which one a minute is allowed: 2 events at once, then one
    // in 10 s.
    assert_eq!(left_out, ["0", "0", "8", "8"]);
}

#[test]
fn events_that_no_subscriber_wants_use_up_no_limit() {
    let log = DecisionLog::with_limit(TokenBucket::new(Rate::per_second(1), 1));
    let none = events(Level::ERROR, || record(&log, &["a"; 9]));
    assert_eq!(none, []);
    let one = events(Level::WARN, || record(&log, &["b"; 4]));
    assert_eq!(one.len(), 1);
    assert!(one[0].1.ends_with("left_out=0"), "{one:?}");
}
