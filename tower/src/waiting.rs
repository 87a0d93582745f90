//! Requests that wait for permits, or for the answer of a counter store, before the inner service
//! sees them.
//!
//! ```text
//! call ---> decided at once: as in a `RateLimit`
//!   |
//!   +-----> waits: the future has the request and the ready service ---> granted: calls it
//!                     |                                    |
//!                     dropped: the wait is cancelled       denied: a response
//! ```
//!
//! The wait is in memory of its own, which a request that does not wait never allocates.

use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use portcullis_core::{Clock, MonotonicClock};
use portcullis_policy::Kind;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{AnyBody, ResponseBody};
use crate::decide::{Decide, Notes};
use crate::denial::Denial;
use crate::future::ResponseFuture;
use crate::head::RequestHead;
use crate::layer::RateLimitLayer;
use crate::measured::InQueue;
use crate::settings::PassesWithoutStore;
use crate::shared::{Denied, Shared, Then};

/// Judges requests, which can wait for their permits, or for the answer of a counter store.
///
/// Implemented for [`ByPolicy`](crate::ByPolicy) and `ByLivePolicy`, and for limiters in code:
/// [`ByLimiter`](crate::ByLimiter) of a [`Queue`](portcullis_async::Queue), and `ByKeyedQueue`.
pub trait DecideOrWait: Decide {
    /// A request that waits. Dropping it ends the wait.
    type Waiting: Future<Output: Send> + Send + 'static;

