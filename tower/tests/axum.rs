//! The layer in services of axum, tonic and hyper, on loopback, also behind nginx.

#[path = "support/nginx.rs"]
mod nginx;
#[path = "support/server.rs"]
mod server;
#[path = "../../serve/tests/support/wish.rs"]
mod wish;

use core::convert::Infallible;
use core::net::{IpAddr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, ServiceExt};
use portcullis_core::{ManualClock, Timestamp};
use portcullis_policy::{Conditions, Key, Policy, Rule};
use portcullis_tower::fields::Generation;
use portcullis_tower::{AxumBody, ByPolicy, ForwardedFor, PeerAddress, RateLimitLayer, Target};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::{Layer, Service, ServiceBuilder, service_fn};

use nginx::Nginx;
use server::{Client, serve};

#[tokio::test]
async fn a_denied_request_gets_429_and_when_to_retry() {
    let policy = Policy::new([Rule::new("clients")
        .key(Key::address())
        .when(Conditions::new().paths(["/limited"]))
        .limit("2/m".parse().unwrap())])
    .unwrap();
    let router = Router::new()
        .route("/limited", get(|| async { "served" }))
        .route("/free", get(|| async { "served" }))
        .layer(RateLimitLayer::new(ByPolicy::new(policy)));
    let address = serve(router).await;
    // Two connections of one client share the limit.
    let (mut one, mut two) = (
        Client::connect(address).await,
        Client::connect(address).await,
    );
    assert_eq!(one.get("/limited", &[]).await.body, "served");
    assert_eq!(two.get("/limited", &[]).await.body, "served");
    let denied = one.get("/limited", &["X-Of-The-Request: 1"]).await;
    assert_eq!(
        (denied.status, denied.body.as_str()),
        (429, "Too Many Requests")
    );
    assert_eq!(denied.header("retry-after"), Some("30"));
    assert_eq!(
        denied.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(denied.header("x-of-the-request"), None);
    assert_eq!(one.get("/free", &[]).await.status, 200);
}

/// A layer with the rules of a file.
fn layer(rules: &str) -> RateLimitLayer<ByPolicy, portcullis_core::MonotonicClock, AxumBody> {
    let policy = Policy::from_toml(rules).unwrap();
    RateLimitLayer::builder(ByPolicy::new(policy))
        .for_axum()
        .build()
}

/// The statuses of as many requests for a target, and the body of the last response.
async fn ask<const N: usize>(address: SocketAddr, target: &str) -> ([u16; N], String) {
    let mut client = Client::connect(address).await;
    let (mut statuses, mut body) = ([0; N], String::new());
    for status in &mut statuses {
        client.send(target, &[]).await;
        let response = if target.starts_with("HEAD") {
            client.receive_head().await
        } else {
            client.receive().await
        };
        (*status, body) = (response.status, response.body);
    }
    (statuses, body)
}

const LOGIN: &str = "
    [[rules]]
    name = 'login'
    paths = ['/api/login', '/service/login', '/a/b/login', '/root']
    key = ['path']
    limits = ['2/h']
";

#[tokio::test]
async fn a_layer_inside_a_nested_router_sees_whole_paths() {
    let inner = || {
        let login = Router::new().route("/login", get(|| async { "served" }));
        login.layer(layer(LOGIN))
    };
    let fallback = Router::new().fallback(|| async { "served" });
    let router = Router::new()
        .nest("/api", inner())
        .nest_service("/service", inner())
        .nest("/a", Router::new().nest("/b", inner()))
        .nest(
            "/root",
            Router::new()
                .route("/", get(|| async { "served" }))
                .layer(layer(LOGIN)),
        )
        .nest("/free", fallback.layer(layer(LOGIN)));
    let address = serve(router).await;
    for path in ["/api/login", "/service/login", "/a/b/login", "/root"] {
        let (statuses, _) = ask::<4>(address, &format!("GET {path}")).await;
        assert_eq!(statuses, [200, 200, 429, 429], "{path}");
    }
    let (statuses, _) = ask::<4>(address, "GET /free/api/login").await;
    assert_eq!(statuses, [200; 4]);
}

#[tokio::test]
async fn slashes_that_a_middleware_drops_in_a_nested_router_evade_no_limit() {
    // As a middleware that normalizes paths does: it drops all empty components.
    let dropping = |mut request: Request| {
        let components = request.uri().path().split('/');
        let components: Vec<_> = components
            .filter(|component| !component.is_empty())
            .collect();
        *request.uri_mut() = format!("/{}", components.join("/")).parse().unwrap();
        request
    };
    let routes = Router::new()
        .route("/b/login", get(|| async { "served" }))
        .layer(layer(LOGIN));
    let service = ServiceBuilder::new().map_request(dropping).service(routes);
    let address = serve(Router::new().nest_service("/a", service)).await;
    let mut served = 0;
    for path in ["/a/b/login/", "/a/b//login", "/a//b/login", "/a/b/login"] {
        let (statuses, _) = ask::<3>(address, &format!("GET {path}")).await;
        served += statuses.iter().filter(|&&status| status == 200).count();
    }
    assert_eq!(served, 2);
}

/// A service on this path passes all requests on as `/api/login`.
fn rewritten(target: Option<&'static str>) -> Router {
    let change = move |mut request: Request| {
        if let Some(target) = target {
            request
                .extensions_mut()
                .insert(Target(target.parse().unwrap()));
        }
        *request.uri_mut() = "/api/login".parse().unwrap();
        request
    };
    let served = service_fn(|_: Request| async { Ok::<_, Infallible>("served".into_response()) });
    let service = ServiceBuilder::new()
        .map_request(change)
        .layer(layer(LOGIN))
        .service(served);
    Router::new().route_service("/changed", service)
}

#[tokio::test]
async fn a_uri_that_a_middleware_changes_counts_unless_it_names_the_target() {
    let address = serve(rewritten(None)).await;
    let limited = [200, 200, 429, 429];
    assert_eq!(ask::<4>(address, "GET /changed").await.0, limited);
    let address = serve(rewritten(Some("/changed"))).await;
    assert_eq!(ask::<4>(address, "GET /changed").await.0, [200; 4]);
}

#[tokio::test]
async fn head_takes_from_the_limit_of_the_get_handler_that_it_runs() {
    let rules = "
        [[rules]]
        name = 'reports'
        methods = ['GET']
        paths = ['/slow']
        limits = ['2/h']
    ";
    let router = Router::new().route("/slow", get(|| async { "served" }));
    let address = serve(router.layer(layer(rules))).await;
    assert_eq!(ask::<3>(address, "HEAD /slow").await.0, [200, 200, 429]);
    assert_eq!(ask::<1>(address, "GET /slow").await.0, [429]);
}

#[tokio::test]
async fn an_explicit_address_counts_instead_of_that_of_the_connection() {
    let rules = "
        [[rules]]
        name = 'clients'
        key = ['address']
        limits = ['1/h']
    ";
    let explicit = |mut request: Request| {
        let client = request.headers()["x-client"].to_str().unwrap();
        let client: IpAddr = client.parse().unwrap();
        request.extensions_mut().insert(PeerAddress(client));
        request
    };
    let router = Router::new().route("/", get(|| async { "served" }));
    let limited = ServiceBuilder::new()
        .map_request(explicit)
        .layer(layer(rules))
        .service(router);
    let address = serve(Router::new().fallback_service(limited)).await;
    let mut client = Client::connect(address).await;
    for (from, status) in [("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.1", 429)] {
        let header = format!("X-Client: {from}");
        assert_eq!(client.get("/", &[&header]).await.status, status, "{from}");
    }
}

/// Requests, in several spellings.
const TARGETS: [&str; 24] = [
    "/files/a",
    "/files/a?x=/../b",
    "/files/a/",
    "/files//a",
    "//files/a",
    "/files/",
    "/files/.",
    "/files/..",
    "/files/%2e%2E",
    "/files/..;x=1",
    "/x/../files/a",
    "/x/%2e%2e/files/a",
    "/./files/a",
    "/%66iles/a",
    "/files/%61",
    "/files/caf%C3%A9",
    "/files/a%2Fb",
    "/files/a;x=1",
    r"/files/a\b",
    r"/files\a",
    "/files/a%5Cb",
    "/FILES/a",
    "http://localhost/files/a",
    "*",
];

/// The routes of axum, each of which answers with its name.
fn routes() -> Router {
    Router::new()
        .route(
            "/files/{name}",
            get(|Path(name): Path<String>| async move { format!("file:{name}") }),
        )
        .route("/health", get(|| async { "health" }))
        .route("/proxy/{*rest}", get(|| async { "proxy" }))
        .fallback(|| async { "rest" })
}

/// A service that answers with the path that it sees.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "files";
}

