//! `replay --policy` with thresholds: on a generated log, policies of the Azure Throttling Solution
//! are in force as a direct computation of their definitions.

mod common;

use core::fmt::Write;
use std::collections::HashMap;

use common::{Scratch, portcullis, text};
use serde_json::Value;

/// The start of the log, in seconds since the Unix epoch.
const START: u64 = 1_709_251_200;

const POLICIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples/ats.json");

/// The thresholds of the example: category, value, window and hold in milliseconds.
const THRESHOLDS: [(&str, u64, u64, u64); 3] = [
    ("contoso.getstatus", 5, 10_000, 4_500),
    ("contoso.getstatus", 10, 10_000, 60_500),
    ("contoso.upload", 8, 60_000, 0),
];

/// Lines of a log: seconds from its start, category and id.
fn lines() -> Vec<(u64, &'static str, Option<u64>)> {
    let mut random = common::random();
    let mut time = 0;
    (0..3_000)
        .map(|_| {
            time += match random(100) {
                0..80 => 0,
                80..97 => random(4),
                _ => random(90),
            };
            let category = ["contoso.getstatus", "contoso.upload", "other"][random(3) as usize];
            let id = random(6).min(random(6));
            (time, category, (id < 4).then_some(id))
        })
        .collect()
}

/// For a threshold: the lines of its category, and those at which its decision is in force.
fn in_force(threshold: usize) -> (u64, u64) {
    /// The reports of one id, and when its hold ends.
    #[derive(Default)]
    struct OfId {
        reports: Vec<u64>,
        held_until: u64,
    }
    let (category, value, window, hold) = THRESHOLDS[threshold];
    let segment = window / 10;
    let mut of_ids: HashMap<Option<u64>, OfId> = HashMap::new();
    let (mut reported, mut in_force) = (0, 0);
    for (second, of_line, id) in lines() {
        if of_line != category {
            continue;
        }
        let now = (START + second) * 1_000;
        let OfId {
            reports,
            held_until,
        } = of_ids.entry(id).or_default();
        let is_reached = |reports: &[u64]| {
            let is_in_window = |&&at: &&u64| at / segment + 10 > now / segment;
            reports.iter().filter(is_in_window).count() as u64 >= value
        };
        reported += 1;
        in_force += u64::from(is_reached(reports) || now < *held_until);
        reports.push(now);
        if is_reached(reports) && now >= *held_until {
            *held_until = now + hold;
        }
    }
    (reported, in_force)
}

fn log() -> Scratch {
    let mut log = String::new();
    for (second, category, id) in lines() {
        let id = id.map_or(String::new(), |id| format!(r#", "id": "user {id}""#));
        let time = START + second;
        let _ = writeln!(log, r#"{{"time": {time}, "category": "{category}"{id}}}"#);
    }
    Scratch::new("activity.json", log.as_bytes())
}

#[test]
fn the_decisions_of_ats_are_in_force_as_their_definition_says() {
    let log = log();
    let args = [
        "replay",
        log.path(),
        "--format",
        "json",
        "--policy",
        POLICIES,
        "--policy-format",
        "ats",
    ];
    let output = portcullis(&args).args(["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules = &json["rules"];
    let found = [
        (&rules[0], &rules[0]["thresholds"][0]),
        (&rules[0], &rules[0]["thresholds"][1]),
        (&rules[1], &rules[1]["thresholds"][0]),
    ];
    for (index, (rule, threshold)) in found.into_iter().enumerate() {
        assert_eq!(rule["rule"], THRESHOLDS[index].0);
        let expected = in_force(index);
        let found = (rule["reported"].as_u64(), threshold["in_force"].as_u64());
        assert_eq!(found, (Some(expected.0), Some(expected.1)), "{threshold}");
        assert!(expected.1 > 9 && expected.1 < expected.0, "{expected:?}");
    }
    // Thresholds deny nothing.
    assert_eq!(
        (&json["denied"], &json["without_rule"]),
        (&0.into(), &3_000.into())
    );

    let output = portcullis(&args).output().unwrap();
    let summary = text(&output.stdout);
    let of_upload = in_force(2).1;
    let expected = format!("{of_upload}  of 1,018: Stop in force (8/m)");
    assert!(
        summary.contains(&expected),
        "{expected:?} is missing in\n{summary}"
    );
}
