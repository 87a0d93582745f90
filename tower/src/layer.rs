//! The layer, and its settings.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use portcullis_core::{Clock, MonotonicClock};
use tower_layer::Layer;

use crate::service::Shared;
use crate::{AnyBody, Decide, DenialSettings, RateLimit, RequestHead};

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
            settings: Settings {
                denials: DenialSettings::new(),
                limits_preflights: true,
                passes: None,
            },
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

impl<S, D, C, W> Layer<S> for RateLimitLayer<D, C, W> {
    type Service = RateLimit<S, D, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}

impl<D, C, W> fmt::Debug for RateLimitLayer<D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

/// The settings of a layer other than who judges.
pub(crate) struct Settings {
    pub(crate) denials: DenialSettings,
    limits_preflights: bool,
    passes: Option<Box<Passes>>,
}

type Passes = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;

impl Settings {
    /// Whether a request is not limited.
    #[inline]
    pub(crate) fn passes(&self, head: &RequestHead<'_>) -> bool {
        head.extensions.get::<NotLimited>().is_some()
            || !self.limits_preflights && head.is_preflight()
            || self.passes.as_ref().is_some_and(|passes| passes(head))
    }
}

/// The extension of a request that is not limited. An outer layer or service inserts it.
///
/// ```
/// use portcullis_tower::NotLimited;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(NotLimited);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotLimited;

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

    /// Builds the layer. Makes the replies to denied requests.
    #[must_use]
    pub fn build(self) -> RateLimitLayer<D, C, W> {
        let Self {
            mut decide,
            clock,
            settings,
            body,
        } = self;
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

impl<D, C, W> fmt::Debug for RateLimitLayerBuilder<D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .finish_non_exhaustive()
    }
}
