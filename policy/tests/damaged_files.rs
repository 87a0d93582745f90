//! Files that are damaged, random, or made to be slow to read: each is a policy, or is refused with
//! errors that point into it. `PROPTEST_CASES` sets how many random files of each format are read.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;
#[path = "../../core/tests/support/busy.rs"]
mod busy;

use core::time::Duration;

use allocations::peak;
use busy::busy;
use portcullis_policy::{DEFAULT_TABLE_BYTES, FileError, Imported, Policy};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

type Read = fn(&str) -> Result<Policy, Vec<FileError>>;

const TOML: Read = Policy::from_toml;
const JSON: Read = Policy::from_json;
const OCELOT: Read = |text| imported(text, Imported::from_ocelot(text));
const ATS: Read = |text| imported(text, Imported::from_ats(text));

/// Puts rules in force that were read from `text`. Warnings point into the file too.
fn imported(
    text: &str,
    imported: Result<Imported, Vec<FileError>>,
) -> Result<Policy, Vec<FileError>> {
    let imported = imported?;
    check(text, &imported.warnings);
    Ok(imported
        .into_policy()
        .expect("the rules of a file were checked when it was read"))
}

/// Valid files of each format, to be damaged.
const TOML_FILES: &[&str] = &[include_str!("../examples/service.toml")];
const JSON_FILES: &[&str] = &[
    include_str!("../examples/service.json"),
    r#"{"rules":[{"name":"é","properties":{"a":["b"]},"key":["path"],"limits":["1/s"],
    "overrides":[{"key":["/"],"limits":[{"rate":"2/m","wait":"5s","algorithm":
    "window-from-request"}]}],"thresholds":[{"at":"5/10s","decision":"deny","hold":"1m"}]}]}"#,
];
const OCELOT_FILES: &[&str] = &[
    include_str!("../examples/ocelot.json"),
    r#"{"Routes":[{"Key":"é","UpstreamPathTemplate":"/a{b}/{c}?x={d}","UpstreamHost":"h.example",
    "DownstreamPathTemplate":"/d","Priority":-2,"RouteIsCaseSensitive":true,"RateLimitOptions":{
    "EnableRateLimiting":"True","ClientWhitelist":["v"],"Period":"1.5m","PeriodTimespan":-2.5,
    "Limit":"3","HttpStatusCode":503,"QuotaExceededMessage":"{{{0:N0} in {1}",
    "RateLimitCounterPrefix":"p","DisableRateLimitHeaders":true}},{"Key":"g",
    "UpstreamPathTemplate":"/g","DownstreamPathTemplate":"/g/h","UpstreamHttpMethod":["Get"]}],
    "Aggregates":[{"UpstreamPathTemplate":"/","RouteKeys":["é","g"]}],"GlobalRateLimitRules":[
    {"Name":"n","Pattern":"/g/{x}","Methods":["GET"],"Limit":1,"Period":"7d"}]}"#,
    r#"{"DynamicRoutes":[{"ServiceName":"s","ServiceNamespace":"n","RateLimitRule":{"Limit":1,
    "Period":"1s","ClientIdHeader":"X"}}],"GlobalConfiguration":{"ServiceDiscoveryProvider":{
    "Type":"Consul"},"RateLimitOptions":{"RouteKeys":["a"],"Limit":5,"KeyPrefix":"k"}}}"#,
];
const ATS_FILES: &[&str] = &[
    include_str!("../examples/ats.json"),
    r#"{
    // Two thresholds of one window.
    "policies": [
        {
            "category": "contoso.getstatus", "windowDuration": "00:00:10",
            "thresholds": [
                { "minDecisionDuration": "00:00:05", "decisionType": "Slow", "value": 100 },
                { "minDecisionDuration": "7.00:01:00.5", "decisionType": "é", "value": 200 },
            ]
        },
        {
            "Category": "b", "WindowDuration": "1:02:03.0000001",
            "thresholds": [ { "decisionType": "Stop", "value": 4294967295 } ]
        },
    ]
}"#,
];

const FILES: [(Read, &[&str]); 4] = [
    (TOML, TOML_FILES),
    (JSON, JSON_FILES),
    (OCELOT, OCELOT_FILES),
    (ATS, ATS_FILES),
];

#[test]
fn the_files_are_valid_before_they_are_damaged() {
    for (format, files) in FILES {
        for text in files {
            assert_eq!(read(format, text).err(), None, "{text}");
        }
    }
}

