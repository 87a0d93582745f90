//! From the start of the program to its end.

use core::net::SocketAddr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use portcullis_policy::{FileSource, LivePolicy, Policy, RuleSource, Stores};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{interval, sleep};
use tracing::field::display;

use crate::admin::Admin;
use crate::args::Args;
use crate::check::Checks;
use crate::counts::{Connected, Counts};
use crate::envoy::Envoy;
use crate::reload::{self, Enforced};
use crate::seldom::Seldom;
use crate::server::{Bounds, Protocol, is_too_large, serve};
use crate::settings::{self, Settings};
use crate::stores;

/// How long a proxy may leave a connection idle: longer than it keeps one itself, so that it does
/// not send a check when the connection is being closed. nginx keeps it for 60 s, Traefik and Caddy
/// for 90 s and 120 s.
const IDLE: Duration = Duration::from_secs(150);

/// How long a peer may take to show that it is still there.
const ALIVE: Duration = Duration::from_secs(10);

/// The bounds for operators.
const OF_ADMIN: Bounds = Bounds {
    protocol: Protocol::Http1,
    connections: 64,
    head: Duration::from_secs(10),
    alive: ALIVE,
};

/// Runs until a signal stops the program.
///
/// # Errors
///
/// A text that says what is wrong with the file or with an address.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let settings = Settings::read(&args.file).map_err(|why| {
        // Those of the rules too, so that one look shows all.
        match FileSource::new(&args.file).load(None) {
            Err(rules) if settings::is_malformed(&args.file) => rules.to_string(),
            Err(rules) => format!("{why}\n{rules}"),
            Ok(_) => why,
        }
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        if args.check {
            check(args, &settings)
        } else {
            started(args, settings).await
        }
    })
}

/// Judges the file as the start of the program does.
fn check(args: &Args, settings: &Settings) -> Result<(), String> {
    let (stores, _) = stores::open(settings)?;
    let mut file = Enforced::new(&args.file);
    let live = policy(&mut file, stores)?;
    let policy = live.load();
    if file.warn(&policy) && args.deny_warnings {
        return Err(format!("{}: warnings are denied", args.file.display()));
    }
    let (rules, file) = (policy.rules().len(), args.file.display());
    let noun = if rules == 1 { "rule" } else { "rules" };
    println!("{file}: valid, {rules} {noun}");
    Ok(())
}

/// Puts the rules of the file in force, with the stores.
fn policy(file: &mut Enforced, stores: Stores) -> Result<LivePolicy, String> {
    // A policy that changes keeps the stores of the one before it.
    let none = Policy::new([]).expect("no rule is wrong");
    let none = none.with_stores(stores).expect("no rule has a store");
    let live = LivePolicy::new(none);
    let now = live.load().now();
    let change = live.refresh_at(now, file);
    change.map_err(|error| error.to_string())?;
    Ok(live)
}

async fn started(args: &Args, settings: Settings) -> Result<(), String> {
    let (stores, states) = stores::open(&settings)?;
    let mut file = Enforced::new(&args.file);
    let live = policy(&mut file, stores)?;
    file.warn(&live.load());
    let counts = Arc::new(Counts::new(live.clone(), args.shadow));
    let checks = Arc::new(Checks::new(&live, &settings, &counts));
    let admin = Arc::new(Admin {
        counts: Arc::clone(&counts),
        stores: states,
        is_ready: AtomicBool::new(true),
    });
    let signals = Signals::new()?;
    let listeners = Listeners::bind(args).await?;
    listeners.tell(args, live.load().rules().len());

    let (stop, stops) = watch::channel(false);
    let (stop_admin, admin_stops) = watch::channel(false);
    // One is enough for any number of signals: the file is read after it.
    let (reread, rereads) = mpsc::sync_channel(1);
    {
        let (settings, counts, poll) = (settings.clone(), Arc::clone(&counts), args.poll);
        let runtime = Handle::current();
        thread::spawn(move || {
            let _in_runtime = runtime.enter();
            reload::run(file, &settings, &counts, poll, &rereads);
        });
    }
    let operators = serve_operators(listeners.admin.0, admin_stops, Arc::clone(&admin));
    let operators = tokio::spawn(operators);
    let peers = Peers {
        settings: Arc::new(settings),
        counts,
        checks,
        connections: args.connections,
        stops,
    };
    let checking = peers.clone().serve_checks(listeners.checks.0);
    let answering = peers.serve_envoy(listeners.envoy.map(|(listener, _)| listener));
    for state in &admin.stores {
        tokio::spawn(stores::probe(state.clone()));
    }
    let sampling = tokio::spawn(sample(Arc::clone(&admin.counts)));
    let stopping = async {
        signals.wait(&reread).await;
        admin.is_ready.store(false, Relaxed);
        tracing::info!("stopping");
        sleep(args.drain).await;
        let _ = stop.send(true);
    };
    tokio::join!(checking, answering, stopping);
    let _ = stop_admin.send(true);
    let _ = operators.await;
    sampling.abort();
    Ok(())
}

