//! The client's side: requests that obey the limits that servers state.
//!
//! A server states its limits in the fields of its replies ([`fields`](crate::fields)). The
//! requests of all tasks to one server share what is known about it. A request waits in a queue,
//! oldest first, until the server is expected to grant it:
//!
//! 1. **After a denial** (429, or 503 with `Retry-After`) all requests to the server wait for the
//!    time that `Retry-After` asks for. Then one request tries first, and the others wait for its
//!    reply. A 429 that states no time, or a time of 0, counts as 1 second, and twice as long each
//!    time that the request that tries first is denied too, up to 64 seconds.
//! 2. **As stated**: the client sends no more requests than are available, until the reset. It
//!    subtracts the requests on their way, whose replies have not told yet. It has no more requests
//!    on their way than a stated limit on concurrent requests. A limit on requests that states
//!    neither a reset nor a window is ignored.
//! 3. **Slower before the limit**: if at most half of a quota is left, the client spreads the
//!    requests evenly over the time until the reset ([`Pacing`]).
//! 4. **Own limits**: a rate and a number of concurrent requests, if they are set.
//!
//! **Before the first reply** nothing is known, so only the own limits hold. A program that starts
//! many tasks sends one request first, or sets [a number of concurrent
//! requests](ServerLimitsBuilder::concurrency).
//!
//! Bounds protect the client from a server that states nonsense: times are shortened to an hour
//! ([`ServerLimitsBuilder::longest`]), and at most 32 limits are read. The client keeps what it
//! knows of a bounded number of servers.
//!
//! A request is never repeated. [`Sending::replied`] says whether the reply is a denial, so that a
//! program can repeat it. Put a layer that retries outside of this one. In both cases the repeated
//! request waits as all others do.
//!
//! # Limits elsewhere
//!
//! A request that waits here holds all that it took before: a place of a queue with a limit for all
//! servers, for example. So a program with such a queue waits here first, with
//! [`ready`](ServerLimits::ready), which takes nothing. Then it waits for its queue. Then it asks
//! here, [within](Acquiring::within) a time of zero, because a reply may have come meanwhile. If
//! that is rejected, it returns its place and begins again. No place idles while a server is left
//! alone, or while one request tries first. The guide `docs/crawler.md` is such a program.

mod layer;
mod pace;
#[cfg(feature = "reqwest")]
mod reqwest;

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::{HeaderMap, StatusCode};
use pin_project_lite::pin_project;
use portcullis_async::{Acquire, Queue, QueueCounts, Rejected, Timer, TokioTimer};
use portcullis_core::{Lease, Rate, Timestamp, TokenBucket};

use crate::fields::{ReadOptions, ResetForm, Stated};
use pace::{Pace, Sent};

pub use layer::{ClientError, ClientLayer, ClientService};
pub use pace::Pacing;

/// What is known about the limits of servers, shared by all who send requests.
///
/// [`ClientLayer`] uses it for services of tower. With the feature `reqwest` it is a middleware of
/// `reqwest-middleware`. For other clients, call [`acquire`](Self::acquire) before a request, and
/// [`Sending::replied`] after it.
///
/// Clones share their state. A server is a text, for example `example.com:8080`.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use portcullis_core::Rate;
/// use portcullis_tower::client::ServerLimits;
/// use std::num::NonZero;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let limits = ServerLimits::builder()
///     .rate(Rate::per_second(100), 10)
///     .concurrency(NonZero::new(8).expect("not 0"))
///     .build();
///
/// let sending = limits.acquire("example.com").await?;
/// // Send the request here. Its reply tells what the server allows.
/// let (status, mut headers) = (StatusCode::OK, HeaderMap::new());
/// headers.insert("ratelimit", r#""default";r=50;t=5"#.parse()?);
/// sending.replied(status, &headers);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ServerLimits<T: Timer = TokioTimer> {
    shared: Arc<Shared<T>>,
}

