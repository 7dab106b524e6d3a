//! Routes of connections that are no HTTP.

use std::sync::Arc;

use ambit_model::http::bytes::{BytesBackend, BytesMatch, BytesRule, ServerNameMatch};
use ambit_model::http::service::RouteGroup;

use super::super::{ConvertError, each, port, text};
use super::{action, inner, optional_string, optional_text, policy, rule};
use crate::proto::ambit::http as proto;

pub(super) fn group(message: proto::BytesGroup) -> Result<RouteGroup<BytesRule>, ConvertError> {
    Ok(RouteGroup {
        client_namespace: optional_text(message.client_namespace),
        port: message.port.map(|it| port("port", it)).transpose()?,
        rules: each("rules", message.rules, |it| bytes_rule(it).map(Arc::new))?,
    })
}

pub(super) fn group_message(group: &RouteGroup<BytesRule>) -> proto::BytesGroup {
    proto::BytesGroup {
        client_namespace: optional_string(&group.client_namespace),
        port: group.port.map(u32::from),
        rules: group.rules.iter().map(|it| bytes_rule_message(it)).collect(),
    }
}

pub(super) fn bytes_rule(message: proto::BytesRule) -> Result<BytesRule, ConvertError> {
    Ok(BytesRule {
        origin: inner("origin", message.origin, rule::origin)?,
        matches: each("matches", message.matches, one)?,
        backends: each("backends", message.backends, backend)?,
    })
}

pub(super) fn bytes_rule_message(rule: &BytesRule) -> proto::BytesRule {
    proto::BytesRule {
        origin: Some(rule::origin_message(&rule.origin)),
        matches: rule.matches.iter().map(one_message).collect(),
        backends: rule.backends.iter().map(backend_message).collect(),
    }
}

fn one(message: proto::BytesMatch) -> Result<BytesMatch, ConvertError> {
    use proto::bytes_match::ServerName;
    let server_name = message.server_name.map(|it| match it {
        ServerName::Exact(name) => ServerNameMatch::Exact(text(&name)),
        ServerName::Suffix(end) => ServerNameMatch::Suffix(text(&end)),
    });
    Ok(BytesMatch {
        server_name,
        destinations: each("destinations", message.destinations, policy::block)?,
        client_namespace: optional_text(message.client_namespace),
    })
}

fn one_message(it: &BytesMatch) -> proto::BytesMatch {
    use proto::bytes_match::ServerName;
    proto::BytesMatch {
        server_name: it.server_name.as_ref().map(|it| match it {
            ServerNameMatch::Exact(name) => ServerName::Exact(name.to_string()),
            ServerNameMatch::Suffix(end) => ServerName::Suffix(end.to_string()),
        }),
        destinations: it.destinations.iter().map(policy::block_message).collect(),
        client_namespace: optional_string(&it.client_namespace),
    }
}

fn backend(message: proto::BytesBackend) -> Result<BytesBackend, ConvertError> {
    let destination = inner("destination", message.destination, action::destination)?;
    Ok(BytesBackend { weight: message.weight, destination })
}

fn backend_message(it: &BytesBackend) -> proto::BytesBackend {
    let destination = Some(action::destination_message(&it.destination));
    proto::BytesBackend { weight: it.weight, destination }
}
