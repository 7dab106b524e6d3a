//! Where a provider is.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use crate::FieldPath;

/// The service of a provider: `[NAMESPACE/]HOST` and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderService {
    /// The namespace, where the host does not say it.
    pub namespace: Option<String>,
    /// The host of a Service or ServiceEntry.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A field, what is wrong with it, and what to do about it.
pub(super) type Wrong = (FieldPath, String, &'static str);

/// A number, which protobuf's JSON may have in quotes: Istio's documents write ports so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Number(pub(super) u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Digits)
    }
}

struct Digits;

impl Visitor<'_> for Digits {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The type's name: type errors put it into words.
        f.write_str("u32")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        u32::try_from(number).map(Number).map_err(wrong)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
        let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
        u32::try_from(number).map(Number).map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
        text.parse().map(Number).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl ProviderService {
    /// The service of a provider that is written with `service` and `port`.
    pub(super) fn read(service: &str, Number(port): Number, at: &FieldPath) -> Result<Self, Wrong> {
        let (namespace, host) = match service.split_once('/') {
            Some((namespace, host)) => (Some(namespace), host),
            None => (None, service),
        };
        if host.is_empty() || host.contains(['/', '*']) || namespace == Some("") {
            let what = format!("`{service}` is not the host of a service");
            let remedy = "write it as authz.shop.svc.cluster.local, or NAMESPACE/HOST";
            return Err((at.field("service"), what, remedy));
        }
        let Some(port) = u16::try_from(port).ok().filter(|port| *port > 0) else {
            let what = format!("{port} is not a port");
            return Err((at.field("port"), what, "write a number from 1 to 65535"));
        };
        Ok(Self { namespace: namespace.map(str::to_owned), host: host.to_owned(), port })
    }
}