struct Shared<T: Timer> {
    options: Options<T>,
    servers: Mutex<Servers<T>>,
}

struct Servers<T: Timer> {
    by_name: HashMap<Box<str>, Server<T>>,
    /// The number of requests so far.
    requests: u64,
    is_closed: bool,
}

struct Server<T: Timer> {
    queue: Arc<Queue<Pace, T>>,
    /// The place of its last request among all requests.
    used: u64,
}

struct Options<T> {
    timer: Box<dyn Fn() -> T + Send + Sync>,
    rate: Option<(Rate, u64)>,
    concurrency: Option<u64>,
    waiting: u64,
    timeout: Option<Duration>,
    servers: usize,
    pacing: Pacing,
    jitter: Duration,
    slack: Option<Duration>,
    longest: Duration,
    reset: Option<ResetForm>,
}

impl ServerLimits {
    /// Limits with default settings, and timers of tokio.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts to build limits with timers of tokio.
    pub fn builder() -> ServerLimitsBuilder {
        ServerLimitsBuilder::with_timer(TokioTimer::new)
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Timer + Send + Sync + 'static> ServerLimits<T> {
    /// Waits until a request to this server may be sent.
    ///
    /// With timers of tokio, call it within a runtime. [`Acquiring::within`] and
    /// [`Acquiring::until`] set how long this request waits at most.
    ///
    /// # Errors
    ///
    /// - [`Rejected::QueueFull`]: as many requests as the settings allow wait for this server.
    /// - [`Rejected::Deadline`]: the server is not expected to grant the request within the time
    ///   that the settings allow.
    /// - [`Rejected::Closed`]: the limits [are closed](Self::close).
    pub fn acquire(&self, server: &str) -> Acquiring<T> {
        let queue = self.queue(server);
        Acquiring {
            acquire: self.shared.options.wait(&queue, 1),
            queue,
            reading: self.shared.options.reading(),
        }
    }

    /// Waits until a request to this server would be granted, and takes nothing. The request that
    /// is then sent asks [`acquire`](Self::acquire) too. For programs with [limits
    /// elsewhere](self#limits-elsewhere).
    ///
    /// If several tasks wait here, all of them end at once. Only one of them may then be granted.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Ready::within`] and [`Ready::until`] set how long this wait
    /// takes at most.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, Rejected, TokioTimer};
    /// # use portcullis_core::Concurrency;
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let places = Queue::new(Concurrency::new(40), TokioTimer::new(), 1_000).shared();
    /// let limits = ServerLimits::new();
    /// let (place, sending) = loop {
    ///     limits.ready("example.com").await?;
    ///     let place = places.acquire(1).await?;
    ///     match limits.acquire("example.com").within(Duration::ZERO).await {
    ///         Ok(sending) => break (place, sending),
    ///         // The server has denied another request meanwhile. The place is returned here.
    ///         Err(Rejected::Deadline { .. }) => {}
    ///         Err(rejected) => return Err(rejected.into()),
    ///     }
    /// };
    /// # drop((place, sending));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready(&self, server: &str) -> Ready<T> {
        let queue = self.queue(server);
        Ready {
            acquire: self.shared.options.wait(&queue, 0),
        }
    }

