//! Texts of limits and periods, and requests of clients.

use core::net::IpAddr;
use std::sync::LazyLock;

use portcullis_core::Timestamp;
use portcullis_policy::{Limit, PathRules, Policy, Request, parse_count, parse_period};

/// Limits, counts and periods.
pub fn limits(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        let _ = parse_count(text);
        if let Err(error) = parse_period(text) {
            assert!(!error.to_string().is_empty());
        }
        match text.parse::<Limit>() {
            Ok(limit) => assert!(limit.count() > 0 || limit.period().is_some()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

const RULES: &str = r#"
[[rules]]
name = "all"
key = ["address/24/56", "host", "method", "tier", "header:x-key"]
limits = ["5/m", { at_once = 3 }]

[[rules]]
name = "paths"
methods = ["GET", "POST"]
paths = ["/a/*/b/**", "/c", "/d"]
hosts = ["*.example.com", "a.example"]
key = ["path"]
limits = ["9/h"]
"#;

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| Policy::from_toml(RULES).unwrap_or_else(|errors| panic!("{errors:?}")));

/// A request in lines: method, path, host, tier, address, and the header field `x-key`.
pub fn requests(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut line = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (method, path, host, tier, address, key) = (line(), line(), line(), line(), line(), line());
    let headers = [("X-Key", key.as_str())];
    let mut request = Request::new(&method, &path)
        .host(&host)
        .tier(&tier)
        .headers(&headers);
    if let Ok(address) = address.parse::<IpAddr>() {
        request = request.address(address);
    }
    for second in [1, 2, 1 << 32] {
        let decision = POLICY.decide_at(Timestamp::from_secs(second), &request);
        assert!(!decision.is_allowed() || decision.retry().is_none());
    }
    // The normalized spelling of a path is that of itself.
    if let Ok(once) = PathRules::new().normalize(&path)
        && let Ok(text) = str::from_utf8(&once)
        && !text.contains(['%', '?', '#'])
    {
        let twice = PathRules::new().normalize(text);
        assert_eq!(twice.as_deref().ok(), Some(&*once), "{path:?}");
    }
}
