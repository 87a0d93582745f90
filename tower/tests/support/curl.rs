//! Reads the `curl` lines in the head of an example, so that a test sends what the lines send.

/// A request that a line sends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Curl {
    pub(crate) method: String,
    /// Without the scheme and the host.
    pub(crate) path: String,
    /// As `Name: value`.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// Returns the requests of all `curl` lines of an example, in order, each as often as its loop
/// sends it.
pub(crate) fn lines_of(example: &str) -> Vec<Curl> {
    let head = example.lines().map_while(|line| line.strip_prefix("//!"));
    let head: Vec<_> = head.map(str::trim).collect();
    let shell = head.join("\n").replace("\\\n", " ");
    let commands = shell.lines().filter(|line| line.contains("curl "));
    let commands = commands.filter(|line| !line.starts_with('#'));
    commands.flat_map(command).collect()
}

/// `curl ...`, `printf '...' | curl ...`, or one of these in a loop: `for i in 1 2; do ...; done`.
fn command(line: &str) -> Vec<Curl> {
    let (times, line) = match line.strip_prefix("for i in ") {
        Some(rest) => {
            let (list, rest) = rest.split_once("; do ").expect("a loop");
            let line = rest.strip_suffix("; done").expect("the end of the loop");
            (list.split(' ').count(), line)
        }
        None => (1, line),
    };
    let (input, curl) = line.rsplit_once("curl ").expect("curl");
    let input = input.trim_end_matches(['|', ' ']);
    let input = input
        .strip_prefix("printf ")
        .map(|text| unescaped(&words(text)[0]));
    let one = || request(&words(curl), input.as_deref().unwrap_or_default());
    (0..times).map(|_| one()).collect()
}

fn request(words: &[String], input: &[u8]) -> Curl {
    let mut request = Curl {
        method: "GET".to_owned(),
        ..Curl::default()
    };
    let mut words = words.iter();
    let mut next = || words.next().map(String::as_str);
    while let Some(word) = next() {
        match word {
            "-i" | "--http2-prior-knowledge" => {}
            "--output" => assert_eq!(next(), Some("-")),
            "-H" => request.headers.push(next().expect("a header").to_owned()),
            "-X" => next().expect("a method").clone_into(&mut request.method),
            "--data-binary" => {
                assert_eq!(next(), Some("@-"));
                input.clone_into(&mut request.body);
                "POST".clone_into(&mut request.method);
            }
            url => {
                let url = url
                    .strip_prefix("http://")
                    .expect("an URL, or a known option");
                let (_, path) = url.split_once('/').expect("a path");
                request.path = format!("/{path}");
            }
        }
    }
    assert_ne!(request.path, "", "an URL");
    request
}

/// Words, with single quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (part, is_quoted) in text.split('\'').zip([false, true].into_iter().cycle()) {
        if is_quoted {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// The escapes of `printf` that the examples have: `\0` to `\7`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => rest.next().expect("a digit") - b'0',
            byte => byte,
        });
    }
    bytes
}
