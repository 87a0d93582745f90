//! The layer for services that send requests.

use core::error::Error;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::borrow::Cow;

use http::{Request, Response, Uri};
use portcullis_async::{Rejected, Timer, TokioTimer};
use tower_layer::Layer;
use tower_service::Service;

use super::ServerLimits;

/// A layer for services that send requests. Each request waits until [`ServerLimits`] let it go,
/// and [`ServerLimits`] learn from each reply.
///
/// The server is the host and port of the request's URI, without the port of its scheme. A request
/// counts as on its way until the head of its reply has arrived.
///
/// ```
/// use portcullis_tower::client::{ClientLayer, ServerLimits};
/// let layer = ClientLayer::new(ServerLimits::new());
/// # let _ = layer;
/// ```
pub struct ClientLayer<T: Timer = TokioTimer> {
    limits: ServerLimits<T>,
}

impl<T: Timer> ClientLayer<T> {
    /// A layer whose services share these limits.
    #[must_use]
    pub const fn new(limits: ServerLimits<T>) -> Self {
        Self { limits }
    }
}

impl<T: Timer> Clone for ClientLayer<T> {
    fn clone(&self) -> Self {
        Self::new(self.limits.clone())
    }
}

shows!([T: Timer] ClientLayer<T>, "ClientLayer");

impl<S, T: Timer> Layer<S> for ClientLayer<T> {
    type Service = ClientService<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientService {
            inner,
            limits: self.limits.clone(),
        }
    }
}

/// A service whose requests obey the limits of the servers: the result of a [`ClientLayer`].
///
/// It is always ready. A request first waits, and then calls a clone of the inner service, once
/// that is ready. So a request that waits uses nothing of the inner service. Each request allocates
/// its future.
pub struct ClientService<S, T: Timer = TokioTimer> {
    inner: S,
    limits: ServerLimits<T>,
}

impl<S: Clone, T: Timer> Clone for ClientService<S, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limits: self.limits.clone(),
        }
    }
}

impl<S: fmt::Debug, T: Timer> fmt::Debug for ClientService<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ClientService");
        debug.field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The request was not sent: the queue of the server is full, or the wait would be too long.
    Rejected(Rejected),
    /// The inner service failed.
    Inner(E),
}

impl<E: fmt::Display> fmt::Display for ClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => write!(f, "the request was not sent: {rejected}"),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Rejected(rejected) => Some(rejected),
            Self::Inner(error) => error.source(),
        }
    }
}

type Boxed<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, A, B, T> Service<Request<A>> for ClientService<S, T>
where
    S: Service<Request<A>, Response = Response<B>, Future: Send> + Clone + Send + 'static,
    A: Send + 'static,
    T: Timer + Send + Sync + 'static,
{
    type Response = Response<B>;
    type Error = ClientError<S::Error>;
    type Future = Boxed<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let limits = self.limits.clone();
        let mut inner = self.inner.clone();
        Box::pin(async move {
            let sending = limits.acquire(&server(request.uri())).await;
            let sending = sending.map_err(ClientError::Rejected)?;
            let ready = poll_fn(|context| inner.poll_ready(context)).await;
            ready.map_err(ClientError::Inner)?;
            let response = inner.call(request).await.map_err(ClientError::Inner)?;
            sending.replied(response.status(), response.headers());
            Ok(response)
        })
    }
}

/// Returns the name of the server of a URI: its host and port, without the name and password that
/// it can have. The letters are small, and the port of the scheme is left out, so that a server has
/// one name.
fn server(uri: &Uri) -> Cow<'_, str> {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let server = authority
        .rsplit_once('@')
        .map_or(authority, |(_, server)| server);
    let port = match uri.scheme_str() {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => "",
    };
    let server = server.strip_suffix(port).unwrap_or(server);
    if server.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(server.to_ascii_lowercase());
    }
    Cow::Borrowed(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_one_name() {
        for (uri, name) in [
            ("http://example.com/a", "example.com"),
            ("http://Example.COM:80", "example.com"),
            ("https://example.com:443/b", "example.com"),
            ("http://example.com:443/b", "example.com:443"),
            ("https://me:secret@example.com:8443/", "example.com:8443"),
            ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
            ("http://[2001:db8::80]/", "[2001:db8::80]"),
            ("/a", ""),
        ] {
            assert_eq!(server(&uri.parse().unwrap()), name, "{uri}");
        }
    }
}
