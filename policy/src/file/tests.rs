//! The published schema is that of the reader.

use std::collections::BTreeSet;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

use super::{
    ALGORITHMS, EXEMPT, FILE, KINDS, LIMIT, ON_MISSING, OVERRIDE, PATHS, READINGS, RULE, THRESHOLD,
};
use crate::document::{self, Names, Node, Reader, Table, words};
use crate::limit::MAX_SEGMENTS;
use crate::policy::Policy;
use crate::rule::MAX_LIMITS;
use crate::thresholds::{MAX_THRESHOLD_SEGMENTS, MAX_THRESHOLDS};

const SCHEMA: &str = include_str!("../../schema/portcullis-policy.schema.json");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

struct Validator {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Validator {
    fn new() -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler
            .add_resource("policy.schema.json", schema())
            .unwrap();
        let index = compiler.compile("policy.schema.json", &mut schemas);
        Self {
            index: index.unwrap(),
            schemas,
        }
    }

    fn accepts(&self, file: &Value) -> bool {
        self.schemas.validate(file, self.index).is_ok()
    }
}

fn names<'n>(names: impl IntoIterator<Item = &'n str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// The names of an object of the schema.
fn keys(schema: &Value, pointer: &str) -> BTreeSet<String> {
    let object = schema.pointer(pointer).and_then(Value::as_object);
    names(object.expect(pointer).keys().map(String::as_str))
}

/// The strings of an array of the schema.
fn strings(schema: &Value, pointer: &str) -> BTreeSet<String> {
    let array = schema.pointer(pointer).and_then(Value::as_array);
    names(array.expect(pointer).iter().filter_map(Value::as_str))
}

#[test]
fn the_schema_has_the_settings_and_the_choices_of_the_reader() {
    let schema = schema();
    assert_eq!(keys(&schema, "/properties"), names(words(FILE)));
    assert_eq!(
        keys(&schema, "/properties/paths/properties"),
        names(words(PATHS))
    );
    assert_eq!(keys(&schema, "/$defs/rule/properties"), names(words(RULE)));
    assert_eq!(
        keys(&schema, "/$defs/limit/properties"),
        names(words(LIMIT))
    );
    assert_eq!(
        keys(&schema, "/$defs/rule/properties/exempt/properties"),
        names(words(EXEMPT))
    );
    assert_eq!(
        keys(&schema, "/$defs/rule/properties/overrides/items/properties"),
        names(words(OVERRIDE))
    );
    let thresholds = "/$defs/rule/properties/thresholds";
    assert_eq!(
        keys(&schema, &format!("{thresholds}/items/properties")),
        names(words(THRESHOLD))
    );
    for (pointer, choices) in [
        (
            "/$defs/rule/properties/kind/enum",
            KINDS.map(|(name, _)| name).to_vec(),
        ),
        (
            "/properties/paths/properties/reading/enum",
            READINGS.map(|(name, _)| name).to_vec(),
        ),
        (
            "/$defs/rule/properties/on_missing/enum",
            ON_MISSING.map(|(name, _)| name).to_vec(),
        ),
        (
            "/$defs/limit/properties/algorithm/enum",
            ALGORITHMS.map(|(name, _)| name).to_vec(),
        ),
    ] {
        assert_eq!(strings(&schema, pointer), names(choices));
    }
    let number = |pointer| schema.pointer(pointer).and_then(Value::as_u64);
    assert_eq!(number("/$defs/limits/maxItems"), Some(MAX_LIMITS as u64));
    assert_eq!(
        number("/$defs/rule/properties/thresholds/maxItems"),
        Some(MAX_THRESHOLDS as u64)
    );
    assert_eq!(
        number("/$defs/rule/properties/thresholds/items/properties/segments/maximum"),
        Some(MAX_THRESHOLD_SEGMENTS.into())
    );
    assert_eq!(
        number("/$defs/limit/properties/segments/maximum"),
        Some(MAX_SEGMENTS.into())
    );
}

/// Texts, with a comma and a blank between them. The first one is empty.
const TEXTS: &str = "\
    , x, request, concurrency, Request, share, skip, token-bucket, fixed-window, \
    window-from-request, sliding-window, newest-first, stepwise, 5/m, 05/01s, 0/m, 5/0s, /m, \
    5/, 5/m , 5/year, 10m, 0s, s, ms, 1.5s, 10, address, address/0/0, address/32/128, \
    address/33/0, address/0/129, address/032/0, address/-1/0, address/8, header:, header:X, \
    header:X|Y, header:X|, header:|, header:X||Y, property:, property:p, path, host, method, \
    tier, Path, header: X, header:X Y, header:X:, GET, get, Patch, GETT, PUTS, GET , GETTER, \
    M-SEARCH, a:, 10.0.0.0/8, 10.0.0.0/33, 10.0.0.0/, 256.1.1.1, 010.0.0.1, 010.0.0.0/8, \
    192.0.2.7, 1.2.3, ::1, 2001:db8::/32, 2001:db8::/129, example.com, example.com., \
    example.com:80, *.example.com, a.*.com, *.7, 7.example, a..b, x_y-1, https://example.com/a";

