//! Answers of rate limit services as noise: nothing may panic, what says nothing is no answer, and
//! an answer is bounded.
#![no_main]

use ambit_wire::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use ambit_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use ambit_wire::rate_limit::decode;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = decode(bytes) else { return };
    let message = RateLimitResponse::decode(bytes).expect("it was decoded before");
    match message.overall_code() {
        Code::Ok => assert!(!answer.is_over),
        Code::OverLimit => assert!(answer.is_over),
        Code::Unknown => panic!("it says nothing"),
    }
    assert!(answer.limits.len() <= 128);
    assert!(answer.response_fields.len() + answer.request_fields.len() <= 128);
});
