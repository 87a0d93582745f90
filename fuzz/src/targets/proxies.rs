//! What proxies ask the program `portcullis-serve`: checks of HTTP, and questions of Envoy.

use core::net::IpAddr;
use std::sync::{Arc, LazyLock};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use portcullis_policy::{LivePolicy, PathRules, Policy};
use portcullis_tower::Target;
use prost::Message;
use tokio::runtime::{Builder, Runtime};

use super::headers::fields;
use crate::serve::check::Checks;
use crate::serve::counts::Counts;
use crate::serve::envoy::Envoy;
use crate::serve::envoy::messages::{Code, RateLimitRequest, RateLimitResponse};
use crate::serve::original::PROXIES;
use crate::serve::settings::Settings;

/// What begins and ends with the program, for the rules of a file.
struct Serve {
    checks: Arc<Checks>,
    counts: Arc<Counts>,
    settings: Settings,
    runtime: Runtime,
}

impl Serve {
    fn start(rules: &str) -> Self {
        let policy = Policy::from_toml(rules).unwrap_or_else(|errors| panic!("{errors:?}"));
        let (live, settings) = (LivePolicy::new(policy), Settings::default());
        let counts = Arc::new(Counts::new(live.clone(), false));
        let runtime = Builder::new_current_thread().enable_time().build();
        Self {
            checks: Arc::new(Checks::new(&live, &settings, &counts)),
            counts,
            settings,
            runtime: runtime.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// One login of each address in a year, and rules that see all parts of a check.
const RULES: &str = r#"
[[rules]]
name = "logins"
methods = ["POST"]
paths = ["/login"]
hosts = ["shop.example"]
key = ["address"]
limits = ["1/365d"]

[[rules]]
name = "all"
priority = 1
key = ["header:X-Api-Key", "host", "path"]
on_missing = "share"
limits = ["9/d", { at_once = 3 }]
continue = true

[[rules]]
name = "addresses"
priority = 2
key = ["address/24/56"]
limits = ["99/d"]
"#;

/// Answers whatever the input says, as a proxy would.
static ALONE: LazyLock<Serve> = LazyLock::new(|| Serve::start(RULES));

/// Answers only checks about logins of the one client.
static LOGINS: LazyLock<Serve> = LazyLock::new(|| {
    let serve = Serve::start(RULES);
    // All further ones are denied from now on.
    serve.logs_in("nginx", &HeaderMap::new(), false);
    serve
});

/// The names of the fields of each proxy: of the method, the target and the host.
static NAMES: [(&str, [HeaderName; 3]); 4] = [
    ("nginx", ORIGINAL),
    ("haproxy", ORIGINAL),
    ("traefik", FORWARDED),
    ("caddy", FORWARDED),
];

const ORIGINAL: [HeaderName; 3] = [
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-host"),
];

const FORWARDED: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-method"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-forwarded-host"),
];

const ADDRESSES: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the one client, and that of its proxy.
const CLIENT: &str = "198.51.100.4";
const PROXY: IpAddr = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);

impl Serve {
    fn check(&self, proxy: &str, headers: HeaderMap) -> Response<Full<Bytes>> {
        let path = format!("/check/{proxy}");
        let answer = self.checks.answer(PROXY, &path, headers);
        self.runtime.block_on(answer)
    }

