//! Calls of etcd's JSON gateway: one request of HTTP/1.1 each.
//!
//! Connections are kept and used again. A call takes one that no other call uses, or opens one. A
//! connection on which a call was given up or failed is closed. A request is sent a second time
//! only if none of it has left this process.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::store::LeaseError;

/// The most bytes of an answer. One about 500 partitions has about 100,000.
const LONGEST_ANSWER: usize = 16 << 20;

pub(super) struct Gateway {
    endpoints: Vec<Endpoint>,
    /// The endpoint that calls try first: the last one that answered.
    first: AtomicUsize,
    time_limit: Duration,
}

struct Endpoint {
    /// Host and port, as a header names them.
    authority: HeaderValue,
    host: String,
    port: u16,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Endpoint {
    fn new(url: &str) -> Result<Self, LeaseError> {
        let unfit = |what: &str| LeaseError::Refused(format!("{url}: {what}"));
        let uri: Uri = url.parse().map_err(|_| unfit("not an address"))?;
        if uri.scheme_str() != Some("http") {
            return Err(unfit("only http:// is supported"));
        }
        let authority = uri.authority().ok_or_else(|| unfit("without a host"))?;
        if authority.as_str().contains('@') {
            return Err(unfit("a password is not supported"));
        }
        let header = HeaderValue::from_str(authority.as_str());
        Ok(Self {
            authority: header.map_err(|_| unfit("not an address"))?,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(2379),
            idle: Mutex::new(Vec::new()),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Full<Bytes>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, LeaseError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(unreachable)?;
        // A request is one write, which need not wait for more.
        stream.set_nodelay(true).map_err(unreachable)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
        // It ends when the sender is dropped, or when the server closes the connection. A call
        // that uses it then sees the error too.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn request(&self, path: &'static str, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request
    }

    /// Sends a request, and returns the status and the body of the answer.
    async fn send(&self, path: &'static str, body: &Bytes) -> Result<(bool, Bytes), LeaseError> {
        let (mut connection, answer) = loop {
            let idle = { self.idle().pop() };
            let is_new = idle.is_none();
            let mut connection = match idle {
                Some(idle) => idle,
                None => self.connect().await?,
            };
            let answer = connection.try_send_request(self.request(path, body)).await;
            match answer {
                Ok(answer) => break (connection, answer),
                // The server has closed the connection while it was idle.
                Err(failed) if !is_new && failed.message().is_some() => {}
                Err(failed) => return Err(unreachable(failed.into_error())),
            }
        };
        let is_success = answer.status().is_success();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER)
            .collect()
            .await
            .map_err(unreachable)?;
        if connection.ready().await.is_ok() {
            self.idle().push(connection);
        }
        Ok((is_success, body.to_bytes()))
    }
}

fn unreachable(error: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> LeaseError {
    LeaseError::Unreachable(error.into())
}

impl Gateway {
    pub(super) fn new(endpoints: &[String], time_limit: Duration) -> Result<Self, LeaseError> {
        if endpoints.is_empty() {
            return Err(LeaseError::Refused("no address of etcd".into()));
        }
        let endpoints = endpoints.iter().map(|url| Endpoint::new(url));
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            first: AtomicUsize::new(0),
            time_limit,
        })
    }

    /// Sends `request` to one endpoint. After a failure, the next call tries another one.
    pub(super) async fn call(
        &self,
        path: &'static str,
        request: &Value,
    ) -> Result<Value, LeaseError> {
        let body = Bytes::from(request.to_string());
        let first = self.first.load(Relaxed);
        let endpoint = &self.endpoints[first % self.endpoints.len()];
        let answer = tokio::time::timeout(self.time_limit, endpoint.send(path, &body)).await;
        let answer = answer.unwrap_or_else(|_| {
            let limit = self.time_limit;
            Err(LeaseError::Unreachable(
                format!("no answer within {limit:?}").into(),
            ))
        });
        let answer = match answer {
            Ok((true, answer)) => answer,
            Ok((false, answer)) => {
                self.leave(first);
                return Err(refused(&answer));
            }
            Err(error) => {
                self.leave(first);
                return Err(error);
            }
        };
        serde_json::from_slice(&answer).map_err(|error| LeaseError::Damaged(error.to_string()))
    }

    fn leave(&self, endpoint: usize) {
        // Another call may have left it already.
        let _ = self
            .first
            .compare_exchange(endpoint, endpoint.wrapping_add(1), Relaxed, Relaxed);
    }
}

/// What an answer that is an error means.
fn refused(answer: &[u8]) -> LeaseError {
    let parsed: Option<Value> = serde_json::from_slice(answer).ok();
    let text = parsed.as_ref().and_then(|answer| {
        let message = answer.get("error").or_else(|| answer.get("message"))?;
        message.as_str()
    });
    match text {
        Some(text) => LeaseError::Refused(text.to_owned()),
        None => LeaseError::Damaged("an error without a message".into()),
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints = self.endpoints.iter().map(|endpoint| &endpoint.authority);
        f.debug_struct("Gateway")
            .field("endpoints", &endpoints.collect::<Vec<_>>())
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}
