//! The policy file changes while the program runs.

#[path = "support/client.rs"]
mod client;
#[path = "support/program.rs"]
mod program;

use std::os::unix::fs::symlink;

use client::ask;
use program::{Program, command, folder, until};

fn policy(limit: &str) -> String {
    format!("[[rules]]\nname = 'all'\nkey = ['address']\nlimits = ['{limit}']\n")
}

fn check(program: &Program) -> u16 {
    let headers = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/"),
        ("X-Forwarded-Host", "shop.example"),
        ("X-Forwarded-For", "192.0.2.7"),
    ];
    ask(program.listen, "GET /check/traefik", &headers).status
}

#[test]
fn a_change_of_the_file_is_in_force_and_keeps_what_was_taken() {
    let program = Program::start("change", &policy("1/d"), &[]);
    assert_eq!([check(&program), check(&program)], [200, 429]);
    program.write(&policy("3/d"));
    let change = program.event("a policy is in force");
    assert_eq!(change["kept"], "all");
    assert_eq!([(), (), ()].map(|()| check(&program)), [200, 200, 429]);
}

#[test]
fn a_signal_has_the_file_read_at_once() {
    let program = Program::start("hangup", &policy("1/d"), &["--poll", "1h"]);
    assert_eq!([check(&program), check(&program)], [200, 429]);
    program.write(&policy("2/d"));
    program.signal("HUP");
    program.event("a policy is in force");
    assert_eq!([check(&program), check(&program)], [200, 429]);
}

/// Who sends a signal waits for its effect.
#[test]
fn each_signal_is_answered_in_the_log() {
    let program = Program::start("answered", &policy("1/d"), &["--poll", "1h"]);
    let tells = |message: &str| {
        program.signal("HUP");
        program.event(message)["message"].clone()
    };
    tells("the policy in force is that of the file");
    program.write(&policy("many"));
    let refused = [(), ()].map(|()| tells("the policy before stays in force"));
    assert_eq!(refused[0], refused[1]);
    std::fs::remove_file(&program.file).unwrap();
    let gone = [(), ()].map(|()| tells("the policy before stays in force"));
    assert!(gone[0] != refused[0] && gone[0] == gone[1]);
    program.write(&policy("1/d"));
    tells("the policy in force is that of the file");
    let metrics = program.metrics();
    let counts = |line| metrics.lines().any(|other| other == line);
    assert!(
        counts("portcullis_policy_reloads_total{result=\"refused\"} 2"),
        "{metrics}"
    );
}

#[test]
fn a_file_that_is_not_valid_changes_nothing_and_is_reported_once() {
    let program = Program::start("broken", &policy("1/d"), &[]);
    assert_eq!(check(&program), 200);
    program.write(&policy("many"));
    let refused = program.event("the policy before stays in force");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("policy.toml:4:"), "{message}");
    assert_eq!(check(&program), 429);
    // A rule of a store that the program does not have is refused too.
    program.write(&format!("stores = ['a']\n{}store = 'a'\n", policy("9/d")));
    program.event("the policy before stays in force");
    assert_eq!(check(&program), 429);
    // If the file describes the store, what it lacks is a restart.
    let described = "stores = ['a']\nserve.stores.a.redis = 'redis://127.0.0.1:1/'\n";
    program.write(&format!("{described}{}store = 'a'\n", policy("9/d")));
    let refused = program.event("the policy before stays in force");
    let message = refused["message"].as_str().unwrap();
    let says = "policy.toml: the table `serve` has changed: this needs a restart";
    assert!(message.ends_with(says), "{message}");
    assert_eq!(check(&program), 429);
    // So is one whose rules are valid, and whose table `serve` is not.
    for of_serve in [
        "trustd = []",
        "trusted = ['10.0.0.0/33']",
        "stores.shared.redis = 'nowhere'",
    ] {
        program.write(&format!("serve.{of_serve}\n{}", policy("9/d")));
        program.event("the policy before stays in force");
        assert_eq!(check(&program), 429, "{of_serve}");
    }
    program.write(&policy("2/d"));
    program.event("a policy is in force");
    assert_eq!(check(&program), 200);
    let refused = "portcullis_policy_reloads_total{result=\"refused\"} 6\n";
    assert!(program.metrics().contains(refused));
}

