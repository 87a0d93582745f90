//! Connections, and their bounds.
//!
//! | what | bound |
//! |---|---|
//! | connections of proxies | `--connections`; more wait in the listener's backlog of the system |
//! | who may connect to ask for checks | the trusted networks; others are closed at once |
//! | the fields of a head | [`HEAD_FIELDS`], or status 431 |
//! | the bytes of a head | [`HEAD_BYTES`] and the rest of one read, or status 431 |
//! | the bytes of the fields of a check | [`HEAD_BYTES`], or status 431: see [`is_too_large`] |
//! | the time until a head has arrived, on a connection that is kept too | [`Bounds::head`] |
//! | the time until the preface of an HTTP/2 connection has arrived | [`Bounds::head`] |
//! | concurrent streams of an HTTP/2 connection | [`STREAMS`] |
//! | bytes of the header fields of an HTTP/2 request | [`HEADER_LIST`] |
//! | how long a peer of HTTP/2 may be silent, also within a frame | [`Bounds::head`] and [`Bounds::alive`] |
//! | the time for which a peer takes nothing of its answers | [`Bounds::alive`] |
//! | the time for the last answers when the program stops | [`GRACE`] |
//!
//! Bodies of checks are not read.

use core::convert::Infallible;
use core::error::Error;
use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, join};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

/// The most bytes of a head. It may have the cookies of a client, of which nginx takes 32 KiB.
const HEAD_BYTES: usize = 64 * 1024;

/// Whether header fields are more than [`HEAD_BYTES`] together, as they are sent. Those of a head
/// that arrives in large reads may be: the server of hyper counts only before a read.
pub(crate) fn is_too_large(headers: &HeaderMap) -> bool {
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    headers.iter().map(bytes).sum::<usize>() > HEAD_BYTES
}

/// The most header fields of a check: those of the client, whose number nginx does not bound.
const HEAD_FIELDS: usize = 1_000;

/// The most bytes of the header fields of a request of HTTP/2, which asks by its body.
const HEADER_LIST: u32 = 16 * 1024;

/// The most concurrent streams of an HTTP/2 connection.
const STREAMS: u32 = 256;

/// How long the answers that are under way may take when the program stops.
const GRACE: Duration = Duration::from_secs(10);

/// With what a peer of HTTP/2 begins.
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
    /// How long a peer may take to show that it is still there: it answers to a ping of HTTP/2, or
    /// takes some of an answer.
    pub(crate) alive: Duration,
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
                .max_headers(HEAD_FIELDS)
                .serve_connection(TokioIo::new(Taking::new(stream, bounds.alive)), service);
            until_stopped(connection, stop, |connection| {
                connection.graceful_shutdown();
            })
            .await;
        }
        Protocol::Http2 => {
            // The server of hyper waits for it without a limit.
            let Ok(Ok(stream)) = timeout(bounds.head, opened(stream)).await else {
                return;
            };
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADER_LIST)
                .keep_alive_interval(bounds.head)
                .keep_alive_timeout(bounds.alive)
                .serve_connection(TokioIo::new(Taking::new(stream, bounds.alive)), service);
            until_stopped(connection, stop, |connection| {
                connection.graceful_shutdown();
            })
            .await;
        }
    }
}

/// Waits for the preface, and returns a stream that begins with it.
async fn opened(mut stream: TcpStream) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != PREFACE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (reads, writes) = stream.into_split();
    Ok(join(io::Cursor::new(preface).chain(reads), writes))
}

