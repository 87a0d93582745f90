//! The messages of Envoy's rate limit service v3, as far as they are used here, and their encoding.
//!
//! Written by hand after `envoy/service/ratelimit/v3/rls.proto`, so that a build needs no compiler
//! of protocol buffers. Fields that are not here are skipped.

use core::marker::PhantomData;

use prost::{Enumeration, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<Number>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Number {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Week = 7,
}

/// Encodes answers and decodes questions.
#[derive(Debug)]
pub(crate) struct Messages<Answer, Question>(PhantomData<fn() -> (Answer, Question)>);

impl<Answer, Question> Default for Messages<Answer, Question> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Answer, Question> Codec for Messages<Answer, Question>
where
    Answer: Message + Send + 'static,
    Question: Message + Default + Send + 'static,
{
    type Encode = Answer;
    type Decode = Question;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<Answer: Message, Question> Encoder for Messages<Answer, Question> {
    type Item = Answer;
    type Error = Status;

    fn encode(&mut self, answer: Answer, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = answer.encode(into);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Answer, Question: Message + Default> Decoder for Messages<Answer, Question> {
    type Item = Question;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Question>, Status> {
        let decoded = Question::decode(from).map(Some);
        decoded.map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
