//! Large files are read in time and memory that grow with their length.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;
#[path = "../../core/tests/support/busy.rs"]
mod busy;

use core::time::Duration;

use allocations::peak;
use busy::busy;
use portcullis_policy::{FileError, Imported, Policy, Rule};

/// About as many bytes of entries as `len`.
fn entries(len: usize, entry: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        if text.len() >= len {
            break;
        }
        text += &entry(index);
        text += ",\n";
    }
    text
}

fn route(index: usize, options: &str) -> String {
    format!(
        r#"{{ "UpstreamPathTemplate": "/{index}/{{x}}", "DownstreamPathTemplate": "/d/{index}"
           {options} }}"#
    )
}

/// A file of routes, of which half the length is global options.
fn ocelot(routes: &str, global: &str) -> String {
    format!(
        r#"{{ "Routes": [{routes}],
              "GlobalConfiguration": {{ "RateLimitOptions": {{ "Limit": 1, {global} }} }} }}"#
    )
}

fn errors(text: &str) -> Vec<String> {
    let errors = Imported::from_ocelot(text).unwrap_err();
    errors.into_iter().map(|error| error.message).collect()
}

type Read = fn(&str) -> Result<Imported, Vec<FileError>>;

#[test]
fn the_time_and_the_memory_to_read_a_file_grow_with_its_length() {
    const LEN: usize = 400_000;
    let clients = entries(LEN / 2, |index| format!("\"client {index}\""));
    let keys = entries(LEN / 2, |index| format!("\"{index}\""));
    let routes = entries(LEN / 2, |index| route(index, ""));
    let keyed = entries(LEN / 2, |index| {
        route(index, &format!(", \"Key\": \"{index}\""))
    });
    let waiting = r#", "RateLimitOptions": { "Limit": 1, "Period": "1s", "Wait": "1h" }"#;
    let waiting = entries(LEN, |index| route(index, waiting));
    let policies = entries(LEN, |index| {
        format!(
            r#"{{ "category": "{index}", "windowDuration": "00:00:10",
                  "thresholds": [{{ "value": 9, "decisionType": "Stop" }}] }}"#
        )
    });
    let message = format!("{}{}", "x".repeat(4_000), "{1}".repeat(16));
    for (read, text) in [
        (
            Imported::from_ocelot as Read,
            ocelot(&routes, &format!("\"ClientWhitelist\": [{clients}]")),
        ),
        (
            Imported::from_ocelot,
            ocelot(&keyed, &format!("\"RouteKeys\": [{keys}]")),
        ),
        (
            Imported::from_ocelot,
            ocelot(&routes, &format!("\"QuotaMessage\": \"{message}\"")),
        ),
        (
            Imported::from_ocelot,
            format!("{{ \"Routes\": [{waiting}] }}"),
        ),
        (
            Imported::from_ats,
            format!("{{ \"policies\": [{policies}] }}"),
        ),
    ] {
        let start = busy();
        let (imported, bytes) = peak(|| read(&text));
        let elapsed = busy().saturating_sub(start);
        assert!(imported.unwrap().rules.len() > 1_000);
        assert!(bytes < 100 * text.len(), "{bytes} bytes for {text:.100}");
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
}

