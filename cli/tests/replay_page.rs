//! `replay --html`: the page needs nothing else, and nothing of a log is markup in it.

mod common;

use core::fmt::Write;

use common::{Scratch, portcullis, text};

/// Agents that try to leave their place in a page, with the text that must be shown.
const HOSTILE: [(&str, &str); 6] = [
    (
        "</script><script>alert(1)</script>",
        "</script><script>alert(1)</script>",
    ),
    (r#"\" onload=\"alert(1)"#, r#"\" onload=\"alert(1)"#),
    (
        "'><img src=x onerror=alert(1)>",
        "'><img src=x onerror=alert(1)>",
    ),
    ("a\u{202e}gpj.exe", r"a\u{202e}gpj.exe"),
    ("\u{1b}[2J\u{0}x", r"\u{1b}[2J\u{0}x"),
    (
        "&lt;b&gt; {title}{body} http://example.org/x",
        "&lt;b&gt; {title}{body} http://example.org/x",
    ),
];

fn log(name: &str) -> Scratch {
    let mut log = String::new();
    for second in 0..50 {
        for (index, (agent, _)) in HOSTILE.iter().enumerate() {
            let _ = writeln!(
                log,
                "192.0.2.{index} - - [01/Mar/2024:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \
                 \"-\" \"{agent}\""
            );
        }
    }
    // One client asks for far more than 20 others.
    for client in 0..20 {
        let _ = writeln!(
            log,
            "198.51.100.{client} - - [01/Mar/2024:00:01:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \
             \"calm {client}\""
        );
    }
    Scratch::new(&format!("{name}.log"), log.as_bytes())
}

/// Runs a replay, and returns its page.
fn page(name: &str, args: &[&str]) -> String {
    let (log, file) = (log(name), Scratch::new(name, b""));
    let args = [&["replay", log.path(), "--html", file.path()], args].concat();
    let output = portcullis(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::read_to_string(file.path()).unwrap()
}

fn policy(name: &str) -> Scratch {
    let rules = "[[rules]]\nname = '<i>agents</i>'\nkey = ['header:User-Agent']\n\
                 limits = ['20/m']\n";
    Scratch::new(&format!("{name}.toml"), rules.as_bytes())
}

/// A tag: its name, with a slash if it closes, and its attributes.
type Tag = (String, Vec<(String, String)>);

/// Reads a page as a parser of HTML does: its tags, and the text between them. Attributes must be
/// in double quotes. Panics if the page is not well-formed.
fn parsed(page: &str) -> (Vec<Tag>, String) {
    let (mut tags, mut shown, mut open) = (Vec::new(), String::new(), Vec::new());
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((before, after)) = rest.split_once('<') {
        shown.push_str(&unescaped(before));
        let end = tag_end(after);
        let tag = after[..end].trim_end_matches('/');
        let is_empty = after[..end].ends_with('/');
        rest = &after[end + 1..];
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut of_tag = Vec::new();
        while let Some((name, value)) = attributes.split_once("=\"") {
            let (value, more) = value.split_once('"').unwrap();
            of_tag.push((name.trim().to_owned(), unescaped(value)));
            attributes = more;
        }
        tags.push((name.to_owned(), of_tag));
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed");
        } else if !is_empty && !["meta", "input"].contains(&name) {
            open.push(name.to_owned());
        }
        if ["style", "script"].contains(&name) {
            // Up to the first end tag, whatever is between.
            let (_, after) = rest.split_once(&format!("</{name}")).unwrap();
            rest = after.strip_prefix('>').unwrap();
            open.pop();
        }
    }
    assert_eq!(open, [""; 0], "left open");
    (tags, shown)
}

/// Returns where a tag ends: at the first `>` outside of quotes.
fn tag_end(text: &str) -> usize {
    let mut is_quoted = false;
    let end = text.char_indices().find(|&(_, c)| {
        is_quoted ^= c == '"';
        c == '>' && !is_quoted
    });
    end.unwrap().0
}

fn unescaped(text: &str) -> String {
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    assert!(!text.contains('>'), "{text}");
    entities
        .into_iter()
        .fold(text.to_owned(), |text, (entity, c)| text.replace(entity, c))
}

#[test]
fn nothing_of_a_log_or_a_policy_is_markup_in_the_page() {
    let policy = policy("hostile");
    for (name, args) in [
        (
            "policy.html",
            &["--policy", policy.path(), "--recommend", "1%"][..],
        ),
        (
            "limits.html",
            &["--key", "agent", "--limit", "20/m", "--limit", "9/s"],
        ),
    ] {
        let page = page(name, args);
        let (tags, shown) = parsed(&page);
        for (agent, expected) in HOSTILE {
            assert!(
                shown.contains(expected),
                "{expected:?} of {agent:?} is missing in {name}"
            );
        }
        let control =
            |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
        assert_eq!(page.chars().find(control), None);
        let count = |wanted: &str| tags.iter().filter(|(name, _)| name == wanted).count();
        assert_eq!([count("script"), count("img"), count("i")], [1, 0, 0]);
        for (tag, attributes) in &tags {
            for (name, value) in attributes {
                let has_address = ["src", "href", "action", "srcset", "data", "xlink:href"];
                assert!(
                    !has_address.contains(&&**name) && !name.starts_with("on"),
                    "{tag} {name}"
                );
                assert!(!value.contains("url("), "{tag} {name}");
            }
        }
    }
}

/// The style and the script are those of the source, which has no address.
#[test]
fn the_page_has_no_address_of_its_own() {
    let frame = include_str!("../src/replay/report/page.html");
    for address in ["http:", "https:", "//", "url(", "@import", "src=", "href="] {
        assert!(!frame.contains(address), "{address}");
    }
    assert!(frame.contains("default-src 'none'"));
    let page = page("plain.html", &["--limit", "20/m"]);
    let part = |of: &str| {
        let (_, after) = of.split_once("<script>").unwrap();
        after.to_owned()
    };
    assert_eq!(part(&page), part(frame));
}

#[test]
fn the_page_shows_decisions_the_busiest_keys_and_what_keys_need() {
    let policy = policy("agents");
    let page = page(
        "shown.html",
        &["--policy", policy.path(), "--recommend", "1%"],
    );
    let (tags, shown) = parsed(&page);
    for expected in [
        "320",
        "<i>agents</i>",
        "Over time",
        "Busiest keys",
        "What if",
        "Recommended limits",
        "keys that need no more",
    ] {
        assert!(shown.contains(expected), "{expected} is missing in {shown}");
    }
    assert!(shown.contains("the stronger the colour, the more"));
    let of = |wanted: &'static str| tags.iter().filter(move |(name, _)| name == wanted);
    let value = |tag: &Tag, name: &str| {
        let found = tag.1.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.clone())
    };
    // What is wider than the page is scrolled with keys, and has a name.
    for wide in of("div").filter(|tag| value(tag, "class").as_deref() == Some("wide")) {
        assert_eq!(value(wide, "tabindex").as_deref(), Some("0"));
        assert!(value(wide, "aria-label").is_some());
    }
    // The numbers of a chart are in a table, and a slider has a label.
    let slider = of("input").next().unwrap();
    let label = of("label").next().unwrap();
    assert_eq!(value(slider, "id"), value(label, "for"));
    for name in ["data-minute", "data-second", "data-over"] {
        assert_eq!(
            value(slider, name).unwrap().split(',').count(),
            100,
            "{name}"
        );
    }
    assert!(of("svg").all(|svg| value(svg, "role").as_deref() == Some("img")));
    assert!(of("th").all(|th| value(th, "scope").is_some()));
    assert_eq!(of("details").count(), 1);
    assert!(of("html").all(|html| value(html, "lang").as_deref() == Some("en")));
}

#[test]
fn a_page_that_cannot_be_written_is_an_error() {
    let log = log("unwritten");
    let args = ["replay", log.path(), "--html", "/no/such/folder/page.html"];
    let output = portcullis(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("cannot write /no/such/folder/page.html: "),
        "{error}"
    );
}