    /// Rejects all requests that wait and all later ones, to all servers, with
    /// [`Rejected::Closed`]. Requests on their way go on: [`drained`](Self::drained) waits for
    /// them.
    ///
    /// ```
    /// # use portcullis_async::Rejected;
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limits = ServerLimits::new();
    /// let sending = limits.acquire("example.com").await?;
    /// limits.close();
    /// let rejected = limits.acquire("example.com").await.unwrap_err();
    /// assert_eq!(rejected, Rejected::Closed { permits: 1 });
    /// // The request that is on its way ends, with `replied` or without.
    /// drop(sending);
    /// limits.drained().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        let mut servers = self.shared.servers();
        servers.is_closed = true;
        let queues = servers.queues();
        drop(servers);
        // A waker may ask these limits again.
        for queue in queues {
            queue.close();
        }
    }

    /// Waits until no request is on its way: each [`Sending`] is dropped or has its reply.
    ///
    /// [Close](Self::close) the limits first. Otherwise new requests may be on their way by the
    /// time the future is ready. A request without an end is waited for without an end: give the
    /// client of HTTP a time-out.
    pub async fn drained(&self) {
        let queues = self.shared.servers().queues();
        for queue in queues {
            queue.drained().await;
        }
    }

    /// Returns how many requests to this server wait, and what became of those that waited. `None`
    /// if nothing is known about the server.
    #[must_use]
    pub fn counts(&self, server: &str) -> Option<QueueCounts> {
        let servers = self.shared.servers();
        let known = servers.by_name.get(server);
        known.map(|server| server.queue.counts())
    }

    /// Learns from a reply of a server that was not asked for: the client followed a redirect to
    /// it.
    #[cfg(feature = "reqwest")]
    fn learn(&self, server: &str, status: StatusCode, headers: &HeaderMap) {
        let stated = stated(&self.shared.options.reading(), headers);
        let queue = self.queue(server);
        let now = queue.clock().now();
        queue.change(|pace| pace.replied_unasked(now, status, &stated));
    }

    fn queue(&self, server: &str) -> Arc<Queue<Pace, T>> {
        let options = &self.shared.options;
        let mut servers = self.shared.servers();
        servers.requests += 1;
        let (used, is_closed) = (servers.requests, servers.is_closed);
        let servers = &mut servers.by_name;
        if let Some(known) = servers.get_mut(server) {
            known.used = used;
            return Arc::clone(&known.queue);
        }
        if servers.len() >= options.servers {
            // A server with requests that wait or are on their way stays.
            let unused = servers
                .iter()
                .filter(|(_, server)| Arc::strong_count(&server.queue) == 1);
            let oldest = unused.min_by_key(|(_, server)| server.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                servers.remove(&oldest);
            }
        }
        let queue = Arc::new(options.queue());
        if is_closed {
            queue.close();
        }
        let entry = Server {
            queue: Arc::clone(&queue),
            used,
        };
        servers.insert(server.into(), entry);
        queue
    }
}

impl<T: Timer> Shared<T> {
    fn servers(&self) -> MutexGuard<'_, Servers<T>> {
        // The map is complete at any point, so poisoning does no harm.
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Timer> Servers<T> {
    fn queues(&self) -> Vec<Arc<Queue<Pace, T>>> {
        let servers = self.by_name.values();
        servers.map(|server| Arc::clone(&server.queue)).collect()
    }
}

impl<T: Timer> Options<T> {
    fn queue(&self) -> Queue<Pace, T> {
        let bucket = self.rate.map(|(rate, burst)| TokenBucket::new(rate, burst));
        let pace = Pace::new(bucket, self.concurrency, self.pacing);
        let queue = Queue::new(pace, (self.timer)(), self.waiting).with_jitter(self.jitter);
        match self.slack {
            Some(slack) => queue.with_slack(slack),
            None => queue,
        }
    }

    fn wait(&self, queue: &Arc<Queue<Pace, T>>, n: u32) -> Wait<T> {
        let acquire = queue.acquire_owned(n);
        match self.timeout {
            Some(timeout) => acquire.within(timeout),
            None => acquire,
        }
    }

    fn reading(&self) -> ReadOptions {
        let options = ReadOptions::new().longest(self.longest);
        match self.reset {
            Some(form) => options.reset_form(form),
            None => options,
        }
    }
}

impl<T: Timer> Clone for ServerLimits<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: Timer> fmt::Debug for ServerLimits<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.shared.servers().by_name.len();
        let mut debug = f.debug_struct("ServerLimits");
        debug.field("servers", &servers).finish_non_exhaustive()
    }
}

