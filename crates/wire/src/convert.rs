//! Messages to model and back.
//!
//! Nothing from the wire is used before it is converted here. A conversion is strict: it yields
//! either a whole value or a [`ConvertError`] that names the field. Two rules cover what this
//! version does not know:
//!
//! * An unknown enum value is an error, unless its meaning cannot widen what is allowed: unknown
//!   workload types and application protocols only label telemetry, an unknown health is not
//!   ready, an unknown visibility is the narrow one, unknown families are inferred from addresses.
//! * A policy condition that cannot be read gets its strictest reading (see [`policy`]), since
//!   refusing the policy would leave its workloads without it.
//!
//! Equal values encode to equal bytes, on every replica: maps are sorted, defaults are elided.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;

use ambit_model::Text;
use ambit_model::expression::ExpressionError;
use ambit_model::http::access_log::FormatError;
use ambit_model::http::matching::PatternError;
use ambit_model::http::policy::TemplateError;
use ambit_model::names::{NameError, NetworkAddress};

use crate::proto::istio::workload as proto;

pub(crate) mod http;
pub mod policy;
mod service;
mod unknown;
mod workload;

pub use service::{CLIENT_AFFINITY_EXTENSION, ENTRANCE_EXTENSION};

/// A message that cannot be taken as a value of the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {problem}")]
pub struct ConvertError {
    /// Path of the field inside the message, `ports[1].target_port`.
    pub field: String,
    /// The problem with it.
    pub problem: Problem,
}

/// What can be wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The message itself is not protobuf of its type.
    #[error("cannot be decoded: {0}")]
    Undecodable(prost::DecodeError),
    /// The field is required.
    #[error("is missing")]
    Missing,
    /// An address is neither IPv4 nor IPv6.
    #[error("an address has 4 or 16 bytes, this one has {0}")]
    AddressLength(usize),
    /// A prefix is longer than its address.
    #[error("prefix length {length} exceeds the address's {limit} bits")]
    PrefixLength {
        /// As received.
        length: u32,
        /// 32 or 128.
        limit: u8,
    },
    /// A port is out of range.
    #[error("{0} is not a port")]
    Port(u32),
    /// The value of an enum is newer than this version, or nonsense.
    #[error("enum value {0} is unknown")]
    UnknownValue(i32),
    /// A block holds IPv4 (in `::ffff:0:0/96`) beside IPv6, which cannot be told apart.
    #[error("the block holds IPv4 beside IPv6")]
    MixedBlock,
    /// The value of an enum says nothing.
    #[error("says nothing")]
    Unspecified,
    /// A metric is newer than this version, or nonsense.
    #[error("{0:?} is not a metric")]
    Metric(String),
    /// A status is out of range.
    #[error("{0} is not an HTTP status")]
    Status(u32),
    /// The part of a second is a second or more.
    #[error("{0} nanoseconds are a second or more")]
    Nanoseconds(u32),
    /// A part of none.
    #[error("is 0, and nothing can be divided by it")]
    ZeroDenominator,
    /// A number that must be above 0.
    #[error("is not a number above 0")]
    NotPositive,
    /// A regular expression cannot be used.
    #[error("{0}")]
    Pattern(PatternError),
    /// A format of the access log cannot be used.
    #[error("{0}")]
    Format(FormatError),
    /// An expression cannot be used.
    #[error("{0}")]
    Expression(ExpressionError),
    /// A path template cannot be used.
    #[error("{0}")]
    Template(TemplateError),
    /// The name comes twice, and only one can hold.
    #[error("{0:?} comes twice")]
    Twice(String),
    /// The message has fields that this version does not know, or is encoded in another way.
    #[error("is not as this version encodes it; a proxy must not be older than its control plane")]
    Newer,
    /// A name has the wrong form.
    #[error("{0}")]
    Name(NameError),
    /// The discovery resource has another name than its content.
    #[error("content belongs to {content:?}, the resource is named {resource:?}")]
    NameMismatch {
        /// Name of the resource.
        resource: String,
        /// Name that follows from the content.
        content: String,
    },
    /// The discovery resource carries another type than its response announced.
    #[error("type {0:?} is not the type of the response")]
    TypeMismatch(String),
}

impl ConvertError {
    pub(crate) fn new(field: impl Into<String>, problem: Problem) -> Self {
        Self { field: field.into(), problem }
    }

