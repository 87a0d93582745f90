//! The addresses of clients that services of axum and tonic know, on loopback.

#[path = "support/server.rs"]
mod server;

use core::convert::Infallible;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::task::{Context, Poll};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use portcullis_core::{Rate, TokenBucket};
use portcullis_policy::{Key, OnMissing, Policy, Rule};
#[cfg(feature = "live")]
use portcullis_tower::ByLivePolicy;
use portcullis_tower::{
    ByKey, ByPolicy, Decide, DenialSettings, ForwardedFor, PeerAddress, RateLimitLayer,
    RateLimitLayerBuilder, Reason,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use server::serve;

const NO_ADDRESS: &str =
    "The server does not know the address of the client, which its rate limit needs.";

fn router() -> Router {
    Router::new().route("/", get(|| async { "served" }))
}

/// One request per hour for each address.
fn by_policy(on_missing: OnMissing) -> Policy {
    let rule = Rule::new("clients").key(Key::address());
    Policy::new([rule.limit("1/h".parse().unwrap()).on_missing(on_missing)]).unwrap()
}

/// The status and the body of the reply to a request with these further lines.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), lines: &[u8]) -> (u16, String) {
    let head = [
        &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"[..],
        lines,
        b"\r\n",
    ];
    stream.write_all(&head.concat()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// A service that does not tell the layer the addresses of its clients, as one does whose
/// `portcullis-tower` lacks the feature `axum`.
async fn served_without_addresses(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router.into_make_service()).await });
    address
}

#[tokio::test]
async fn a_service_that_does_not_know_its_clients_says_so_to_the_first_request() {
    fn builder<D: Decide>(judge: D, reasons: &Arc<Mutex<Vec<Reason>>>) -> RateLimitLayerBuilder<D> {
        let reasons = Arc::clone(reasons);
        let denials = DenialSettings::new().responding(move |denial, response| {
            reasons.lock().unwrap().push(denial.reason);
            response
        });
        // A proxy is believed only if its own address is known.
        let forwarded = ForwardedFor::x_forwarded_for().hops(1);
        RateLimitLayer::builder(judge)
            .denials(denials)
            .forwarded(forwarded)
    }
    let reasons = Arc::default();
    let policy = || by_policy(OnMissing::default());
    #[cfg(feature = "live")]
    let live = || portcullis_policy::LivePolicy::new(policy());
    let bucket = || TokenBucket::new(Rate::per_minute(1), 1);
    let routers = [
        router().layer(builder(ByPolicy::new(policy()), &reasons).build()),
        #[cfg(feature = "live")]
        router().layer(builder(ByLivePolicy::new(live()), &reasons).build()),
        router().layer(builder(ByKey::address(bucket(), 100), &reasons).build()),
        #[cfg(feature = "queue")]
        router().layer(builder(ByPolicy::new(policy()), &reasons).build_waiting()),
    ];
    let judges = routers.len();
    for (nth, router) in routers.into_iter().enumerate() {
        let address = served_without_addresses(router.clone()).await;
        for lines in [&b""[..], b"X-Forwarded-For: 192.0.2.1\r\n", b""] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let found = ask(&mut stream, lines).await;
            assert_eq!(found, (500, NO_ADDRESS.into()), "{nth}");
        }
        // The address that an outer layer inserts counts, and nothing was taken.
        let known = router.layer(axum::Extension(PeerAddress(Ipv4Addr::LOCALHOST.into())));
        let address = served_without_addresses(known).await;
        for expected in [200, 429] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert_eq!(ask(&mut stream, b"").await.0, expected, "{nth}");
        }
    }
    let reasons: Arc<Mutex<Vec<Reason>>> = reasons;
    let reasons = reasons.lock().unwrap().clone();
    let (denied, unknown): (Vec<_>, Vec<_>) = reasons
        .into_iter()
        .partition(|reason| reason.denied().is_some());
    assert_eq!(unknown, vec![Reason::NoAddress; 3 * judges]);
    assert_eq!(denied.len(), judges);
}

/// With the feature `axum`, the layer knows the address from `ConnectInfo`.
#[tokio::test]
async fn connect_info_is_known_with_the_feature_only() {
    let router = router().layer(RateLimitLayer::new(ByPolicy::new(by_policy(
        OnMissing::default(),
    ))));
    let address = serve(router).await;
    let expected = if cfg!(feature = "axum") {
        [200, 429]
    } else {
        [500; 2]
    };
    for expected in expected {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut stream, b"").await.0, expected);
    }
}

/// An inner service reserves its place before the layer decides.
#[tokio::test]
async fn a_denied_request_keeps_no_place_of_an_inner_concurrency_limit() {
    let rule = || Rule::new("all").limit("1/h".parse().unwrap());
    let judge = || RateLimitLayer::builder(ByPolicy::new(Policy::new([rule()]).unwrap()));
    let places = Arc::new(tokio::sync::Semaphore::new(1));
    let limit = || tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&places));
    // A server that keeps its connections open.
    let inside = router().layer(limit()).layer(judge().build());
    let address = served_without_addresses(inside).await;
    let mut clients = Vec::new();
    for expected in [200, 429, 429] {
        let mut client = server::Client::connect(address).await;
        assert_eq!(client.get("/", &[]).await.status, expected);
        clients.push(client);
    }
    server::until(|| places.available_permits() == 1).await;

    // Services that are kept.
    #[cfg(feature = "queue")]
    {
        let answer = async |_| Ok::<_, Infallible>(http::Response::new(axum::body::Body::empty()));
        let service = tower::ServiceBuilder::new().layer(judge().build_waiting());
        let mut first = service.layer(limit()).service_fn(answer);
        let mut second = first.clone();
        for (nth, expected) in [200, 429, 429].into_iter().enumerate() {
            let service = if nth % 2 == 0 {
                &mut first
            } else {
                &mut second
            };
            let ready = tower::ServiceExt::ready(service);
            let ready = tokio::time::timeout(core::time::Duration::from_secs(5), ready).await;
            let ready = ready.expect("a place is free").unwrap();
            let request = http::Request::new(axum::body::Body::empty());
            let response = tower::Service::call(ready, request).await.unwrap();
            assert_eq!(response.status(), expected);
            drop(response);
            assert_eq!(places.available_permits(), 1);
        }
    }
}

