//! Files of rules: each is valid, or is refused with errors that point into it.

use portcullis_core::Timestamp;
use portcullis_policy::{FileError, Imported, Policy, Request};

/// Policies from TOML.
pub fn policy_toml(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        judge(text, Policy::from_toml(text));
    }
}

/// Policies from JSON with comments.
pub fn policy_json(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        judge(text, Policy::from_json(text));
    }
}

/// `ocelot.json`.
pub fn ocelot(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        import(text, Imported::from_ocelot(text));
    }
}

/// A folder of `ocelot.*.json`. A line with `---` separates the files.
pub fn ocelot_folder(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        let names = ["ocelot.global.json", "ocelot.a.json", "ocelot.json", "b"];
        let files: Vec<_> = names.into_iter().zip(text.split("---\n")).collect();
        let check_all = |messages: &[FileError]| {
            for (name, text) in &files {
                let of_file = |message: &&FileError| message.file.as_deref() == Some(*name);
                check(text, messages.iter().filter(of_file));
            }
            let is_named = |message: &FileError| message.file.is_some();
            assert!(messages.iter().all(is_named));
        };
        match Imported::from_ocelot_files(&files) {
            Ok(imported) => {
                check_all(&imported.warnings);
                drop(imported.into_policy());
            }
            Err(errors) => {
                assert!(!errors.is_empty());
                check_all(&errors);
            }
        }
    }
}

/// Policies of the Azure Throttling Solution.
pub fn ats(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        import(text, Imported::from_ats(text));
    }
}

fn import(text: &str, imported: Result<Imported, Vec<FileError>>) {
    let policy = imported.map(|imported| {
        check(text, imported.warnings.iter());
        let policy = imported.into_policy();
        policy.expect("the rules of a file were checked when it was read")
    });
    judge(text, policy);
}

/// Uses the rules of a file, or checks its errors.
fn judge(text: &str, policy: Result<Policy, Vec<FileError>>) {
    match policy {
        Ok(policy) => {
            let headers = [("x-api-key", "k"), ("oc-client", "admin")];
            for (method, path) in [
                ("GET", "/"),
                ("POST", "/login?a=b"),
                ("PUT", "//a/%2e%2e/b"),
            ] {
                let request = Request::new(method, path).headers(&headers);
                let request = request.address([192, 0, 2, 7].into());
                let request = request.host("a.example").tier("free").cost(2);
                let now = Timestamp::from_secs(1);
                let decision = policy.decide_at(now, &request);
                if let Some(retry) = decision.retry() {
                    let _ = retry.wait_from(now);
                }
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            check(text, errors.iter());
        }
    }
}

/// Messages must point into their file, in its order.
fn check<'m>(text: &str, messages: impl Iterator<Item = &'m FileError> + Clone) {
    assert!(
        messages
            .clone()
            .is_sorted_by_key(|message| message.bytes.start)
    );
    for message in messages {
        assert!(text.get(message.bytes.clone()).is_some(), "{message}");
        let line = 1 + text[..message.bytes.start].matches('\n').count();
        assert_eq!(message.line, line, "{message}");
        assert!(message.column > 0, "{message}");
        assert!(!message.message.contains(char::is_control), "{message:?}");
        assert!(!message.in_file("a").to_string().is_empty());
    }
}
