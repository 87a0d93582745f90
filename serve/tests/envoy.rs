//! Envoy's rate limit service, asked by a client of gRPC in another language, with messages that
//! others made of the public `.proto`.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;
#[path = "support/traffic.rs"]
mod traffic;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use program::Program;
use traffic::{POLICY, decided, recorded};

/// A client that runs.
struct Envoy {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Envoy {
    /// `None` if Python or its packages are missing, outside of CI.
    fn start(program: &Program) -> Option<Self> {
        let python = || {
            let mut python = Command::new("python3");
            if let Some(packages) = std::env::var_os("PORTCULLIS_GRPC_PACKAGES") {
                python.env("PYTHONPATH", packages);
            }
            python
        };
        let imports = "import grpc, envoy.service.ratelimit.v3.rls_pb2_grpc";
        let has = python()
            .args(["-c", imports])
            .stderr(Stdio::null())
            .status();
        if !has.is_ok_and(|status| status.success()) {
            let missing = "missing: the Python packages in xtask/grpc.txt, or their folder in \
                           PORTCULLIS_GRPC_PACKAGES";
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("skipped: {missing}");
            return None;
        }
        let mut command = python();
        command.args(["-c", include_str!("support/envoy.py")]);
        command.arg(
            program
                .grpc
                .expect("it was started with --grpc")
                .to_string(),
        );
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Some(Self {
            questions: child.stdin.take().expect("a pipe"),
            answers: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        })
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.questions, "{question}").expect("it runs");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it runs");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no answer: {line:?}"))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A descriptor.
fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entry = |(key, value): &(&str, &str)| json!({ "key": key, "value": value });
    json!({ "entries": entries.iter().map(entry).collect::<Vec<_>>() })
}

fn question(descriptors: &[Value]) -> Value {
    json!({ "domain": "shop", "descriptors": descriptors })
}

const GRPC: [&str; 2] = ["--grpc", "127.0.0.1:0"];

#[test]
fn envoy_is_answered_as_the_policy_decides() {
    let program = Program::start("envoy", POLICY, &GRPC);
    let Some(mut envoy) = Envoy::start(&program) else {
        return;
    };
    let mut ask = |recorded: traffic::Recorded| {
        let answer = envoy.ask(&question(&[descriptor(&[
            ("method", recorded.method),
            ("path", recorded.target),
            ("host", recorded.host),
            ("remote_address", &recorded.client),
            ("x-api-key", &recorded.key),
        ])]));
        let code = answer["overallCode"].as_str().expect("a code").to_owned();
        assert_eq!(answer["statuses"][0]["code"], code);
        code
    };
    let codes: Vec<_> = recorded().into_iter().map(&mut ask).collect();
    let expected = |is_allowed| if is_allowed { "OK" } else { "OVER_LIMIT" };
    assert_eq!(
        codes,
        decided(POLICY, &recorded())
            .into_iter()
            .map(expected)
            .collect::<Vec<_>>()
    );
}

const ACCOUNTS: &str = "
    [serve.envoy]
    address = 'ip'

    [[rules]]
    name = 'gold'
    properties = { domain = ['shop'], plan = ['gold'] }
    key = ['property:account']
    limits = [{ rate = '10/m', name = 'account' }]

    [[rules]]
    name = 'addresses'
    priority = 1
    key = ['address']
    on_missing = 'skip'
    limits = ['3/d']
    message = 'Come back tomorrow.'
";

/// Whether an answer has a header field.
fn has(answer: &Value, name: &str) -> bool {
    let fields = answer["responseHeadersToAdd"].as_array();
    let fields = fields.expect("an answer with fields");
    fields.iter().any(|field| field["key"] == name)
}

