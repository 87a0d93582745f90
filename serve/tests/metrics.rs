//! The metrics are those of the decisions, in the format of Prometheus.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use std::time::{SystemTime, UNIX_EPOCH};

use client::ask;
use program::{Program, until};

fn check(program: &Program, target: &str) -> u16 {
    let headers = [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", target),
        ("X-Original-Host", "shop.example"),
        ("X-Forwarded-For", "192.0.2.7"),
    ];
    ask(program.listen, "GET /check/haproxy", &headers).status
}

/// The value of a sample.
fn value(metrics: &str, sample: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample));
    line?.trim().parse().ok()
}

const POLICY: &str = "
    [[rules]]
    name = 'a \"quoted\" rule'
    paths = ['/a']
    limits = ['2/d', '9/7d']

    [[rules]]
    name = 'trial'
    shadow = true
    paths = ['/b']
    limits = ['9/s', '1/d']
";

#[test]
fn decisions_are_counted_by_rule_answer_and_limit_and_go_on_after_a_change() {
    let program = Program::start("metrics", POLICY, &[]);
    let statuses = ["/a", "/a", "/a", "/b", "/b", "/c"].map(|target| check(&program, target));
    assert_eq!(statuses, [200, 200, 429, 200, 200, 200]);
    let of_rule = "portcullis_decisions_total{rule=\"a \\\"quoted\\\" rule\",answer=";
    let count = |metrics: &str, rest: &str| value(metrics, &format!("{of_rule}{rest}}} "));
    let metrics = program.metrics();
    assert_eq!(
        count(&metrics, "\"allowed\",limit=\"\""),
        Some(2.0),
        "{metrics}"
    );
    assert_eq!(count(&metrics, "\"denied\",limit=\"2/d\""), Some(1.0));
    assert_eq!(count(&metrics, "\"denied\",limit=\"9/7d\""), Some(0.0));
    let shadow = |limit: &str| {
        format!("portcullis_shadow_denials_total{{rule=\"trial\",limit=\"{limit}\"}} ")
    };
    assert_eq!(value(&metrics, &shadow("1/d")), Some(1.0), "{metrics}");
    assert_eq!(value(&metrics, &shadow("9/s")), Some(0.0));
    assert_eq!(value(&metrics, &shadow("")), None);
    let event = program.event("a shadow rule would deny the request");
    let fields = ["outcome", "rule", "limit"].map(|name| event[name].as_str());
    assert_eq!(
        fields,
        ["shadow denied", "trial", "1/d"].map(Some),
        "{event}"
    );
    let no_rule = "portcullis_decisions_total{rule=\"\",answer=\"no_rule\",limit=\"\"} ";
    assert_eq!(value(&metrics, no_rule), Some(3.0), "{metrics}");

    let checks = |status| {
        format!(
            "portcullis_checks_total{{proxy=\"haproxy\",status=\"{status}\",mode=\"enforcing\"}} "
        )
    };
    assert_eq!(value(&metrics, &checks(200)), Some(5.0));
    assert_eq!(value(&metrics, &checks(429)), Some(1.0));
    let times = "portcullis_check_duration_seconds";
    let below = |bound| format!("{times}_bucket{{proxy=\"haproxy\",le=\"{bound}\"}} ");
    assert_eq!(value(&metrics, &below("+Inf")), Some(6.0));
    assert_eq!(value(&metrics, &below("5")), Some(6.0));
    assert!(value(&metrics, &format!("{times}_sum{{proxy=\"haproxy\"}} ")) > Some(0.0));

    // Three changes, with decisions in between: no count is lost, and none is there twice.
    for period in ["8d", "9d", "10d"] {
        program.write(&POLICY.replace("9/7d", &format!("9/{period}")));
        program.event("a policy is in force");
        assert_eq!(check(&program, "/a"), 429);
        assert_eq!(check(&program, "/c"), 200);
    }
    let metrics = program.metrics();
    assert_eq!(count(&metrics, "\"allowed\",limit=\"\""), Some(2.0));
    assert_eq!(
        count(&metrics, "\"denied\",limit=\"2/d\""),
        Some(4.0),
        "{metrics}"
    );
    assert_eq!(value(&metrics, no_rule), Some(6.0));
    let reloads = "portcullis_policy_reloads_total{result=\"in_force\"} ";
    assert_eq!(value(&metrics, reloads), Some(3.0));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let started = value(&metrics, "process_start_time_seconds ").unwrap();
    let age = now.as_secs_f64() - started;
    assert!((0.0..600.0).contains(&age), "{age}");
    // A rule that is gone has no samples.
    program.write("rules = []");
    program.event("a policy is in force");
    assert!(!program.metrics().contains("quoted"));
}

