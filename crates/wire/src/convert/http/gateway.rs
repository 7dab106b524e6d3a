//! A gateway at the edge: its listeners, and what is attached to each.

use std::sync::Arc;

use ambit_model::http::gateway::{
    Challenge, ClientValidation, Gateway, GatewayRoute, GatewayRouteName, HostMatch, Listener,
    ListenerSpeaks, Place, Proof, Termination,
};
use ambit_model::names::ServiceName;

use super::super::{ConvertError, Problem, each, port, text};
use super::{EMPTY, connections, inner, optional, required, rule, strings, texts, whole};
use crate::proto::ambit::http as proto;

/// What a gateway is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GatewayResource {
    /// Itself.
    Gateway(Gateway),
    /// A route that is attached to it.
    Route(GatewayRoute),
}

/// Reads an encoded gateway, or a route of one.
pub(crate) fn read(bytes: &[u8]) -> Result<GatewayResource, ConvertError> {
    whole::<proto::GatewayResource>(bytes)?.try_into()
}

impl TryFrom<proto::GatewayResource> for GatewayResource {
    type Error = ConvertError;

    fn try_from(message: proto::GatewayResource) -> Result<Self, ConvertError> {
        use proto::gateway_resource::Resource;
        match required("resource", message.resource)? {
            Resource::Gateway(it) => it.try_into().map(Self::Gateway),
            Resource::Route(it) => it.try_into().map(Self::Route),
        }
    }
}

impl From<&Gateway> for proto::GatewayResource {
    fn from(it: &Gateway) -> Self {
        Self { resource: Some(proto::gateway_resource::Resource::Gateway(it.into())) }
    }
}

impl From<&GatewayRoute> for proto::GatewayResource {
    fn from(it: &GatewayRoute) -> Self {
        Self { resource: Some(proto::gateway_resource::Resource::Route(it.into())) }
    }
}

impl TryFrom<proto::Gateway> for Gateway {
    type Error = ConvertError;

    fn try_from(message: proto::Gateway) -> Result<Self, ConvertError> {
        if message.hostname.is_empty() {
            return Err(ConvertError::new("hostname", Problem::Missing));
        }
        let listeners = each("listeners", message.listeners, listener)?;
        let service = ServiceName::new(message.namespace, message.hostname);
        let challenges = message.challenges.iter().map(challenge).collect();
        let gateway = Self::new(service, listeners).with_proof(proof(message.proof));
        Ok(gateway.with_challenges(challenges))
    }
}

impl From<&Gateway> for proto::Gateway {
    fn from(it: &Gateway) -> Self {
        Self {
            namespace: it.service.namespace.to_string(),
            hostname: it.service.hostname.to_string(),
            listeners: it.listeners().map(|it| listener_message(it)).collect(),
            proof: proof_message(&it.proof),
            challenges: it.challenges.iter().map(challenge_message).collect(),
        }
    }
}

impl TryFrom<proto::GatewayRoute> for GatewayRoute {
    type Error = ConvertError;

    fn try_from(message: proto::GatewayRoute) -> Result<Self, ConvertError> {
        if message.route.is_empty() {
            return Err(ConvertError::new("route", Problem::Missing));
        }
        let gateway: Result<ServiceName, _> = message.gateway.parse();
        let gateway = gateway.map_err(|_| ConvertError::new("gateway", Problem::Missing))?;
        let name = GatewayRouteName { gateway, route: text(&message.route) };
        let rules = each("rules", message.rules, |it| rule::rule(it).map(Arc::new))?;
        let read = |it| connections::bytes_rule(it).map(Arc::new);
        let connections = each("bytes_rules", message.bytes_rules, read)?;
        Ok(Self { name, places: each("to", message.to, place)?, rules, connections })
    }
}

impl From<&GatewayRoute> for proto::GatewayRoute {
    fn from(it: &GatewayRoute) -> Self {
        let rules = it.connections.iter();
        Self {
            gateway: it.name.gateway.to_string(),
            route: it.name.route.to_string(),
            to: it.places.iter().map(place_message).collect(),
            rules: it.rules.iter().map(|it| rule::rule_message(it)).collect(),
            bytes_rules: rules.map(|it| connections::bytes_rule_message(it)).collect(),
        }
    }
}

/// A listener, and the hosts for which a route is attached there.
fn place(message: proto::Attachment) -> Result<Place, ConvertError> {
    let every = message.every_host.then_some(None);
    let hosts = each("hosts", message.hosts, |it| host(it).map(Some))?;
    Ok(Place { listener: text(&message.listener), hosts: every.into_iter().chain(hosts).collect() })
}

fn place_message(it: &Place) -> proto::Attachment {
    proto::Attachment {
        listener: it.listener.to_string(),
        hosts: it.hosts.iter().flatten().map(host_message).collect(),
        every_host: it.hosts.contains(&None),
    }
}

