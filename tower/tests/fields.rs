//! The header fields of all generations, read and written.
//!
//! Names of the form `ietf_` are of the examples and rules of draft-ietf-httpapi-ratelimit-headers.

use core::time::Duration;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use portcullis_tower::fields::{Generation, Quota, ReadOptions, ResetForm, Stated, Unit};
use proptest::prelude::*;

/// 2026-11-23T10:00:00Z.
const NOW: u64 = 1_795_428_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(NOW)
}

fn options() -> ReadOptions {
    ReadOptions::new().now(now())
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a name of a field");
        headers.append(name, value.parse().expect("a value of a field"));
    }
    headers
}

fn read(lines: &[(&str, &str)]) -> Stated {
    Stated::read(&headers(lines), &options())
}

fn only(lines: &[(&str, &str)]) -> Quota<'static> {
    let quotas = read(lines).quotas;
    assert_eq!(quotas.len(), 1, "{quotas:?}");
    quotas[0].clone()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn ietf_policies_have_partitions_and_units() {
    let policy = r#""peruser";q=100;w=60;pk=:cHsdsRa894==:"#;
    let quota = only(&[("RateLimit-Policy", policy)]);
    assert_eq!(
        quota.partition.as_deref(),
        Some(&b"p{\x1d\xb1\x16\xbc\xf7"[..])
    );

    let policy = r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:"#;
    let quota = only(&[("RateLimit-Policy", policy)]);
    assert_eq!(quota.unit, Unit::ContentBytes);
    assert_eq!((quota.quota, quota.window), (Some(65_535), Some(secs(10))));
}

