//! How requests are spread over endpoints.

use ambit_model::http::origination::{ClientFiles, Origination, Trust};
use ambit_model::http::service::Traffic;
use ambit_model::http::traffic::{
    Balancing, Ejection, HashKey, Limits, RetryBudget, TrafficPolicy,
};

use super::super::{ConvertError, port, text};
use super::{
    EMPTY, by_name, duration, duration_message, inner, nearness, optional, optional_string,
    optional_text, required, strings, texts,
};
use crate::proto::ambit::http as proto;

pub(super) fn traffic(message: proto::Traffic) -> Result<Traffic, ConvertError> {
    let of_port =
        |it: proto::PortTraffic| Ok((port("port", it.port)?, inner("policy", it.policy, policy)?));
    Ok(Traffic {
        all: inner("all", message.all, policy)?,
        ports: by_name("ports", message.ports, of_port)?,
    })
}

pub(super) fn traffic_message(traffic: &Traffic) -> proto::Traffic {
    let of_port = |(port, policy): (&u16, &TrafficPolicy)| proto::PortTraffic {
        port: (*port).into(),
        policy: Some(policy_message(policy)),
    };
    proto::Traffic {
        all: Some(policy_message(&traffic.all)),
        ports: traffic.ports.iter().map(of_port).collect(),
    }
}

fn policy(message: proto::TrafficPolicy) -> Result<TrafficPolicy, ConvertError> {
    let budget =
        |it: proto::RetryBudget| RetryBudget { percent: it.percent, min_retries: it.min_retries };
    Ok(TrafficPolicy {
        balancing: balancing(required("balancing", message.balancing)?)?,
        limits: inner("limits", message.limits, limits)?,
        ejection: optional("ejection", message.ejection, ejection)?,
        retry_budget: message.retry_budget.map(budget),
        refusal: optional_text(message.refusal),
        nearness: nearness::nearness(message.nearness).map_err(|it| it.within("nearness"))?,
        warmup: optional("warmup", message.warmup, nearness::warmup)?,
        origination: optional("origination", message.origination, origination)?,
    })
}

fn policy_message(policy: &TrafficPolicy) -> proto::TrafficPolicy {
    let budget =
        |it: RetryBudget| proto::RetryBudget { percent: it.percent, min_retries: it.min_retries };
    proto::TrafficPolicy {
        balancing: Some(balancing_message(&policy.balancing)),
        limits: Some(limits_message(policy.limits)),
        ejection: policy.ejection.map(ejection_message),
        retry_budget: policy.retry_budget.map(budget),
        refusal: optional_string(&policy.refusal),
        nearness: nearness::nearness_message(&policy.nearness),
        warmup: policy.warmup.map(nearness::warmup_message),
        origination: policy.origination.as_ref().map(origination_message),
    }
}

fn origination(message: proto::Origination) -> Result<Origination, ConvertError> {
    use proto::origination::Trust as Message;
    let client =
        |it: proto::ClientFiles| ClientFiles { chain: text(&it.chain), key: text(&it.key) };
    Ok(Origination {
        server_name: optional_text(message.server_name),
        alternatives: texts(&message.alternatives),
        uris: texts(&message.uris),
        trust: match required("trust", message.trust)? {
            Message::Public(_) => Trust::Public,
            Message::RootsFile(path) => Trust::File(text(&path)),
            Message::RootsPem(roots) => Trust::Roots(text(&roots)),
            Message::Nobody(_) => Trust::Nobody,
        },
        client: message.client.map(client),
    })
}

fn origination_message(it: &Origination) -> proto::Origination {
    use proto::origination::Trust as Message;
    let client = |it: &ClientFiles| proto::ClientFiles {
        chain: it.chain.to_string(),
        key: it.key.to_string(),
    };
    proto::Origination {
        server_name: optional_string(&it.server_name),
        alternatives: strings(&it.alternatives),
        uris: strings(&it.uris),
        trust: Some(match &it.trust {
            Trust::Public => Message::Public(EMPTY),
            Trust::File(path) => Message::RootsFile(path.to_string()),
            Trust::Roots(roots) => Message::RootsPem(roots.to_string()),
            Trust::Nobody => Message::Nobody(EMPTY),
        }),
        client: it.client.as_ref().map(client),
    }
}