/// Values of all types, at the bounds of the settings and beyond them.
fn samples() -> Vec<Value> {
    let mut samples = vec![
        json!(null),
        json!(true),
        json!(false),
        json!(1.5),
        json!([]),
        json!({}),
        json!([[]]),
        json!([{}]),
        json!({ "x": [] }),
        json!({ "x": ["y"] }),
        json!({ "": ["y"] }),
        json!({ "x": "y" }),
        json!({ "x": [1] }),
        json!({ "headers": { "x": [] } }),
        json!({ "properties": { "": ["y"] } }),
        json!({ "networks": "10.0.0.1" }),
        json!({ "networks": ["10.0.0.0/8"], "headers": {}, "properties": {} }),
        json!({ "networks": [""] }),
        json!({ "networks": ["10"] }),
        json!({ "networks": ["a.example"] }),
        json!({ "networks": ["010.0.0.0/8"] }),
        json!({ "networks": ["::ffff:0:0/96", "1::/128"] }),
        json!({ "headers": { "X-A": ["y"] } }),
        json!({ "headers": { "X A": ["y"] } }),
        json!({ "headers": { "X-A:": ["y"] } }),
        json!({ "properties": { "p q": ["y"] } }),
        json!({ "ignore_case": true, "decode_slashes": false }),
        json!({ "ignore_case": 1 }),
        json!({ "reading": "literal" }),
        json!({ "reading": "Literal" }),
        json!([{ "at": "5/m", "decision": "deny" }]),
        json!({ "rate": "5/m" }),
        json!({ "at_once": 5 }),
        json!({ "rate": "5/m", "at_once": 5 }),
        json!(vec!["5/m"; MAX_LIMITS]),
        json!(vec!["5/m"; MAX_LIMITS + 1]),
    ];
    samples.extend([-1_i64, 0, 1, 2, 64, 65, 399, 400, 599, 600].map(Value::from));
    samples.extend([1_u64 << 32, (1 << 32) - 1, u64::MAX].map(Value::from));
    let texts = || TEXTS.split(", ");
    samples.extend(texts().map(Value::from));
    samples.extend(texts().map(|text| json!([text])));
    samples
}

/// Checks limits of each kind with the value `sample` of each setting.
fn check_limits(sample: &Value, check: &mut impl FnMut(Value, bool)) {
    for setting in words(LIMIT) {
        let mut limits = vec![
            json!({}),
            json!({ "at_once": 5 }),
            json!({ "at_once": 5, "queue": 1 }),
            json!({ "rate": "5/m", "queue": 0, "queue_order": "oldest-first" }),
        ];
        for (algorithm, _) in ALGORITHMS {
            limits.push(json!({ "rate": "5/m", "algorithm": algorithm }));
        }
        for mut limit in limits {
            limit[setting] = sample.clone();
            // The largest burst and debt depend on the rate, and the initial permits on the
            // burst.
            let of_rate = ["burst", "debt", "initial"].contains(&setting);
            // Without the feature, the reader accepts no queue.
            let is_queue = setting.starts_with("queue") && !cfg!(feature = "queue");
            let is_small = sample.as_u64().is_none_or(|number| number <= 5);
            let is_exact = !is_queue && (!of_rate || is_small);
            let mut rule = json!({ "name": "r", "limits": [limit] });
            check(json!({ "rules": [rule] }), is_exact);
            rule["hold"] = json!("1m");
            check(json!({ "rules": [rule] }), is_exact);
            rule["key"] = json!(["path"]);
            check(json!({ "rules": [rule] }), is_exact);
        }
    }
}

/// Checks overrides and thresholds with the value `sample` of each setting, and too many
/// thresholds.
fn check_parts(sample: &Value, check: &mut impl FnMut(Value, bool)) {
    let rules = |rule: Value| json!({ "rules": [rule] });
    for setting in words(OVERRIDE) {
        let mut instead = json!({ "key": ["x"], "limits": ["5/m"] });
        instead[setting] = sample.clone();
        let rule = json!({
            "name": "r", "key": ["header:X"], "limits": ["5/m"], "overrides": [instead],
        });
        // The number of values is that of the parts of the key.
        let count = sample.as_array().map_or(1, Vec::len);
        check(rules(rule), count == 1 || setting != "key");
    }
    for setting in words(THRESHOLD) {
        let mut threshold = json!({ "at": "5/m", "decision": "deny" });
        threshold[setting] = sample.clone();
        check(
            rules(json!({ "name": "r", "thresholds": [threshold] })),
            true,
        );
    }
    let thresholds = vec![json!({ "at": "5/m", "decision": "deny" }); MAX_THRESHOLDS + 1];
    check(
        rules(json!({ "name": "r", "thresholds": thresholds })),
        true,
    );
}