    /// Whether a login of the one client passes, which sends `fields` to its proxy. The proxy adds
    /// the address to the last line of addresses, or has a line of its own.
    fn logs_in(&self, proxy: &str, fields: &HeaderMap, has_own_line: bool) -> bool {
        let (_, names) = NAMES
            .iter()
            .find(|(name, _)| *name == proxy)
            .unwrap_or_else(|| panic!("no proxy {proxy}"));
        let mut headers = fields.clone();
        for (name, value) in names.iter().zip(["POST", "/login?a=b", "shop.example"]) {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let lines = headers.get_all(ADDRESSES).iter();
        let all: Vec<_> = lines.map(HeaderValue::as_bytes).collect();
        if !has_own_line && !all.is_empty() {
            let all = [&all.join(&b", "[..]), &b", "[..], CLIENT.as_bytes()].concat();
            let all = HeaderValue::from_bytes(&all);
            headers.insert(ADDRESSES, all.unwrap_or_else(|error| panic!("{error}")));
        } else {
            headers.append(ADDRESSES, HeaderValue::from_static(CLIENT));
        }
        self.check(proxy, headers).status().is_success()
    }
}

/// The header fields of a client, in lines `name: value`, the first of which is also the target of
/// a request. Whatever a client sends, its login is denied as often as it was before, and for no
/// other key.
pub fn checks(data: &[u8]) {
    let serve = &*LOGINS;
    let headers = fields(data);
    for (index, (proxy, _)) in NAMES.iter().enumerate() {
        assert_eq!(PROXIES[index].name, *proxy);
        // As they are, which no proxy sends.
        let alone = ALONE.check(proxy, headers.clone()).status().as_u16();
        assert!([200, 400, 403, 429].contains(&alone), "{alone}");
        for has_own_line in [false, true] {
            assert!(!serve.logs_in(proxy, &headers, has_own_line), "{proxy}");
        }
    }
    for ((rule, _, key), _) in serve.counts.denied_keys() {
        assert_eq!((&*rule, &*key), ("logins", CLIENT));
    }
    // What is encoded in a target are characters that no rule for paths tells apart.
    let target = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let (Some(read), Ok(sent)) = (Target::parse(target), str::from_utf8(target)) {
        let rules = PathRules::new();
        let read = read.0.to_string();
        if !sent.contains('#') {
            let [sent, read] = [sent, &*read].map(|path| rules.normalize(path));
            assert_eq!(sent.is_ok(), read.is_ok());
            assert_eq!(sent.ok().as_deref(), read.ok().as_deref(), "{target:?}");
        }
    }
}

/// Rules that see all parts of a descriptor.
static DESCRIPTORS: LazyLock<Serve> = LazyLock::new(|| {
    Serve::start(
        r#"
        [[rules]]
        name = "gold"
        properties = { domain = ["shop"], plan = ["gold"] }
        key = ["property:account", "tier"]
        on_missing = "skip"
        limits = ["1000/d", "9000/7d"]
        continue = true

        [[rules]]
        name = "paths"
        methods = ["POST"]
        paths = ["/a/*/b/**", "/login"]
        hosts = ["*.example"]
        key = ["path", "header:x-api-key"]
        on_missing = "share"
        limits = [{ rate = "9/d", algorithm = "window-from-request" }]

        [[rules]]
        name = "all"
        priority = 1
        key = ["address"]
        on_missing = "share"
        limits = ["99/d", { at_once = 3 }]
        "#,
    )
});

/// A question of Envoy, without what gRPC has before it, and the same bytes as all of a body. An
/// answer has the code of each descriptor, and denies if one of them does.
pub fn descriptors(data: &[u8]) {
    let serve = &*DESCRIPTORS;
    let envoy = Envoy {
        checks: Arc::clone(&serve.checks),
        names: Arc::new(serve.settings.envoy.clone()),
    };
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(data);
    for body in [framed.freeze(), Bytes::copy_from_slice(data)] {
        let question = body.get(5..).map(RateLimitRequest::decode);
        let call = Request::post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let call = call.header(header::CONTENT_TYPE, "application/grpc");
        let call = call.body(Full::new(body));
        let call = call.unwrap_or_else(|error| panic!("{error}"));
        let answered = serve.runtime.block_on(async {
            let (head, body) = envoy.clone().call(call).await.into_parts();
            let body = body.collect().await;
            let body = body.unwrap_or_else(|status| panic!("{status}"));
            // An error has its status in the head, an answer behind it.
            let failed = head.headers.contains_key("grpc-status");
            (!failed).then(|| (body.trailers().cloned(), body.to_bytes()))
        });
        let Some((trailers, answer)) = answered else {
            continue;
        };
        assert_eq!(trailers.unwrap_or_default()["grpc-status"], "0");
        let answer = RateLimitResponse::decode(&answer[5..]);
        let answer = answer.unwrap_or_else(|error| panic!("{error}"));
        let question = question.and_then(Result::ok);
        let question = question.unwrap_or_else(|| panic!("it was answered"));
        assert_eq!(answer.statuses.len(), question.descriptors.len());
        let over = i32::from(Code::OverLimit);
        let is_over = answer.statuses.iter().any(|status| status.code == over);
        assert_eq!(answer.overall_code == over, is_over);
        let mut names = answer.response_headers_to_add.iter();
        assert!(is_over || names.all(|field| field.key != "retry-after"));
        assert!(is_over || answer.raw_body.is_empty());
        let pairs = answer.statuses.iter().zip(&question.descriptors);
        for (status, descriptor) in pairs {
            assert!(status.code != over || !descriptor.is_negative_hits);
        }
    }
}