/// Keys with limits of their own, and requests that lack the key of a rule.
#[test]
fn shadow_denials_without_a_limit_of_the_rule_are_counted_apart() {
    let policy = "
        [[rules]]
        name = 'own'
        shadow = true
        key = ['address']
        limits = ['9/d']
        overrides = [{ key = ['192.0.2.7'], limits = ['1/d'] }]

        [[rules]]
        name = 'none'
        shadow = true
        paths = ['/none']
        limits = [{ at_once = 9 }]
    ";
    let program = Program::start("own-shadow", policy, &[]);
    assert_eq!(
        ["/", "/", "/"].map(|target| check(&program, target)),
        [200; 3]
    );
    let denials = |rule: &str, limit: &str| {
        let labels = format!("rule=\"{rule}\",limit=\"{limit}\"");
        value(
            &program.metrics(),
            &format!("portcullis_shadow_denials_total{{{labels}}} "),
        )
    };
    assert_eq!(denials("own", "9/d"), Some(0.0));
    assert_eq!(denials("own", "override"), Some(2.0));
    assert_eq!(denials("own", ""), None);
    assert_eq!(denials("none", ""), Some(0.0));
    let event = program.event("a shadow rule would deny the request");
    assert_eq!(event["limit"], "1/d", "{event}");
}

/// The rule has a limit that the program does not keep, and one that denies nothing.
#[test]
fn denials_by_a_limit_of_one_key_are_counted() {
    let policy = "
        [[rules]]
        name = 'own'
        key = ['address']
        limits = ['9/d', { at_once = 9 }]
        overrides = [{ key = ['192.0.2.7'], limits = ['1/d'] }]
    ";
    let program = Program::start("own", policy, &[]);
    let statuses = ["/", "/", "/"].map(|target| check(&program, target));
    assert_eq!(statuses, [200, 429, 429]);
    let metrics = program.metrics();
    let denied = |limit: &str| {
        let labels = format!("rule=\"own\",answer=\"denied\",limit=\"{limit}\"");
        value(
            &metrics,
            &format!("portcullis_decisions_total{{{labels}}} "),
        )
    };
    assert_eq!(denied("override"), Some(2.0), "{metrics}");
    assert_eq!(denied("9/d"), Some(0.0), "{metrics}");
}

#[test]
fn metrics_are_in_the_format_of_prometheus() {
    let program = Program::start("format", POLICY.replace("/w", "/d").as_str(), &[]);
    check(&program, "/a");
    let reply = ask(program.admin, "GET /metrics", &[]);
    let kind = reply.header("content-type");
    assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"));
    let (mut metric, mut kind) = (String::new(), String::new());
    for line in reply.body.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["#", "HELP", name, ..] => metric = name.to_owned(),
            ["#", "TYPE", name, of] => {
                assert_eq!(name, metric);
                kind = of.to_owned();
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            }
            _ => {
                let (sample, value) = line.rsplit_once(' ').expect("a sample");
                let name = sample.split('{').next().expect("a name");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                let rest = name.strip_prefix(&*metric).expect("of this metric");
                let suffixes: &[_] = match &*kind {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                assert!(suffixes.contains(&rest), "{line}");
            }
        }
    }
    for wrong in ["GET /other", "POST /metrics", "POST /"] {
        assert!(ask(program.admin, wrong, &[]).status >= 400);
    }
}