#[test]
fn the_schema_and_the_reader_accept_the_same_values() {
    let validator = Validator::new();
    let (mut accepted, mut different) = (0, Vec::new());
    let mut check = |file: Value, is_exact: bool| {
        let read = Policy::from_json(&file.to_string());
        let is_valid = validator.accepts(&file);
        accepted += usize::from(is_valid);
        if read.is_ok() != is_valid && (is_exact || read.is_ok()) {
            different.push(format!(
                "{file}: the schema says {is_valid}, the reader {read:?}"
            ));
        }
    };
    let samples = samples();
    for sample in &samples {
        for setting in words(FILE) {
            let mut file = json!({});
            file[setting] = sample.clone();
            check(file, true);
        }
        for setting in words(RULE) {
            let mut rule = json!({ "name": "r", "limits": ["5/m"] });
            rule[setting] = sample.clone();
            // Only the file knows its stores.
            let is_exact = setting != "store";
            check(json!({ "rules": [rule] }), is_exact);
            rule = json!({ "name": "r", "limits": ["5/m"], "store": "x" });
            rule[setting] = sample.clone();
            // Only the policy knows which limits a store can have.
            let is_exact = is_exact && !["limits", "overrides"].contains(&setting);
            check(json!({ "stores": ["x"], "rules": [rule] }), is_exact);
        }
        check_limits(sample, &mut check);
        check_parts(sample, &mut check);
        let rules = |rule: Value| json!({ "rules": [rule] });
        check(rules(json!({ "name": "r", "thresholds": sample })), true);
        check(rules(sample.clone()), true);
        check(
            rules(json!({ "penalty": "5m", "name": "r", "limits": sample })),
            true,
        );
        check(rules(json!({ "penalty": sample, "name": "r" })), true);
        check(rules(json!({ "overrides": sample, "name": "r" })), true);
        check(rules(json!({ "nme": sample, "name": "r" })), true);
    }
    assert!(different.is_empty(), "{different:#?}");
    assert!(accepted > 100, "{accepted}");
}

/// The tree of a file as the validator takes it.
fn tree(value: &document::Value<'_>) -> Value {
    match &value.node {
        Node::Null => Value::Null,
        Node::Boolean(boolean) => json!(boolean),
        Node::Integer(integer) => json!(u64::try_from(integer.unwrap()).unwrap()),
        Node::Text(text) => json!(text),
        Node::Array(values) => values.iter().map(tree).collect(),
        Node::Table(table) => tree_of(table),
        Node::Float => panic!("no setting is a float"),
        Node::Date => panic!("no setting is a date"),
    }
}

fn tree_of(table: &Table<'_>) -> Value {
    let entries = table.iter();
    entries
        .map(|(name, value)| (name.text.clone().into_owned(), tree(value)))
        .collect()
}

#[test]
fn the_example_files_are_valid_and_equal_in_both_formats() {
    let toml = include_str!("../../examples/service.toml");
    let json = include_str!("../../examples/service.json");
    let validator = Validator::new();
    let mut trees = [
        Reader::toml(toml).1.expect("valid TOML"),
        Reader::json(json, Names::Exact).1.expect("valid JSON"),
    ]
    .map(|table| tree_of(&table));
    assert!(trees.iter().all(|tree| validator.accepts(tree)));
    trees[1].as_object_mut().unwrap().remove("$schema");
    assert_eq!(trees[0], trees[1]);
    assert_eq!(Policy::from_toml(toml).unwrap().rules().len(), 4);
    assert_eq!(Policy::from_json(json).unwrap().rules().len(), 4);
    for other in [
        include_str!("../../examples/website.toml"),
        include_str!("../../examples/feeds.toml"),
    ] {
        let (_, table) = Reader::toml(other);
        assert!(validator.accepts(&tree_of(&table.expect("valid TOML"))));
    }
}

/// The name of a part is how a file spells it. Only a function has no spelling.
#[cfg(feature = "live")]
#[test]
fn each_part_of_a_key_that_code_can_build_can_be_written() {
    use crate::key::Key;
    use crate::request::Request;
    use crate::rule::Rule;

    for key in [
        Key::address(),
        Key::address_prefix(0, 128),
        Key::path(),
        Key::host(),
        Key::method(),
        Key::tier(),
        Key::header("X-Key"),
        Key::first_header(["X-Key", "X-Old-Key", "X-Oldest-Key"]),
        Key::property("region"),
    ] {
        let policy = Policy::new([Rule::new("a").key(key.clone())]).unwrap();
        let request = Request::new("GET", "/");
        let values = policy.key_values(policy.rule("a").unwrap(), &request);
        let name = values.iter().next().unwrap().name().to_string();
        let written = super::key_part(&name).expect(&name);
        assert!(written.is_same(&key), "{name}: {written:?} is not {key:?}");
    }
}
