//! Envoy's rate limit service v3, over gRPC.
//!
//! ```text
//! RateLimitRequest { domain, descriptors } ---> for each descriptor, in turn: a request
//!
//! entry of a descriptor             what rules see
//! those that `serve.envoy` names    the method, the path, the host, the address, the tier
//! each                              a property, and a header, by the key of the entry
//! the domain                        the property `domain`
//! `hits_addend`                     the cost; of `is_negative_hits` none
//! ```
//!
//! The layer decides each as it decides the request of a check. What it answers becomes the answer:
//! any denial is `OVER_LIMIT`, because Envoy lets requests pass after an error.
//!
//! - **Nothing is given back.** A descriptor with `is_negative_hits` does not say what was taken,
//!   and when: permits that were never taken, or that have come back with time, would be granted a
//!   second time. So it takes nothing and never denies.
//! - **No quota is granted.** A client could use up a quota without asking (`quota` in an answer),
//!   so other limits of the same request would not be asked. Envoy itself does not use this field.

pub(crate) mod messages;

use core::net::IpAddr;
use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use portcullis_tower::fields::{Quota, ReadOptions, Stated};
use portcullis_tower::{PeerAddress, Target};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};

use self::messages::{
    Code, Descriptor, DescriptorStatus, Entry, Messages, RateLimit, RateLimitRequest,
    RateLimitResponse, Unit,
};
use crate::check::{Checks, OF_DENIALS};
use crate::described::Described;
use crate::original::{ADDRESSES, ENVOY};
use crate::settings::EnvoySettings;

/// The one method of the service.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The most bytes of a question.
const QUESTION_BYTES: usize = 64 * 1024;

/// The most bytes of a question and of what gRPC has before it: a flag and the length.
const FRAME_BYTES: usize = QUESTION_BYTES + 5;

/// How long a question may take to arrive, from its head on.
const ARRIVES: Duration = Duration::from_secs(10);

/// The most descriptors of a question.
const DESCRIPTORS: usize = 64;

/// The request that a descriptor is about.
fn described(
    names: &EnvoySettings,
    domain: &str,
    hits: u32,
    descriptor: Descriptor,
) -> Request<()> {
    let entries = descriptor.entries;
    let value = |name: &str| {
        let found = entries.iter().find(|entry| entry.key == name);
        found.map(|entry| entry.value.clone())
    };
    let mut request = Request::new(());
    // Without one of its own, a request has no method and no path that rules may name.
    let method = value(&names.method).and_then(|method| Method::from_bytes(method.as_bytes()).ok());
    *request.method_mut() = method.unwrap_or(Method::GET);
    let target = value(&names.path).and_then(|path| Target::parse(path.as_bytes()));
    *request.uri_mut() = target.map_or_else(Uri::default, |Target(target)| target);
    let address = value(&names.address).and_then(|address| address.parse::<IpAddr>().ok());
    let tier = value(&names.tier).unwrap_or_default();
    let host = value(&names.host);
    *request.headers_mut() = headers(&entries, host.as_deref());
    if let Some(address) = address {
        request.extensions_mut().insert(PeerAddress(address));
    }
    let own = descriptor.hits_addend.map(|hits| hits.value);
    let hits = if descriptor.is_negative_hits {
        0
    } else {
        own.unwrap_or(hits.into())
    };
    let pairs = entries.into_iter().map(|entry| (entry.key, entry.value));
    let domain = ("domain".to_owned(), domain.to_owned());
    request.extensions_mut().insert(Described {
        properties: pairs.chain([domain]).collect(),
        tier,
        cost: u32::try_from(hits).unwrap_or(u32::MAX),
    });
    request
}

/// Entries as headers, as far as they can be one.
fn headers(entries: &[Entry], host: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for entry in entries {
        let name = HeaderName::from_bytes(entry.key.as_bytes());
        let value = HeaderValue::from_str(&entry.value);
        // Envoy knows the address of the client.
        if let (Ok(name), Ok(value)) = (name, value)
            && name != ADDRESSES
        {
            headers.append(name, value);
        }
    }
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(header::HOST, host);
    }
    headers
}

/// The answer to one descriptor, by the response of the layer.
fn status(response: &Response<Bytes>) -> DescriptorStatus {
    let code = if response.status().is_success() {
        Code::Ok
    } else {
        Code::OverLimit
    };
    let stated = Stated::read(response.headers(), &ReadOptions::new());
    let mut answer = DescriptorStatus {
        code: code.into(),
        ..DescriptorStatus::default()
    };
    if let Some(quota) = stated.tightest() {
        let available = quota.available.unwrap_or_default();
        answer.limit_remaining = u32::try_from(available).unwrap_or(u32::MAX);
        answer.current_limit = limit(quota);
        answer.duration_until_reset = quota.reset.map(seconds);
    }
    answer
}

fn seconds(time: Duration) -> messages::Duration {
    messages::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: time.subsec_nanos().cast_signed(),
    }
}

fn limit(quota: &Quota<'_>) -> Option<RateLimit> {
    let unit = match quota.window.map(|window| window.as_secs()) {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3_600) => Unit::Hour,
        Some(86_400) => Unit::Day,
        Some(604_800) => Unit::Week,
        _ => Unit::Unknown,
    };
    Some(RateLimit {
        requests_per_unit: u32::try_from(quota.quota?).unwrap_or(u32::MAX),
        unit: unit.into(),
        name: quota.name.as_deref().unwrap_or_default().to_owned(),
    })
}

