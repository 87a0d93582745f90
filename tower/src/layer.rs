//! The layer, and its builder.

use core::marker::PhantomData;
use core::net::IpAddr;
use std::sync::Arc;
#[cfg(feature = "metrics")]
use std::sync::OnceLock;

use portcullis_core::{Clock, MonotonicClock};
#[cfg(feature = "queue")]
use portcullis_counters::StoreError;
use tower_layer::Layer;

use crate::body::AnyBody;
use crate::decide::Decide;
use crate::denial::DenialSettings;
#[cfg(feature = "fields")]
use crate::fields::Generation;
use crate::forwarded::ForwardedFor;
use crate::head::{RequestHead, ResponseHead};
use crate::service::RateLimit;
use crate::settings::Settings;
use crate::shared::Shared;

/// A layer that limits the requests of services.
///
/// All services of a layer, and of its clones, have the same limits.
///
/// ```
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_tower::{ByLimiter, RateLimitLayer};
///
/// let bucket = TokenBucket::new(Rate::per_second(1_000), 100);
/// let layer = RateLimitLayer::new(ByLimiter::new(bucket));
/// # let _ = layer;
/// ```
pub struct RateLimitLayer<D, C = MonotonicClock, W = AnyBody> {
    shared: Arc<Shared<D, C>>,
    body: PhantomData<fn() -> W>,
}

impl<D: Decide> RateLimitLayer<D> {
    /// A layer with default settings.
    pub fn new(decide: D) -> Self {
        Self::builder(decide).build()
    }

    /// Starts to build a layer.
    pub fn builder(decide: D) -> RateLimitLayerBuilder<D> {
        RateLimitLayerBuilder {
            decide,
            clock: MonotonicClock::new(),
            settings: Settings::default(),
            body: PhantomData,
        }
    }
}

impl<D, C, W> Clone for RateLimitLayer<D, C, W> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            body: PhantomData,
        }
    }
}

#[cfg(feature = "queue")]
impl<D, C, W> RateLimitLayer<D, C, W> {
    pub(crate) fn into_shared(self) -> Arc<Shared<D, C>> {
        self.shared
    }
}

impl<S, D, C, W> Layer<S> for RateLimitLayer<D, C, W> {
    type Service = RateLimit<S, D, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}

shows!([D, C, W] RateLimitLayer<D, C, W>, "RateLimitLayer");

/// Builds a [`RateLimitLayer`].
#[must_use]
pub struct RateLimitLayerBuilder<D, C = MonotonicClock, W = AnyBody> {
    decide: D,
    clock: C,
    settings: Settings,
    body: PhantomData<fn() -> W>,
}

impl<D: Decide, C: Clock, W> RateLimitLayerBuilder<D, C, W> {
    /// Sets how denied requests are answered.
    pub fn denials(mut self, denials: DenialSettings) -> Self {
        self.settings.denials = denials;
        self
    }

    /// Lets the preflights of browsers pass without taking permits. Default: they are limited.
    ///
    /// A client can make any `OPTIONS` request look like a preflight, so what answers them must be
    /// cheap, such as a layer for CORS.
    pub fn passing_preflights(mut self) -> Self {
        self.settings.limits_preflights = false;
        self
    }

    /// Lets the requests pass for which a function returns `true`, without taking permits.
    pub fn passing(
        mut self,
        passes: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.passes = Some(Box::new(passes));
        self
    }