/// In the form `text`, in which a message is written as it is.
#[test]
fn several_errors_of_a_change_are_one_line_of_the_log() {
    let folder = folder("lines");
    let file = folder.join("policy.toml");
    std::fs::write(&file, policy("1/d")).unwrap();
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let listen = ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--log=text"];
    let mut child = command(&file, &listen).stderr(log).spawn().unwrap();
    let lines = || std::fs::read_to_string(folder.join("log")).unwrap();
    until(|| lines().contains("checks are answered"));
    std::fs::write(&file, "a = 1\nb = 2\nrules = []\n").unwrap();
    until(|| lines().contains("the policy before stays in force"));
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = lines();
    let refused = lines
        .lines()
        .find(|line| line.contains("stays in force"))
        .unwrap();
    assert!(
        refused.contains("policy.toml:1:1: a is") && refused.contains("; "),
        "{refused}"
    );
    assert!(refused.contains("policy.toml:2:1: b is"), "{refused}");
    assert!(lines.lines().all(|line| line.starts_with("20")), "{lines}");
}

#[test]
fn a_file_that_is_refused_is_shown_until_a_valid_one_is_read() {
    let program = Program::start("shown", &policy("1/d"), &[]);
    let is_shown = |is: bool| {
        let page = ask(program.admin, "GET /live", &[("Host", "localhost")]).body;
        let line = page
            .lines()
            .find(|line| line.contains("The file is refused"));
        let refused = format!("portcullis_policy_file_refused {}\n", u8::from(is));
        (line.is_some() == is && program.metrics().contains(&refused))
            .then(|| line.unwrap_or_default().to_owned())
    };
    assert!(is_shown(false).is_some());
    program.write(&policy("many"));
    until(|| is_shown(true).is_some());
    let line = is_shown(true).unwrap();
    assert!(line.contains("policy.toml:4:"), "{line}");
    let since = |line: &str| {
        let (_, rest) = line.split_once("refused since ").unwrap();
        let (since, _) = rest.split_once(": ").unwrap();
        // With the date, as `2026-11-28T07:01:05Z`.
        let digits = since.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(digits, "0000-00-00T00:00:00Z");
        since.to_owned()
    };
    // Another one that is not valid, a second later: since when is as before.
    program.event("the policy before stays in force");
    std::thread::sleep(core::time::Duration::from_millis(1_100));
    program.write(&format!("\n{}", policy("more")));
    program.event("the policy before stays in force");
    until(|| is_shown(true).is_some_and(|line| line.contains("policy.toml:5:")));
    assert_eq!(since(&is_shown(true).unwrap()), since(&line));
    // The file from before is no change, and it is in force.
    program.write(&policy("1/d"));
    until(|| is_shown(false).is_some());
    // The same mistake is told again.
    program.write(&policy("many"));
    program.event("the policy before stays in force");
    until(|| is_shown(true).is_some());
    program.write(&policy("2/d"));
    program.event("a policy is in force");
    until(|| is_shown(false).is_some());
}