impl<B> Service<http::Request<B>> for Echo {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let path = request.uri().path().to_owned();
        Box::pin(async { Ok(Response::new(Body::from(path))) })
    }
}

/// Serves without a router.
async fn serve_plain() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ServiceExt::<Request>::into_make_service(Echo);
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    address
}

fn tonic_routes() -> Router {
    Routes::new(Echo).into_axum_router()
}

/// What decides a target, by the rules of a file with this setting: the name of the rule, or the
/// status of a denial.
fn decided(paths: &str, target: &str) -> String {
    let rules = format!(
        "
        [paths]
        {paths}
        [[rules]]
        name = 'file'
        paths = ['/files/*']
        limits = ['9/h']
        [[rules]]
        name = 'rest'
        limits = ['9/h']
        "
    );
    let policy = Policy::from_toml(&rules).unwrap();
    let uri: http::Uri = target.parse().unwrap();
    let request = portcullis_policy::Request::new("GET", uri.path());
    let decision = policy.decide_at(portcullis_core::Timestamp::from_secs(1), &request);
    decision
        .rule()
        .map_or("400".to_owned(), |rule| rule.name().to_owned())
}

/// The rows of the table in the guide, without the cells of nginx if it is missing.
async fn rows() -> Vec<Vec<Option<String>>> {
    let axum = serve(routes()).await;
    let tonic = serve(tonic_routes()).await;
    let plain = serve_plain().await;
    let proxies = nginx::program().map(|program| {
        let url = format!("http://{plain}");
        // With a path in the URL, nginx passes on the path as it has read it.
        (
            Nginx::proxy(&program, "raw", &url),
            Nginx::proxy(&program, "resolving", &format!("{url}/")),
        )
    });
    let mut rows = Vec::new();
    for target in TARGETS {
        let request = match target {
            "*" => "OPTIONS *".to_owned(),
            target => format!("GET {target}"),
        };
        let code = |text: String| format!("`{text}`");
        let (_, route) = ask::<1>(axum, &request).await;
        let (_, service) = ask::<1>(tonic, &request).await;
        let (_, seen) = ask::<1>(plain, &request).await;
        let uri: http::Uri = target.parse().unwrap();
        assert_eq!(seen, uri.path(), "hyper changes no path");
        let passed = match &proxies {
            None => None,
            Some((raw, resolving)) => {
                let (status, passed) = ask::<1>(resolving.address(), &request).await;
                if status == [200] {
                    let (_, kept) = ask::<1>(raw.address(), &request).await;
                    assert_eq!(kept, seen, "nginx passes on a path as it was received");
                    Some(code(passed))
                } else {
                    Some(status[0].to_string())
                }
            }
        };
        rows.push(vec![
            Some(code(target.to_owned())),
            Some(match route.split_once(':') {
                Some((_, name)) => format!("`{{name}}` is `{name}`"),
                None => "fallback".to_owned(),
            }),
            Some(if service.is_empty() { "none" } else { "files" }.to_owned()),
            passed,
            Some(decided("", target)),
            Some(decided("reading = 'literal'", target)),
            Some(decided(
                "reading = 'resolved'\ndecode_slashes = true",
                target,
            )),
        ]);
    }
    rows
}