#[test]
fn the_page_shows_who_is_denied_and_what_would_happen_and_escapes_all_text() {
    let policy = "
        [[rules]]
        name = '<script>rule</script>'
        key = ['header:X-Api-Key']
        limits = ['2/d']
    ";
    let program = Program::start("page", policy, &[]);
    let check = |key: &str| {
        let headers = [
            ("X-Original-Method", "GET"),
            ("X-Original-URI", "/"),
            ("X-Original-Host", "shop.example"),
            ("X-Forwarded-For", "192.0.2.7"),
            ("X-Api-Key", key),
        ];
        ask(program.listen, "GET /check/haproxy", &headers).status
    };
    let key = "<img src=x onerror='a'>\"&";
    assert_eq!([check(key), check(key), check(key)], [200, 200, 429]);
    let here = [("Host", "127.0.0.1:8788")];
    let page = |target: &str| ask(program.admin, &format!("GET {target}"), &here);

    let whole = page("/");
    assert_eq!(
        whole.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let security = whole.header("content-security-policy").unwrap();
    assert!(security.starts_with("default-src 'none';"), "{security}");
    let escaped = "&lt;img src=x onerror=&#39;a&#39;&gt;&quot;&amp;";
    for page in [&whole.body, &page("/live").body] {
        assert!(page.contains("&lt;script&gt;rule&lt;/script&gt;"), "{page}");
        let row = format!("<td class=\"k\">{escaped}</td>");
        assert!(page.contains(&row), "{page}");
        assert!(
            !page.contains("<script>rule") && !page.contains("<img"),
            "{page}"
        );
        // Nothing is loaded from elsewhere.
        assert!(!page.contains("//"), "{page}");
        assert_eq!(heads_and_cells(page), 2, "{page}");
    }

    // What the key of a request has left. To ask takes nothing.
    for _ in 0..3 {
        let other = page("/?method=GET&path=%2F&fields=X-Api-Key%3A+b%0D%0AX%3A+%3Cb%3E").body;
        assert!(other.contains("allowed; 2/d: 2 left"), "{other}");
        assert!(other.contains("X: &lt;b&gt;</textarea>"), "{other}");
    }
    let query = "/?path=/&fields=X-Api-Key%3A+%3Cimg+src%3Dx+onerror%3D%27a%27%3E%22%26";
    let denied = page(query).body;
    assert!(
        denied.contains("denied; 2/d: 0 left, again in 43"),
        "{denied}"
    );
    assert_eq!(heads_and_cells(&denied), 3, "{denied}");
    assert!(
        page("/?path=/&address=nowhere")
            .body
            .contains("The address is not valid.")
    );

    // A name that somebody else gave this address shows nothing.
    for (host, status) in [
        ("localhost:1", 200),
        ("[::1]:1", 200),
        ("evil.example:8788", 403),
        ("127.0.0.1.evil.example", 403),
    ] {
        let reply = ask(program.admin, "GET /live", &[("Host", host)]);
        assert_eq!(reply.status, status, "{host}");
    }

    // The rate of denials, over the last seconds.
    until(|| {
        assert_eq!(check(key), 429);
        page("/live").body.contains("<td class=\"n bad\">")
    });
}

/// Checks that each row of each table of the page has a cell for each head. Returns how many tables
/// there are.
fn heads_and_cells(page: &str) -> usize {
    let tables = page.split("<thead>").skip(1);
    tables
        .inspect(|table| {
            let (head, rest) = table.split_once("</thead>").expect("the end of the heads");
            let (rows, _) = rest.split_once("</tbody>").expect("the end of the rows");
            let heads = head.matches("<th>").chain(head.matches("<th ")).count();
            for row in rows.split("<tr>").skip(1) {
                assert_eq!(row.matches("<td").count(), heads, "{head}: {row}");
            }
        })
        .count()
}

/// The numbers in the row of a table of the page that begins with these cells.
fn row(page: &str, begins: &str) -> Option<Vec<String>> {
    let (_, rest) = page.split_once(&format!("<tr>{begins}"))?;
    let (row, _) = rest.split_once("</tr>")?;
    let cells = row.split("<td class=\"n").skip(1);
    let number = |cell: &str| {
        let (_, rest) = cell.split_once('>').expect("a cell");
        rest.split('<').next().unwrap_or_default().to_owned()
    };
    Some(cells.map(number).collect())
}

/// How often a rule has allowed, denied, and would have denied.
fn counts_of_rule(page: &str, rule: &str, limit: &str) -> [String; 3] {
    let cells = row(
        page,
        &format!("<td class=\"k\">{rule}</td><td>{limit}</td>"),
    );
    let cells = cells.unwrap_or_else(|| panic!("{rule}: {page}"));
    [0, 2, 4].map(|at| cells[at].clone())
}

/// The part of the page with this heading.
fn section<'p>(page: &'p str, heading: &str) -> Option<&'p str> {
    let (_, rest) = page.split_once(&format!("<h2>{heading}</h2>"))?;
    Some(rest.split("<h2>").next().unwrap_or_default())
}

const DENIED: &str = "Keys that are denied most";
const WOULD_BE: &str = "Keys that would be denied most, but pass in shadow";

