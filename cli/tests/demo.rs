//! The demo, in real time.

mod common;

use std::fs;
use std::path::Path;

use common::{portcullis, text};

/// What the picture of the demo and a run of it have in common: name, bound and verdict of each
/// limiter, and what follows the table's last verdict.
#[derive(Debug, PartialEq, Eq)]
struct Stable {
    rows: Vec<[String; 3]>,
    end: Vec<String>,
}

impl Stable {
    fn of(output: &str) -> Self {
        let table = output
            .lines()
            .skip_while(|line| !line.starts_with("limiter "));
        let row = |line: &str| {
            let mut cells = line.split("  ").filter(|cell| !cell.is_empty());
            let mut next = || cells.next().unwrap_or_default().trim().to_owned();
            let (name, bound) = (next(), next());
            [
                name,
                bound,
                cells.last().unwrap_or_default().trim().to_owned(),
            ]
        };
        let rows = table.skip(1).take_while(|line| !line.is_empty());
        let end = output
            .lines()
            .skip_while(|line| !line.starts_with("queue "));
        Self {
            rows: rows.map(row).collect(),
            end: end.skip(1).map(str::to_owned).collect(),
        }
    }

    fn names(&self) -> Vec<&str> {
        let names = self.rows.iter().map(|[name, ..]| name.as_str());
        names.chain(["queue"]).collect()
    }
}

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap()
}

/// Returns the text of a picture, line by line.
fn text_of(svg: &str) -> String {
    let lines = svg.lines().filter(|line| line.starts_with("<text"));
    let line = |line: &str| {
        let parts = line.split('<').filter_map(|tag| tag.split_once('>'));
        let text: String = parts.map(|(_, text)| text).collect();
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
            + "\n"
    };
    lines.map(line).collect()
}

/// Returns the words of a type's name: `TokenBucket` is a "token bucket".
fn words(name: &str) -> String {
    let mut words = String::new();
    for (index, letter) in name.char_indices() {
        if index > 0 && letter.is_uppercase() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

#[test]
fn every_limiter_keeps_its_bound_but_a_naive_one_and_the_output_says_so() {
    let output = portcullis(&["demo", "--seconds", "0.1", "--threads", "3", "--rate", "10"])
        .env_remove("CLICOLOR_FORCE")
        .output()
        .unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}");
    assert_eq!(
        text(&output.stderr),
        "",
        "no live display without a terminal"
    );
    assert!(!table.contains('\x1b'), "no colours without a terminal");
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }

    let stable = Stable::of(&table);
    let (naive, ours) = stable.rows.split_last().unwrap();
    assert_eq!(naive, &["naive bucket", "500 + 5000/s x t", "BROKEN"]);
    for [name, _, verdict] in ours {
        assert_eq!(verdict, "held", "{name} in\n{table}");
    }
    assert!(ours.len() >= 12, "{table}");

    assert!(table.contains("s: 30 of 30 served, 0 wait\n 1 "), "{table}");
    let row = table
        .lines()
        .find(|line| line.starts_with("queue  10/s, burst 5, 25 may wait  30 in order, in 2.5s  "));
    assert!(row.is_some_and(|row| row.ends_with("s  held")), "{table}");
    assert_eq!(stable.end[1], "Every bound held.", "{table}");

    let picture = Stable::of(&text_of(&document("docs/demo.svg")));
    assert_eq!(
        picture, stable,
        "docs/demo.svg is stale: `cargo xtask screenshot` writes it"
    );
}

#[test]
fn the_demo_has_a_row_for_each_limiter_that_the_readme_and_the_first_choice_name() {
    let choosing = document("docs/choosing.md");
    let (first, _) = choosing.split_once("\n## ").unwrap();
    let rows = first.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split(" | ").nth(1));
    let chosen = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let readme = document("README.md");
    let used = readme
        .lines()
        .filter(|line| line.starts_with("use portcullis_"));
    let used = used.flat_map(|line| line.split([':', '{', ',', '}', ';', ' ']));
    let others = [
        "ByPolicy",
        "Clock",
        "Clocked",
        "ForwardedFor",
        "LimiterExt",
        "MonotonicClock",
        "Policy",
        "Rate",
        "RateLimitLayer",
        "Rejected",
        "Timestamp",
        "TokioTimer",
    ];
    let is_limiter = |name: &&str| name.starts_with(char::is_uppercase) && !others.contains(name);
    let picture = Stable::of(&text_of(&document("docs/demo.svg")));
    let names = picture.names();
    let mut named = 0;
    for name in used.filter(is_limiter).chain(chosen) {
        named += 1;
        let words = words(name);
        let is_there = names.iter().any(|row| row.starts_with(&words));
        assert!(is_there, "the demo has no row for {name}");
    }
    assert!(named > 8, "{named}");
}
