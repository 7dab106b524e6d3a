//! `ambit.http`: services and policies of layer 7, as control sends them to waypoints.
//!
//! Unlike `istio.security.Authorization` ([`super::policy`]) these are messages of our own, so
//! nothing gets a strictest reading: what this version does not know all of is refused as a whole,
//! and the receiver goes on without it ([`crate::xds::client`]). Without its service a request is
//! not routed, and without its policy it is denied.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_model::http::certificate::Certificate;
use ambit_model::http::matching::Pattern;
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::PolicyName;

use super::{ConvertError, Problem, decode, each, text};
use crate::proto::ambit::http as proto;

mod action;
mod authentication;
mod authorizer;
mod certificate;
mod compression;
mod connections;
pub(crate) mod gateway;
mod health;
mod limits;
mod matching;
mod nearness;
mod policy;
mod rate_limit;
mod rule;
mod service;
mod telemetry;
mod traffic;

/// Reads an encoded service.
pub(crate) fn read_service(bytes: &[u8]) -> Result<ServiceHttp, ConvertError> {
    whole::<proto::Service>(bytes)?.try_into()
}

/// Reads an encoded certificate.
pub(crate) fn read_certificate(bytes: &[u8]) -> Result<Certificate, ConvertError> {
    whole::<proto::Certificate>(bytes)?.try_into()
}

/// Reads an encoded policy.
pub(crate) fn read_policy(bytes: &[u8]) -> Result<RequestPolicy, ConvertError> {
    whole::<proto::RequestPolicy>(bytes)?.try_into()
}

/// Decodes a message of which nothing is dropped.
fn whole<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, ConvertError> {
    let message: M = decode(bytes)?;
    match message.encode_to_vec() == bytes {
        true => Ok(message),
        false => Err(ConvertError::new("message", Problem::Newer)),
    }
}

const EMPTY: proto::Empty = proto::Empty {};

/// A field that must be there.
fn required<T>(field: &str, value: Option<T>) -> Result<T, ConvertError> {
    value.ok_or_else(|| ConvertError::new(field, Problem::Missing))
}

/// A message that must be there, converted; an error names the field.
fn inner<T, U>(
    field: &str,
    value: Option<T>,
    convert: impl Fn(T) -> Result<U, ConvertError>,
) -> Result<U, ConvertError> {
    convert(required(field, value)?).map_err(|error| error.within(field))
}

/// A message that may be there, converted; an error names the field.
fn optional<T, U>(
    field: &str,
    value: Option<T>,
    convert: impl Fn(T) -> Result<U, ConvertError>,
) -> Result<Option<U>, ConvertError> {
    value.map(|it| convert(it).map_err(|error| error.within(field))).transpose()
}

/// Entries by what names them, each once.
fn by_name<T, K: Ord + ToString, V>(
    field: &str,
    items: Vec<T>,
    convert: impl Fn(T) -> Result<(K, V), ConvertError>,
) -> Result<BTreeMap<K, V>, ConvertError> {
    let mut all = BTreeMap::new();
    for (key, value) in each(field, items, convert)? {
        if all.contains_key(&key) {
            return Err(ConvertError::new(field, Problem::Twice(key.to_string())));
        }
        all.insert(key, value);
    }
    Ok(all)
}

fn duration(message: proto::Duration) -> Result<Duration, ConvertError> {
    match message.nanos {
        0..1_000_000_000 => Ok(Duration::new(message.seconds, message.nanos)),
        nanos => Err(ConvertError::new("nanos", Problem::Nanoseconds(nanos))),
    }
}

fn duration_message(duration: Duration) -> proto::Duration {
    proto::Duration { seconds: duration.as_secs(), nanos: duration.subsec_nanos() }
}

fn pattern(field: &str, source: &str) -> Result<Pattern, ConvertError> {
    Pattern::new(source).map_err(|error| ConvertError::new(field, Problem::Pattern(error)))
}

fn status(field: &str, status: u32) -> Result<u16, ConvertError> {
    let wrong = || ConvertError::new(field, Problem::Status(status));
    u16::try_from(status).ok().filter(|it| (100..1000).contains(it)).ok_or_else(wrong)
}

fn texts(all: &[String]) -> Vec<ambit_model::Text> {
    all.iter().map(|it| text(it)).collect()
}

fn strings(all: &[ambit_model::Text]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn optional_text(it: Option<String>) -> Option<ambit_model::Text> {
    it.map(ambit_model::Text::from)
}

fn optional_string(it: &Option<ambit_model::Text>) -> Option<String> {
    it.as_ref().map(ToString::to_string)
}

fn policy_name(message: proto::PolicyName) -> Result<PolicyName, ConvertError> {
    match message.name.is_empty() {
        true => Err(ConvertError::new("name", Problem::Missing)),
        false => Ok(PolicyName::new(message.namespace, message.name)),
    }
}

fn policy_name_message(name: &PolicyName) -> proto::PolicyName {
    proto::PolicyName { namespace: name.namespace.to_string(), name: name.name.to_string() }
}