/// A path for a socket.
fn socket_path(name: &str) -> std::path::PathBuf {
    let name = format!("portcullis-tower-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[tokio::test]
async fn the_peers_of_a_unix_socket_have_the_address_that_the_program_says() {
    async fn statuses(name: &str, layer: RateLimitLayer<impl Decide>, lines: &[&[u8]]) -> Vec<u16> {
        let path = socket_path(name);
        let listener = UnixListener::bind(&path).unwrap();
        let service = router().layer(layer);
        tokio::spawn(async move { axum::serve(listener, service).await });
        let mut statuses = Vec::new();
        for lines in lines {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            statuses.push(ask(&mut stream, lines).await.0);
        }
        std::fs::remove_file(path).unwrap();
        statuses
    }
    let builder = |on_missing| RateLimitLayer::builder(ByPolicy::new(by_policy(on_missing)));
    let (one, two) = (
        &b"X-Forwarded-For: 192.0.2.1\r\n"[..],
        &b"X-Forwarded-For: 192.0.2.2\r\n"[..],
    );
    let by_default = builder(OnMissing::default());
    assert_eq!(
        statuses("a", by_default.build(), &[b"", one]).await,
        [500, 500]
    );
    // All peers have one address.
    let local = builder(OnMissing::default()).peer_without_address(Ipv4Addr::LOCALHOST);
    assert_eq!(statuses("b", local.build(), &[b"", one]).await, [200, 429]);
    // The peer is a proxy.
    let proxy = builder(OnMissing::default())
        .peer_without_address(Ipv4Addr::LOCALHOST)
        .forwarded(ForwardedFor::x_forwarded_for().trust("127.0.0.0/8".parse().unwrap()));
    let found = statuses("c", proxy.build(), &[one, two, one, b""]).await;
    assert_eq!(found, [200, 200, 429, 200]);
    // The rule says that they share.
    let shared = builder(OnMissing::Share);
    assert_eq!(statuses("d", shared.build(), &[b"", one]).await, [200, 429]);
}

#[tokio::test]
async fn header_values_that_are_not_utf_8_are_keys_of_their_own() {
    for on_missing in [OnMissing::default(), OnMissing::Deny, OnMissing::Skip] {
        let rule = Rule::new("keys").key(Key::header("X-Api-Key"));
        let rule = rule.limit("1/h".parse().unwrap()).on_missing(on_missing);
        let policy = Policy::new([rule]).unwrap();
        let router = router().layer(RateLimitLayer::new(ByPolicy::new(policy)));
        let address = served_without_addresses(router).await;
        for (key, expected) in [
            (&b"X-Api-Key: \xff1\r\n"[..], 200),
            (b"X-Api-Key: \xff2\r\n", 200),
            (b"X-Api-Key: \xff1\r\n", 429),
            (b"X-Api-Key: k\r\n", 200),
            (b"X-Api-Key: \xff2\r\n", 429),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert_eq!(ask(&mut stream, key).await.0, expected, "{key:?}");
        }
    }
}

/// A service of tonic that answers each call.
#[derive(Clone)]
struct Greeter;

impl tonic::server::NamedService for Greeter {
    const NAME: &'static str = "demo.Greeter";
}

impl tower::Service<http::Request<tonic::body::Body>> for Greeter {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = core::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<tonic::body::Body>) -> Self::Future {
        core::future::ready(Ok(tonic::Status::ok("").into_http()))
    }
}

/// The status of a call of HTTP/2.
async fn call(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> u16 {
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move {
        // It ends with an error when the client goes away.
        let _ = connection.await;
    });
    let request = http::Request::post("http://a/demo.Greeter/Greet");
    let request = request.header("content-type", "application/grpc");
    let mut send = send.ready().await.unwrap();
    let (reply, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
    let status = reply.await.unwrap().status().as_u16();
    driver.abort();
    status
}

#[tokio::test]
async fn tonic_knows_its_clients_over_tcp_and_says_so_where_it_does_not() {
    let layer = || RateLimitLayer::builder(ByPolicy::new(by_policy(OnMissing::default())));
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    let mut server = tonic::transport::Server::builder().layer(layer().build());
    tokio::spawn(server.add_service(Greeter).serve_with_incoming(incoming));
    let expected = if cfg!(feature = "tonic") {
        [200, 429]
    } else {
        [500; 2]
    };
    for expected in expected {
        let stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(call(stream).await, expected);
    }
    let local = || layer().peer_without_address(IpAddr::from([127, 0, 0, 1]));
    for (name, layer, expected) in [
        ("e", layer().build(), [500, 500]),
        ("f", local().build(), [200, 429]),
    ] {
        let path = socket_path(name);
        let listener = UnixListener::bind(&path).unwrap();
        let incoming = futures_util::stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let mut server = tonic::transport::Server::builder().layer(layer);
        tokio::spawn(server.add_service(Greeter).serve_with_incoming(incoming));
        for expected in expected {
            let stream = UnixStream::connect(&path).await.unwrap();
            assert_eq!(call(stream).await, expected, "{name}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