/// A request in the queue of a server.
type Wait<T> = Acquire<Arc<Queue<Pace, T>>>;

pin_project! {
    /// A request that waits until it may be sent. Returned by [`ServerLimits::acquire`].
    ///
    /// Dropping it cancels the request.
    #[must_use = "a future does nothing until it is polled"]
    pub struct Acquiring<T: Timer = TokioTimer> {
        #[pin]
        acquire: Wait<T>,
        queue: Arc<Queue<Pace, T>>,
        reading: ReadOptions,
    }
}

impl<T: Timer> Acquiring<T> {
    /// Rejects the request with [`Rejected::Deadline`], at once, if it is not expected to be
    /// granted in this time, and at the latest when the time is over. Replaces the
    /// [time-out](ServerLimitsBuilder::timeout) of the settings.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limits = ServerLimits::new();
    /// let sending = limits.acquire("example.com").within(Duration::from_secs(5)).await?;
    /// # drop(sending);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn within(mut self, timeout: Duration) -> Self {
        self.acquire = self.acquire.within(timeout);
        self
    }

    /// Sets a deadline for the request, as [`within`](Self::within) sets a time. It is an instant
    /// of the clock of the [timers](ServerLimitsBuilder::with_timer). All timers of tokio in a
    /// runtime tell the same time, so one deadline can hold for a queue of `portcullis-async` too.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, TokioTimer};
    /// # use portcullis_core::{Clock, Concurrency};
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let places = Queue::new(Concurrency::new(40), TokioTimer::new(), 1_000).shared();
    /// let limits = ServerLimits::new();
    /// let deadline = places.clock().now() + Duration::from_secs(5);
    /// let place = places.acquire(1).until(deadline).await?;
    /// let sending = limits.acquire("example.com").until(deadline).await?;
    /// # drop((place, sending));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.acquire = self.acquire.until(deadline);
        self
    }
}

impl<T: Timer> Future for Acquiring<T> {
    type Output = Result<Sending<T>, Rejected>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let lease = ready!(this.acquire.poll(context))?;
        Poll::Ready(Ok(Sending {
            sent: this.queue.change(Pace::started),
            reading: this.reading.clone(),
            queue: Arc::clone(this.queue),
            lease: Some(lease),
        }))
    }
}

shows!([T: Timer] Acquiring<T>, "Acquiring");

pin_project! {
    /// A wait until a request would be granted, which takes nothing. Returned by
    /// [`ServerLimits::ready`].
    ///
    /// Dropping it cancels the wait.
    #[must_use = "a future does nothing until it is polled"]
    pub struct Ready<T: Timer = TokioTimer> {
        #[pin]
        acquire: Wait<T>,
    }
}

impl<T: Timer> Ready<T> {
    /// Ends the wait with [`Rejected::Deadline`], as [`Acquiring::within`] does for a request. So
    /// if the server has asked for more time than this, the wait ends at once, and the rejection
    /// says when to [retry](Rejected::retry).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use http::{HeaderMap, StatusCode};
    /// # use portcullis_async::Rejected;
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limits = ServerLimits::new();
    /// let sending = limits.acquire("example.com").await?;
    /// let mut headers = HeaderMap::new();
    /// headers.insert("retry-after", 30.into());
    /// sending.replied(StatusCode::TOO_MANY_REQUESTS, &headers);
    /// let wait = limits.ready("example.com").within(Duration::from_secs(2));
    /// assert!(matches!(wait.await, Err(Rejected::Deadline { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn within(mut self, timeout: Duration) -> Self {
        self.acquire = self.acquire.within(timeout);
        self
    }

    /// Sets a deadline for the wait, as [`Acquiring::until`] does for a request. One deadline can
    /// so hold for all waits of a request.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_async::{Queue, TokioTimer};
    /// # use portcullis_core::{Clock, Concurrency};
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let places = Queue::new(Concurrency::new(40), TokioTimer::new(), 1_000).shared();
    /// let limits = ServerLimits::new();
    /// let deadline = places.clock().now() + Duration::from_secs(5);
    /// limits.ready("example.com").until(deadline).await?;
    /// let place = places.acquire(1).until(deadline).await?;
    /// # drop(place);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.acquire = self.acquire.until(deadline);
        self
    }
}