/// Answers the questions of Envoy.
#[derive(Clone)]
pub(crate) struct Envoy {
    pub(crate) checks: Arc<Checks>,
    pub(crate) names: Arc<EnvoySettings>,
}

impl Envoy {
    /// Answers a call of gRPC.
    pub(crate) async fn call<B>(self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Error: Into<Box<dyn core::error::Error + Send + Sync>> + Send,
    {
        let mut grpc = Grpc::new(Messages::<RateLimitResponse, RateLimitRequest>::default())
            .max_decoding_message_size(QUESTION_BYTES);
        if request.uri().path() != METHOD {
            return Status::unimplemented("only ShouldRateLimit").into_http();
        }
        let (head, body) = request.into_parts();
        match timeout(ARRIVES, Limited::new(body, FRAME_BYTES).collect()).await {
            Ok(Ok(body)) => {
                let body = Full::new(body.to_bytes());
                grpc.unary(self, Request::from_parts(head, body)).await
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Status::out_of_range("the question is too large").into_http()
            }
            Ok(Err(error)) => Status::cancelled(error.to_string()).into_http(),
            Err(_) => Status::deadline_exceeded("the question does not arrive").into_http(),
        }
    }

    async fn answer(self, question: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        if question.domain.is_empty() || question.descriptors.is_empty() {
            let text = "a question has a domain and at least one descriptor";
            return Err(Status::invalid_argument(text));
        }
        if question.descriptors.len() > DESCRIPTORS {
            return Err(Status::invalid_argument("too many descriptors"));
        }
        // As in Envoy's own service.
        let hits = question.hits_addend.max(1);
        let mut answer = RateLimitResponse::default();
        let (mut headers, mut is_over) = (Vec::new(), false);
        for descriptor in question.descriptors {
            let gives_back = descriptor.is_negative_hits;
            let request = described(&self.names, &question.domain, hits, descriptor);
            let mut response = self.checks.decide(ENVOY, request).await;
            let mut status = status(&response);
            if gives_back {
                status.code = Code::Ok.into();
            }
            if status.code == i32::from(Code::OverLimit) && !is_over {
                is_over = true;
                answer.raw_body = response.body().to_vec();
            }
            answer.statuses.push(status);
            headers.extend(core::mem::take(response.headers_mut()));
        }
        let overall = if is_over && !self.checks.is_shadow() {
            Code::OverLimit
        } else {
            Code::Ok
        };
        answer.overall_code = overall.into();
        answer.response_headers_to_add = added(&headers);
        if overall == Code::Ok {
            answer.raw_body.clear();
            let fields = &mut answer.response_headers_to_add;
            fields.retain(|field| OF_DENIALS.iter().all(|name| field.key != name.as_str()));
        }
        Ok(answer)
    }
}

/// The header fields of the responses to all descriptors: of a field that several have, a list, and
/// the longest `Retry-After`.
fn added(headers: &[(Option<HeaderName>, HeaderValue)]) -> Vec<messages::HeaderValue> {
    let mut added: Vec<messages::HeaderValue> = Vec::new();
    let mut name = None;
    for (next, value) in headers {
        // Of several values of a field, only the first one names it.
        name = next.as_ref().or(name);
        let (Some(name), Ok(value)) = (name, value.to_str()) else {
            continue;
        };
        let before = added.iter_mut().find(|field| field.key == name.as_str());
        match before {
            Some(before) if *name == header::RETRY_AFTER => {
                let seconds = |text: &str| text.parse::<u64>().unwrap_or_default();
                if seconds(value) > seconds(&before.value) {
                    value.clone_into(&mut before.value);
                }
            }
            Some(before) if name.as_str().starts_with("ratelimit") => {
                before.value.push_str(", ");
                before.value.push_str(value);
            }
            Some(_) => {}
            None => added.push(messages::HeaderValue {
                key: name.as_str().to_owned(),
                value: value.to_owned(),
            }),
        }
    }
    added
}

type Answer = Result<tonic::Response<RateLimitResponse>, Status>;

impl UnaryService<RateLimitRequest> for Envoy {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn call(&mut self, question: tonic::Request<RateLimitRequest>) -> Self::Future {
        let envoy = self.clone();
        Box::pin(async move {
            let answer = envoy.answer(question.into_inner()).await;
            answer.map(tonic::Response::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;
    use core::task::{Context, Poll};

    use http_body::Frame;
    use portcullis_policy::{LivePolicy, Policy};

    use super::*;
    use crate::counts::Counts;
    use crate::settings::Settings;

    /// A body of which nothing arrives.
    struct Nothing;

    impl http_body::Body for Nothing {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_does_not_arrive_is_an_error_after_a_while() {
        let live = LivePolicy::new(Policy::new([]).unwrap());
        let settings = Settings::default();
        let counts = Arc::new(Counts::new(live.clone(), false));
        let envoy = Envoy {
            checks: Arc::new(Checks::new(&live, &settings, &counts)),
            names: Arc::new(settings.envoy),
        };
        let call = Request::post(METHOD).body(Nothing).unwrap();
        let answer = envoy.call(call).await;
        let code = Status::from_header_map(answer.headers()).unwrap().code();
        assert_eq!(code, tonic::Code::DeadlineExceeded);
    }
}
