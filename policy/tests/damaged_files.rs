//! Files that are damaged, random, or made to be slow to read: each is a policy, or is refused with
//! errors that point into it. `PROPTEST_CASES` sets how many random files are read.

use core::time::Duration;
use std::time::Instant;

use portcullis_policy::{FileError, Policy};
use proptest::collection::vec;
use proptest::prelude::*;

type Read = fn(&str) -> Result<Policy, Vec<FileError>>;

const TOML: Read = Policy::from_toml;
const JSON: Read = Policy::from_json;

/// Valid files of each format, to be damaged.
const FILES: [(Read, &str); 3] = [
    (TOML, include_str!("../examples/service.toml")),
    (JSON, include_str!("../examples/service.json")),
    (
        JSON,
        r#"{"rules":[{"name":"é","properties":{"a":["b"]},"key":["path"],"limits":["1/s"],
        "overrides":[{"key":["/"],"limits":[{"rate":"2/m","wait":"5s","algorithm":
        "window-from-request"}]}],"thresholds":[{"at":"5/10s","decision":"deny","hold":"1m"}]}]}"#,
    ),
];

#[test]
fn the_files_are_valid_before_they_are_damaged() {
    for (format, text) in FILES {
        assert!(read(format, text).is_ok());
    }
}

/// Reads a file. All its errors must point into it, in its order.
fn read(read: Read, text: &str) -> Result<Policy, Vec<FileError>> {
    let policy = read(text);
    if let Err(errors) = &policy {
        assert!(!errors.is_empty());
        assert!(errors.is_sorted_by_key(|error| error.bytes.start));
        let (mut at, mut line) = (0, 1);
        for error in errors {
            assert!(text.get(error.bytes.clone()).is_some(), "{error}");
            line += text[at..error.bytes.start].matches('\n').count();
            at = error.bytes.start;
            assert_eq!(error.line, line, "{error}");
            assert!(error.column > 0, "{error}");
            assert!(!error.message.contains(char::is_control), "{error:?}");
        }
    }
    policy
}

/// Pieces of both formats.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        "[\\[\\]{}=,:\"'a-z0-9/*%.\\n\\\\ é#-]{0,6}",
        any::<char>().prop_map(|any| any.to_string()),
        proptest::sample::select(vec![
            "[[rules]]\n",
            "[",
            "]",
            "{",
            "}",
            "\"",
            "'",
            "'''",
            "\"\"\"",
            "//",
            "/*",
            "*/",
            "#",
            "\n",
            "\\u0000",
            "\\ud800",
            "\\",
            "1e999",
            "-1",
            "18446744073709551616",
            "0x7f",
            "null",
            "true",
            "1979-05-27",
            "inf",
            "\u{feff}",
            "\"rules\":",
            "rules = ",
            "name = ",
            "\"limits\":",
            "limits = ",
            "\"5/m\"",
            "'1/0s'",
            "key = ['path']",
            "{ rate = \"",
            "{ \"at_once\": ",
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_refused_with_errors_that_point_into_them(
        file in 0..FILES.len(),
        changes in vec((any::<u16>(), 0_usize..40, any::<u16>(), piece()), 1..6),
    ) {
        let (format, valid) = FILES[file];
        let mut text = valid.to_owned();
        for (at, len, from, with) in changes {
            let place = |at: u16| text.floor_char_boundary(usize::from(at) % (text.len() + 1));
            let (at, from) = (place(at), place(from));
            let end = |at: usize| text.ceil_char_boundary((at + len).min(text.len()));
            // A piece of the file itself, or another one.
            let with = if with.is_empty() { text[from..end(from)].to_owned() } else { with };
            text.replace_range(at..end(at), &with);
        }
        let _ = read(format, &text);
    }

    #[test]
    fn random_text_is_refused_with_errors_that_point_into_it(
        pieces in vec(piece(), 0..40),
        bytes in vec(any::<u8>(), 0..60),
    ) {
        for text in [pieces.concat(), String::from_utf8_lossy(&bytes).into_owned()] {
            for format in [TOML, JSON] {
                let _ = read(format, &text);
            }
        }
    }
}

/// About `len` bytes of pieces.
fn repeated(len: usize, piece: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        if text.len() >= len {
            break;
        }
        text += &piece(index);
    }
    text
}