    /// Sets the permits that a request takes. Default 1. With 0 it takes nothing, and is allowed if
    /// a request of cost 1 would be.
    ///
    /// ```
    /// use portcullis_core::{Rate, TokenBucket};
    /// use portcullis_tower::{ByLimiter, RateLimitLayer};
    ///
    /// // Searches cost 10.
    /// let bucket = ByLimiter::new(TokenBucket::new(Rate::per_second(1_000), 100)).by_cost();
    /// let layer = RateLimitLayer::builder(bucket)
    ///     .cost(|head| if head.uri.path() == "/search" { 10 } else { 1 })
    ///     .build();
    /// # let _ = layer;
    /// ```
    pub fn cost(mut self, cost: impl Fn(&RequestHead<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.settings.cost = Some(Box::new(cost));
        self
    }

    /// Settles the cost of a request when its response begins. A function gets the head of the
    /// response and the [estimate](Self::cost), which was taken, and returns what the request has
    /// cost. The rest is returned, or the excess is charged: see
    /// [`Hold`](portcullis_policy::Hold).
    ///
    /// If there is no response, because the client goes away or the inner service fails, the
    /// estimate is the cost.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_policy::{Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer, ResponseCost};
    ///
    /// let rule = Rule::new("tokens").limit("60000/m".parse()?).hold(Duration::from_secs(120));
    /// // Each request holds 1,000 tokens. Its handler adds an extension with the number it used.
    /// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
    ///     .cost(|_| 1_000)
    ///     .settling(|response, estimate| match response.extensions.get() {
    ///         Some(ResponseCost(tokens)) => *tokens,
    ///         None => estimate,
    ///     })
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn settling(
        mut self,
        actual: impl Fn(&ResponseHead<'_>, u32) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.settings.actual = Some(Box::new(actual));
        self
    }

    /// Counts only the requests whose response a function selects, such as failed logins.
    ///
    /// A request takes its permits before it is served. So requests in progress count, and no more
    /// requests than the limit allows can fail at one time. The permits return with a response that
    /// does not count. Until then the limit may deny other requests. In a policy, give the rule a
    /// [hold](portcullis_policy::Rule::hold). Without one, a token bucket takes permits back only
    /// if no other request has taken from it in the meantime.
    ///
    /// ```
    /// use http::StatusCode;
    /// use portcullis_policy::{Key, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let rule = Rule::new("failed logins").key(Key::address()).limit("5/m".parse()?);
    /// let rule = rule.hold(core::time::Duration::from_secs(30));
    /// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
    ///     .counting(|response| response.status == StatusCode::UNAUTHORIZED)
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn counting(
        self,
        counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settling(move |head, estimate| if counts(head) { estimate } else { 0 })
    }

    /// Reads the address of the client from a header that proxies set, as far as they are trusted.
    /// Default: the address is that of the connection, so that all clients behind a proxy have one
    /// address.
    ///
    /// ```
    /// use portcullis_policy::{Key, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, ForwardedFor, RateLimitLayer};
    ///
    /// let rule = Rule::new("clients").key(Key::address()).limit("100/s".parse()?);
    /// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
    ///     .forwarded(ForwardedFor::x_forwarded_for().hops(1))
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn forwarded(mut self, forwarded: ForwardedFor) -> Self {
        self.settings.clients.forwarded = Some(forwarded);
        self
    }

    /// Sets the address of peers that have none, such as those of a Unix socket. Default: they have
    /// none, and a request whose limit is of the address is denied with the status 500: see
    /// [`PeerAddress`](crate::PeerAddress).
    ///
    /// The peer of a Unix socket is a program of the same host. If it is a proxy, read the address
    /// of the client from its [header](Self::forwarded). Otherwise all peers without an address
    /// share the limits of this one.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use portcullis_policy::{Key, Policy, Rule};
    /// use portcullis_tower::{ByPolicy, ForwardedFor, RateLimitLayer};
    ///
    /// // Behind nginx on the same host, which connects to a Unix socket.
    /// let rule = Rule::new("clients").key(Key::address()).limit("100/s".parse()?);
    /// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
    ///     .peer_without_address(Ipv4Addr::LOCALHOST)
    ///     .forwarded(ForwardedFor::x_forwarded_for().hops(1))
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    pub fn peer_without_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.settings.clients.without_address = Some(address.into());
        self
    }

    /// States the limits in the header fields of each response, of this generation. Default: no
    /// fields. Needs the feature `fields`.
    ///
    /// An allowed request then allocates the texts of the fields. A response that has fields of the
    /// same names keeps its own.
    ///
    /// ```
    /// use portcullis_policy::{Policy, Rule};
    /// use portcullis_tower::fields::Generation;
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let policy = Policy::new([Rule::new("all").limit("100/s".parse()?)]).unwrap();
    /// let layer = RateLimitLayer::builder(ByPolicy::new(policy))
    ///     .fields(Generation::Draft11)
    ///     .build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[cfg(feature = "fields")]
    pub fn fields(mut self, generation: Generation) -> Self {
        self.settings.generation = generation;
        self
    }

    /// Measures requests by the instruments of [`Metrics`](portcullis_policy::Metrics), for
    /// recorders of the crate `metrics`. Default: they are not measured. Needs the feature
    /// `metrics`.
    ///
    /// - Each request counts once, with the rule that decided, or with each of [several
    ///   rules](portcullis_policy::Rule::continuing) that allowed it. If several judges decide in
    ///   order, it is the last one. A limiter in code has none.
    /// - An active lease lasts from the decision until the body of the response ends, or the client
    ///   goes away, also if no permit is held.
    /// - A request that waits in a queue counts as queued from when it begins to wait. If its
    ///   client goes away, its result is `request_canceled`.
    /// - Requests that [pass](Self::passing) are not measured.
    ///
    /// The instruments are registered with the first request. To measure a request costs an
    /// allocation, besides what the recorder costs.
    ///
    /// ```
    /// use portcullis_policy::{Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let policy = Policy::new([Rule::new("all").limit("100/s".parse()?)]).unwrap();
    /// let layer = RateLimitLayer::builder(ByPolicy::new(policy)).measured().build();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn measured(mut self) -> Self {
        self.settings.without_rule = Some(OnceLock::new());
        self
    }

