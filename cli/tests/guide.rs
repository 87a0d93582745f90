//! The path from a log to limits in `docs/operators.md` prints what the guide shows.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Scratch, portcullis, text};

const GUIDE: &str = include_str!("../../docs/operators.md");

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the blocks of a section: their kinds and their texts.
fn blocks(section: &str) -> Vec<(&str, &str)> {
    let fences = section.split("\n```").skip(1).step_by(2);
    fences.filter_map(|block| block.split_once('\n')).collect()
}

/// Runs the commands in `sh`, in one folder and one after another, and compares what they print
/// with the next block. The guide may leave lines out.
#[test]
fn the_path_from_a_log_to_limits_prints_what_the_guide_shows() {
    let (_, path) = GUIDE.split_once("\n## From a log to limits\n").unwrap();
    let (path, _) = path.split_once("\n**5. ").unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("from-a-log");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_portcullis"))
        .parent()
        .unwrap();
    let programs = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut printed = String::new();
    let mut compared = 0;
    for (kind, block) in blocks(path) {
        if kind == "sh" {
            let is_copy = block.starts_with("cp ");
            let commands = block.replace("FOLDER", &folder.to_string_lossy());
            let mut shell = Command::new("sh");
            shell.args(["-e", "-c", &commands]).env("PATH", &programs);
            let output = shell.current_dir(if is_copy { Path::new(ROOT) } else { &folder });
            let output = output.output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            printed = text(&output.stdout);
        } else if kind == "text" {
            let mut lines = printed.lines();
            for shown in block.lines() {
                assert!(
                    lines.any(|line| line == shown),
                    "{shown:?} is not printed, or not there:\n{printed}"
                );
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 3);

    // Without the keys, the numbers of another rule change too.
    let format = fs::read_to_string(folder.join("keyed.conf")).unwrap();
    let mut command = portcullis(&[
        "replay",
        "access.log.gz",
        "--format",
        &format.replace(" \"$http_x_api_key\"", ""),
        "--policy",
        "policy.toml",
        "--json",
    ]);
    let output = command.current_dir(&folder).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["never_logged"][0], "header:X-Api-Key");
    assert_eq!(json["rules"][0]["denied"], 81);
    assert!(path.contains("`all` would seem to deny\n81 requests"));
}

/// The commands of a trial: also for a rule that is a shadow before it, and stays one.
#[test]
fn a_trial_adds_a_shadow_to_each_rule_and_its_end_leaves_the_file_as_it_was() {
    let own = "\n[[rules]]\nname = 'own'\npriority = 1\nshadow=true\nlimits = ['1/s']\n\
        \n[[rules]]\nname = 'lines'\npriority = 2\nlimits = [\n  '1/s',\n]\nshadow = true\n";
    let before = format!("{}{own}", include_str!("../../serve/deploy/policy.toml"));
    let file = Scratch::new("trial.toml", before.as_bytes());
    let lines = GUIDE.lines().filter(|line| line.starts_with("sed -i "));
    let commands: Vec<_> = lines.collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    let after = |command: &str| {
        let command = command.replace("policy.toml", file.path());
        let status = Command::new("sh").args(["-c", &command]).status().unwrap();
        assert!(status.success(), "{command}");
        let output = portcullis(&["check", file.path()]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read_to_string(file.path()).unwrap()
    };
    let trial = after(commands[0]);
    assert_eq!(after(commands[0]), trial, "twice");
    let shadows = trial
        .lines()
        .filter(|line| line.starts_with("shadow = true"));
    assert_eq!(shadows.count(), 6, "{trial}");
    assert_eq!(after(commands[1]), before);
}

/// Lines that HAProxy 2.6 and Envoy 1.40 have written with the settings of the guide.
#[test]
fn the_logs_of_the_guide_have_the_key() {
    let lines = r#"{"time":1795790378.763,"remote_addr":"192.0.2.7","method":"GET","path":"\/api\/items?q=%22a","host":"127.0.0.1:28001","status":200,"size":117,"X-Api-Key":"key-1"}
{"time":1795790378.782,"remote_addr":"192.0.2.8","method":"GET","path":"\/","host":"127.0.0.1:28001","status":200,"size":117,"X-Api-Key":"-"}
{"host":"127.0.0.1:28002","method":"GET","path":"/api/items?q=%22a","remote_addr":"192.0.2.9","size":3,"status":200,"time":"2026-11-27T14:40:00.435Z","x-api-key":"key-1"}
{"host":"127.0.0.1:28002","method":"POST","path":"/login","remote_addr":"192.0.2.9","size":3,"status":200,"time":"2026-11-27T14:40:00.471Z","x-api-key":null}
"#;
    let log = Scratch::new("keyed.json", lines.as_bytes());
    let policy = format!("{ROOT}/serve/deploy/policy.toml");
    let mut command = portcullis(&["replay", log.path(), "--policy", &policy, "--json"]);
    let output = command.output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["requests"], 4);
    let asked = |rule: usize| (&json["rules"][rule]["rule"], &json["rules"][rule]["asked"]);
    assert_eq!(asked(0), (&"all".into(), &4.into()));
    assert_eq!(asked(1), (&"login".into(), &1.into()));
    assert_eq!(asked(2), (&"api".into(), &2.into()));
}
