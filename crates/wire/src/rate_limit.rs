//! Envoy's rate limit service over gRPC: what it is asked, and what it answers.
//!
//! An answer is foreign bytes: it is read whole or refused, and what it asks for has a bound.

use std::time::Duration;

use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use bytes::Bytes;
use prost::Message as _;

use crate::proto::envoy::service::ratelimit::v3 as proto;
use proto::rate_limit_response::rate_limit::Unit as WireUnit;
use proto::rate_limit_response::{Code, HeaderValue, RateLimit};

/// The path of the call that asks.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Most fields that one answer adds, and most limits that it speaks of.
const ENTRIES_MAX: usize = 128;

/// What the service counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys with their values, none of them empty.
    pub entries: Vec<(String, String)>,
    /// The limit that it is asked to hold; `None` for its own.
    pub quota: Option<Quota>,
}

/// What the service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether a limit is reached.
    pub is_over: bool,
    /// What it says of each descriptor; as many as were asked for, or none.
    pub limits: Vec<Limit>,
    /// Fields that the response is to have.
    pub response_fields: Vec<(String, Bytes)>,
    /// Fields that the request is to have where it is sent on.
    pub request_fields: Vec<(String, Bytes)>,
    /// The body of a refusal; empty if the service gives none.
    pub body: Bytes,
}

/// What the service says of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Whether it is reached.
    pub is_over: bool,
    /// How many requests in which time, if it says so.
    pub quota: Option<(u32, Duration)>,
    /// What is left.
    pub remaining: u32,
    /// Until all may come again, if it says so.
    pub reset: Option<Duration>,
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It is no message.
    #[error("the answer is no RateLimitResponse")]
    Decode(#[from] prost::DecodeError),
    /// It says neither yes nor no.
    #[error("the answer says neither that the limit is reached nor that it is not")]
    Unknown,
    /// It asks for more than anybody needs.
    #[error("the answer has more than {ENTRIES_MAX} fields or limits")]
    TooMany,
}

/// Writes a question. What costs nothing is said for each descriptor: for the whole question, 0 is
/// the number that is absent, which means 1. A service that does not know the newer field counts 1.
pub fn encode(domain: &str, descriptors: &[Descriptor], hits: u32) -> Vec<u8> {
    let descriptor = |it: &Descriptor| proto::RateLimitDescriptor {
        hits_addend: (hits == 0).then_some(0),
        entries: it.entries.iter().map(entry).collect(),
        limit: it.quota.map(|quota| proto::rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: quota.requests,
            unit: unit(quota.unit).into(),
        }),
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    let domain = domain.to_owned();
    proto::RateLimitRequest { domain, descriptors, hits_addend: hits }.encode_to_vec()
}

fn entry((key, value): &(String, String)) -> proto::rate_limit_descriptor::Entry {
    proto::rate_limit_descriptor::Entry { key: key.clone(), value: value.clone() }
}

fn unit(unit: Unit) -> WireUnit {
    match unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
    }
}

/// Reads an answer.
pub fn decode(bytes: &[u8]) -> Result<Answer, AnswerError> {
    let message = proto::RateLimitResponse::decode(bytes)?;
    let fields = message.response_headers_to_add.len() + message.request_headers_to_add.len();
    if fields > ENTRIES_MAX || message.statuses.len() > ENTRIES_MAX {
        return Err(AnswerError::TooMany);
    }
    let is_over = match message.overall_code() {
        Code::OverLimit => true,
        Code::Ok => false,
        Code::Unknown => return Err(AnswerError::Unknown),
    };
    Ok(Answer {
        is_over,
        limits: message.statuses.into_iter().map(limit).collect(),
        response_fields: message.response_headers_to_add.into_iter().map(field).collect(),
        request_fields: message.request_headers_to_add.into_iter().map(field).collect(),
        body: message.raw_body,
    })
}

