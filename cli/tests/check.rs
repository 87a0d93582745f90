//! The check of a file of rules.

mod common;

use std::io::Write;
use std::process::{Output, Stdio};

use common::{Scratch, portcullis, text};

fn check(args: &[&str]) -> Output {
    portcullis(&[&["check"], args].concat()).output().unwrap()
}

const TOML: &str = "\
[[rules]]
name = 'login'
methods = ['POST']
paths = ['/login']
key = ['address']
limits = ['5/m', { at_once = 2 }]
overrides = [{ key = ['192.0.2.9'], limits = ['50/m'] }]

[[rules]]
name = 'new'
hosts = ['*.example.com']
key = ['header:X-Tenant']
on_missing = 'deny'
limits = ['1/s']
shadow = true

[[rules]]
name = 'off'
enabled = false

[[rules]]
name = 'all'
properties = { region = ['eu'] }
limits = ['2/s']
exempt = { headers = { X-Client = ['monitor'] } }
";

#[test]
fn valid_rules_are_counted_whatever_the_format() {
    for (name, content) in [
        ("a.toml", "[[rules]]\nname = 'a'\n"),
        ("a.JSON", "{ \"rules\": [{ \"name\": \"a\" }] } // one"),
    ] {
        let file = Scratch::new(name, content.as_bytes());
        let output = check(&[file.path()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let expected = format!("{}: valid, 1 rule\n", file.path());
        assert_eq!(text(&output.stdout), expected);
    }
}

/// They are of another program.
#[test]
fn a_file_with_settings_of_serve_is_valid_and_says_who_reads_them() {
    let rules = "[[rules]]\nname = 'serve'\nproperties = { server = ['a'] }\n";
    for (name, content, has_settings) in [
        ("a.toml", format!("serve.trustd = []\n{rules}"), true),
        ("b.toml", format!("{rules}[serve.stores.a]\n"), true),
        ("c.toml", format!("# serve\n{rules}"), false),
        ("d.json", "{ \"rules\": [],\n  \"serve\": {} }".into(), true),
        (
            "e.json",
            "{ \"rules\": [{ \"name\": \"serve\" }] }".into(),
            false,
        ),
    ] {
        let file = Scratch::new(name, content.as_bytes());
        let output = check(&[file.path()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let printed = text(&output.stdout);
        let line = format!(
            "{}: the table serve is not read here: portcullis-serve --check does\n",
            file.path()
        );
        assert_eq!(printed.ends_with(&line), has_settings, "{printed}");
    }
}

#[test]
fn the_memory_of_large_tables_is_shown() {
    for (keys, shown) in [(1_000, ""), (100_000, ", tables of 341 MB")] {
        let limit = "{ rate = \"5/m\", algorithm = \"sliding-window\" }";
        let rule = format!("name = \"a\"\nkey = [\"address\"]\nkeys = {keys}\n");
        let limits = if shown.is_empty() { "\"5/m\"" } else { limit };
        let content = format!("[[rules]]\n{rule}limits = [{limits}]\n");
        let file = Scratch::new(&format!("keys-{keys}.toml"), content.as_bytes());
        let output = check(&[file.path()]);
        let expected = format!("{}: valid, 1 rule{shown}\n", file.path());
        assert_eq!(text(&output.stdout), expected);
    }
}

#[test]
fn a_rule_that_is_never_asked_is_a_warning_with_the_line_of_the_rule_that_decides() {
    let rules = "[[rules]]\nname = 'all'\nlimits = ['9/s']\n\n\
                 [[rules]]\nname = 'one'\nlimits = ['1/s']\n";
    let file = Scratch::new("never-asked.toml", rules.as_bytes());
    let output = check(&[file.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let expected = "\
warning: name: this rule is never asked, because `all` (line 2) matches every request that it matches, and decides it: add `continue = true` there to take from both, or give this one a lower priority
 --> FILE:6:8
  |
6 | name = 'one'
  |        ^^^^^

";
    assert_eq!(text(&output.stderr).replace(file.path(), "FILE"), expected);

    // A script may refuse it.
    let output = check(&["--deny-warnings", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr).replace(file.path(), "FILE");
    assert_eq!(
        errors,
        format!("{expected}portcullis: FILE: warnings are denied\n")
    );
    let file = Scratch::new(
        "no-warning.toml",
        b"[[rules]]\nname = 'all'\nlimits = ['9/s']\n",
    );
    let output = check(&["--deny-warnings", file.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_rate_that_all_requests_share_is_named() {
    let rules = "[[rules]]\nname = 'api'\npaths = ['/api/**']\nlimits = ['10/s', '1000/h']\n\
                 [[rules]]\nname = 'each'\nkey = ['address']\nlimits = ['10/s']\n";
    let file = Scratch::new("no-key.toml", rules.as_bytes());
    let output = check(&[file.path()]);
    let expected = format!(
        "{}: valid, 2 rules\n  api: 10/s, 1000/h is for all requests of the rule together, because \
         it has no key\n",
        file.path()
    );
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn a_file_of_another_system_is_checked_and_what_it_loses_is_a_warning() {
    let route = "\"UpstreamPathTemplate\": \"/a/{b}\", \"RateLimitOptions\": ";
    let options = "{ \"Limit\": 2, \"Period\": \"1s\", \"ClientWhitelist\": [\"\"] }";
    let content = format!("{{ \"Routes\": [{{ {route}\n{options} }}] }}");
    let file = Scratch::new("ocelot.production.json", content.as_bytes());
    let request = ["--request", "GET /a/7", "--header", "Oc-Client: alice"];
    let output = check(&[&[file.path()][..], &request].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let expected = "\
warning: ClientWhitelist: \"\" has no effect: a request without a client is denied
 --> FILE:2:50
  |
2 | { \"Limit\": 2, \"Period\": \"1s\", \"ClientWhitelist\": [\"\"] } }] }
  |                                                  ^^^^

";
    assert_eq!(text(&output.stderr).replace(file.path(), "FILE"), expected);
    let valid =
        "valid, 1 rule\n\nGET /a/7\n  /a/{b}  decides: allowed, key alice: 2/s has 2 left\n";
    assert!(
        text(&output.stdout).contains(valid),
        "{}",
        text(&output.stdout)
    );

    let content = "{ \"policies\": [{ \"category\": \"a\", \"windowDuration\": \"1s\", \"thresholds\": [] }] }";
    let file = Scratch::new("ats.json", content.as_bytes());
    let output = check(&[file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr).matches("error: ").count(), 2);
}

#[test]
fn all_errors_are_shown_with_their_lines_as_a_compiler_does() {
    let content = "[[rules]]\nname = 'a'\n\tlimits = ['5/m', '5/year', 'é/s']\npriorty = 1\n";
    let file = Scratch::new("wrong.toml", content.as_bytes());
    let output = check(&[file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    let expected = "\
error: limits: `5/year` is not a rate: expected N/PERIOD, such as 60/m, 100/10s or 5/500ms (units: ms, s, m, h, d; whole numbers)
 --> FILE:3:19
  |
3 |     limits = ['5/m', '5/year', 'é/s']
  |                      ^^^^^^^^

error: limits: `é/s` is not a rate: expected N/PERIOD, such as 60/m, 100/10s or 5/500ms (units: ms, s, m, h, d; whole numbers)
 --> FILE:3:29
  |
3 |     limits = ['5/m', '5/year', 'é/s']
  |                                ^^^^^

error: priorty is not a setting of a rule: did you mean priority?
 --> FILE:4:1
  |
4 | priorty = 1
  | ^^^^^^^

portcullis: FILE: 3 errors
";
    assert_eq!(text(&output.stderr).replace(file.path(), "FILE"), expected);
}

#[test]
fn errors_in_json_over_several_lines_and_in_long_lines_are_shown() {
    let long = "x".repeat(10_000);
    let content = format!(
        "{{\"rules\": [\n  {{\n    \"keys\": 1\n  }},\n  {{ \"name\": \"{long}\", \"key\": 1 }},]}}"
    );
    let file = Scratch::new("wrong.json", content.as_bytes());
    let output = check(&[file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
error: name is missing in this rule
 --> FILE:2:3
  |
2 |   {
  |   ^

error: key: expected an array of strings, not an integer
 --> FILE:5:10024

portcullis: FILE: 2 errors
";
    // Newer versions of annotate-snippets do not indent a place whose line is not shown.
    let shown = text(&output.stderr).replace(file.path(), "FILE");
    assert_eq!(shown.replace("\n-->", "\n -->"), expected);
}

#[test]
fn standard_input_needs_a_format() {
    let mut command = portcullis(&["check", "-", "--policy-format", "json"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"{ \"rules\": [] }")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "-: valid, 0 rules\n");
}

#[test]
fn files_that_cannot_be_used_are_another_exit_code() {
    let latin = Scratch::new("latin.toml", b"# one\n# \xe9\n");
    let unknown = Scratch::new("rules.yaml", b"");
    for (args, expected) in [
        (vec!["-"], "cannot use -: name its format"),
        (
            vec![unknown.path()],
            "YAML is not read: convert it to JSON (for example: yq -o json FILE)",
        ),
        (vec![latin.path()], "it is not UTF-8 in line 2"),
        (vec!["missing.toml"], "cannot use missing.toml: "),
        (
            vec![latin.path(), "--policy-format", "yaml"],
            "invalid value 'yaml'",
        ),
        (vec![latin.path(), "--host", "a"], "--request"),
        (
            vec![latin.path(), "--request", "GET"],
            "expected a method and a path",
        ),
        (
            vec![latin.path(), "--request", "GET /", "--header", "a"],
            "X-Api-Key: k1",
        ),
        (
            vec![latin.path(), "--request", "GET /", "--property", "a"],
            "region=eu",
        ),
        (
            vec![latin.path(), "--request", "GET /", "--kind", "a"],
            "expected request, ",
        ),
        (
            vec![latin.path(), "--request", "GET /", "--address", "a"],
            "invalid value 'a'",
        ),
    ] {
        let output = check(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = text(&output.stderr);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn a_request_is_explained_rule_by_rule() {
    let file = Scratch::new("explained.toml", TOML.as_bytes());
    let explained = |args: &[&str]| {
        let output = check(&[&[file.path(), "--request"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let all = text(&output.stdout);
        let (first, rest) = all.split_once("\n\n").unwrap();
        let shared = "  all: 2/s is for all requests of the rule together, because it has no key";
        let held = "  login: 2 at once is for a program that sees when a request ends. \
                    portcullis-serve does not, and leaves it out: set it in the proxy";
        let valid = format!(": valid, 4 rules\n{shared}\n{held}");
        assert!(first.ends_with(&valid), "{first}");
        rest.to_owned()
    };
    assert_eq!(
        explained(&["POST /login", "--address", "192.0.2.7", "--cost", "3"]),
        "\
POST /login
  login  decides: denied, key 192.0.2.7: 5/m has 5 left, 2 at once: 3 permits requested, at most 2 can ever be granted: request fewer
  new    no match: another host or address
  off    disabled
  all    no match: without a listed value of the property region
=> denied by login: 5/m has 5 of 5 left, 2 at once has 2 of 2 left
"
    );
    assert_eq!(
        explained(&[
            "GET /login?a=b",
            "--host",
            "eu.example.com",
            "--property",
            "Region=eu",
            "--header",
            "x-client: monitor"
        ]),
        "\
GET /login?a=b
  login  no match: another method
  new    shadow: denied: the request lacks a part of the key
  off    disabled
  all    decides: allowed: the client is exempt
=> allowed by all
"
    );
    assert_eq!(
        explained(&[
            "POST /login",
            "--host",
            "eu.example.com",
            "--address",
            "198.51.100.7",
            "--property",
            "region=eu"
        ]),
        "\
POST /login
  login  decides: allowed, key 198.51.100.7: 5/m has 5 left, 2 at once has 2 left
  new    not asked: login decides
  off    disabled
  all    not asked: login decides
=> allowed by login: 5/m has 4 of 5 left, 2 at once has 1 of 2 left
"
    );
    assert_eq!(
        explained(&["GET /", "--kind", "egress", "--tier", "free"]),
        "\
GET /
  login  no match: another kind
  new    no match: another kind
  off    disabled
  all    no match: another kind
=> allowed: no rule decides
"
    );
    assert!(
        explained(&["POST /login", "--address", "192.0.2.9"])
            .contains("  login  decides: allowed, key 192.0.2.9: 50/m has 50 left\n")
    );
    let deep = format!("GET {}", "/a".repeat(1_000));
    let explained = explained(&[&deep]);
    assert!(
        explained.ends_with("\n=> denied: the path has more than 256 components\n"),
        "{explained}"
    );
}

#[test]
fn the_guide_shows_what_the_program_prints() {
    let guide = include_str!("../../docs/policies.md");
    let wrong = "[[rules]]\nname = 'a'\n\n\npriorty = 1\n\nkind = \"egres\"\n";
    let wrong = Scratch::new("guide.toml", wrong.as_bytes());
    let errors = text(&check(&[wrong.path()]).stderr).replace(wrong.path(), "policy.toml");
    assert!(guide.contains(&errors), "{errors}");

    let service = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../policy/examples/service.toml"
    );
    let request = [
        "--request",
        "PUT /v1/me/blobs/a",
        "--header",
        "X-Tenant: t1",
    ];
    let output = text(&check(&[&[service], &request[..]].concat()).stdout);
    let output = output.replace(service, "service.toml");
    assert!(guide.contains(&output), "{output}");
}

#[test]
fn rules_that_continue_all_decide() {
    let rules = "
        rules = [
            { name = 'each key', key = ['header:X-Api-Key'], limits = ['10/s'], continue = true },
            { name = 'login', paths = ['/login'], limits = ['5/m'] },
            { name = 'all', limits = ['9/s'] },
        ]
    ";
    let file = Scratch::new("several.toml", rules.as_bytes());
    let output = check(&[
        file.path(),
        "--request",
        "POST /login",
        "--header",
        "X-Api-Key: k",
    ]);
    let printed = text(&output.stdout);
    for line in [
        "  each key  decides: allowed, key k: 10/s has 10 left",
        "  login     decides: allowed: 5/m has 5 left",
        "  all       not asked: login decides",
        "=> allowed by login: 10/s has 9 of 10 left, 5/m has 4 of 5 left",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{printed}");
    }
}

#[test]
fn a_rule_with_a_store_is_asked_there() {
    let rules =
        "stores = ['shared']\n[[rules]]\nname = 'all'\nlimits = ['5/m']\nstore = 'shared'\n";
    let file = Scratch::new("stored.toml", rules.as_bytes());
    let output = check(&[file.path(), "--request", "GET /"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let expected = "  all  decides: the store shared is asked: 5/m\n\
                    => decided by all in the store shared, which is not asked here\n";
    assert!(stdout.ends_with(expected), "{stdout}");
}

/// A file may come from anybody, and so may what its names do to a terminal.
#[test]
fn no_name_in_a_file_reaches_the_terminal_as_it_is() {
    let rules = "\
stores = [\"g\\u001b[2J\"]

[[rules]]
name = \"f\\u001b[2J\"
paths = [\"/stored\"]
store = \"g\\u001b[2J\"
limits = [\"5/m\"]

[[rules]]
name = \"a\\u001b[31mRED\"
properties = { \"p\\u001b[2J\" = [\"x\"] }
limits = [\"5/m\"]

[[rules]]
name = \"b\\u001b[2J\"
limits = [{ rate = \"5/m\", name = \"c\\u001b[2J\" }, { at_once = 3, name = \"d\\u001b[2J\" }]

[[rules]]
name = \"e\\u001b[2J\"
limits = [\"5/m\"]
";
    let file = Scratch::new("names.toml", rules.as_bytes());
    for request in ["GET /", "GET /stored"] {
        let output = check(&[file.path(), "--request", request]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let told = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(told.contains("u{1b}[2J"), "{told}");
        assert!(!told.contains('\u{1b}'), "{told:?}");
    }
}

/// As the layer does: a denial of one kind ends the decision.
#[test]
fn a_request_is_decided_for_each_kind_until_one_denies() {
    let rules = "\
[[rules]]
name = 'clients'
key = ['address', 'header:X-Key']
limits = ['10/s']

[[rules]]
name = 'bursts'
kind = 'burst'
limits = ['5/m']

[[rules]]
name = 'uploads'
kind = 'concurrency'
paths = ['/files/**']
limits = [{ at_once = 2 }]
";
    let file = Scratch::new("kinds.toml", rules.as_bytes());
    let explained = |args: &[&str]| {
        let request = ["--request", "GET /a", "--address", "192.0.2.7", "--header"];
        let args = [&[file.path()], &request[..], &["X-Key: \u{1b}k"], args].concat();
        let output = text(&check(&args).stdout);
        output.split_once("\n\n").unwrap().1.to_owned()
    };
    assert_eq!(
        explained(&[]),
        "\
GET /a

kind request:
  clients  decides: allowed, key address=192.0.2.7 header:X-Key=\\u{1b}k: 10/s has 10 left
=> allowed by clients: 10/s has 9 of 10 left

kind burst:
  bursts  decides: allowed: 5/m has 5 left
=> allowed by bursts: 5/m has 4 of 5 left

kind concurrency:
  uploads  no match: another path
=> allowed: no rule decides

=> allowed
"
    );
    let denied = explained(&["--cost", "6"]);
    let expected = "=> denied by bursts: 5/m has 5 of 5 left\n\n\
                    kind concurrency: not asked\n\n=> denied\n";
    assert!(denied.ends_with(expected), "{denied}");
    let one = explained(&["--kind", "burst"]);
    assert!(
        one.ends_with("=> allowed by bursts: 5/m has 4 of 5 left\n"),
        "{one}"
    );
    assert!(one.contains("clients  no match: another kind"), "{one}");
}

#[test]
fn the_extension_tells_the_format_and_the_option_is_that_of_replay() {
    let rules = "{ \"rules\": [{ \"name\": \"a\" }] } // one";
    for name in ["rules.jsonc", "RULES.JSON"] {
        let file = Scratch::new(name, rules.as_bytes());
        assert_eq!(check(&[file.path()]).status.code(), Some(0), "{name}");
    }
    let file = Scratch::new("rules.txt", rules.as_bytes());
    for option in ["--policy-format", "--format"] {
        let output = check(&[file.path(), option, "json"]);
        assert_eq!(output.status.code(), Some(0), "{option}");
    }
    let error = text(&check(&[file.path()]).stderr);
    let expected = "name its format with --policy-format: toml, json, ocelot or ats.";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_path_is_read_as_the_policy_says() {
    for (reading, request, expected) in [
        (
            "either",
            "GET /files/a",
            "=> allowed by files: 1/h has 0 of 1 left\n",
        ),
        (
            "either",
            "HEAD /files/a",
            "=> allowed by files: 1/h has 0 of 1 left\n",
        ),
        (
            "either",
            "GET /files/..",
            "=> denied: the path has a component `.` or `..`\n",
        ),
        (
            "either",
            "GET /files/a/",
            "=> denied: the path can be read in several ways, which different rules are for\n",
        ),
        (
            "literal",
            "GET /files/..",
            "=> allowed by files: 1/h has 0 of 1 left\n",
        ),
        (
            "literal",
            "GET /files/a/",
            "=> allowed by rest: 9/h has 8 of 9 left\n",
        ),
        (
            "resolved",
            "GET /files/..",
            "=> allowed by rest: 9/h has 8 of 9 left\n",
        ),
        (
            "resolved",
            "GET /files/a/",
            "=> allowed by files: 1/h has 0 of 1 left\n",
        ),
    ] {
        let rules = format!(
            "paths = {{ reading = '{reading}' }}
            [[rules]]
            name = 'files'
            methods = ['GET']
            paths = ['/files/*']
            limits = ['1/h']
            [[rules]]
            name = 'rest'
            limits = ['9/h']"
        );
        let file = Scratch::new(&format!("{reading}.toml"), rules.as_bytes());
        let output = check(&[file.path(), "--request", request]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let answer = text(&output.stdout);
        assert!(answer.ends_with(expected), "{reading}: {answer}");
    }
}

/// `ocelot.*.json` of a folder, or of the command line, are one configuration, as in Ocelot.
#[test]
fn the_files_of_a_folder_are_merged_as_ocelot_merges_them() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-gateway", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let global = write(
        "ocelot.global.json",
        r#"{"GlobalConfiguration":{"RateLimitOptions":{"ClientIdHeader":"X-Key"}}}"#,
    );
    let product = write(
        "ocelot.product.json",
        r#"{"Routes":[{"UpstreamPathTemplate":"/p","RateLimitOptions":{"Limit":1,"Period":"1m"}}]}"#,
    );
    write(
        "ocelot.json",
        r#"{"Routes":[{"UpstreamPathTemplate":"/merged"}]}"#,
    );
    write("appsettings.json", "{}");
    let folder_name = folder.to_str().unwrap();
    let request = ["--request", "GET /p", "--header", "X-Key: a"];
    for files in [vec![folder_name], vec![&*product, &*global]] {
        let output = check(&[&files[..], &request].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        let expected = format!(
            "{}: valid, 1 rule\n\nGET /p\n  /p  decides: allowed, key a: 1/m has 1 left\n",
            files.join(", ")
        );
        let stdout = text(&output.stdout);
        assert!(stdout.starts_with(&expected), "{stdout}");
    }
    // A message has the name and the line of its own file.
    write(
        "ocelot.wrong.json",
        "{\"Routes\":[\n {\"UpstreamPathTemplate\":\"x\"}]}",
    );
    let output = check(&[folder_name]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr).replace(folder_name, "FOLDER");
    let expected = "\
error: UpstreamPathTemplate: `x` does not begin with `/`
 --> FOLDER/ocelot.wrong.json:2:26
  |
2 |  {\"UpstreamPathTemplate\":\"x\"}]}
  |                          ^^^

portcullis: FOLDER: 1 error
";
    assert_eq!(error, expected);
    // Without parts, the one file of the folder is read.
    for name in ["global", "product", "wrong"] {
        std::fs::remove_file(folder.join(format!("ocelot.{name}.json"))).unwrap();
    }
    let output = check(&[folder_name, "--request", "GET /merged"]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("  /merged  decides: "), "{stdout}");
    std::fs::remove_file(folder.join("ocelot.json")).unwrap();
    let output = check(&[folder_name]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("ocelot.json: No such file"));
    std::fs::remove_dir_all(&folder).unwrap();
    // Only files of Ocelot are merged.
    let toml = Scratch::new("one.toml", TOML.as_bytes());
    let output = check(&[toml.path(), toml.path()]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("only files of Ocelot can be several"),
        "{error}"
    );
}