fn proof(message: Option<proto::gateway::Proof>) -> Proof {
    use proto::gateway::Proof as Message;
    match message {
        None => Proof::None,
        Some(Message::Certificate(secret)) => Proof::Certificate(text(&secret)),
        Some(Message::Problem(problem)) => Proof::Impossible { problem: text(&problem) },
    }
}

fn proof_message(it: &Proof) -> Option<proto::gateway::Proof> {
    use proto::gateway::Proof as Message;
    match it {
        Proof::None => None,
        Proof::Certificate(secret) => Some(Message::Certificate(secret.to_string())),
        Proof::Impossible { problem } => Some(Message::Problem(problem.to_string())),
    }
}

fn challenge(message: &proto::Challenge) -> Challenge {
    let proto::Challenge { host, token, answer } = message;
    Challenge { host: text(host), token: text(token), answer: text(answer) }
}

fn challenge_message(it: &Challenge) -> proto::Challenge {
    let Challenge { host, token, answer } = it;
    let [host, token, answer] = [host, token, answer].map(|it| it.to_string());
    proto::Challenge { host, token, answer }
}

fn listener(message: proto::Listener) -> Result<Listener, ConvertError> {
    use proto::listener::Speaks;
    let speaks = match required("speaks", message.speaks)? {
        Speaks::Http(proto::Empty {}) => ListenerSpeaks::Http,
        Speaks::Https(it) => ListenerSpeaks::Https(termination(it)),
        Speaks::Tls(it) => ListenerSpeaks::Tls(termination(it)),
        Speaks::TlsPassthrough(proto::Empty {}) => ListenerSpeaks::TlsPassthrough,
        Speaks::Tcp(proto::Empty {}) => ListenerSpeaks::Tcp,
        Speaks::Udp(proto::Empty {}) => ListenerSpeaks::Udp,
    };
    let host = optional("host", message.host, host)?;
    Ok(Listener::new(text(&message.name), port("port", message.port)?, host, speaks))
}

fn listener_message(it: &Listener) -> proto::Listener {
    use proto::listener::Speaks;
    proto::Listener {
        name: it.name.to_string(),
        port: it.port.into(),
        host: it.host.as_ref().map(host_message),
        speaks: Some(match &it.speaks {
            ListenerSpeaks::Http => Speaks::Http(EMPTY),
            ListenerSpeaks::Https(it) => Speaks::Https(termination_message(it)),
            ListenerSpeaks::Tls(it) => Speaks::Tls(termination_message(it)),
            ListenerSpeaks::TlsPassthrough => Speaks::TlsPassthrough(EMPTY),
            ListenerSpeaks::Tcp => Speaks::Tcp(EMPTY),
            ListenerSpeaks::Udp => Speaks::Udp(EMPTY),
        }),
    }
}

fn host(message: proto::ServedHost) -> Result<HostMatch, ConvertError> {
    use proto::served_host::Host;
    inner("host", message.host, |it| {
        Ok(match it {
            Host::Exact(host) => HostMatch::Exact(text(&host)),
            Host::Suffix(end) => HostMatch::Suffix(text(&end)),
        })
    })
}

fn host_message(it: &HostMatch) -> proto::ServedHost {
    use proto::served_host::Host;
    let host = match it {
        HostMatch::Exact(host) => Host::Exact(host.to_string()),
        HostMatch::Suffix(end) => Host::Suffix(end.to_string()),
    };
    proto::ServedHost { host: Some(host) }
}

fn termination(message: proto::Termination) -> Termination {
    use proto::termination::Clients;
    let clients = match message.clients {
        None => ClientValidation::None,
        Some(Clients::RequiredRootsPem(roots)) => {
            ClientValidation::Required { roots_pem: text(&roots) }
        }
        Some(Clients::OptionalRootsPem(roots)) => {
            ClientValidation::Optional { roots_pem: text(&roots) }
        }
        Some(Clients::Problem(problem)) => ClientValidation::Impossible { problem: text(&problem) },
    };
    Termination { certificates: texts(&message.certificates), clients }
}

fn termination_message(it: &Termination) -> proto::Termination {
    use proto::termination::Clients;
    let clients = match &it.clients {
        ClientValidation::None => None,
        ClientValidation::Required { roots_pem } => {
            Some(Clients::RequiredRootsPem(roots_pem.to_string()))
        }
        ClientValidation::Optional { roots_pem } => {
            Some(Clients::OptionalRootsPem(roots_pem.to_string()))
        }
        ClientValidation::Impossible { problem } => Some(Clients::Problem(problem.to_string())),
    };
    proto::Termination { certificates: strings(&it.certificates), clients }
}