    /// Sets how long a request waits at most, in a layer by
    /// [`build_waiting`](Self::build_waiting). A request that would wait longer, after those that
    /// wait before it, is denied at once.
    /// Default: it waits until its turn comes, or until its client goes away.
    #[cfg(feature = "queue")]
    pub fn waiting_at_most(mut self, most: core::time::Duration) -> Self {
        self.settings.most = Some(most);
        self
    }

    /// Sets what happens to a request whose counter store has no answer, in a layer by
    /// [`build_waiting`](Self::build_waiting). A function sees each error, for example to log it,
    /// and returns whether the request passes without taking permits of the store. Rules without a
    /// store that [limit it as well](portcullis_policy::Rule::continuing) still do.
    ///
    /// Default: the request is denied, because a limit must hold also while a store is down. The
    /// reply has the status 503 and `Retry-After: 1`. To decide by other limits instead, give the
    /// policy a [`GuardedStore`](portcullis_counters::GuardedStore): then there is no
    /// error.
    ///
    /// ```
    /// use portcullis_counters::StoreError;
    /// use portcullis_policy::{Policy, Rule};
    /// use portcullis_tower::{ByPolicy, RateLimitLayer};
    ///
    /// let rule = Rule::new("all").limit("100/s".parse()?).stored_in("shared");
    /// let layer = RateLimitLayer::builder(ByPolicy::new(Policy::new([rule]).unwrap()))
    ///     .passing_without_store(|error| {
    ///         eprintln!("{error}");
    ///         matches!(error, StoreError::Unavailable(_))
    ///     })
    ///     .build_waiting();
    /// # let _ = layer;
    /// # Ok::<(), portcullis_policy::PeriodError>(())
    /// ```
    #[cfg(feature = "queue")]
    pub fn passing_without_store(
        mut self,
        passes: impl Fn(&StoreError) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.passes_without_store = Some(Arc::new(passes));
        self
    }

    /// Sets the clock. Default [`MonotonicClock`].
    pub fn clock<N: Clock>(self, clock: N) -> RateLimitLayerBuilder<D, N, W> {
        RateLimitLayerBuilder {
            decide: self.decide,
            clock,
            settings: self.settings,
            body: self.body,
        }
    }

    /// Makes the responses have the body of axum. A response that holds no permits then keeps its
    /// body, so that the layer allocates nothing for it.
    #[cfg(feature = "axum")]
    pub fn for_axum(self) -> RateLimitLayerBuilder<D, C, crate::AxumBody> {
        RateLimitLayerBuilder {
            decide: self.decide,
            clock: self.clock,
            settings: self.settings,
            body: PhantomData,
        }
    }

    /// Builds a layer in which requests wait for permits, where a limit has a
    /// [queue](portcullis_policy::Limit::queue), and which asks the counter stores of rules: see
    /// [`WaitingLayer`](crate::WaitingLayer). Makes the replies to denied requests.
    #[cfg(feature = "queue")]
    #[must_use]
    pub fn build_waiting(self) -> crate::WaitingLayer<D, C, W>
    where
        D: crate::DecideOrWait,
    {
        crate::WaitingLayer::new(self.build())
    }

    /// Builds the layer. Makes the replies to denied requests.
    #[must_use]
    pub fn build(self) -> RateLimitLayer<D, C, W> {
        let Self {
            mut decide,
            clock,
            mut settings,
            body,
        } = self;
        settings.complete();
        decide.prepare(&settings.denials);
        RateLimitLayer {
            shared: Arc::new(Shared {
                decide,
                clock,
                settings,
            }),
            body,
        }
    }
}

shows!([D, C, W] RateLimitLayerBuilder<D, C, W>, "RateLimitLayerBuilder");
