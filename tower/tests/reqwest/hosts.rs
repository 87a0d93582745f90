//! Hosts for a crawler: one service on loopback, which records the requests of each host.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use axum::Router;
use axum::http::header::{HOST, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use reqwest_middleware::reqwest::{Client, ClientBuilder, Url};
use tokio::time::sleep;

use crate::server;

/// How long a page takes.
const LATENCY: Duration = Duration::from_millis(600);

/// How long a page of `slow.example` takes. More than 4 requests would be on their way.
pub(crate) const SLOW: Duration = Duration::from_secs(5);

/// The time that a denial asks for.
const HOLD: Duration = Duration::from_secs(1);

/// What a host has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) arrivals: Vec<Instant>,
    pub(crate) most_at_once: usize,
    pub(crate) denials: usize,
    /// Requests that came before a `Retry-After` was over.
    pub(crate) too_early: usize,
    at_once: usize,
    held_until: Option<Instant>,
}

#[derive(Default)]
struct State {
    hosts: HashMap<String, Seen>,
    all: Seen,
}

#[derive(Clone)]
pub(crate) struct Hosts {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Hosts {
    /// Starts the service.
    pub(crate) async fn serve() -> Self {
        let state = Arc::<Mutex<State>>::default();
        let served = Arc::clone(&state);
        let answer = move |uri: Uri, headers: HeaderMap| answer(Arc::clone(&served), uri, headers);
        let address = server::serve(Router::new().fallback(answer)).await;
        Self { address, state }
    }

    /// A client for which the names of the hosts lead to the service.
    pub(crate) fn client<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> ClientBuilder {
        let client = Client::builder().no_proxy();
        let names = names.into_iter();
        names.fold(client, |client, name| client.resolve(name, self.address))
    }

    pub(crate) fn url(&self, name: &str, path: &str) -> Url {
        let url = format!("http://{name}:{}{path}", self.address.port());
        url.parse().expect("a URL")
    }

    /// What each host has seen.
    pub(crate) fn seen(&self) -> HashMap<String, Seen> {
        lock(&self.state).hosts.clone()
    }

    /// What all hosts together have seen.
    pub(crate) fn all(&self) -> Seen {
        lock(&self.state).all.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic")
}

/// A request that is being answered.
struct Request {
    state: Arc<Mutex<State>>,
    name: String,
}

impl Request {
    /// Notes a request. Returns the status of its denial, if it is denied.
    fn arrives(state: Arc<Mutex<State>>, name: String) -> (Self, Option<StatusCode>) {
        let mut locked = lock(&state);
        let now = Instant::now();
        let State { hosts, all } = &mut *locked;
        let host = hosts.entry(name.clone()).or_default();
        for seen in [&mut *host, all] {
            seen.arrivals.push(now);
            seen.at_once += 1;
            seen.most_at_once = seen.most_at_once.max(seen.at_once);
        }
        if host.held_until.is_some_and(|until| now < until) {
            host.too_early += 1;
        }
        let denies = match &*name {
            "busy.example" => Some(StatusCode::TOO_MANY_REQUESTS),
            "down.example" => Some(StatusCode::SERVICE_UNAVAILABLE),
            _ => None,
        };
        // The third one is denied, and also the one that then tries first.
        let denies = denies.filter(|_| matches!(host.arrivals.len(), 3 | 4));
        if denies.is_some() {
            host.denials += 1;
            host.held_until = Some(now + HOLD);
        }
        drop(locked);
        (Self { state, name }, denies)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.all.at_once -= 1;
        let host = state.hosts.get_mut(&self.name).expect("it has arrived");
        host.at_once -= 1;
    }
}

async fn answer(state: Arc<Mutex<State>>, uri: Uri, headers: HeaderMap) -> Response {
    let host = headers[HOST].to_str().expect("a name");
    let (name, port) = host.split_once(':').expect("a port");
    let (_request, denies) = Request::arrives(state, name.to_owned());
    if let Some(status) = denies {
        return (status, [(RETRY_AFTER, HOLD.as_secs().to_string())]).into_response();
    }
    let target = match uri.path() {
        "/away" => format!("http://new.example:{port}/page"),
        "/here" => "page".to_owned(),
        "/round" => "/round".to_owned(),
        path => {
            let latency = if name == "slow.example" {
                SLOW
            } else {
                LATENCY
            };
            sleep(latency).await;
            return format!("{name}{path}").into_response();
        }
    };
    (StatusCode::FOUND, [(LOCATION, target)]).into_response()
}