    /// The same error, seen from the message that holds this one in `field`.
    fn within(self, field: &str) -> Self {
        Self { field: format!("{field}.{}", self.field), problem: self.problem }
    }
}

/// Decodes a message, so that a failure reads like that of any other field.
pub(crate) fn decode<M: prost::Message + Default>(
    bytes: impl bytes::Buf,
) -> Result<M, ConvertError> {
    M::decode(bytes).map_err(|error| ConvertError::new("message", Problem::Undecodable(error)))
}

/// One entry of the address book.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Address {
    Workload(ambit_model::workload::Workload),
    Service(ambit_model::service::Service),
}

impl TryFrom<proto::Address> for Address {
    type Error = ConvertError;

    fn try_from(message: proto::Address) -> Result<Self, ConvertError> {
        match message.r#type {
            Some(proto::address::Type::Workload(it)) => it.try_into().map(Self::Workload),
            Some(proto::address::Type::Service(it)) => it.try_into().map(Self::Service),
            None => Err(ConvertError::new("type", Problem::Missing)),
        }
    }
}

impl From<&ambit_model::workload::Workload> for proto::Address {
    fn from(workload: &ambit_model::workload::Workload) -> Self {
        Self { r#type: Some(proto::address::Type::Workload(workload.into())) }
    }
}

impl From<&ambit_model::service::Service> for proto::Address {
    fn from(service: &ambit_model::service::Service) -> Self {
        Self { r#type: Some(proto::address::Type::Service(service.into())) }
    }
}

fn text(text: &str) -> Text {
    text.into()
}

/// Converts every element; an error names the index.
fn each<T, U>(
    field: &str,
    items: impl IntoIterator<Item = T>,
    convert: impl Fn(T) -> Result<U, ConvertError>,
) -> Result<Vec<U>, ConvertError> {
    let items = items.into_iter().enumerate();
    let converted =
        items.map(|(i, it)| convert(it).map_err(|e| e.within(&format!("{field}[{i}]"))));
    let mut all = converted.collect::<Result<Vec<U>, _>>()?;
    // It may lie where the messages lay that it is made of, which are larger.
    all.shrink_to_fit();
    Ok(all)
}

/// An address from its raw bytes, an IPv4 address never as IPv6; the error's field is `address`.
fn ip(bytes: &[u8]) -> Result<IpAddr, ConvertError> {
    written_ip(bytes).map(|ip| ip.to_canonical())
}

/// An address as it is written, as the length of its block counts from there.
fn written_ip(bytes: &[u8]) -> Result<IpAddr, ConvertError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(IpAddr::V4(Ipv4Addr::from(v4)));
    }
    match <[u8; 16]>::try_from(bytes) {
        Ok(v6) => Ok(IpAddr::V6(Ipv6Addr::from(v6))),
        Err(_) => Err(ConvertError::new("address", Problem::AddressLength(bytes.len()))),
    }
}

fn ip_bytes(ip: IpAddr) -> Bytes {
    match ip {
        IpAddr::V4(v4) => Bytes::copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => Bytes::copy_from_slice(&v6.octets()),
    }
}

/// A prefix length that fits its address; the error's field is `length`.
fn prefix_len(ip: IpAddr, length: u32) -> Result<u8, ConvertError> {
    let limit = if ip.is_ipv4() { 32 } else { 128 };
    match u8::try_from(length) {
        Ok(fits) if fits <= limit => Ok(fits),
        _ => Err(ConvertError::new("length", Problem::PrefixLength { length, limit })),
    }
}

fn port(field: &str, port: u32) -> Result<u16, ConvertError> {
    u16::try_from(port).map_err(|_| ConvertError::new(field, Problem::Port(port)))
}

/// An enum value that this version must know.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, ConvertError> {
    E::try_from(value).map_err(|_| ConvertError::new(field, Problem::UnknownValue(value)))
}

fn network_address(message: proto::NetworkAddress) -> Result<NetworkAddress, ConvertError> {
    Ok(NetworkAddress::new(text(&message.network), ip(&message.address)?))
}

fn network_address_message(address: &NetworkAddress, length: Option<u8>) -> proto::NetworkAddress {
    proto::NetworkAddress {
        network: address.network.to_string(),
        address: ip_bytes(address.ip),
        length: length.map(u32::from),
    }
}
