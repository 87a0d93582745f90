//! The tables of all rules of a policy together: how much memory they take, and what refuses more.

#[path = "../../core/tests/support/allocations.rs"]
mod allocations;

use core::time::Duration;

use allocations::peak;
use portcullis_policy::{
    Algorithm, DEFAULT_TABLE_BYTES, Imported, Key, Limit, Policy, PolicySettings, Rule, Threshold,
};

fn rule(name: &str, keys: usize) -> Rule {
    Rule::new(name)
        .key(Key::path())
        .keys(keys)
        .limit("5/s".parse().unwrap())
}

fn errors(rules: Vec<Rule>, table_bytes: usize) -> Vec<String> {
    let settings = PolicySettings::new().table_bytes(table_bytes);
    let errors = Policy::with_settings(rules, settings).unwrap_err();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_memory_of_a_policy_is_that_of_its_tables() {
    let limit = |text: &str| text.parse::<Limit>().unwrap();
    let window = Duration::from_secs(10);
    let waiting = limit("3/s").algorithm_of(Algorithm::WindowFromRequest);
    let of_kinds = [
        rule("bucket", 10_000),
        rule("held", 10_000).hold(window),
        rule("penalty", 10_000).penalty(window),
        rule("window", 10_000).limit(limit("9/m").algorithm_of(Algorithm::FixedWindow)),
        rule("wait", 1_000).limit(waiting.clone().wait(window)),
        rule("sliding", 100)
            .limit(limit("9/m").algorithm_of(Algorithm::SlidingWindow { segments: 9 })),
        rule("threshold", 1_000).threshold(Threshold::new(5, window, "deny").holding_for(window)),
        (0..1_000).fold(rule("overrides", 10).penalty(window), |rule, index| {
            rule.override_key([format!("/{index}")], [limit("7/m")])
        }),
        rule("several", 10_000)
            .limit(limit("9/m"))
            .limit(limit("99/d")),
        (0..1_000).fold(rule("overrides with several", 10), |rule, index| {
            let limits = ["7/m", "70/h", "700/d"].map(limit);
            rule.override_key([format!("/{index}")], limits)
        }),
        Rule::new("shared")
            .limit(limit("5/s"))
            .limit(waiting.wait(window)),
    ];
    for rule in of_kinds {
        let name = rule.name().to_owned();
        let (policy, bytes) = peak(|| Policy::new([rule]).unwrap());
        let counted = policy.table_bytes();
        assert!(counted <= bytes, "{name}: {counted} of {bytes}");
        // One table is copied while it is created.
        assert!(
            bytes <= 2 * counted + 20_000,
            "{name}: {counted} of {bytes}"
        );
    }
}

/// The table of the guide, for 100,000 keys.
#[test]
fn a_key_takes_as_many_bytes_as_the_guide_says() {
    const GUIDE: &str = include_str!("../../docs/policies.md");
    const KEYS: usize = 100_000;
    let second = Duration::from_secs(1);
    let bytes = |more: &dyn Fn(Rule) -> Rule| {
        let rule = Rule::new("a").key(Key::path()).keys(KEYS);
        Policy::new([more(rule)]).unwrap().table_bytes() / KEYS
    };
    let with = |limit: Limit| bytes(&|rule| rule.limit(limit.clone()));
    let limit = || "10/s".parse::<Limit>().unwrap();
    let waiting = limit().algorithm_of(Algorithm::WindowFromRequest);
    let sliding = limit().algorithm_of(Algorithm::SlidingWindow { segments: 10 });
    let threshold = || Threshold::new(5, second, "deny");
    let plain = with(limit());
    let counted = bytes(&|rule| rule.threshold(threshold()));
    let rows = [
        ("a limit", plain),
        ("a limit with a `wait`", with(waiting.wait(second))),
        ("a sliding window", with(sliding)),
        (
            "a `penalty`",
            bytes(&|rule| rule.limit(limit()).penalty(second)) - plain,
        ),
        ("`thresholds` with one window", counted),
        (
            "each threshold with a `hold`",
            bytes(&|rule| rule.threshold(threshold().holding_for(second))) - counted,
        ),
        (
            "a token bucket in a rule with a `hold`, in addition",
            bytes(&|rule| rule.limit(limit()).hold(second)) - plain,
        ),
    ];
    for (what, bytes) in rows {
        let start = format!("| {what} | ");
        let row = GUIDE.lines().find_map(|line| line.strip_prefix(&start));
        let told = row.unwrap_or_else(|| panic!("docs/policies.md lacks {what}"));
        let told: usize = told
            .trim_end_matches([' ', '|'])
            .replace(',', "")
            .parse()
            .unwrap();
        assert!(
            told.abs_diff(bytes) * 50 <= bytes,
            "{what}: {bytes}, not {told}"
        );
    }
}

#[test]
fn the_first_rule_that_does_not_fit_is_named_before_any_table_is_created() {
    let rules = || vec![rule("a", 10_000), rule("b", 20_000), rule("c", 10)];
    let bytes = Policy::new(rules()).unwrap().table_bytes();
    assert!(Policy::with_settings(rules(), PolicySettings::new().table_bytes(bytes)).is_ok());
    let [of_a, of_b] = [10_000, 20_000].map(|keys| {
        let policy = Policy::new([rule("a", keys)]).unwrap();
        policy.table_bytes()
    });
    let (all, most) = (of_a + of_b, of_a + of_b - 1);
    let (refused, peak) = peak(|| errors(rules(), most));
    assert_eq!(
        refused,
        [format!(
            "rule `b`: keys: the tables of all rules up to this one take {all} bytes, of which \
             this rule's take {of_b}: at most {most} are allowed (table_bytes)"
        )]
    );
    assert!(peak < 50_000, "{peak} bytes");
    // Settings that are not valid are reported first.
    let invalid = vec![rule("a", 10_000), rule("b", 0)];
    assert_eq!(errors(invalid, 1), ["rule `b`: keys: must be at least 1"]);
}

/// 8 rules, whose tables take more than the default together, and each less than a rule may take.
#[test]
fn the_default_bounds_all_rules_together() {
    let keys = 3_200_000;
    let rules = (0..8).map(|index| rule(&index.to_string(), keys));
    let (refused, peak) = peak(|| Policy::new(rules).unwrap_err());
    assert_eq!(&*refused[0].rule, "7");
    assert!(peak < 50_000, "{peak} bytes");
    assert_eq!(DEFAULT_TABLE_BYTES, 1 << 30);
}

#[test]
fn a_file_sets_the_bound_and_an_error_points_to_the_keys_of_its_rule() {
    let file = |bytes: &str| {
        format!(
            "{bytes}\n[[rules]]\nname = 'a'\nkey = ['path']\nlimits = ['5/s']\n[[rules]]\n\
             name = 'b'\nkey = ['path']\nkeys = 30_000\nlimits = ['5/s']\n"
        )
    };
    assert!(Policy::from_toml(&file("")).is_ok());
    assert!(Policy::from_toml(&file("table_bytes = 1_500_000")).is_ok());
    let errors = Policy::from_toml(&file("table_bytes = 1_000_000")).unwrap_err();
    let error = errors[0].to_string();
    assert!(
        error.starts_with("9:8: keys: the tables of all rules up to this one"),
        "{error}"
    );
    let errors = Policy::from_toml("table_bytes = -1\nrules = []").unwrap_err();
    let error = "1:15: table_bytes: `-1` is not from 0 to 9223372036854775807";
    assert_eq!(errors[0].to_string(), error);
}

#[test]
fn too_many_routes_are_a_warning_until_their_rules_are_put_in_force() {
    let route = |index| {
        format!(
            r#"{{ "Key": "r{index}", "UpstreamPathTemplate": "/{index}",
                  "RateLimitOptions": {{ "Limit": 1, "Period": "1s", "Wait": "1h" }} }}"#
        )
    };
    let routes: Vec<_> = (0..3_000).map(route).collect();
    let file = format!("{{ \"Routes\": [{}] }}", routes.join(",\n"));
    let mut imported = Imported::from_ocelot(&file).unwrap();
    let [warning] = &imported.warnings[..] else {
        panic!("{:?}", imported.warnings)
    };
    assert!(
        warning
            .message
            .starts_with("the tables of all rules up to this one take")
    );
    let refused = imported.clone().into_policy().unwrap_err();
    assert!(warning.message.ends_with(&refused[0].problem));
    let name = format!("\"Key\": \"{}\"", refused[0].rule);
    assert!(file[warning.bytes.clone()].contains(&name));
    for rule in &mut imported.rules {
        *rule = rule.clone().keys(100);
    }
    assert!(imported.into_policy().is_ok());
}