/// Reads a file, in bounded time and memory. All its errors must point into it.
fn read(read: Read, text: &str) -> Result<Policy, Vec<FileError>> {
    let start = busy();
    let (policy, bytes) = peak(|| read(text));
    let elapsed = busy().saturating_sub(start);
    assert!(
        elapsed < Duration::from_secs(20),
        "{elapsed:?} for {text:.100}"
    );
    // The tables, of which one is copied when it is created, and the matcher.
    let most = 2 * DEFAULT_TABLE_BYTES + (1 << 20) + 4_000 * text.len();
    assert!(bytes < most, "{bytes} bytes for {text:.100}");
    if let Err(errors) = &policy {
        assert!(!errors.is_empty());
        check(text, errors);
    }
    policy
}

/// Messages must point into their file, in its order.
fn check(text: &str, messages: &[FileError]) {
    assert!(messages.is_sorted_by_key(|message| message.bytes.start));
    let (mut at, mut line) = (0, 1);
    for message in messages {
        assert!(text.get(message.bytes.clone()).is_some(), "{message}");
        line += text[at..message.bytes.start].matches('\n').count();
        at = message.bytes.start;
        assert_eq!(message.line, line, "{message}");
        assert!(message.column > 0, "{message}");
        assert!(!message.message.contains(char::is_control), "{message:?}");
    }
}

/// Pieces of all formats.
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
            "\"Limit\": 0,",
            "\"Limit\": \"9223372036854775807\",",
            "\"Period\": \"-1.5M\",",
            "\"Wait\": \"1h\",",
            "\"PeriodTimespan\": 1e300,",
            "\"Pattern\": \"/{x}/\",",
            "\"EnableRateLimiting\": false,",
            "\"DynamicRoutes\": [",
            "{0}{1,5}{{",
            "{everything}",
            "{",
            "?",
            "\"value\": 4294967296,",
            "\"00:00:10\"",
            "\"10675199.23:59:59.9999999\"",
            "99999999999d",
        ])
        .prop_map(str::to_owned),
    ]
}

/// One damage of a file.
#[derive(Clone, Debug)]
enum Damage {
    /// Another text instead of some bytes.
    Replace(u16, usize, String),
    /// A piece of a file of any format instead of some bytes.
    Splice(u16, usize, (usize, u16, usize)),
    /// Another number instead of the digits at a place.
    Number(u16, &'static str),
    /// The end is missing.
    Truncate(u16),
}

/// Numbers at the ends of ranges, and beyond them.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "59",
    "600",
    "30000",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
    "00000000000000000000000000000000000000001",
    "-1",
    "1.5",
    "1e9",
];

fn damage() -> impl Strategy<Value = Damage> {
    let all: usize = FILES.iter().map(|(_, files)| files.len()).sum();
    prop_oneof![
        6 => (any::<u16>(), 0_usize..40, piece())
            .prop_map(|(at, len, piece)| Damage::Replace(at, len, piece)),
        3 => (any::<u16>(), 0_usize..200, (0..all, any::<u16>(), 0_usize..400))
            .prop_map(|(at, len, from)| Damage::Splice(at, len, from)),
        6 => (any::<u16>(), proptest::sample::select(NUMBERS))
            .prop_map(|(at, number)| Damage::Number(at, number)),
        1 => any::<u16>().prop_map(Damage::Truncate),
    ]
}

