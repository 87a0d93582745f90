//! An axum service on loopback, and a client that sees the bytes.

#![allow(dead_code, reason = "each test uses a part")]

use core::convert::Infallible;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use axum::Router;
use axum::body::Bytes;
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Serves a router, and returns its address.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    address
}

/// A response, as it was received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Received {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

/// A connection of a client.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Sends a request without a body. `lines` are further headers.
    pub(crate) async fn send(&mut self, target: &str, lines: &[&str]) {
        let mut text = format!("{target} HTTP/1.1\r\nHost: localhost\r\n");
        for line in lines {
            text.push_str(line);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Receives a response with a `Content-Length`.
    pub(crate) async fn receive(&mut self) -> Received {
        let mut received = self.receive_head().await;
        let length = received.header("content-length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        received.body = String::from_utf8(body).unwrap();
        received
    }

    /// Receives a response without a body.
    pub(crate) async fn receive_head(&mut self) -> Received {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("a response"));
        }
        let head = String::from_utf8(head).unwrap();
        Received {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body: String::new(),
        }
    }

    pub(crate) async fn get(&mut self, path: &str, lines: &[&str]) -> Received {
        self.send(&format!("GET {path}"), lines).await;
        self.receive().await
    }
}

/// A body of what is sent to it.
pub(crate) struct Sent(pub(crate) mpsc::UnboundedReceiver<&'static str>);

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let text = self.0.poll_recv(context);
        text.map(|text| Some(Ok(Frame::data(Bytes::from_static(text?.as_bytes())))))
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), wait).await;
    waited.expect("the condition holds within 10 s");
}
