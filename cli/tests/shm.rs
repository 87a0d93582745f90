//! The limiters in memory that processes share.
#![cfg(target_os = "linux")]

mod common;

use std::process::Output;

use common::{portcullis, text};
use portcullis_core::{Rate, TokenBucket};
use portcullis_shm::SharedFile;

fn shm(args: &[&str]) -> Output {
    portcullis(&[&["shm"], args].concat()).output().unwrap()
}

/// The output of a call that succeeds.
fn lines(args: &[&str]) -> String {
    let output = shm(args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn files_are_listed_shown_and_removed() {
    let name = format!("cli-test-{}", std::process::id());
    let file = SharedFile::named(&name).unwrap();
    let bucket = file
        .limiter(TokenBucket::new(Rate::per_second(100), 20))
        .unwrap();

    let listed = lines(&["ls"]);
    let line = listed.lines().find(|line| line.starts_with(&name)).unwrap();
    assert!(
        line.contains("limiter") && line.contains("in use"),
        "{line}"
    );
    assert!(line.contains("burst 20"), "{line}");

    let shown = lines(&["show", &name]);
    let path = format!("file:     /dev/shm/portcullis.{name}\n");
    assert!(shown.starts_with(&path), "{shown}");
    let creator = format!("by process {}\n", std::process::id());
    assert!(
        shown.contains(&creator) && shown.contains("mode:     600"),
        "{shown}"
    );
    let by_path = lines(&["show", file.path().to_str().unwrap()]);
    assert_eq!(by_path, shown);

    let refused = shm(&["rm", &name]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("another process keeps it locked"));
    drop(bucket);
    assert!(lines(&["show", &name]).contains("state:    not in use\n"));
    assert_eq!(lines(&["rm", &name]), "");
    assert!(!lines(&["ls"]).contains(&name));
}

#[test]
fn a_file_that_is_not_there_or_no_name_is_an_error() {
    for (args, words) in [
        (["show", "no-such-limiter"], "could not open it"),
        (["rm", "no-such-limiter"], "could not open it"),
        (["show", "a b"], "the name \"a b\" must be"),
    ] {
        let output = shm(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