impl Damage {
    fn apply(self, text: &mut String) {
        /// The bytes of a text from a place on.
        fn range(text: &str, at: u16, len: usize) -> core::ops::Range<usize> {
            let at = text.floor_char_boundary(usize::from(at) % (text.len() + 1));
            at..text.ceil_char_boundary((at + len).min(text.len()))
        }
        match self {
            Self::Replace(at, len, with) => text.replace_range(range(text, at, len), &with),
            Self::Splice(at, len, (file, from, from_len)) => {
                let mut all = FILES.iter().flat_map(|(_, files)| *files);
                let from_text = all.nth(file).unwrap();
                let with = &from_text[range(from_text, from, from_len)];
                text.replace_range(range(text, at, len), with);
            }
            Self::Number(nth, number) => {
                let mut digits: Vec<(usize, usize)> = Vec::new();
                for (at, _) in text.match_indices(|c: char| c.is_ascii_digit()) {
                    match digits.last_mut() {
                        Some((_, end)) if *end == at => *end += 1,
                        _ => digits.push((at, at + 1)),
                    }
                }
                if let Some(&(from, to)) = digits.get(usize::from(nth) % digits.len().max(1)) {
                    text.replace_range(from..to, number);
                }
            }
            Self::Truncate(at) => text.truncate(range(text, at, 0).start),
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Damages the valid files of a format.
fn damage_files((format, files): (Read, &[&str])) {
    let damages = (0..files.len(), vec(damage(), 1..6));
    let result = TestRunner::new(config()).run(&damages, |(file, damages)| {
        let mut text = files[file].to_owned();
        for damage in damages {
            damage.apply(&mut text);
        }
        let _ = read(format, &text);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn a_damaged_toml_is_refused_with_errors_that_point_into_it() {
    damage_files(FILES[0]);
}

#[test]
fn a_damaged_json_is_refused_with_errors_that_point_into_it() {
    damage_files(FILES[1]);
}

#[test]
fn a_damaged_ocelot_json_is_refused_with_errors_that_point_into_it() {
    damage_files(FILES[2]);
}

#[test]
fn a_damaged_file_of_ats_is_refused_with_errors_that_point_into_it() {
    damage_files(FILES[3]);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_text_is_refused_with_errors_that_point_into_it(
        pieces in vec(piece(), 0..40),
        bytes in vec(any::<u8>(), 0..60),
    ) {
        for text in [pieces.concat(), String::from_utf8_lossy(&bytes).into_owned()] {
            for (format, _) in FILES {
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

const LEN: usize = 30_000;

/// Reads a file of about [`LEN`] bytes. Anything that grows with the square of the length takes
/// minutes.
fn read_quickly(format: Read, is_valid: bool, text: &str) {
    let policy = read(format, text);
    assert_eq!(policy.is_ok(), is_valid, "{text:.100}");
    let errors = policy.err().unwrap_or_default();
    let messages: usize = errors.iter().map(|error| error.message.len()).sum();
    assert!(messages < 200 * text.len(), "{messages} bytes of messages");
}

#[test]
fn no_file_of_rules_is_slow_to_read() {
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
        (
            JSON,
            true,
            format!("{{{}\"rules\":[]}}", "/**/".repeat(LEN / 4)),
        ),
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
        read_quickly(format, is_valid, &text);
    }
}

#[test]
fn no_file_of_another_system_is_slow_to_read() {
    let list = |name: &str, entry: &dyn Fn(usize) -> String| {
        let entries = repeated(LEN, |index| entry(index) + ",\n");
        format!("{{\"{name}\":[{entries}]}}")
    };
    let repeated_in = |before: &str, piece: &str, after: &str| {
        [before, &repeated(LEN, |_| piece.into()), after].concat()
    };
    let options = "{\"Limit\":1,\"Period\":\"1s\",\"Wait\":\"1m\"}";
    let route = |index| {
        format!("{{\"UpstreamPathTemplate\":\"/{index}/{{x}}\",\"RateLimitOptions\":{options}}}")
    };
    let service =
        |index| format!("{{\"ServiceName\":\"s{index}\",\"RateLimitOptions\":{options}}}");
    let category = |index| {
        format!(
            "{{\"category\":\"{index}\",\"windowDuration\":\"0:0:1\",\"thresholds\":\
             [{{\"value\":1,\"decisionType\":\"d\"}}]}}"
        )
    };
    for (format, is_valid, text) in [
        (OCELOT, true, list("Routes", &route)),
        (OCELOT, true, list("DynamicRoutes", &service)),
        (
            OCELOT,
            true,
            list("Routes", &|_| "{\"UpstreamPathTemplate\":\"/\"}".into()),
        ),
        (
            OCELOT,
            false,
            list("Routes", &|_| "{\"RateLimitOptions\":{\"Limit\":0}}".into()),
        ),
        (
            OCELOT,
            false,
            list("Routes", &|_| {
                format!("{{\"UpstreamPathTemplate\":\"/{}\"}}", "{a".repeat(99))
            }),
        ),
        (
            OCELOT,
            false,
            repeated_in(
                "{\"Routes\":[{\"UpstreamPathTemplate\":\"/\",\"RateLimitOptions\":\
            {\"Limit\":1,\"Period\":\"1s\",\"QuotaMessage\":\"",
                "{0}",
                "\"}}]}",
            ),
        ),
        (ATS, true, list("policies", &category)),
        (
            ATS,
            false,
            list("policies", &|_| {
                "{\"category\":\"a\",\"windowDuration\":\"1:1\",\"thresholds\":[]}".into()
            }),
        ),
        (
            ATS,
            false,
            repeated_in(
                "{\"policies\":[{\"category\":\"a\",\"windowDuration\":\"0:0:1\",\"thresholds\":[",
                "{},",
                "]}]}",
            ),
        ),
    ] {
        read_quickly(format, is_valid, &text);
    }
}