#[test]
fn the_page_keeps_denials_in_shadow_apart_also_once_the_rule_is_no_shadow() {
    let policy = |shadow: bool| {
        format!(
            "
            [[rules]]
            name = 'trial'
            shadow = {shadow}
            key = ['address']
            limits = ['2/d']
            "
        )
    };
    let program = Program::start("page-shadow", &policy(true), &[]);
    let page = || ask(program.admin, "GET /live", &[("Host", "localhost")]).body;
    let of_key = "<td class=\"k\">192.0.2.7</td><td class=\"k\">trial</td>";
    let counts_of_key = |page: &str, heading| {
        let mut numbers = row(section(page, heading)?, of_key)?;
        numbers.truncate(1);
        Some(numbers)
    };

    assert_eq!([(); 5].map(|()| check(&program, "/")), [200; 5]);
    let in_shadow = page();
    assert_eq!(
        counts_of_rule(&in_shadow, "trial (shadow)", "2/d"),
        ["-", "0", "3"]
    );
    assert_eq!(counts_of_key(&in_shadow, WOULD_BE).unwrap(), ["3"]);
    assert_eq!(counts_of_key(&in_shadow, DENIED), None);

    program.write(&policy(false));
    program.event("a policy is in force");
    assert_eq!([(); 2].map(|()| check(&program, "/")), [429; 2]);
    let enforced = page();
    assert_eq!(counts_of_rule(&enforced, "trial", "2/d"), ["0", "2", "3"]);
    assert_eq!(counts_of_key(&enforced, WOULD_BE).unwrap(), ["3"]);
    assert_eq!(counts_of_key(&enforced, DENIED).unwrap(), ["2"]);

    // Also once neither policy is in force.
    for more in 1..3 {
        program.write(&policy(false).replace("2/d", &format!("{}/d", 2 + more)));
        program.event("a policy is in force");
        assert_eq!([(); 2].map(|()| check(&program, "/")), [200, 429]);
    }
    let later = page();
    assert_eq!(counts_of_rule(&later, "trial", "4/d"), ["2", "4", "3"]);
    assert_eq!(counts_of_key(&later, WOULD_BE).unwrap(), ["3"]);
    assert_eq!(counts_of_key(&later, DENIED).unwrap(), ["4"]);

    // A rule that is gone has no keys.
    program.write("rules = []");
    program.event("a policy is in force");
    let none = page();
    assert!(
        section(&none, WOULD_BE).is_none() && !none.contains("192.0.2.7"),
        "{none}"
    );
}

/// A flood that is over does not hide who is denied now.
#[test]
fn the_page_shows_keys_that_are_denied_now_before_those_that_were() {
    let policy = "[[rules]]\nname = 'each'\nkey = ['header:X-Key']\nlimits = ['1/d']\n";
    let program = Program::start("page-now", policy, &[]);
    let deny = |key: &str, times: u32| {
        for _ in 0..times {
            let headers = [
                ("X-Original-Method", "GET"),
                ("X-Original-URI", "/"),
                ("X-Original-Host", "shop.example"),
                ("X-Forwarded-For", "192.0.2.7"),
                ("X-Key", key),
            ];
            ask(program.listen, "GET /check/haproxy", &headers);
        }
    };
    // The first key, and its denials per second.
    let first = || {
        let page = ask(program.admin, "GET /live", &[("Host", "localhost")]).body;
        let section = section(&page, DENIED)?;
        let (_, row) = section.split_once("<tr><td class=\"k\">")?;
        let (row, _) = row.split_once("</td></tr>")?;
        let (key, _) = row.split_once('<')?;
        let (_, rate) = row.rsplit_once('>')?;
        Some((key.to_owned(), rate.parse::<f64>().ok()?))
    };
    let is_first = |key: &str, is_now: bool| {
        first().is_some_and(|(first, rate)| first == key && (rate > 0.0) == is_now)
    };
    deny("flood", 50);
    until(|| is_first("flood", true));
    // The rate is that of the last 10 s.
    until(|| is_first("flood", false));
    deny("now", 3);
    until(|| is_first("now", true));
}

#[test]
fn the_page_of_a_program_in_shadow_says_of_all_denials_that_they_would_be() {
    let policy = "
        [[rules]]
        name = 'all'
        key = ['address']
        limits = ['2/d']
    ";
    let program = Program::start("page-all-shadow", policy, &["--shadow"]);
    assert_eq!([(); 3].map(|()| check(&program, "/")), [200; 3]);
    let page = ask(program.admin, "GET /live", &[("Host", "localhost")]).body;
    assert_eq!(counts_of_rule(&page, "all", "2/d"), ["2", "0", "1"]);
    assert!(section(&page, WOULD_BE).unwrap().contains("192.0.2.7"));
    assert!(!section(&page, DENIED).unwrap().contains("192.0.2.7"));
}

#[test]
fn the_alerts_ask_for_what_the_metrics_have() {
    let program = Program::start("alerts", POLICY, &[]);
    assert_eq!(check(&program, "/a"), 200);
    let (metrics, alerts) = (program.metrics(), include_str!("../deploy/alerts.yml"));
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = alerts.split(|c| !is_word(c));
    let names: Vec<_> = words
        .filter(|word| word.starts_with("portcullis_"))
        .collect();
    assert_eq!(names.len(), 8, "{names:?}");
    for name in names {
        let line = format!("# TYPE {name} ");
        assert!(metrics.contains(&line), "{name}: {metrics}");
    }
    let answers: Vec<_> = alerts.split("answer=").skip(1).collect();
    for answer in &answers {
        let answer = answer.split('"').nth(1).unwrap();
        let label = format!("answer=\"{answer}\"");
        assert!(metrics.contains(&label), "{answer}: {metrics}");
    }
    assert_eq!(answers.len(), 3);
}
