//! A gateway at the edge: its listeners, and what is attached to each.

use std::sync::Arc;

use ambit_model::http::bytes::BytesRule;
use ambit_model::http::gateway::{
    Challenge, ClientValidation, Gateway, HostMatch, HostRules, Listener, ListenerSpeaks, Proof,
    Termination,
};
use ambit_model::http::rule::Rule;
use ambit_model::names::ServiceName;

use super::super::{ConvertError, Problem, each, port, text};
use super::{EMPTY, connections, inner, optional, required, rule, strings, texts};
use crate::proto::ambit::http as proto;

/// What is attached to one listener.
#[derive(Default)]
struct Attached {
    routes: Vec<HostRules>,
    bytes: Vec<Arc<BytesRule>>,
}

impl TryFrom<proto::Gateway> for Gateway {
    type Error = ConvertError;

    fn try_from(message: proto::Gateway) -> Result<Self, ConvertError> {
        if message.hostname.is_empty() {
            return Err(ConvertError::new("hostname", Problem::Missing));
        }
        let mut attached: Vec<Attached> = Vec::new();
        attached.resize_with(message.listeners.len(), Attached::default);
        for it in message.routes {
            let rules: Vec<Arc<Rule>> =
                each("routes", it.rules, |it| rule::rule(it).map(Arc::new))?;
            for (at, hosts) in each("routes", it.to, |it| place(it, message.listeners.len()))? {
                for host in hosts {
                    attached[at].routes.push(HostRules { host, rules: rules.clone() });
                }
            }
        }
        for it in message.bytes_routes {
            let rules: Vec<Arc<BytesRule>> =
                each("bytes_routes", it.rules, |it| connections::bytes_rule(it).map(Arc::new))?;
            let count = message.listeners.len();
            for (at, _) in each("bytes_routes", it.to, |it| place(it, count))? {
                attached[at].bytes.extend(rules.iter().cloned());
            }
        }
        let listeners = each("listeners", message.listeners, listener)?;
        let listeners = listeners.into_iter().zip(attached);
        let listeners = listeners
            .map(|(it, attached)| it.with_routes(attached.routes).with_bytes(attached.bytes));
        let service = ServiceName::new(message.namespace, message.hostname);
        let challenges = message.challenges.iter().map(challenge).collect();
        let gateway = Self::new(service, listeners).with_proof(proof(message.proof));
        Ok(gateway.with_challenges(challenges))
    }
}

impl From<&Gateway> for proto::Gateway {
    fn from(it: &Gateway) -> Self {
        let (mut routes, mut bytes_routes) = (Vec::new(), Vec::new());
        for (at, listener) in it.listeners().enumerate() {
            let at = u32::try_from(at).expect("a gateway has few listeners");
            for HostRules { host, rules } in listener.routes() {
                let hosts = host.iter().map(host_message).collect();
                let to = vec![proto::Attachment { listener: at, hosts }];
                let rules = rules.iter().map(|it| rule::rule_message(it)).collect();
                routes.push(proto::AttachedRules { to, rules });
            }
            if !listener.bytes_rules().is_empty() {
                let to = vec![proto::Attachment { listener: at, hosts: Vec::new() }];
                let rules = listener.bytes_rules().iter();
                let rules = rules.map(|it| connections::bytes_rule_message(it)).collect();
                bytes_routes.push(proto::AttachedBytesRules { to, rules });
            }
        }
        Self {
            namespace: it.service.namespace.to_string(),
            hostname: it.service.hostname.to_string(),
            listeners: it.listeners().map(|it| listener_message(it)).collect(),
            routes,
            bytes_routes,
            proof: proof_message(&it.proof),
            challenges: it.challenges.iter().map(challenge_message).collect(),
        }
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

/// A listener's place, and the hosts for which rules are attached there.
fn place(
    message: proto::Attachment,
    count: usize,
) -> Result<(usize, Vec<Option<HostMatch>>), ConvertError> {
    let at = usize::try_from(message.listener).ok().filter(|at| *at < count);
    let at = at.ok_or_else(|| ConvertError::new("listener", Problem::Missing))?;
    let hosts = each("hosts", message.hosts, |it| host(it).map(Some))?;
    Ok((at, if hosts.is_empty() { vec![None] } else { hosts }))
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