#[test]
fn what_this_program_cannot_limit_is_told() {
    let rules = "
        [[rules]]
        name = 'uploads'
        limits = [{ at_once = 3 }]

        [[rules]]
        name = 'bytes'
        kind = 'egress'
        limits = ['1000/s']
    ";
    let program = Program::start("told", "rules = []", &[]);
    program.write(rules);
    program.event("a policy is in force");
    let at_once = program.event("a limit at once is not enforced here");
    assert_eq!(
        (&at_once["rule"], &at_once["limit"]),
        (&"uploads".into(), &"3 at once".into())
    );
    assert_eq!(program.event("only the kind `request` is")["rule"], "bytes");
    // After a change, what is new is told.
    let changed = rules.replace("'uploads'", "'images'");
    program.write(&format!("serve.wait = '2s'\n{changed}"));
    program.event("a policy is in force");
    let told = program.events_until("this needs a restart");
    let told = &told[..told.len() - 1];
    let rules = [&told[0]["rules"], &told[1]["rule"]];
    assert_eq!(rules, ["uploads", "images"], "one is gone, and one is new");
    assert_eq!(told.len(), 2);
    let gone = told[0]["message"].as_str().unwrap();
    assert!(gone.contains("rules are gone"), "{gone}");
    let needs = |restart| {
        let line = format!("portcullis_restart_needed {}\n", u8::from(restart));
        until(|| program.metrics().contains(&line));
    };
    needs(true);
    program.write(&changed);
    needs(false);
    // A limit that is left out has no samples.
    assert!(!program.metrics().contains("at once"));
}

/// As its start does, without listening.
#[test]
fn a_check_of_a_file_judges_the_whole_file_and_ends() {
    let folder = folder("judged");
    let limits = "limits = [{ at_once = 100 }, '1/d']";
    let rules = policy("1/d").replace("limits = ['1/d']", limits);
    let checked = |settings: &str, rules: &str| {
        let file = folder.join("policy.toml");
        std::fs::write(&file, format!("{settings}\n{rules}")).unwrap();
        let output = command(&file, &["--check"]).output().unwrap();
        let [out, log] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(!log.contains("checks are answered"), "{log}");
        (output.status.code(), out, log)
    };
    let (code, out, log) = checked("serve.wait = '2s'", &rules);
    assert_eq!(code, Some(0), "{log}");
    assert!(out.ends_with("policy.toml: valid, 1 rule\n"), "{out}");
    assert!(
        log.contains("a limit at once is not enforced here"),
        "{log}"
    );
    // A limit that the proxy keeps is not doubtful.
    let strict = |rules: &str| {
        let file = folder.join("policy.toml");
        std::fs::write(&file, rules).unwrap();
        let output = command(&file, &["--check", "--deny-warnings"]).output();
        output.unwrap().status.code()
    };
    assert_eq!(strict(&rules), Some(0));
    let never_asked = "[[rules]]\nname = 'never'\nlimits = ['1/s']\n";
    assert_eq!(strict(&format!("{rules}\n{never_asked}")), Some(2));
    for (settings, says) in [
        (
            "serve.trustd = []",
            "policy.toml:1:7: trustd is not a setting of serve: did you mean trusted?",
        ),
        ("serve.wait = 'soon'", "soon"),
        (
            "serve.stores.shared.redis = 'nowhere'",
            "serve.stores.shared: ",
        ),
        ("stores = 1", "stores"),
    ] {
        let (code, out, log) = checked(settings, &rules);
        assert_eq!((code, &*out), (Some(2), ""), "{settings}");
        assert!(log.contains(says), "{log}");
    }
    // A rule of a store that no setting describes.
    let (code, _, log) = checked("stores = ['shared']", &format!("{rules}store = 'shared'\n"));
    assert_eq!(code, Some(2), "{log}");
}

#[test]
fn a_file_or_an_address_that_cannot_be_used_ends_the_program() {
    let folder = folder("unusable");
    let (good, broken) = (folder.join("good.toml"), folder.join("broken.toml"));
    std::fs::write(&good, policy("1/d")).unwrap();
    std::fs::write(&broken, policy("1/day")).unwrap();
    let (cut, cut_json) = (folder.join("cut.toml"), folder.join("cut.json"));
    std::fs::write(&cut, "rules = [").unwrap();
    std::fs::write(&cut_json, "{ \"rules\": [").unwrap();
    let settings = folder.join("settings.toml");
    std::fs::write(&settings, format!("serve.trust = []\n{}", policy("1/d"))).unwrap();
    for (file, arguments, says) in [
        (
            &folder.join("none.toml"),
            &[][..],
            "none.toml: No such file",
        ),
        (&broken, &[], "broken.toml:4:"),
        (&settings, &[], "trust"),
        (&cut, &[], "cut.toml:1:10: unclosed array"),
        (&cut_json, &[], "cut.json:1:"),
        (&good, &["--listen", "192.0.2.1:1"], "192.0.2.1:1: "),
        (&good, &["--poll", "soon"], "--poll"),
    ] {
        let mut command = command(file, &[]);
        // The last one counts.
        command.args(arguments).arg("--log=off");
        let ended = command.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{text}");
        // Each error once.
        let lines: Vec<_> = text.lines().collect();
        assert!(arguments.contains(&"--poll") || lines.len() == 1, "{text}");
    }
}