impl<T: Timer> Future for Ready<T> {
    type Output = Result<(), Rejected>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lease = ready!(self.project().acquire.poll(context))?;
        // It holds nothing.
        drop(lease);
        Poll::Ready(Ok(()))
    }
}

shows!([T: Timer] Ready<T>, "Ready");

/// A request that may be sent, or is on its way.
///
/// It has a place in the [number of concurrent requests](ServerLimitsBuilder::concurrency), and
/// after a denial it may be the one that tries first. Both end when it is told of its reply
/// ([`replied`](Self::replied)), or when it is dropped without one, such as after an error of the
/// connection:
///
/// - **Any reply ends the wait of the others, except a denial.** A 404, a 500, a redirect or a 503
///   without `Retry-After` shows that the server answers requests again.
/// - **After a denial** all wait for the time that it asks for, and then another one tries first.
/// - **Without a reply** the next request takes the place, and tries first. What the server has
///   counted is then not known until the next reply.
///
/// While one tries first, no other request is sent to its server. So give the client of HTTP a
/// time-out.
#[must_use = "the request counts as on its way until this is dropped"]
pub struct Sending<T: Timer = TokioTimer> {
    queue: Arc<Queue<Pace, T>>,
    lease: Option<Lease<Arc<Queue<Pace, T>>>>,
    reading: ReadOptions,
    sent: Sent,
}

impl<T: Timer> Sending<T> {
    /// Learns from the reply, and lets the next request go.
    ///
    /// Returns whether the reply is a denial: 429, or 503 with `Retry-After`. The same request can
    /// be sent again. Ask [`ServerLimits::acquire`] for it: it waits for the time that the server
    /// asks for. Set a bound to the number of tries.
    ///
    /// Call it as soon as the status and the fields have arrived, if the reply is a denial: until
    /// then, other requests are sent. Of other replies, read the body first if that is to count as
    /// on its way.
    ///
    /// ```
    /// # use http::{HeaderMap, StatusCode};
    /// # use portcullis_tower::client::ServerLimits;
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let limits = ServerLimits::new();
    /// let sending = limits.acquire("example.com").await?;
    /// let (status, mut headers) = (StatusCode::SERVICE_UNAVAILABLE, HeaderMap::new());
    /// headers.insert("retry-after", 7.into());
    /// assert!(sending.replied(status, &headers));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replied(self, status: StatusCode, headers: &HeaderMap) -> bool {
        let stated = stated(&self.reading, headers);
        let now = self.queue.clock().now();
        let sent = self.sent;
        self.queue
            .change(|pace| pace.replied(now, status, &stated, sent))
    }
}

/// Reads what a reply states.
fn stated(reading: &ReadOptions, headers: &HeaderMap) -> Stated {
    let mut stated = Stated::read(headers, &reading.clone().now(SystemTime::now()));
    for quota in &mut stated.quotas {
        // A window stands for a reset that is not stated. It is believed no longer than that.
        let window = quota.window.map(|window| reading.believed(window));
        quota.reset = quota.reset.or(window);
    }
    stated
}

impl<T: Timer> Drop for Sending<T> {
    fn drop(&mut self) {
        if self.sent.tries_first {
            self.queue.change(Pace::tried);
        }
        self.lease = None;
    }
}

shows!([T: Timer] Sending<T>, "Sending");

/// Builds [`ServerLimits`]. The settings hold for each server.
#[must_use]
pub struct ServerLimitsBuilder<T = TokioTimer> {
    options: Options<T>,
}

