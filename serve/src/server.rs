//! Connections, and their bounds.
//!
//! | what | bound |
//! |---|---|
//! | connections of proxies | `--connections`; more wait in the listener's backlog of the system |
//! | who may connect to ask for checks | the trusted networks; others are closed at once |
//! | the head of a request | 100 fields, and 64 KiB and one read; a larger one gets status 431 |
//! | the time until a head has arrived, on a connection that is kept too | [`Bounds::head`] |
//! | concurrent streams of an HTTP/2 connection | [`STREAMS`] |
//! | bytes of the header fields of an HTTP/2 request | [`HEADER_LIST`] |
//! | the time without a sign of life of a peer of HTTP/2 | [`Bounds::head`] and [`ALIVE`] |
//! | the time for the last answers when the program stops | [`GRACE`] |
//!
//! Bodies of checks are not read.

use core::convert::Infallible;
use core::error::Error;
use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// The most bytes of a head. It may have the cookies of a client, of which nginx takes 32 KiB.
const HEAD_BYTES: usize = 64 * 1024;

/// The most bytes of the header fields of a request of HTTP/2, which asks by its body.
const HEADER_LIST: u32 = 16 * 1024;

/// The most concurrent streams of an HTTP/2 connection.
const STREAMS: u32 = 256;

/// How long a peer of HTTP/2 may take to show that it is still there.
const ALIVE: Duration = Duration::from_secs(10);

/// How long the answers that are under way may take when the program stops.
const GRACE: Duration = Duration::from_secs(10);

/// The protocol of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Http1,
    /// Without TLS, as gRPC has it on a host.
    Http2,
}

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) protocol: Protocol,
    /// The most connections at once.
    pub(crate) connections: u16,
    /// How long a head may take to arrive, from the end of the reply before it on.
    pub(crate) head: Duration,
}

/// Answers requests, until `stop` says so and the last answers are sent.
///
/// `admits` says whether a peer may connect. What it returns is kept as long as the connection.
pub(crate) async fn serve<A, G, H, F, B>(
    listener: TcpListener,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
    admits: A,
    handler: H,
) where
    A: Fn(SocketAddr) -> Option<G>,
    G: Send + 'static,
    H: Fn(SocketAddr, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let most = u32::from(bounds.connections);
    let permits = Arc::new(Semaphore::new(usize::from(bounds.connections)));
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, accept(&listener).await)
        };
        let (permit, (stream, peer)) = tokio::select! {
            next = next => next,
            _ = stop.wait_for(|&stops| stops) => break,
        };
        let Some(kept) = admits(peer) else {
            continue;
        };
        let (handler, stop) = (handler.clone(), stop.clone());
        tokio::spawn(async move {
            connection(stream, bounds, stop, move |request| handler(peer, request)).await;
            drop((kept, permit));
        });
    }
    // The listener accepts no more connections.
    drop(listener);
    let _ = timeout(GRACE, permits.acquire_many(most)).await;
}

/// The next connection. An error is of one connection, or passes when others end.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Otherwise an answer may wait until the peer has acknowledged the one before.
                if stream.set_nodelay(true).is_ok() {
                    return (stream, peer);
                }
            }
            Err(error) if is_of_peer(&error) => {}
            Err(error) => {
                tracing::error!("no connection is accepted: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whether the peer has gone before it was accepted.
fn is_of_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

async fn connection<H, F, B>(
    stream: TcpStream,
    bounds: Bounds,
    stop: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let service = service_fn(|request| {
        let answer = handler(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    match bounds.protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(bounds.head)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            until_stopped(connection, stop, |connection| {
                connection.graceful_shutdown();
            })
            .await;
        }
        Protocol::Http2 => {
            if timeout(bounds.head, stream.readable()).await.is_err() {
                return;
            }
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADER_LIST)
                .keep_alive_interval(bounds.head)
                .keep_alive_timeout(ALIVE)
                .serve_connection(TokioIo::new(stream), service);
            until_stopped(connection, stop, |connection| {
                connection.graceful_shutdown();
            })
            .await;
        }
    }
}

/// Serves a connection. After `stop`, only the requests that are under way.
async fn until_stopped<C: Future>(
    connection: C,
    mut stop: watch::Receiver<bool>,
    stops: impl FnOnce(Pin<&mut C>),
) {
    let mut connection = pin!(connection);
    // An error is one of the peer: it went away, or sent no request.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|&stops| stops) => stops(connection.as_mut()),
    }
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What comes back from a listener with a short time for heads, until it closes.
    async fn reply_to(parts: &[&str]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds {
            protocol: Protocol::Http1,
            connections: 1,
            head: Duration::from_millis(100),
        };
        let (stop, stops) = watch::channel(false);
        let answer = |_, _| async { Response::new(Full::from("answer")) };
        let serving = tokio::spawn(serve(listener, bounds, stops, |_| Some(()), answer));
        let mut stream = TcpStream::connect(address).await.unwrap();
        for part in parts {
            stream.write_all(part.as_bytes()).await.unwrap();
        }
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let _ = stop.send(true);
        serving.await.unwrap();
        reply
    }

    #[tokio::test]
    async fn a_connection_on_which_no_head_arrives_is_closed() {
        assert_eq!(reply_to(&[]).await, "");
        assert_eq!(reply_to(&["GET / HTTP/1.1\r\nHost: a"]).await, "");
        let kept = reply_to(&["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET"]).await;
        assert!(kept.ends_with("answer"), "{kept}");
    }
}
