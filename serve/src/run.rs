//! From the start of the program to its end.

use core::net::SocketAddr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

use portcullis_policy::{FileSource, LivePolicy, Policy, Stores};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::admin::Admin;
use crate::args::Args;
use crate::check::Checks;
use crate::counts::{Connected, Counts};
use crate::logs::Seldom;
use crate::server::{Bounds, serve};
use crate::settings::Settings;
use crate::{reload, stores};

/// How long a proxy may leave a connection idle: longer than it keeps one itself, so that it does
/// not send a check when the connection is being closed. nginx keeps it for 60 s, Traefik and Caddy
/// for 90 s and 120 s.
const IDLE: Duration = Duration::from_secs(150);

/// The bounds for operators.
const OF_ADMIN: Bounds = Bounds {
    connections: 64,
    head: Duration::from_secs(10),
};

/// Runs until a signal stops the program.
///
/// # Errors
///
/// A text that says what is wrong with the file or with an address.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let settings = Settings::read(&args.file)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(started(args, settings))
}

/// Puts the rules of the file in force, with the stores.
fn policy(file: &mut FileSource, stores: Stores) -> Result<LivePolicy, String> {
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
    let mut file = FileSource::new(&args.file);
    let live = policy(&mut file, stores)?;
    reload::warn(&live.load());
    let counts = Arc::new(Counts::new(live.clone()));
    let checks = Arc::new(Checks::new(&live, &settings, &counts, args.shadow));
    let admin = Arc::new(Admin {
        counts: Arc::clone(&counts),
        stores: states,
        is_ready: AtomicBool::new(true),
    });
    let (listener, listen) = bind(args.listen).await?;
    let (of_admin, admin_at) = bind(args.admin).await?;
    let signals = Signals::new()?;
    let rules = live.load().rules().len();
    tracing::info!(%listen, admin = %admin_at, rules, shadow = args.shadow, "checks are answered");

    let (stop, stops) = watch::channel(false);
    let (stop_admin, admin_stops) = watch::channel(false);
    let (reread, rereads) = mpsc::channel();
    let settings = Arc::new(settings);
    {
        let (settings, counts) = (Arc::clone(&settings), Arc::clone(&counts));
        let poll = args.poll;
        thread::spawn(move || reload::run(file, &settings, &counts, poll, &rereads));
    }
    let answers = Arc::clone(&admin);
    tokio::spawn(serve(
        of_admin,
        OF_ADMIN,
        admin_stops,
        |_| Some(()),
        move |_, request| {
            let response = answers.answer(&request);
            async { response }
        },
    ));
    let bounds = Bounds {
        connections: args.connections,
        head: IDLE,
    };
    let admits = admits(settings, counts);
    let checking = serve(listener, bounds, stops, admits, move |peer, request| {
        let checks = Arc::clone(&checks);
        async move {
            let (head, _) = request.into_parts();
            let (path, headers) = (head.uri.path(), head.headers);
            checks.answer(peer.ip(), path, headers).await
        }
    });
    let stopping = async {
        signals.wait(&reread).await;
        tracing::info!("stopping");
        admin.is_ready.store(false, Relaxed);
        sleep(args.drain).await;
        let _ = stop.send(true);
    };
    tokio::join!(checking, stopping);
    let _ = stop_admin.send(true);
    Ok(())
}

/// Binds an address, and returns the address with its port.
async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
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
    async fn wait(mut self, reread: &mpsc::Sender<()>) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    let _ = reread.send(());
                }
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
            }
        }
    }
}