/// The table says what real routers do, and the decisions are those for what they serve.
#[tokio::test]
async fn the_guide_to_paths_says_what_routers_do() {
    let rows = rows().await;
    for row in &rows {
        let cell = |column: usize| row[column].as_deref();
        let served = match cell(1) {
            Some("fallback") => "rest",
            _ => "file",
        };
        for decided in [cell(4), cell(5)] {
            assert!([Some(served), Some("400")].contains(&decided), "{row:?}");
        }
        let is_ambiguous = |target: &str| target.contains("%66");
        assert!(
            cell(5) != Some("400") || is_ambiguous(cell(0).unwrap()),
            "{row:?}"
        );
        if let Some(passed) = cell(3).and_then(|passed| passed.strip_prefix('`')) {
            let name = passed.trim_end_matches('`').strip_prefix("/files/");
            let is_file = name.is_some_and(|name| !name.is_empty() && !name.contains('/'));
            let is_file = is_file || passed == "/files/a/`";
            assert_eq!(
                cell(6),
                Some(if is_file { "file" } else { "rest" }),
                "{row:?}"
            );
        }
    }
    let guide = include_str!("../../docs/policies.md");
    let (_, table) = guide
        .split_once("<!-- routers -->")
        .expect("the guide has the table");
    let table = table
        .lines()
        .skip_while(|line| !line.starts_with("|--"))
        .skip(1);
    let table: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    let expected: Vec<Vec<Option<String>>> = rows;
    let text = |row: &[Option<String>]| {
        let cells: Vec<_> = row
            .iter()
            .map(|cell| cell.as_deref().unwrap_or("?"))
            .collect();
        format!("| {} |", cells.join(" | "))
    };
    let all: Vec<String> = expected.iter().map(|row| text(row)).collect();
    let is_row = |(row, line): (&Vec<Option<String>>, &&str)| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        cells.len() == row.len()
            && row
                .iter()
                .zip(cells)
                .all(|(cell, of_guide)| cell.as_ref().is_none_or(|cell| cell == of_guide))
    };
    let is_same = table.len() == expected.len() && expected.iter().zip(&table).all(is_row);
    assert!(is_same, "the table is:\n{}", all.join("\n"));
}