#[test]
fn an_answer_states_the_limit_what_is_left_and_the_header_fields() {
    let program = Program::start("envoy-states", ACCOUNTS, &GRPC);
    let Some(mut envoy) = Envoy::start(&program) else {
        return;
    };
    let gold = descriptor(&[("plan", "gold"), ("account", "a")]);
    let mut five = question(core::slice::from_ref(&gold));
    five["hitsAddend"] = 5.into();
    let allowed = envoy.ask(&five);
    let limit = json!({ "name": "account", "requestsPerUnit": 10, "unit": "MINUTE" });
    assert_eq!(allowed["overallCode"], "OK");
    let status = &allowed["statuses"][0];
    assert_eq!(
        (&status["currentLimit"], &status["limitRemaining"]),
        (&limit, &json!(5))
    );
    assert_eq!(status["durationUntilReset"], "30s");
    let fields = json!([
        { "key": "ratelimit-policy", "value": "\"account\";q=10;w=60" },
        { "key": "ratelimit", "value": "\"account\";r=5;t=30" },
    ]);
    assert_eq!(allowed["responseHeadersToAdd"], fields);

    // The hits of a descriptor count instead of those of the question. None is a probe.
    let hits = |hits: &str| {
        let mut descriptor = gold.clone();
        descriptor["hitsAddend"] = hits.into();
        let mut question = question(&[descriptor]);
        question["hitsAddend"] = 9.into();
        question
    };
    assert_eq!(envoy.ask(&hits("5"))["overallCode"], "OK");
    let denied = envoy.ask(&hits("0"));
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    assert!(has(&denied, "retry-after"), "{denied}");

    // Each descriptor is decided. The answer is that of the first one that is denied.
    let address = |ip: &str| descriptor(&[("ip", ip)]);
    for _ in 0..3 {
        assert_eq!(
            envoy.ask(&question(&[address("192.0.2.7")]))["overallCode"],
            "OK"
        );
    }
    let other = descriptor(&[("plan", "gold"), ("account", "b")]);
    let both = envoy.ask(&question(&[other, address("192.0.2.7")]));
    assert_eq!(both["overallCode"], "OVER_LIMIT");
    let codes = [0, 1].map(|nth| both["statuses"][nth]["code"].clone());
    assert_eq!(codes, ["OK", "OVER_LIMIT"]);
    // `Come back tomorrow.` in base64, as JSON has bytes.
    assert_eq!(both["rawBody"], "Q29tZSBiYWNrIHRvbW9ycm93Lg==");
    // The body has one type, although two descriptors are denied.
    let twice = envoy.ask(&question(&[address("192.0.2.7"), address("192.0.2.7")]));
    let fields = twice["responseHeadersToAdd"].as_array().expect("fields");
    let mut types = fields.iter().filter(|field| field["key"] == "content-type");
    let of_body = types.next().map(|field| &field["value"]);
    assert_eq!(
        of_body,
        Some(&"text/plain; charset=utf-8".into()),
        "{twice}"
    );
    assert!(types.next().is_none());
    let state = &both["responseHeadersToAdd"].as_array().expect("fields")[1];
    assert_eq!(
        state["value"],
        r#""account";r=9;t=6, "addresses";r=0;t=28800"#
    );

    // Hits that are given back take nothing and deny nothing: it is not known what they were.
    let mut back = hits("5");
    back["givesBack"] = true.into();
    for _ in 0..3 {
        let answer = envoy.ask(&back);
        assert_eq!(
            (&answer["overallCode"], &answer["statuses"][0]["code"]),
            (&"OK".into(), &"OK".into())
        );
        assert!(!has(&answer, "retry-after") && !has(&answer, "content-type"));
        assert_eq!(answer["rawBody"], Value::Null);
    }
    assert_eq!(envoy.ask(&hits("1"))["overallCode"], "OVER_LIMIT");
    let mut other = question(&[descriptor(&[("plan", "gold"), ("account", "c")])]);
    other["givesBack"] = true.into();
    assert_eq!(envoy.ask(&other)["statuses"][0]["limitRemaining"], 10);

    // Another domain has no rule for accounts.
    let mut elsewhere = hits("0");
    elsewhere["domain"] = "blog".into();
    assert_eq!(envoy.ask(&elsewhere)["overallCode"], "OK");
}

#[test]
fn a_question_that_is_not_valid_is_an_error_and_takes_nothing() {
    let program = Program::start("envoy-errors", ACCOUNTS, &GRPC);
    let Some(mut envoy) = Envoy::start(&program) else {
        return;
    };
    let address = descriptor(&[("ip", "192.0.2.7")]);
    let mut nowhere = question(core::slice::from_ref(&address));
    nowhere["domain"] = "".into();
    let large = descriptor(&[("ip", &"9".repeat(100_000))]);
    for (wrong, error) in [
        (nowhere, "INVALID_ARGUMENT"),
        (question(&[]), "INVALID_ARGUMENT"),
        (question(&vec![address.clone(); 65]), "INVALID_ARGUMENT"),
        (question(&[large]), "OUT_OF_RANGE"),
    ] {
        assert_eq!(envoy.ask(&wrong)["error"], error);
    }
    let answer = envoy.ask(&question(&[address]));
    assert_eq!(answer["statuses"][0]["limitRemaining"], 2);
    let checks = "portcullis_checks_total{proxy=\"envoy\",status=\"200\",mode=\"enforcing\"} 1\n";
    assert!(program.metrics().contains(checks));
}

#[test]
fn in_shadow_mode_envoy_lets_every_request_pass() {
    let arguments = [&GRPC[..], &["--shadow"]].concat();
    let program = Program::start("envoy-shadow", ACCOUNTS, &arguments);
    let Some(mut envoy) = Envoy::start(&program) else {
        return;
    };
    let all = question(&[descriptor(&[("ip", "192.0.2.7")])]);
    let answers = [(); 4].map(|()| envoy.ask(&all));
    assert!(answers.iter().all(|answer| answer["overallCode"] == "OK"));
    assert_eq!(answers[3]["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(answers[3]["rawBody"], Value::Null);
    assert!(has(&answers[3], "ratelimit"), "the state");
    assert!(!has(&answers[3], "retry-after") && !has(&answers[3], "content-type"));
}
