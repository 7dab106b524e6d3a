//! What holds for the requests to one service.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::authentication::Authentication;
use ambit_model::http::bytes::BytesRoutes;
use ambit_model::http::service::{Protocol, RouteGroup, Routes, ServiceHttp, Subset};
use ambit_model::names::ServiceName;

use super::super::{ConvertError, Problem, each, known, port, text};
use super::{
    authentication, authorizer, by_name, compression, connections, health, inner, limits, optional,
    optional_string, optional_text, policy_name, policy_name_message, rate_limit, rule, strings,
    telemetry, traffic,
};
use crate::proto::ambit::http as proto;

impl TryFrom<proto::Service> for ServiceHttp {
    type Error = ConvertError;

    fn try_from(message: proto::Service) -> Result<Self, ConvertError> {
        if message.hostname.is_empty() {
            return Err(ConvertError::new("hostname", Problem::Missing));
        }
        Ok(Self {
            service: ServiceName::new(message.namespace, message.hostname),
            protocols: by_name("ports", message.ports, protocol)?,
            routes: Routes::new(each("route_groups", message.route_groups, group)?),
            bytes: BytesRoutes::new(each(
                "bytes_groups",
                message.bytes_groups,
                connections::group,
            )?),
            policies: each("policies", message.policies, policy_name)?,
            authorizers: by_name("authorizers", message.authorizers, authorizer::authorizer)?,
            authentication: Authentication {
                rules: each("jwt_rules", message.jwt_rules, authentication::rule)?,
                problem: optional_text(message.jwt_problem),
            },
            rate_limits: optional("rate_limits", message.rate_limits, rate_limit::limits)?
                .unwrap_or_default(),
            traffic: inner("traffic", message.traffic, traffic::traffic)?,
            subsets: by_name("subsets", message.subsets, subset)?,
            telemetry: optional("telemetry", message.telemetry, telemetry::telemetry)?
                .unwrap_or_default(),
            limits: optional("request_limits", message.request_limits, limits::limits)?
                .unwrap_or_default(),
            compression: optional("compressions", message.compressions, compression::compressions)?
                .unwrap_or_default(),
            health_check: optional("health_check", message.health_check, health::check)?,
        })
    }
}

impl From<&ServiceHttp> for proto::Service {
    fn from(it: &ServiceHttp) -> Self {
        Self {
            namespace: it.service.namespace.to_string(),
            hostname: it.service.hostname.to_string(),
            ports: it.protocols.iter().map(protocol_message).collect(),
            route_groups: it.routes.groups().iter().map(group_message).collect(),
            bytes_groups: it.bytes.groups().iter().map(connections::group_message).collect(),
            policies: it.policies.iter().map(policy_name_message).collect(),
            authorizers: it.authorizers.iter().map(authorizer::message).collect(),
            jwt_rules: it.authentication.rules.iter().map(authentication::message).collect(),
            jwt_problem: optional_string(&it.authentication.problem),
            rate_limits: rate_limit::limits_message(&it.rate_limits),
            traffic: Some(traffic::traffic_message(&it.traffic)),
            subsets: it.subsets.iter().map(subset_message).collect(),
            telemetry: telemetry::message(&it.telemetry),
            request_limits: limits::message(&it.limits),
            compressions: compression::message(&it.compression),
            health_check: it.health_check.as_ref().map(health::message),
        }
    }
}

fn protocol(message: proto::Port) -> Result<(u16, Protocol), ConvertError> {
    let protocol = match known("protocol", message.protocol)? {
        proto::Protocol::Unspecified => {
            return Err(ConvertError::new("protocol", Problem::Unspecified));
        }
        proto::Protocol::Detect => Protocol::Detect,
        proto::Protocol::Http => Protocol::Http,
        proto::Protocol::Http2 => Protocol::Http2,
        proto::Protocol::Tcp => Protocol::Tcp,
        proto::Protocol::Tls => Protocol::Tls,
    };
    Ok((port("number", message.number)?, protocol))
}

fn protocol_message((number, protocol): (&u16, &Protocol)) -> proto::Port {
    let protocol = match protocol {
        Protocol::Detect => proto::Protocol::Detect,
        Protocol::Http => proto::Protocol::Http,
        Protocol::Http2 => proto::Protocol::Http2,
        Protocol::Tcp => proto::Protocol::Tcp,
        Protocol::Tls => proto::Protocol::Tls,
    };
    proto::Port { number: (*number).into(), protocol: protocol.into() }
}

fn group(message: proto::RouteGroup) -> Result<RouteGroup, ConvertError> {
    Ok(RouteGroup {
        client_namespace: optional_text(message.client_namespace),
        port: message.port.map(|it| port("port", it)).transpose()?,
        rules: each("rules", message.rules, |it| rule::rule(it).map(Arc::new))?,
    })
}

fn group_message(group: &RouteGroup) -> proto::RouteGroup {
    proto::RouteGroup {
        client_namespace: optional_string(&group.client_namespace),
        port: group.port.map(u32::from),
        rules: group.rules.iter().map(|it| rule::rule_message(it)).collect(),
    }
}

fn subset(message: proto::Subset) -> Result<(Text, Subset), ConvertError> {
    let traffic = optional("traffic", message.traffic, traffic::traffic)?;
    let members = message.members.iter().map(|it| text(it));
    Ok((text(&message.name), Subset::new(members, traffic)))
}

fn subset_message((name, subset): (&Text, &Subset)) -> proto::Subset {
    proto::Subset {
        name: name.to_string(),
        members: strings(subset.members()),
        traffic: subset.traffic.as_ref().map(traffic::traffic_message),
    }
}
