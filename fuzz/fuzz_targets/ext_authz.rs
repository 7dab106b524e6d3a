//! Answers of authorization services as noise: nothing may panic, what says nothing never allows,
//! and an answer is bounded.
#![no_main]

use ambit_wire::ext_authz::{Verdict, decode};
use ambit_wire::proto::envoy::service::auth::v3::CheckResponse;
use ambit_wire::proto::envoy::service::auth::v3::check_response::HttpResponse;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|bytes: &[u8]| {
    let Ok(verdict) = decode(bytes) else { return };
    let message = CheckResponse::decode(bytes).expect("it was decoded before");
    let is_ok = message.status.as_ref().map(|status| status.code == 0);
    match verdict {
        Verdict::Allowed(it) => {
            assert_ne!(is_ok, Some(false), "its status denies");
            assert!(is_ok.is_some() || message.http_response.is_some(), "it says nothing");
            assert!(!matches!(message.http_response, Some(HttpResponse::DeniedResponse(_))));
            let changes = it.remove.len() + it.request.len() + it.response.len();
            assert!(changes + it.parameters.len() + it.remove_parameters.len() <= 256);
        }
        Verdict::Denied(it) => {
            assert_ne!(is_ok, Some(true), "its status allows");
            assert!(it.fields.len() <= 256);
            assert!(it.status.is_none_or(|status| (200..600).contains(&status)));
        }
    }
});