    /// Takes `cost` permits for a request. `None` if nothing needs to be kept.
    ///
    /// # Errors
    ///
    /// [`Turned`] if the request is denied, or waits. Nothing is taken then.
    #[doc(hidden)]
    fn decide_or_wait(
        &self,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Turned<Self::Waiting>>;

    /// Ends the wait of a request with this head and cost. `None` if nothing needs to be kept.
    ///
    /// # Errors
    ///
    /// [`Denial`] if the request is denied. Nothing is taken then.
    #[doc(hidden)]
    fn end_wait(
        &self,
        ended: <Self::Waiting as Future>::Output,
        head: &RequestHead<'_>,
        cost: u32,
        asked: &mut Asked,
    ) -> Result<Option<Self::Permits>, Denial>;
}

/// A request that was not granted at once.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
#[expect(clippy::exhaustive_enums, reason = "a service must act on each")]
pub enum Turned<T> {
    /// It is denied.
    Denied(Denial),
    /// It waits.
    Waits(T),
}

/// What a layer asks of the one that judges, and what it is told besides the decision.
#[doc(hidden)]
pub struct Asked {
    pub(crate) most: Option<Duration>,
    pub(crate) kind: Kind,
    /// Whether a request passes whose store has no answer.
    pub(crate) passes: Option<Arc<PassesWithoutStore>>,
    /// Whether a request that waits is in a queue, and that is not measured yet.
    #[cfg(feature = "metrics")]
    pub(crate) is_queued: bool,
    pub(crate) notes: Notes,
}

shows!([] Asked, "Asked", self: "most" => self.most, "kind" => self.kind);

impl Asked {
    /// Notes that the request waits in a queue. Returns how long it waits at most.
    pub(crate) fn wait_in_queue(&mut self) -> Option<Duration> {
        #[cfg(feature = "metrics")]
        {
            self.is_queued = true;
        }
        self.most
    }
}

/// A layer that limits the requests of services, as [`RateLimitLayer`] does. A request that a limit
/// with a [queue](portcullis_policy::Limit::queue) denies waits for its permits, and then goes to
/// the inner service. So does one that finds no permits in a [`Queue`](portcullis_async::Queue) or
/// a
/// [`KeyedQueue`](portcullis_async::KeyedQueue) in code. A rule that is
/// [stored](portcullis_policy::Rule::stored_in) asks its counter store. Needs the feature `queue`.
///
/// - The request waits in the future of its response. Dropping that, as a server does when the
///   client goes away, cancels the wait: the next request in the queue is granted.
/// - A request is decided once, and counts once.
/// - A request that finds the queue full is denied. `Retry-After` accounts for those that wait.
/// - The policy tells the time: [`Policy::now`](portcullis_policy::Policy::now); or the clock of
///   the queue in code. The clock of the layer is not used for decisions that can wait.
/// - A request waits for all limits of its rule together, or of a queue around an
///   [`AllOf`](portcullis_core::AllOf), and takes nothing until all of them grant. So it does for
///   [several rules](portcullis_policy::Rule::continuing). What [`and`](Decide::and) joins cannot
///   wait. Put one of these layers around another instead: a
///   request that waits in the inner one holds the permits of the outer one.
/// - A request whose cost is [settled](crate::RateLimitLayerBuilder::settling) does not wait, and
///   is denied by a rule with a store.
/// - The inner service must be `Clone`. The service that was ready waits with the request, and a
///   clone takes its place, as tower recommends.
/// - A clone takes the place of the inner service after a denial too, so that what its `poll_ready`
///   reserved returns at once.
///
/// # Cost
///
/// A request that waits, or finds its queue full, allocates once. One that does not costs as much
/// as in a [`RateLimitLayer`], and one reading of the clock more. One that asks a store costs an
/// allocation more than
/// [`Policy::decide_stored`](portcullis_policy::Policy::decide_stored).
///
/// # Counter stores
///
/// - The future of the response asks the store. Requests that no rule with a store judges do not
///   wait for it.
/// - A denial has the reply of its rule, and `Retry-After` from the store.
/// - If the store has no answer, the request is denied with 503, or passes: see
///   [`passing_without_store`](crate::RateLimitLayerBuilder::passing_without_store).
/// - The store bounds the time of its answer, as the settings of a `RedisCounters` do.
///   [`waiting_at_most`](crate::RateLimitLayerBuilder::waiting_at_most) does not.
/// - Dropping the future gives up the answer: the store may have taken the permits or not. They are
///   permits by rate, which return by time.
///
/// ```
/// use core::time::Duration;
/// use portcullis_policy::{Limit, Policy, Rule};
/// use portcullis_tower::{ByPolicy, RateLimitLayer};
///
/// // Two uploads at once. Up to 10 wait, for 30 s at most.
/// let rule = Rule::new("uploads").limit(Limit::at_once(2).queue(10));
/// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
///     .waiting_at_most(Duration::from_secs(30))
///     .build_waiting();
/// # let _ = layer;
/// ```
///
/// With limiters in code. [`shared`](portcullis_async::Queue::shared) makes a queue drive itself:
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{AllOf, Concurrency, Rate, TokenBucket};
/// use portcullis_tower::{ByLimiter, RateLimitLayer};
///
/// // 100 per second and 8 at once, as one decision. Up to 50 requests wait.
/// let limits = AllOf::new((TokenBucket::new(Rate::per_second(100), 10), Concurrency::new(8)));
/// let queue = Queue::new(limits, ThreadTimer::new(), 50).shared();
/// let layer = RateLimitLayer::builder(ByLimiter::shared(queue)).build_waiting();
/// # let _ = layer;
/// ```
///
/// With a store, here in memory:
///
/// ```
/// use core::convert::Infallible;
/// use std::sync::Arc;
/// use http::{Request, Response};
/// use portcullis_core::MonotonicClock;
/// use portcullis_counters::MemoryCounters;
/// use portcullis_policy::{Key, Policy, Rule, Stores};
/// use portcullis_tower::{ByPolicy, RateLimitLayer};
/// use tower::ServiceExt;
/// use tower_layer::Layer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn core::error::Error>> {
/// let store = Arc::new(MemoryCounters::new(10_000, MonotonicClock::new()));
/// let rule = Rule::new("clients").key(Key::header("X-Api-Key")).limit("1/h".parse()?);
/// let policy = Policy::new([rule.stored_in("shared")]).unwrap();
/// let policy = policy.with_stores(Stores::new().with("shared", store)).unwrap();
/// let layer = RateLimitLayer::builder(ByPolicy::new(policy)).build_waiting();
/// let service = layer.layer(tower::service_fn(async |_| {
///     Ok::<_, Infallible>(Response::new(String::new()))
/// }));
///
/// let request = || Request::get("/").header("X-Api-Key", "a").body(());
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
/// let denied = service.oneshot(request()?).await?;
/// assert_eq!(denied.status(), 429);
/// assert_eq!(denied.headers()["retry-after"], "3600");
/// # Ok(())
/// # }
/// ```
pub struct WaitingLayer<D, C = MonotonicClock, W = AnyBody> {
    shared: Arc<Shared<D, C>>,
    body: PhantomData<fn() -> W>,
}

impl<D, C, W> WaitingLayer<D, C, W> {
    pub(crate) fn new(layer: RateLimitLayer<D, C, W>) -> Self {
        Self {
            shared: layer.into_shared(),
            body: PhantomData,
        }
    }
}

impl<D, C, W> Clone for WaitingLayer<D, C, W> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

impl<S, D, C, W> Layer<S> for WaitingLayer<D, C, W> {
    type Service = WaitingRateLimit<S, D, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        WaitingRateLimit {
            inner,
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

shows!([D, C, W] WaitingLayer<D, C, W>, "WaitingLayer");

/// A service whose requests are limited, and can wait: the result of a [`WaitingLayer`].
pub struct WaitingRateLimit<S, D, C = MonotonicClock, W = AnyBody> {
    inner: S,
    shared: Arc<Shared<D, C>>,
    body: PhantomData<fn() -> W>,
}

impl<S, D, C, W> WaitingRateLimit<S, D, C, W> {
    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, D, C, W> Clone for WaitingRateLimit<S, D, C, W> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

impl<S, A, B, D, C, W> Service<Request<A>> for WaitingRateLimit<S, D, C, W>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
    B: Body<Data: From<Bytes>>,
    D: DecideOrWait,
    C: Clock,
    W: ResponseBody<B, D::Permits>,
{
    type Response = Response<W::Body>;
    type Error = S::Error;
    type Future = WaitingFuture<S, A, S::Future, B, D, C, W>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let answer = match self.shared.judge_or_wait(&request) {
            Asking::Decided(judged) => {
                let is_denied = judged.is_err();
                let answer = ResponseFuture::of(&self.shared, &mut self.inner, request, judged);
                if is_denied {
                    // What the inner service reserved in `poll_ready` goes with it.
                    self.inner = self.inner.clone();
                }
                answer
            }
            Asking::Waits(waiting, asked) => {
                let clone = self.inner.clone();
                let wait = Wait {
                    waiting: Some(waiting),
                    asked,
                    in_queue: None,
                    shared: Arc::clone(&self.shared),
                    // The clone may not be ready.
                    call: Some((mem::replace(&mut self.inner, clone), request)),
                    answer: None,
                };
                return WaitingFuture {
                    state: State::Waits {
                        wait: Box::pin(wait),
                    },
                };
            }
        };
        WaitingFuture {
            state: State::Decided { answer },
        }
    }
}

/// Whether a request is decided, and how.
enum Asking<D: DecideOrWait, C> {
    Decided(Result<Then<D, C>, Denied>),
    Waits(D::Waiting, Asked),
}

impl<D: DecideOrWait, C: Clock> Shared<D, C> {
    /// Judges a request, and takes its permits if it does not wait.
    fn judge_or_wait<A>(self: &Arc<Self>, request: &Request<A>) -> Asking<D, C> {
        let settings = &self.settings;
        if settings.settles() {
            return Asking::Decided(self.judge(request));
        }
        let head = settings.head(request);
        if settings.passes(&head) {
            return Asking::Decided(Ok(Then::Pass));
        }
        let mut asked = Asked {
            most: settings.most,
            kind: Kind::Request,
            passes: settings.passes_without_store.clone(),
            #[cfg(feature = "metrics")]
            is_queued: false,
            notes: settings.notes(),
        };
        let taken = match self
            .decide
            .decide_or_wait(&head, settings.cost(&head), &mut asked)
        {
            Ok(permits) => Ok(permits),
            Err(Turned::Denied(denial)) => Err(denial),
            Err(Turned::Waits(waiting)) => return Asking::Waits(waiting, asked),
        };
        Asking::Decided(self.judged(taken, &asked))
    }

    /// What follows for a request that was decided.
    fn judged(
        &self,
        taken: Result<Option<D::Permits>, Denial>,
        asked: &Asked,
    ) -> Result<Then<D, C>, Denied> {
        let extras = self.settings.extras(&asked.notes, taken.is_ok());
        match taken {
            Ok(permits) => Ok(Then::keep(permits, extras)),
            Err(denial) => Err((denial, extras)),
        }
    }
}

pin_project! {
    /// The future of a response: the result of calling a [`WaitingRateLimit`].
    ///
    /// It has the request and the ready service while the request waits. Dropping it ends the wait.
    #[must_use = "futures do nothing unless they are polled"]
    pub struct WaitingFuture<S, A, F, B, D: DecideOrWait, C, W> {
        #[pin]
        state: State<S, A, F, B, D, C, W>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<S, A, F, B, D: DecideOrWait, C, W> {
        Decided { #[pin] answer: ResponseFuture<F, B, D, C, W> },
        Waits { wait: Pin<Box<Wait<S, A, F, B, D, C, W>>> },
    }
}

pin_project! {
    struct Wait<S, A, F, B, D: DecideOrWait, C, W> {
        // `None` after the wait.
        #[pin]
        waiting: Option<D::Waiting>,
        asked: Asked,
        // What measures the wait, from when it begins.
        in_queue: Option<InQueue>,
        shared: Arc<Shared<D, C>>,
        // `None` after the wait.
        call: Option<(S, Request<A>)>,
        // `None` during the wait.
        #[pin]
        answer: Option<ResponseFuture<F, B, D, C, W>>,
    }
}

impl<S, A, B, D, C, W> Wait<S, A, S::Future, B, D, C, W>
where
    S: Service<Request<A>, Response = Response<B>>,
    D: DecideOrWait,
    C: Clock,
    W: ResponseBody<B, D::Permits>,
{
    fn poll(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<W::Body>, S::Error>> {
        let mut this = self.project();
        if let Some(waiting) = this.waiting.as_mut().as_pin_mut() {
            let Poll::Ready(ended) = waiting.poll(context) else {
                #[cfg(feature = "metrics")]
                if core::mem::take(&mut this.asked.is_queued) {
                    let of_rule = this.asked.notes.in_queue.take();
                    let instruments = this.shared.settings.instruments(of_rule.as_ref());
                    *this.in_queue = instruments.map(InQueue::new);
                }
                return Poll::Pending;
            };
            this.waiting.set(None);
            let settings = &this.shared.settings;
            let (mut service, request) = this.call.take().expect("it is called once");
            let head = settings.head(&request);
            let cost = settings.cost(&head);
            let taken = this.shared.decide.end_wait(ended, &head, cost, this.asked);
            if let Some(in_queue) = this.in_queue.take() {
                in_queue.end(taken.is_ok());
            }
            let judged = this.shared.judged(taken, this.asked);
            let answer = ResponseFuture::of(this.shared, &mut service, request, judged);
            this.answer.set(Some(answer));
        }
        let answer = this.answer.as_pin_mut().expect("the wait has ended");
        answer.poll(context)
    }
}

impl<S, A, B, D, C, W> Future for WaitingFuture<S, A, S::Future, B, D, C, W>
where
    S: Service<Request<A>, Response = Response<B>>,
    D: DecideOrWait,
    C: Clock,
    W: ResponseBody<B, D::Permits>,
{
    type Output = Result<Response<W::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Decided { answer } => answer.poll(context),
            Projected::Waits { wait } => wait.as_mut().poll(context),
        }
    }
}

shows!([S, A, F, B, D: DecideOrWait, C, W] WaitingFuture<S, A, F, B, D, C, W>, "WaitingFuture");

shows!([S: fmt::Debug, D, C, W] WaitingRateLimit<S, D, C, W>, "WaitingRateLimit",
    self: "inner" => self.inner);

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, D, C, W> tonic::server::NamedService
    for WaitingRateLimit<S, D, C, W>
{
    const NAME: &'static str = S::NAME;
}