/// A stream that fails when the peer has taken nothing of what is written for too long.
///
/// Otherwise a peer that asks and does not read keeps its connection for ever: no head is awaited
/// while an answer is being written.
struct Taking<S> {
    stream: S,
    limit: Duration,
    /// Ends when the peer has taken nothing for `limit`. `None` while nothing waits to be taken.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> Taking<S> {
    const fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            ends: None,
        }
    }

    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let limit = self.limit;
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep(limit)));
        let error = || Err(io::ErrorKind::TimedOut.into());
        ends.as_mut().poll(context).map(|()| error())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taking<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taking<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Short times.
    fn bounds(protocol: Protocol) -> Bounds {
        Bounds {
            protocol,
            connections: 1,
            head: Duration::from_millis(100),
            alive: Duration::from_millis(100),
        }
    }

    /// What comes back from a listener with short times, until it closes.
    async fn reply_to(protocol: Protocol, parts: &[&[u8]]) -> Vec<u8> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stops) = watch::channel(false);
        let answer = |_, _| async { Response::new(Full::from("answer")) };
        let serving = serve(listener, bounds(protocol), stops, |_| Some(()), answer);
        let serving = tokio::spawn(serving);
        let mut stream = TcpStream::connect(address).await.unwrap();
        for part in parts {
            stream.write_all(part).await.unwrap();
        }
        let mut reply = Vec::new();
        let closed = timeout(Duration::from_secs(20), stream.read_to_end(&mut reply)).await;
        // What the peer has sent and the program has not read makes a reset of its end.
        let _ = closed.expect("the connection is closed");
        let _ = stop.send(true);
        serving.await.unwrap();
        reply
    }

    #[tokio::test]
    async fn a_connection_on_which_no_head_arrives_is_closed() {
        let reply = async |parts: &[&[u8]]| reply_to(Protocol::Http1, parts).await;
        assert_eq!(reply(&[]).await, b"");
        assert_eq!(reply(&[b"GET / HTTP/1.1\r\nHost: a"]).await, b"");
        let kept = reply(&[b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET"]).await;
        assert!(kept.ends_with(b"answer"), "{}", kept.escape_ascii());
    }

    #[tokio::test]
    async fn a_connection_on_which_no_preface_or_no_whole_frame_arrives_is_closed() {
        let reply = async |parts: &[&[u8]]| reply_to(Protocol::Http2, parts).await;
        let (begun, rest) = PREFACE.split_at(9);
        for none in [
            &[][..],
            &[&b"P"[..]],
            &[begun],
            &[begun, &rest[1..]],
            &[begun, &rest[1..], b"\0"],
            &[b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"],
        ] {
            assert_eq!(reply(none).await, b"");
        }
        // The program sends its settings, and a ping that gets no answer.
        let settings = b"\0\0\0\x04\0\0\0\0\0";
        for begun in [
            &[][..],
            &[&settings[..4]],
            &[settings],
            &[settings, b"\0\0"],
        ] {
            let reply = reply(&[&[&PREFACE[..]], begun].concat()).await;
            assert_eq!(reply[3], 4, "{}", reply.escape_ascii());
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_of_its_answers_is_disconnected() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stops) = watch::channel(false);
        // Larger than all buffers on the way.
        let large = Bytes::from(vec![0; 64 << 20]);
        let answer = move |_, _| {
            let large = large.clone();
            async { Response::new(Full::from(large)) }
        };
        let serving = serve(
            listener,
            bounds(Protocol::Http1),
            stops,
            |_| Some(()),
            answer,
        );
        let serving = tokio::spawn(serving);
        let asks = async || {
            let mut peer = TcpStream::connect(address).await.unwrap();
            let asked = peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            asked.unwrap();
            peer
        };
        let takes_nothing = asks().await;
        // There is one connection at a time.
        let mut next = asks().await;
        let read = timeout(Duration::from_secs(20), next.read_u8()).await;
        assert_eq!(read.expect("the next one is answered").unwrap(), b'H');
        // One that is slow and takes some of it stays.
        let mut some = vec![0; 4 << 20];
        for _ in 0..8 {
            sleep(Duration::from_millis(30)).await;
            next.read_exact(&mut some).await.unwrap();
        }
        drop((takes_nothing, next));
        let _ = stop.send(true);
        serving.await.unwrap();
    }
}