/// Notes once a second what the rules have answered, without end.
async fn sample(counts: Arc<Counts>) {
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        counts.sample();
    }
}

/// A listener, and its address with the port.
type Bound = (TcpListener, SocketAddr);

/// All that the program listens to.
struct Listeners {
    checks: Bound,
    envoy: Option<Bound>,
    admin: Bound,
}

impl Listeners {
    async fn bind(args: &Args) -> Result<Self, String> {
        Ok(Self {
            checks: bind(args.listen).await?,
            envoy: match args.grpc {
                Some(address) => Some(bind(address).await?),
                None => None,
            },
            admin: bind(args.admin).await?,
        })
    }

    /// Writes where the program listens, and what it does.
    fn tell(&self, args: &Args, rules: usize) {
        let grpc = self.envoy.as_ref().map(|(_, address)| display(address));
        tracing::info!(
            listen = %self.checks.1,
            grpc,
            admin = %self.admin.1,
            rules,
            shadow = args.shadow,
            "checks are answered"
        );
    }
}

/// Answers operators.
async fn serve_operators(listener: TcpListener, stops: watch::Receiver<bool>, admin: Arc<Admin>) {
    let answer = move |_, request| {
        let response = admin.answer(&request);
        async { response }
    };
    serve(listener, OF_ADMIN, stops, |_| Some(()), answer).await;
}

/// What proxies are answered with.
#[derive(Clone)]
struct Peers {
    settings: Arc<Settings>,
    counts: Arc<Counts>,
    checks: Arc<Checks>,
    connections: u16,
    stops: watch::Receiver<bool>,
}

impl Peers {
    const fn bounds(&self, protocol: Protocol) -> Bounds {
        Bounds {
            protocol,
            connections: self.connections,
            head: IDLE,
            alive: ALIVE,
        }
    }

    async fn serve_checks(self, listener: TcpListener) {
        let bounds = self.bounds(Protocol::Http1);
        let admits = admits(self.settings, self.counts);
        let answer = move |peer: SocketAddr, request: Request<Incoming>| {
            let checks = Arc::clone(&self.checks);
            async move {
                let (head, _) = request.into_parts();
                let (path, headers) = (head.uri.path(), head.headers);
                if is_too_large(&headers) {
                    let mut response = Response::new(Full::default());
                    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                    return response;
                }
                checks.answer(peer.ip(), path, headers).await
            }
        };
        serve(listener, bounds, self.stops, admits, answer).await;
    }

    async fn serve_envoy(self, listener: Option<TcpListener>) {
        let Some(listener) = listener else {
            return;
        };
        let bounds = self.bounds(Protocol::Http2);
        let envoy = Envoy {
            checks: self.checks,
            names: Arc::new(self.settings.envoy.clone()),
        };
        let admits = admits(self.settings, self.counts);
        let answer = move |_, request| envoy.clone().call(request);
        serve(listener, bounds, self.stops, admits, answer).await;
    }
}

/// Binds an address, and returns the address with its port.
async fn bind(address: SocketAddr) -> Result<Bound, String> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| format!("{address}: {error}"))
}

/// Counts the connection of a peer that may ask.
fn admits(
    settings: Arc<Settings>,
    counts: Arc<Counts>,
) -> impl Fn(SocketAddr) -> Option<Connected> {
    let untrusted = Seldom::new();
    move |peer| {
        let admits = settings.trusts(peer.ip());
        if !admits {
            counts.untrusted();
            if untrusted.may_write() {
                let peer = peer.ip();
                tracing::error!(%peer, "it may not ask: `serve.trusted` has no network with it");
            }
        }
        admits.then(|| Counts::connected(&counts))
    }
}

/// The signals that the program obeys.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, String> {
        let of = |kind| signal(kind).map_err(|error| format!("no signals: {error}"));
        Ok(Self {
            hangup: of(SignalKind::hangup())?,
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
        })
    }

    /// Returns when the program is to stop. Has the file read at once on SIGHUP.
    async fn wait(mut self, reread: &mpsc::SyncSender<()>) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    let _ = reread.try_send(());
                }
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
            }
        }
    }
}