/// Each value of a rule, and each error, is about the rule with the long name.
#[test]
fn a_long_name_takes_its_memory_once() {
    const LEN: usize = 200_000;
    let name = "n".repeat(LEN);
    let list =
        |value: &dyn Fn(usize) -> String| entries(LEN, |index| format!("{:?}", value(index)));
    let network = |index: usize| format!("10.{}.{}.0/24", index >> 8, index & 255);
    for (settings, errors) in [
        (
            format!("\"paths\": [{}]", list(&|index| format!("/{index}*"))),
            17_000,
        ),
        (
            format!("\"hosts\": [{}]", list(&|index| format!("{index}/"))),
            17_000,
        ),
        (
            format!("\"exempt\": {{ \"networks\": [{}] }}", list(&network)),
            0,
        ),
        (
            format!(
                "\"exempt\": {{ \"networks\": [{}] }}",
                list(&|_| "x".into())
            ),
            30_000,
        ),
        (
            format!(
                "\"key\": [\"path\"], \"overrides\": [{}]",
                entries(LEN, |_| { r#"{ "key": [], "limits": ["0/s"] }"#.into() })
            ),
            5_000,
        ),
    ] {
        let text = format!("{{ \"rules\": [{{ \"name\": \"{name}\", {settings} }}] }}");
        let start = busy();
        let (policy, bytes) = peak(|| Policy::from_json(&text));
        let elapsed = busy().saturating_sub(start);
        let found = policy.err().map_or(0, |errors| errors.len());
        assert!(
            found >= errors && (found > 0) == (errors > 0),
            "{found} {settings:.50}"
        );
        assert!(bytes < 200 * text.len(), "{bytes} bytes for {settings:.50}");
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
}

#[test]
fn what_each_rule_repeats_is_bounded() {
    let global = |options: &str| errors(&ocelot(&route(0, ""), options));
    let long = "x".repeat(5_000);
    for (name, bound) in [
        ("ClientIdHeader", 256),
        ("KeyPrefix", 256),
        ("RateLimitCounterPrefix", 256),
        ("QuotaMessage", 4_096),
        ("QuotaExceededMessage", 4_096),
    ] {
        let all = global(&format!("\"{name}\": \"{long}\""));
        let end = format!(" is longer than {bound} bytes");
        assert!(all.len() == 1 && all[0].ends_with(&end), "{all:?}");
    }
    let period = format!("\"Period\": \"{}1s\"", "0".repeat(63));
    assert!(global(&period)[0].ends_with(" is longer than 64 bytes"));
    let message = format!("\"QuotaMessage\": \"{}\"", "{0}".repeat(17));
    assert!(global(&message)[0].ends_with(" has more than 16 placeholders"));
}

#[test]
fn the_rules_for_groups_of_routes_are_bounded() {
    let group = |index: usize| {
        format!(
            r#"{{ "Pattern": "/none", "Methods": ["GET", "M{index}"], "Limit": 1, "Period": "1s" }}"#
        )
    };
    let all = |count: usize, entry: &dyn Fn(usize) -> String| {
        let all: Vec<_> = (0..count).map(entry).collect();
        all.join(", ")
    };
    let file = |routes, groups: &str| {
        let routes = all(routes, &|index| route(index, ""));
        format!("{{ \"Routes\": [{routes}], \"GlobalRateLimitRules\": [{groups}] }}")
    };
    assert!(Imported::from_ocelot(&file(1_000, &all(349, &group))).is_ok());
    assert_eq!(
        errors(&file(1_000, &all(350, &group))),
        [
            "GlobalRateLimitRules: 350 rules with 700 methods are too many beside 1000 routes \
             without RateLimitOptions: at most 1048576 pairs of a rule or a method and a route \
             are compared"
        ]
    );
    let matching = |index| group(index).replace("/none", "/d");
    let imported = Imported::from_ocelot(&file(1, &all(64, &matching))).unwrap();
    assert_eq!(imported.rules.len(), 65);
    assert_eq!(
        errors(&file(1, &all(65, &matching))),
        ["more than 64 rules of GlobalRateLimitRules are for this route"]
    );
}

#[test]
fn a_number_makes_the_names_of_routes_differ() {
    let keys = ["a (2)", "a", "a", "a", "a (3)"];
    let routes = keys.map(|key| route(0, &format!(", \"Key\": \"{key}\"")));
    let imported = Imported::from_ocelot(&ocelot(&routes.join(","), "\"Period\": \"1s\"")).unwrap();
    let names: Vec<_> = imported.rules.iter().map(Rule::name).collect();
    assert_eq!(names, ["a (2)", "a", "a (3)", "a (4)", "a (3) (2)"]);
}