/// Requests that handlers with a limit of 2 serve, of many for each target.
#[tokio::test]
async fn no_spelling_of_a_path_gets_more_from_a_handler_than_its_limit() {
    for reading in ["either", "literal"] {
        let rules = format!(
            "
            [paths]
            reading = '{reading}'
            [[rules]]
            name = 'health'
            paths = ['/health']
            [[rules]]
            name = 'file'
            paths = ['/files/*']
            limits = ['2/h']
            [[rules]]
            name = 'rest'
            limits = ['3/h']
            "
        );
        let address = serve(Router::new().fallback_service(layer(&rules).layer(routes()))).await;
        let more = [
            "/health",
            "/health/",
            "//health",
            "/proxy/../health",
            "/proxy/%2e%2e/health",
            "/%68ealth",
            "/proxy/./../health",
            "/proxy/x/../../health",
        ];
        let mut served = BTreeMap::<String, u32>::new();
        for target in TARGETS.into_iter().chain(more) {
            for _ in 0..5 {
                let mut client = Client::connect(address).await;
                let method = if target == "*" { "OPTIONS" } else { "GET" };
                client.send(&format!("{method} {target}"), &[]).await;
                let response = client.receive().await;
                assert!(
                    [200, 400, 429].contains(&response.status),
                    "{target}: {response:?}"
                );
                if response.status == 200 {
                    let (handler, _) = response
                        .body
                        .split_once(':')
                        .unwrap_or((&response.body, ""));
                    let rule = if handler == "proxy" { "rest" } else { handler };
                    *served.entry(rule.to_owned()).or_default() += 1;
                }
            }
        }
        let expected = [("file", 2), ("health", 5), ("rest", 3)].map(|(a, n)| (a.to_owned(), n));
        assert_eq!(served, BTreeMap::from(expected), "{reading}");
    }
}