fn limit(message: proto::rate_limit_response::DescriptorStatus) -> Limit {
    let reset = message.duration_until_reset.as_ref().and_then(|it| {
        let (seconds, nanos) = (u64::try_from(it.seconds), u32::try_from(it.nanos));
        Some(Duration::new(seconds.ok()?, nanos.ok()?.min(999_999_999)))
    });
    Limit {
        is_over: message.code() == Code::OverLimit,
        quota: message.current_limit.as_ref().and_then(quota),
        remaining: message.limit_remaining,
        reset,
    }
}

fn quota(message: &RateLimit) -> Option<(u32, Duration)> {
    let seconds = match message.unit() {
        WireUnit::Unknown => return None,
        WireUnit::Second => 1,
        WireUnit::Minute => 60,
        WireUnit::Hour => 3_600,
        WireUnit::Day => 86_400,
        WireUnit::Month => 30 * 86_400,
        WireUnit::Year => 365 * 86_400,
    };
    Some((message.requests_per_unit, Duration::from_secs(seconds)))
}

fn field(message: HeaderValue) -> (String, Bytes) {
    let value = match message.value.is_empty() {
        true => message.raw_value,
        false => message.value.into_bytes().into(),
    };
    (message.key, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_envoys_field_numbers() {
        let entries = vec![("k".to_owned(), "v".to_owned())];
        let quota = Some(Quota { requests: 7, unit: Unit::Minute, burst: 9 });
        let bytes = encode("d", &[Descriptor { entries, quota }], 3);
        let entry = [0x0a, 6, 0x0a, 1, b'k', 0x12, 1, b'v'];
        let limit = [0x12, 4, 0x08, 7, 0x10, 2];
        let mut expected = vec![0x0a, 1, b'd', 0x12, 14];
        expected.extend(entry.into_iter().chain(limit).chain([0x18, 3]));
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_costs_nothing_only_looks() {
        let entries = vec![("k".to_owned(), "v".to_owned())];
        let bytes = encode("d", &[Descriptor { entries, quota: None }], 0);
        let message = proto::RateLimitRequest::decode(&*bytes).expect("a question");
        assert_eq!((message.hits_addend, message.descriptors[0].hits_addend), (0, Some(0)));
    }

    #[test]
    fn an_answer_is_read_whole() {
        let status = proto::rate_limit_response::DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 7,
                unit: WireUnit::Minute.into(),
                name: String::new(),
            }),
            limit_remaining: 2,
            duration_until_reset: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
        };
        let header = |key: &str, value: &str, raw: &'static [u8]| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: raw.into(),
        };
        let message = proto::RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            response_headers_to_add: vec![header("a", "b", b"")],
            request_headers_to_add: vec![header("c", "", b"d")],
            raw_body: "no".into(),
        };
        let answer = decode(&message.encode_to_vec()).unwrap();
        let limit = Limit {
            is_over: true,
            quota: Some((7, Duration::from_secs(60))),
            remaining: 2,
            reset: Some(Duration::from_millis(1_500)),
        };
        let expected = Answer {
            is_over: true,
            limits: vec![limit],
            response_fields: vec![("a".to_owned(), "b".into())],
            request_fields: vec![("c".to_owned(), "d".into())],
            body: "no".into(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn an_answer_that_says_nothing_or_too_much_is_none() {
        assert!(matches!(decode(&[]), Err(AnswerError::Unknown)));
        assert!(matches!(decode(&[0x08, 9]), Err(AnswerError::Unknown)));
        assert!(matches!(decode(&[0x08]), Err(AnswerError::Decode(_))));
        assert!(!decode(&[0x08, 1]).unwrap().is_over);
        let many = proto::RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![Default::default(); ENTRIES_MAX + 1],
            ..Default::default()
        };
        assert!(matches!(decode(&many.encode_to_vec()), Err(AnswerError::TooMany)));
        let odd = proto::rate_limit_response::DescriptorStatus {
            duration_until_reset: Some(prost_types::Duration { seconds: -1, nanos: -1 }),
            ..Default::default()
        };
        let odd = proto::RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![odd],
            ..Default::default()
        };
        assert_eq!(decode(&odd.encode_to_vec()).unwrap().limits, [Limit::default()]);
    }
}