#[test]
fn no_file_is_slow_to_read() {
    const LEN: usize = 30_000;
    let rules = |rule: &dyn Fn(usize) -> String| {
        repeated(LEN, |index| {
            format!("[[rules]]\nname='{index}'\n{}\n", rule(index))
        })
    };
    let one = |settings: &[&str], value: &dyn Fn(usize) -> String| {
        let setting = |setting: &&str| {
            let values = repeated(LEN, |index| format!("'{}',", value(index)));
            format!("{setting}=[{values}]\n")
        };
        let settings: String = settings.iter().map(setting).collect();
        format!("[[rules]]\nname='a'\n{settings}")
    };
    let network = |index: usize| format!("10.{}.{}.0/24", index >> 8 & 255, index & 255);
    let deep = |index| {
        let components = (0..32).map(|at| format!("/{index}-{at}"));
        format!("paths=['{}']", components.collect::<String>())
    };
    let exempt = repeated(LEN, |index| format!("a{index}=['x'],"));
    let overrides = repeated(LEN, |index| format!("{{key=['{index}'],limits=['1/s']}},"));
    let key = "[[rules]]\nname='a'\nkey=['path']\nlimits=['1/s']";
    for (format, is_valid, text) in [
        (TOML, true, rules(&|_| String::new())),
        (TOML, true, rules(&|index| format!("paths=['/{index}']"))),
        (TOML, true, rules(&deep)),
        (TOML, true, rules(&|index| format!("hosts=['a{index}']"))),
        (
            TOML,
            true,
            rules(&|index| format!("hosts=['{}']", network(index))),
        ),
        (
            TOML,
            true,
            rules(&|index| format!("properties.a=['{index}']")),
        ),
        (
            TOML,
            false,
            rules(&|index| format!("properties.a{index}=['x']")),
        ),
        (
            TOML,
            false,
            rules(&|_| "keys=0\nstatus=1\nx=1\nhosts=['/']".into()),
        ),
        (
            TOML,
            false,
            repeated(LEN, |_| "[[rules]]\nname='a'\n".into()),
        ),
        (TOML, true, one(&["paths"], &|index| format!("/{index}"))),
        (
            TOML,
            true,
            one(&["methods", "tiers"], &|index| format!("a{index}")),
        ),
        (TOML, true, one(&["hosts"], &|index| format!("a{index}"))),
        (TOML, true, one(&["hosts"], &network)),
        (
            TOML,
            true,
            one(&["key"], &|index| format!("header:{index}")),
        ),
        (
            TOML,
            false,
            one(&["limits"], &|index| format!("{}/s", index + 1)),
        ),
        // In one rule, these would be pairs of every path and every value.
        (
            TOML,
            false,
            one(&["paths", "hosts"], &|index| format!("a{index}")),
        ),
        (
            TOML,
            false,
            one(&["paths", "methods"], &|index| format!("a{index}")),
        ),
        (
            TOML,
            true,
            format!("{key}\nexempt={{headers={{{exempt}}}}}\n"),
        ),
        (TOML, true, format!("{key}\noverrides=[{overrides}]\n")),
        (TOML, false, repeated(LEN, |index| format!("a{index}=1\n"))),
        (TOML, false, repeated(LEN, |_| "a=1\n".into())),
        (TOML, false, format!("{}=1", "a".repeat(LEN))),
        (TOML, false, format!("rules={}", "[".repeat(LEN))),
        (TOML, false, "a={b=".repeat(LEN / 5)),
        (TOML, false, repeated(LEN, |_| "a.".into())),
        (
            TOML,
            false,
            repeated(LEN, |index| format!("[a{index}.b.c.d]\n")),
        ),
        (JSON, false, "[".repeat(LEN)),
        (JSON, false, "{\"a\":".repeat(LEN / 5)),
        (JSON, true, format!("{{{}}}", "/**/".repeat(LEN / 4))),
        (
            JSON,
            false,
            format!("{{\"{}\":1}}", "\\u0041".repeat(LEN / 6)),
        ),
        (
            JSON,
            false,
            format!("{{{}}}", repeated(LEN, |_| "\"a\":1,".into())),
        ),
        (
            JSON,
            false,
            format!("{{\"rules\":[{}]}}", "\n1,".repeat(LEN / 3)),
        ),
    ] {
        let start = Instant::now();
        let policy = read(format, &text);
        let elapsed = start.elapsed();
        assert_eq!(policy.is_ok(), is_valid, "{text:.100}");
        // Anything that grows with the square of the length takes minutes.
        assert!(
            elapsed < Duration::from_secs(20),
            "{elapsed:?} for {text:.100}"
        );
        let errors = policy.err().unwrap_or_default();
        let messages: usize = errors.iter().map(|error| error.message.len()).sum();
        assert!(messages < 200 * text.len(), "{messages} bytes of messages");
    }
}