#[test]
fn ietf_an_exhausted_limit_agrees_with_retry_after() {
    let stated = read(&[
        ("Retry-After", "20"),
        ("RateLimit-Policy", r#""dynamic";q=15;w=20"#),
        ("RateLimit", r#""dynamic";r=0;t=20"#),
    ]);
    let quota = Quota::new(15).named("dynamic").window(secs(20));
    assert_eq!(stated.quotas, [quota.available(0).reset(secs(20))]);
    assert_eq!(stated.retry_after, Some(secs(20)));
}

#[test]
fn ietf_unknown_parameters_are_comments() {
    let quota = only(&[("RateLimit-Policy", r#""sliding";q=100;w=60;burst=1000"#)]);
    assert_eq!(quota, Quota::new(100).named("sliding").window(secs(60)));
}

#[test]
fn ietf_malformed_fields_are_ignored() {
    let malformed = [
        "r=-1",
        "r=1.5",
        r#"r="x""#,
        "t=5",
        "r=1;t=-1",
        "r=1;t=1.5",
        "r=1;pk=1",
    ];
    for state in malformed {
        let field = format!(r#""default";{state}, "other";r=1"#);
        assert_eq!(read(&[("RateLimit", &field)]).quotas, [], "{state}");
    }
    for policy in ["q=-1", "w=60", "q=1;w=0", "q=1;w=-1", "q=1;qu=2"] {
        let field = format!(r#""default";{policy}"#);
        let state = ("RateLimit", r#""default";r=5"#);
        let expected = Quota::default().named("default").available(5);
        assert_eq!(
            only(&[("RateLimit-Policy", &field), state]),
            expected,
            "{policy}"
        );
    }
    for field in [
        "",
        ",",
        "\"open",
        "(\"a\" \"b\");r=1",
        "?1;r=1",
        ";r=1",
        "\"a\";r=1,",
    ] {
        assert_eq!(read(&[("RateLimit", field)]).quotas, [], "{field}");
    }
}

#[test]
fn several_limits_and_several_lines_are_one_list() {
    let stated = read(&[
        ("RateLimit-Policy", r#""burst";q=100;w=60"#),
        ("RateLimit-Policy", r#""daily";q=1000;w=86400"#),
        ("RateLimit", r#""daily";r=7;t=500, "other";r=1"#),
    ]);
    let daily = Quota::new(1000).named("daily").window(secs(86_400));
    let expected = [
        Quota::new(100).named("burst").window(secs(60)),
        daily.available(7).reset(secs(500)),
        Quota::default().named("other").available(1),
    ];
    assert_eq!(stated.quotas, expected);
    assert_eq!(stated.tightest(), Some(&expected[2]));
}

#[test]
fn each_generation_is_read() {
    let bare = || Quota::new(100).available(50).reset(secs(5));
    let minute = || bare().window(secs(60));
    for family in ["RateLimit", "X-RateLimit", "X-Rate-Limit"] {
        let names = ["Limit", "Remaining", "Reset"].map(|name| format!("{family}-{name}"));
        for (limit, expected) in [("100", bare()), ("100, 100;w=60", minute())] {
            let lines = [(&*names[0], limit), (&*names[1], "50"), (&*names[2], "5")];
            assert_eq!(only(&lines), expected, "{family} {limit}");
        }
    }
    let draft_6 = [
        ("RateLimit-Limit", "100"),
        ("RateLimit-Remaining", "50"),
        ("RateLimit-Reset", "5"),
        ("RateLimit-Policy", "10;w=1, 100;w=60"),
    ];
    assert_eq!(only(&draft_6), minute());
    let draft_7 = [
        ("RateLimit", "limit=100, remaining=50, reset=5"),
        ("RateLimit-Policy", "10;w=1, 100;w=60"),
    ];
    assert_eq!(only(&draft_7), minute());
    let draft_11 = [
        ("RateLimit", r#""default";r=50;t=5"#),
        ("RateLimit-Policy", r#""default";q=100;w=60"#),
    ];
    assert_eq!(only(&draft_11), minute().named("default"));
    let next = [
        ("RateLimit", "default;a=50;w=5;c=2"),
        ("RateLimit-Policy", "default;q=100;w=60"),
    ];
    assert_eq!(only(&next), minute().named("default").cost(2));
    let beta = [
        ("Beta-RateLimit", r#""default";r=50;t=5"#),
        ("Beta-RateLimit-Policy", r#""default";q=100;w=60"#),
    ];
    assert_eq!(only(&beta), minute().named("default"));
}

#[test]
fn the_newest_generation_is_read_if_several_are_there() {
    let limit = ("X-RateLimit-Limit", "1");
    let remaining = ("X-RateLimit-Remaining", "2");
    let new = ("RateLimit", r#""default";r=50;t=5"#);
    assert_eq!(only(&[limit, remaining, new]).available, Some(50));
    let malformed = ("RateLimit", r#""default";r=-50;t=5"#);
    assert_eq!(only(&[limit, remaining, malformed]).available, Some(2));
}

#[test]
fn resets_are_told_apart_by_their_size_or_read_in_the_given_form() {
    let at = |text: &str, options: ReadOptions| {
        let lines = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", text)];
        Stated::read(&headers(&lines), &options).quotas[0].reset
    };
    let epoch = (NOW + 30).to_string();
    let millis = ((NOW + 30) * 1000 + 250).to_string();
    for (text, expected) in [
        ("30", Some(secs(30))),
        ("30.5", Some(Duration::from_millis(30_500))),
        (&*epoch, Some(secs(30))),
        (&*millis, Some(Duration::from_millis(30_250))),
        ("2026-11-23T10:00:30.0000000Z", Some(secs(30))),
        ("2026-11-23T12:00:30+02:00", Some(secs(30))),
        ("Mon, 23 Nov 2026 10:00:30 GMT", Some(secs(30))),
        ("2020-01-01T00:00:00Z", Some(secs(0))),
        ("soon", None),
        ("-1", None),
        ("1e3", None),
        ("", None),
    ] {
        assert_eq!(at(text, options()), expected, "{text}");
    }
    // A day at most, unless the options say otherwise.
    assert_eq!(at("999999999", options()), Some(secs(86_400)));
    assert_eq!(at("999999999", options().longest(secs(60))), Some(secs(60)));
    // Half an hour after 1970: only the form can tell.
    assert_eq!(
        at("1800", options().reset_form(ResetForm::Epoch)),
        Some(secs(0))
    );
    assert_eq!(
        at(&epoch, options().reset_form(ResetForm::Seconds)),
        Some(secs(86_400))
    );
    assert_eq!(at("30", options().reset_form(ResetForm::Iso)), None);
}

/// GitLab: `RateLimit-Reset: 1563325137`. No time from now is over 31 years, and no time since 1970
/// under.
#[test]
fn every_field_with_a_time_may_state_it_since_1970_in_any_unit() {
    let since_1970 = NOW + 30;
    let times = [
        "30".to_owned(),
        since_1970.to_string(),
        (since_1970 * 1_000).to_string(),
    ];
    let longer = [
        (since_1970 * 1_000_000).to_string(),
        (since_1970 * 1_000_000_000).to_string(),
    ];
    for time in &times {
        for lines in [
            [("RateLimit-Remaining", "0"), ("RateLimit-Reset", time)],
            [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", time)],
            [
                ("RateLimit", &*format!("limit=9, remaining=0, reset={time}")),
                ("A", "b"),
            ],
            [("RateLimit", &*format!("\"a\";r=0;t={time}")), ("A", "b")],
        ] {
            assert_eq!(only(&lines).reset, Some(secs(30)), "{lines:?}");
        }
    }
    for time in times.iter().chain(&longer) {
        let lines = [("RateLimit-Remaining", "0"), ("RateLimit-Reset", time)];
        assert_eq!(only(&lines).reset, Some(secs(30)), "{time}");
        let wait = read(&[("Retry-After", time)]).retry_after;
        assert_eq!(wait, Some(secs(30)), "{time}");
        let epoch = options().reset_form(ResetForm::Epoch);
        let lines = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", time)];
        let read = Stated::read(&headers(&lines), &epoch).quotas[0].reset;
        assert_eq!(
            read,
            Some(secs(if time == "30" { 0 } else { 30 })),
            "{time}"
        );
    }
    // The form is for the field that no standard defines.
    let seconds = options().reset_form(ResetForm::Seconds);
    let lines = [
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", &*times[1]),
    ];
    assert_eq!(
        Stated::read(&headers(&lines), &seconds).quotas[0].reset,
        Some(secs(30))
    );
    // A time that has passed.
    let lines = [
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", "1563325137"),
    ];
    assert_eq!(only(&lines).reset, Some(secs(0)));
}

/// Docker Hub: `ratelimit-limit: 100;w=21600`, `ratelimit-remaining: 76;w=21600`. Reddit:
/// `x-ratelimit-remaining: 598.0`.
#[test]
fn permits_may_have_a_window_and_a_fraction() {
    let docker = Quota::new(100).window(secs(21_600)).available(76);
    for (limit, remaining) in [
        ("100;w=21600", "76;w=21600"),
        ("100", "76;w=21600"),
        ("100;w=21600", "76"),
        ("100.0", "76.9 ; a=b; w=21600"),
        ("100.0000;w=21600", "76.00000"),
    ] {
        for family in ["RateLimit", "X-RateLimit"] {
            let names = ["Limit", "Remaining"].map(|name| format!("{family}-{name}"));
            let lines = [(&*names[0], limit), (&*names[1], remaining)];
            assert_eq!(only(&lines), docker, "{limit} {remaining}");
        }
    }
    let reddit = only(&[
        ("X-RateLimit-Used", "2"),
        ("X-RateLimit-Remaining", "0.0"),
        ("X-RateLimit-Reset", "123"),
    ]);
    assert_eq!(reddit, Quota::default().available(0).reset(secs(123)));
    for malformed in ["-1", "x", "", "1e3", "76;w=0", "w=60"] {
        let quotas = read(&[("RateLimit-Remaining", malformed)]).quotas;
        let expected = (malformed == "76;w=0").then(|| Quota::default().available(76));
        assert_eq!(quotas, Vec::from_iter(expected), "{malformed}");
    }
}

#[test]
fn absolute_times_are_relative_to_the_date_of_the_reply() {
    let stated = read(&[
        ("Date", "Mon, 23 Nov 2026 09:00:00 GMT"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "2026-11-23T09:00:30Z"),
        ("Retry-After", "Mon, 23 Nov 2026 09:00:40 GMT"),
    ]);
    assert_eq!(stated.quotas[0].reset, Some(secs(30)));
    assert_eq!(stated.retry_after, Some(secs(40)));
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    for (text, expected) in [
        ("120", Some(secs(120))),
        (" 120 ", Some(secs(120))),
        ("0", Some(secs(0))),
        ("0.35", Some(Duration::from_millis(350))),
        ("Mon, 23 Nov 2026 10:02:00 GMT", Some(secs(120))),
        ("Monday, 23-Nov-26 10:02:00 GMT", Some(secs(120))),
        ("Mon Nov 23 10:02:00 2026", Some(secs(120))),
        ("Sun, 22 Nov 2026 10:02:00 GMT", Some(secs(0))),
        ("99999999999999999999999", Some(secs(86_400))),
        ("-5", None),
        ("later", None),
        ("", None),
    ] {
        assert_eq!(
            read(&[("Retry-After", text)]).retry_after,
            expected,
            "{text}"
        );
    }
    let both = [("Retry-After", "7"), ("Retry-After", "5")];
    assert_eq!(read(&both).retry_after, Some(secs(7)));
}

#[test]
fn discord_states_a_bucket_and_a_fraction() {
    let quota = only(&[
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1470173023.123"),
        ("X-RateLimit-Reset-After", "64.57"),
        ("X-RateLimit-Bucket", "abcd1234"),
    ]);
    let expected = Quota::new(5).named("abcd1234").available(0);
    assert_eq!(quota, expected.reset(Duration::from_millis(64_570)));
}

#[test]
fn a_reply_from_a_cache_states_nothing() {
    let state = ("RateLimit", r#""default";r=0;t=5"#);
    assert_eq!(
        read(&[("Age", "3"), state, ("Retry-After", "9")]),
        Stated::default()
    );
    assert_eq!(only(&[("Age", "0"), state]).available, Some(0));
}

#[test]
fn at_most_32_limits_are_read() {
    let names: Vec<_> = (0..1000)
        .map(|name| format!("\"{name}\";r={name}"))
        .collect();
    let states = names.join(", ");
    let policies = states.replace("r=", "q=");
    for fields in [
        &[("RateLimit", &*states)][..],
        &[("RateLimit-Policy", &*policies)],
    ] {
        assert_eq!(read(fields).quotas.len(), 32);
    }
}

#[test]
fn each_generation_is_written() {
    let burst = Quota::new(100)
        .named("burst")
        .window(secs(60))
        .available(50)
        .cost(2);
    let burst = burst.reset(Duration::from_millis(4_001));
    let bytes = Quota::new(1 << 60)
        .named("a \"b\" ü")
        .unit(Unit::ContentBytes)
        .available(1 << 60);
    let quotas = [bytes, burst];

    let policy = r#""a \"b\" ?";q=999999999999999;qu="content-bytes", "burst";q=100;w=60"#;
    let draft_11 = r#""a \"b\" ?";r=999999999999999, "burst";r=50;t=5"#;
    let next = r#""a \"b\" ?";a=999999999999999, "burst";a=50;w=5;c=2"#;
    let three = |family: &str, reset: &str| {
        format!("{family}-limit: 100\n{family}-remaining: 50\n{family}-reset: {reset}\n")
    };
    let epoch = (NOW + 5).to_string();
    let rows = [
        (Generation::Off, String::new()),
        (Generation::X(ResetForm::Seconds), three("x-ratelimit", "5")),
        (
            Generation::X(ResetForm::Epoch),
            three("x-ratelimit", &epoch),
        ),
        (
            Generation::X(ResetForm::Iso),
            three("x-ratelimit", "2026-11-23T10:00:04.0010000Z"),
        ),
        (
            Generation::Draft6,
            three("ratelimit", "5")
                .replace("ratelimit-rem", "ratelimit-policy: 100;w=60\nratelimit-rem"),
        ),
        (
            Generation::Draft7,
            "ratelimit: limit=100, remaining=50, reset=5\nratelimit-policy: 100;w=60\n".to_owned(),
        ),
        (
            Generation::Draft11,
            format!("ratelimit: {draft_11}\nratelimit-policy: {policy}\n"),
        ),
        (
            Generation::Next,
            format!("ratelimit: {next}\nratelimit-policy: {policy}\n"),
        ),
    ];
    for (generation, expected) in rows {
        let mut written = HeaderMap::new();
        // The second time replaces the fields of the first.
        generation.write(&quotas, now(), &mut written);
        generation.write(&quotas, now(), &mut written);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}\n", value.to_str().expect("text"))
        };
        let mut lines: Vec<_> = written.iter().map(line).collect();
        lines.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
        assert_eq!(lines.concat(), expected, "{generation:?}");
    }
}

#[test]
fn a_limit_that_says_nothing_writes_nothing() {
    for generation in [Generation::Draft6, Generation::Draft7, Generation::Draft11] {
        let mut written = HeaderMap::new();
        generation.write(&[], now(), &mut written);
        generation.write(&[Quota::default().named("empty")], now(), &mut written);
        assert_eq!(written, HeaderMap::new(), "{generation:?}");
    }
}

fn quota() -> impl Strategy<Value = Quota<'static>> {
    let count = 0..1_000_000_000_000_000_u64;
    let time = prop::option::of((1..86_400_u64).prop_map(secs));
    let unit = prop_oneof![
        Just(Unit::Requests),
        Just(Unit::ContentBytes),
        Just(Unit::ConcurrentRequests),
        "[a-z]{1,9}".prop_map(|unit| Unit::Other(unit.into())),
    ];
    let policy = prop::option::of((count.clone(), time.clone(), unit));
    (policy, count, time).prop_map(|(policy, available, reset)| {
        let mut quota = Quota::default();
        if let Some((most, window, unit)) = policy {
            quota = Quota::new(most).unit(unit);
            quota.window = window;
        }
        quota.available = Some(available);
        quota.reset = reset;
        quota
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        quotas in prop::collection::btree_map("[ -~]{0,9}", quota(), 1..9),
    ) {
        let quotas = quotas.into_iter().map(|(name, quota)| quota.named(name));
        let mut quotas: Vec<_> = quotas.collect();
        // The reader lists the limits that have a policy first.
        quotas.sort_by_key(|quota| quota.quota.is_none());
        for generation in [Generation::Draft11, Generation::Next] {
            let mut written = HeaderMap::new();
            generation.write(&quotas, now(), &mut written);
            prop_assert_eq!(&Stated::read(&written, &options()).quotas, &quotas);
        }
    }
}

/// The number of cases, which a soak raises.
fn cases() -> u32 {
    std::env::var("PORTCULLIS_SOAK_CASES")
        .map_or(4_000, |cases| cases.parse().expect("a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Random bytes, and fields that are nearly right, are read in bounded memory.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        lines in prop::collection::vec((0..NAMES.len(), value()), 0..8),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &lines {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(HeaderName::from_static(NAMES[*name]), value);
            }
        }
        let stated = Stated::read(&headers, &options());
        prop_assert!(stated.quotas.len() <= 32);
        let resets = stated.quotas.iter().filter_map(|quota| quota.reset);
        prop_assert!(resets.chain(stated.retry_after).all(|time| time <= secs(86_400)));
    }
}

const NAMES: [&str; 16] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "beta-ratelimit",
    "beta-ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-bucket",
    "x-rate-limit-remaining",
    "retry-after",
    "date",
    "age",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    const FIXED: &[&str] = &[
        "\"default\"",
        ";r=50",
        ";t=5",
        ";q=100",
        ";w=60",
        ";pk=:AAAA:",
        ", ",
        "limit=100",
        "remaining=",
        "(",
        "2026-11-23T10:00:30Z",
        "Mon, 23 Nov 2026 10:00:30 GMT",
    ];
    let part = prop_oneof![
        4 => prop::sample::select(FIXED).prop_map(|part: &str| part.to_owned()),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => any::<f64>().prop_map(|number| number.to_string()),
        1 => "[ -~]{0,4}",
    ];
    prop_oneof![
        3 => prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

#[test]
fn a_state_belongs_to_the_policy_of_its_partition() {
    let stated = read(&[
        (
            "ratelimit-policy",
            r#""a";q=10;pk=:YQ==:, "a";q=20;pk=:Yg==:"#,
        ),
        ("ratelimit", r#""a";r=3;pk=:Yg==:"#),
    ]);
    let found: Vec<_> = stated
        .quotas
        .iter()
        .map(|q| (q.quota, q.available))
        .collect();
    assert_eq!(found, [(Some(10), None), (Some(20), Some(3))]);
}

#[test]
fn a_dictionary_with_a_malformed_member_is_ignored() {
    for value in [
        "limit=10, remaining=3, reset=x",
        "limit=(1 2), remaining=3, reset=5",
    ] {
        assert_eq!(read(&[("ratelimit", value)]).quotas, [], "{value}");
    }
}

#[test]
fn three_fields_without_a_prefix_come_before_those_with_one() {
    let lines = [("x-ratelimit-remaining", "2"), ("ratelimit-remaining", "1")];
    assert_eq!(only(&lines).available, Some(1));
}

#[test]
fn of_limits_with_equal_permits_the_one_that_is_reset_last_is_the_tightest() {
    let value = r#""a";r=1;t=5, "b";r=1;t=9, "c";r=1;t=7"#;
    let stated = read(&[("ratelimit", value)]);
    assert_eq!(stated.tightest().unwrap().name.as_deref(), Some("b"));
}

#[test]
fn a_window_is_at_least_a_second() {
    let mut headers = HeaderMap::new();
    let quota = Quota::new(5).window(Duration::ZERO);
    Generation::Draft11.write(&[quota], now(), &mut headers);
    assert_eq!(headers["ratelimit-policy"], r#""default";q=5;w=1"#);
}
