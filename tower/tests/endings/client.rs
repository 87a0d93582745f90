//! A client that leaves at any time, over HTTP/1 or HTTP/2.

use core::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::server::Client;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A connection, and the requests that were sent on it.
pub(crate) enum Connection {
    Http1(Client),
    Http2(Streams),
}

pub(crate) struct Streams {
    send: SendRequest<Bytes>,
    sent: Vec<(ResponseFuture, SendStream<Bytes>)>,
    bodies: Vec<RecvStream>,
    driver: JoinHandle<()>,
}

/// Closes the connection, with all streams.
impl Drop for Streams {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub(crate) async fn new(address: SocketAddr, protocol: Protocol) -> Self {
        if protocol == Protocol::Http1 {
            return Self::Http1(Client::connect(address).await);
        }
        let stream = TcpStream::connect(address).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(async move {
            // It ends with an error when the server resets it.
            let _ = connection.await;
        });
        Self::Http2(Streams {
            send,
            sent: Vec::new(),
            bodies: Vec::new(),
            driver,
        })
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, path: &str) {
        match self {
            Self::Http1(client) => client.send(&format!("GET {path}"), &[]).await,
            Self::Http2(streams) => {
                let request = Request::get(format!("http://localhost{path}"));
                let mut send = streams.send.clone().ready().await.unwrap();
                let request = request.body(()).unwrap();
                streams.sent.push(send.send_request(request, true).unwrap());
            }
        }
    }

    /// Receives the status of the last request. `None` if the server ended it.
    pub(crate) async fn status(&mut self) -> Option<u16> {
        match self {
            Self::Http1(client) => {
                let mut line = [0; 12];
                client.0.read_exact(&mut line).await.ok()?;
                let mut head = line.to_vec();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.0.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse().unwrap())
                });
                let mut body = vec![0; length.unwrap_or(0)];
                client.0.read_exact(&mut body).await.unwrap();
                Some(head[9..12].parse().unwrap())
            }
            Self::Http2(streams) => {
                let (response, _stream) = streams.sent.pop().unwrap();
                let response = response.await.ok()?;
                let status = response.status().as_u16();
                streams.bodies.push(response.into_body());
                Some(status)
            }
        }
    }

    /// Sends a request, receives its response, and returns its status.
    pub(crate) async fn get(&mut self, path: &str) -> u16 {
        self.send(path).await;
        let status = self.status().await.unwrap();
        if let Self::Http2(streams) = self {
            let mut body = streams.bodies.pop().unwrap();
            while let Some(data) = body.data().await {
                let length = data.unwrap().len();
                body.flow_control().release_capacity(length).unwrap();
            }
        }
        status
    }

    /// Receives the first frame of the body of the last request.
    pub(crate) async fn first(&mut self) -> String {
        assert_eq!(self.status().await, Some(200));
        match self {
            Self::Http1(client) => {
                // A chunk: its length in hexadecimal, and its data.
                let mut line = String::new();
                while !line.ends_with("\r\n") {
                    line.push(char::from(client.0.read_u8().await.unwrap()));
                }
                let mut chunk = vec![0; usize::from_str_radix(line.trim(), 16).unwrap()];
                client.0.read_exact(&mut chunk).await.unwrap();
                String::from_utf8(chunk).unwrap()
            }
            Self::Http2(streams) => {
                let data = streams.bodies.last_mut().unwrap().data().await;
                String::from_utf8(data.unwrap().unwrap().to_vec()).unwrap()
            }
        }
    }

    /// Cancels the last request that was sent. The connection stays, over HTTP/2.
    pub(crate) fn cancel(&mut self) {
        if let Self::Http2(streams) = self
            && let Some((_, mut stream)) = streams.sent.pop()
        {
            stream.send_reset(Reason::CANCEL);
        }
    }
}