/// The statuses of 5 requests at once, of which the service answers none before the others have
/// their status.
async fn at_once(address: SocketAddr, answers: &Semaphore) -> Vec<u16> {
    let mut requests = JoinSet::new();
    for _ in 0..5 {
        let mut client = Client::connect(address).await;
        requests.spawn(async move { client.get("/files/a", &[]).await.status });
    }
    let mut statuses = Vec::new();
    for nth in 0..5 {
        if nth == 2 {
            answers.add_permits(3);
        }
        statuses.push(requests.join_next().await.unwrap().unwrap());
    }
    statuses
}

/// Without nginx, the test tells nothing about nginx.
#[tokio::test]
async fn the_rules_in_the_guide_for_gateways_decide_as_nginx_does() {
    let guide = include_str!("../../docs/coming-from/gateways.md");
    let block = |kind: &str| {
        let (_, text) = guide
            .split_once(&format!("```{kind}\n"))
            .expect("the guide has it");
        text.split("```").next().expect("its end")
    };
    let (theirs, ours) = (block("nginx"), block("toml"));
    let settings = |word: &str| -> String {
        let lines = theirs.lines().filter(|line| line.contains(word));
        let inner = |line: &str| match line.split_once('{') {
            Some((_, inner)) => inner.trim_end_matches([' ', '}']).to_owned(),
            None => line.to_owned(),
        };
        lines.map(inner).collect()
    };
    let answers = Arc::new(Semaphore::new(0));
    let answer = Arc::clone(&answers);
    let file = move || {
        let answer = Arc::clone(&answer);
        async move { answer.acquire().await.unwrap().forget() }
    };
    let routes = Router::new()
        .route("/login", get(|| async {}))
        .route("/files/a", get(file));
    let layer = RateLimitLayer::new(ByPolicy::new(Policy::from_toml(ours).unwrap()));
    let ours = serve(routes.clone().layer(layer)).await;
    let service = format!("http://{}", serve(routes).await);
    let expected = [200, 200, 200, 200, 200, 429, 429, 429];
    let denied_first = [429, 429, 200, 200, 200];
    assert_eq!(ask(ours, "GET /login").await.0, expected);
    assert_eq!(at_once(ours, &answers).await, denied_first);
    let Some(program) = nginx::program() else {
        return;
    };
    let start = |name, zone, limits| {
        let (zones, limits) = (settings(zone), settings(limits));
        Nginx::limited(&program, name, &zones, &limits, &service)
    };
    let logins = start("logins", "limit_req_zone", "limit_req zone");
    assert_eq!(ask(logins.address(), "GET /login").await.0, expected);
    let downloads = start("downloads", "limit_conn_zone", "limit_conn downloads");
    assert_eq!(at_once(downloads.address(), &answers).await, denied_first);
}

/// `portcullis-serve` behind nginx, and `portcullis replay`, decide the same requests alike: their
/// tests compare with the same log.
#[tokio::test]
async fn one_layer_decides_the_recorded_requests_of_the_one_file_as_the_log_says() {
    let clock: &'static ManualClock = Box::leak(Box::default());
    let proxies = ForwardedFor::field(HeaderName::from_static("x-forwarded-for"))
        .trust("127.0.0.0/8".parse().unwrap());
    let layer = RateLimitLayer::builder(ByPolicy::new(Policy::from_toml(wish::RULES).unwrap()))
        .for_axum()
        .clock(clock)
        .forwarded(proxies)
        .fields(Generation::Draft11)
        .build();
    let router = Router::new().fallback(async || "served").layer(layer);
    let mut client = Client::connect(serve(router).await).await;
    for wished in wish::wished() {
        clock.set(Timestamp::from_secs(1 + wished.second));
        let mut lines = vec![format!("X-Forwarded-For: {}", wished.client)];
        lines.extend(wished.key.map(|key| format!("X-Api-Key: {key}")));
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        client.send(wished.line, &lines).await;
        let response = client.receive().await;
        assert_eq!(response.status, wished.status, "{wished:?}");
        if let Some(rule) = wished.denied_by {
            let state = response.header("ratelimit").unwrap();
            assert!(state.starts_with(&format!("\"{rule}\";r=0;")), "{state}");
        }
    }
}