fn balancing(message: proto::traffic_policy::Balancing) -> Result<Balancing, ConvertError> {
    use proto::traffic_policy::Balancing as Message;
    Ok(match message {
        Message::LeastRequest(_) => Balancing::LeastRequest,
        Message::Random(_) => Balancing::Random,
        Message::RoundRobin(_) => Balancing::RoundRobin,
        Message::HashHeader(name) => Balancing::Hash(HashKey::Header(text(&name))),
        Message::HashCookie(it) => Balancing::Hash(HashKey::Cookie {
            name: text(&it.name),
            path: optional_text(it.path),
            lifetime: optional("hash_cookie.lifetime", it.lifetime, duration)?,
        }),
        Message::HashParameter(name) => Balancing::Hash(HashKey::Parameter(text(&name))),
        Message::HashSourceIp(_) => Balancing::Hash(HashKey::SourceIp),
    })
}

fn balancing_message(balancing: &Balancing) -> proto::traffic_policy::Balancing {
    use proto::traffic_policy::Balancing as Message;
    match balancing {
        Balancing::LeastRequest => Message::LeastRequest(EMPTY),
        Balancing::Random => Message::Random(EMPTY),
        Balancing::RoundRobin => Message::RoundRobin(EMPTY),
        Balancing::Hash(HashKey::Header(name)) => Message::HashHeader(name.to_string()),
        Balancing::Hash(HashKey::Cookie { name, path, lifetime }) => {
            Message::HashCookie(proto::HashCookie {
                name: name.to_string(),
                path: optional_string(path),
                lifetime: lifetime.map(duration_message),
            })
        }
        Balancing::Hash(HashKey::Parameter(name)) => Message::HashParameter(name.to_string()),
        Balancing::Hash(HashKey::SourceIp) => Message::HashSourceIp(EMPTY),
    }
}

fn limits(message: proto::Limits) -> Result<Limits, ConvertError> {
    Ok(Limits {
        connections: message.connections,
        pending_requests: message.pending_requests,
        requests: message.requests,
        retries: message.retries,
        requests_per_connection: message.requests_per_connection,
        connect_timeout: optional("connect_timeout", message.connect_timeout, duration)?,
        idle_timeout: optional("idle_timeout", message.idle_timeout, duration)?,
    })
}

fn limits_message(limits: Limits) -> proto::Limits {
    proto::Limits {
        connections: limits.connections,
        pending_requests: limits.pending_requests,
        requests: limits.requests,
        retries: limits.retries,
        requests_per_connection: limits.requests_per_connection,
        connect_timeout: limits.connect_timeout.map(duration_message),
        idle_timeout: limits.idle_timeout.map(duration_message),
    }
}

fn ejection(message: proto::Ejection) -> Result<Ejection, ConvertError> {
    Ok(Ejection {
        consecutive_5xx: message.consecutive_5xx,
        consecutive_gateway_errors: message.consecutive_gateway_errors,
        splits_local_errors: message.splits_local_errors,
        consecutive_local_errors: message.consecutive_local_errors,
        interval: inner("interval", message.interval, duration)?,
        base_time: inner("base_time", message.base_time, duration)?,
        max_percent: message.max_percent,
        min_health_percent: message.min_health_percent,
    })
}

fn ejection_message(ejection: Ejection) -> proto::Ejection {
    proto::Ejection {
        consecutive_5xx: ejection.consecutive_5xx,
        consecutive_gateway_errors: ejection.consecutive_gateway_errors,
        splits_local_errors: ejection.splits_local_errors,
        consecutive_local_errors: ejection.consecutive_local_errors,
        interval: Some(duration_message(ejection.interval)),
        base_time: Some(duration_message(ejection.base_time)),
        max_percent: ejection.max_percent,
        min_health_percent: ejection.min_health_percent,
    }
}