impl<T: Timer> ServerLimitsBuilder<T> {
    /// Starts to build limits with other timers. The function makes one for each server.
    ///
    /// ```
    /// use portcullis_async::ThreadTimer;
    /// use portcullis_tower::client::ServerLimitsBuilder;
    /// let limits = ServerLimitsBuilder::with_timer(ThreadTimer::new).build();
    /// # let _ = limits;
    /// ```
    pub fn with_timer(timer: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self {
            options: Options {
                timer: Box::new(timer),
                rate: None,
                concurrency: None,
                waiting: 10_000,
                timeout: None,
                servers: 1_000,
                pacing: Pacing::default(),
                jitter: Duration::ZERO,
                slack: None,
                longest: Duration::from_hours(1),
                reset: None,
            },
        }
    }

    /// Sets a rate and a burst of requests of the client's own. Default: none.
    ///
    /// A request that is granted late, within the [slack](Self::slack), counts as on time, so two
    /// of them can be closer together than the rate says. If the server counts each request
    /// exactly, set the slack to zero, and an interval that is longer than the server's by the
    /// jitter that you expect, often 20 to 50 ms: requests arrive less evenly than they are sent.
    pub fn rate(mut self, rate: Rate, burst: u64) -> Self {
        self.options.rate = Some((rate, burst));
        self
    }

    /// Sets the most requests on their way at once: sent, and without a reply. Default: no limit.
    pub fn concurrency(mut self, requests: core::num::NonZero<u32>) -> Self {
        self.options.concurrency = Some(requests.get().into());
        self
    }

    /// Sets the most requests that wait. Default 10,000.
    pub fn waiting(mut self, requests: u64) -> Self {
        self.options.waiting = requests;
        self
    }

    /// Sets the longest time that a request waits. Default: no limit.
    ///
    /// A request that is not expected to be granted in this time is rejected at once.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the number of servers that are remembered. Default 1,000.
    ///
    /// For a further server, the one that was used longest ago is forgotten. Servers with requests
    /// that wait or are on their way are never forgotten.
    pub fn servers(mut self, servers: usize) -> Self {
        self.options.servers = servers;
        self
    }

    /// Sets when requests are spread over the time until the reset. Default: if at most half of the
    /// quota is left.
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.options.pacing = pacing;
        self
    }

    /// Adds a random delay, from zero to `jitter`, to the end of each wait, so that many processes
    /// do not send at the same instant. Default: none.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.options.jitter = jitter;
        self
    }

    /// Sets how late a request of the [rate](Self::rate) may be granted and still count as on time:
    /// see [`with_slack`](portcullis_async::LimiterQueue::with_slack). Default: that of a queue, 10
    /// ms.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::Rate;
    /// # use portcullis_tower::client::ServerLimits;
    /// let limits =
    ///     ServerLimits::builder().rate(Rate::per_second(5), 1).slack(Duration::ZERO).build();
    /// # let _ = limits;
    /// ```
    pub fn slack(mut self, slack: Duration) -> Self {
        self.options.slack = Some(slack);
        self
    }

    /// Sets the longest time that a reply can make requests wait. Default 1 hour.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.options.longest = longest;
        self
    }

    /// Sets the form of `X-RateLimit-Reset`. Default: the size of the number determines its form,
    /// as [`ReadOptions::reset_form`] describes.
    pub fn reset_form(mut self, form: ResetForm) -> Self {
        self.options.reset = Some(form);
        self
    }

    /// Builds the limits.
    pub fn build(self) -> ServerLimits<T> {
        ServerLimits {
            shared: Arc::new(Shared {
                options: self.options,
                servers: Mutex::new(Servers {
                    by_name: HashMap::new(),
                    requests: 0,
                    is_closed: false,
                }),
            }),
        }
    }
}

shows!([T] ServerLimitsBuilder<T>, "ServerLimitsBuilder");