/// As `portcullis check` tells them.
#[test]
fn what_is_doubtful_in_the_file_is_told() {
    let doubtful = "
        [[rules]]
        name = 'all'
        limits = ['100/s']

        [[rules]]
        name = 'logins'
        paths = ['/login']
        key = ['address']
        limits = ['5/m']
    ";
    let program = Program::start("doubtful", "rules = []", &[]);
    program.write(doubtful);
    let never = program.event("this rule is never asked");
    let message = never["message"].as_str().unwrap();
    assert!(message.contains("policy.toml:7:16: name: "), "{message}");
}

/// As Kubernetes mounts them: the file is a link to one in a folder, which is a link that changes.
#[test]
fn a_file_of_a_configuration_map_is_read_when_its_folder_changes() {
    let folder = folder("map");
    let version = |name: &str, limit: &str| {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("policy.toml"), policy(limit)).unwrap();
        symlink(name, folder.join("new")).unwrap();
        std::fs::rename(folder.join("new"), folder.join("..data")).unwrap();
    };
    version("..1", "1/d");
    symlink("..data/policy.toml", folder.join("policy.toml")).unwrap();
    let program = Program::start_with(&folder.join("policy.toml"), &[]);
    assert_eq!([check(&program), check(&program)], [200, 429]);
    version("..2", "2/d");
    std::fs::remove_dir_all(folder.join("..1")).unwrap();
    program.event("a policy is in force");
    assert_eq!([check(&program), check(&program)], [200, 429]);
    // An empty folder, as between two mounts.
    std::fs::remove_dir_all(folder.join("..2")).unwrap();
    program.event("the policy before stays in force");
    assert_eq!(check(&program), 429);
    version("..3", "3/d");
    program.event("a policy is in force");
    assert_eq!([check(&program), check(&program)], [200, 429]);
}

#[test]
fn a_file_that_is_gone_or_not_readable_changes_nothing_and_is_read_when_it_is_back() {
    let program = Program::start("gone", &policy("1/d"), &[]);
    assert_eq!([check(&program), check(&program)], [200, 429]);
    let is_refused = || {
        let refused = program.event("the policy before stays in force");
        assert_eq!(check(&program), 429);
        refused["message"].as_str().unwrap().to_owned()
    };
    std::fs::remove_file(&program.file).unwrap();
    assert!(is_refused().contains("No such file"));
    // Nobody can read a folder as a file, not even root.
    std::fs::create_dir(&program.file).unwrap();
    assert!(is_refused().contains("directory"));
    std::fs::remove_dir(&program.file).unwrap();
    std::fs::write(&program.file, [0xff, 0xfe, 0]).unwrap();
    is_refused();
    std::fs::write(&program.file, "").unwrap();
    is_refused();
    program.write(&policy("2/d"));
    program.event("a policy is in force");
    assert_eq!([check(&program), check(&program)], [200, 429]);
}

#[test]
fn a_storm_of_signals_has_the_last_change_read_and_takes_no_memory() {
    let program = Program::start("storm", &policy("1/d"), &["--poll", "1h"]);
    assert_eq!(check(&program), 200);
    let before = program.resident();
    program.signals("HUP", 10_000);
    program.write(&policy("2/d"));
    program.signal("HUP");
    program.event("a policy is in force");
    assert_eq!([check(&program), check(&program)], [200, 429]);
    let after = program.resident();
    assert!(after < before + 4 * 1024, "{before} KiB, then {after} KiB");
}
