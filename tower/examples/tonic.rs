//! A tonic service with limits in code: for each key 3 calls at once, and one more per minute; and
//! 64 calls in progress for all keys together. The messages are plain text, so that the example
//! needs no generated code.
//!
//! ```sh
//! cargo run -p portcullis-tower --features tonic --example tonic &
//!
//! # A message is 5 bytes (not compressed, 2 bytes long) and its text.
//! # The first three calls are served: `Hello, me.` The fourth gets `grpc-status: 8` (resource
//! # exhausted) and `grpc-retry-pushback-ms: 60000`.
//! for i in 1 2 3 4; do printf '\0\0\0\0\2me' | curl -i --http2-prior-knowledge --output - \
//!     -H 'Content-Type: application/grpc' -H 'TE: trailers' -H 'X-Api-Key: 1' --data-binary @- \
//!     http://127.0.0.1:3001/demo.Greeter/Greet; done
//! # Another key is served.
//! printf '\0\0\0\0\3you' | curl -i --http2-prior-knowledge --output - \
//!     -H 'Content-Type: application/grpc' -H 'TE: trailers' -H 'X-Api-Key: 2' --data-binary @- \
//!     http://127.0.0.1:3001/demo.Greeter/Greet
//! ```

use core::convert::Infallible;
use core::error::Error;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use http::HeaderValue;
use portcullis_core::queue::Keys;
use portcullis_core::{Concurrency, Rate, TokenBucket};
use portcullis_tower::{ByKey, ByLimiter, Decide, Denial, DenialSettings, RateLimitLayer};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower_service::Service;

/// The limits, as one decision.
fn limits() -> RateLimitLayer<impl Decide> {
    let bucket = TokenBucket::new(Rate::per_minute(1), 3);
    let each = ByKey::new(bucket, 10_000, |head, table| {
        Some(table.hash_of(head.headers.get("x-api-key")?.as_bytes()))
    });
    let all = ByLimiter::new(Concurrency::new(64));
    RateLimitLayer::builder(each.and(all))
        .denials(DenialSettings::new().responding(as_status))
        .build()
}

/// The reply to a denied call, as clients of gRPC understand it. Otherwise they would see the HTTP
/// status 429 as `UNAVAILABLE`.
fn as_status(denial: &Denial, _: http::Response<Bytes>) -> http::Response<Bytes> {
    let status = Status::resource_exhausted("Too many calls.");
    let mut response = status.into_http::<()>().map(|()| Bytes::new());
    if let Some(seconds) = denial.retry_seconds() {
        // When a client of gRPC that retries does so.
        let pushback = HeaderValue::from(seconds.saturating_mul(1_000));
        let headers = response.headers_mut();
        headers.insert("grpc-retry-pushback-ms", pushback);
    }
    response
}

/// A service with one method, as generated code would have it.
#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "demo.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != "/demo.Greeter/Greet" {
                return Ok(Status::unimplemented("No such method.").into_http());
            }
            let greet = tower::service_fn(|name: tonic::Request<String>| async move {
                let text = format!("Hello, {}.", name.get_ref());
                Ok::<_, Status>(tonic::Response::new(text))
            });
            Ok(Grpc::new(Text).unary(greet, request).await)
        })
    }
}

/// Messages that are plain text.
#[derive(Clone, Copy)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.into());
        text.map(Some)
            .map_err(|_| Status::invalid_argument("The message is not UTF-8."))
    }
}

/// Serves until the process ends.
pub(crate) async fn serve(incoming: TcpIncoming) -> Result<(), tonic::transport::Error> {
    let server = Server::builder().layer(limits()).add_service(Greeter);
    server.serve_with_incoming(incoming).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = SocketAddr::from(([127, 0, 0, 1], 3001));
    let incoming = TcpIncoming::bind(address)?;
    println!("http://{}", incoming.local_addr()?);
    serve(incoming).await?;
    Ok(())
}
