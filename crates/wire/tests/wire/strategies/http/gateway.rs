//! Arbitrary gateways at the edge, and certificates.

use std::sync::Arc;

use ambit_model::http::certificate::{Certificate, CertificateName};
use ambit_model::http::gateway::{
    Challenge, ClientValidation, Gateway, HostRules, Listener, ListenerSpeaks, Proof, Termination,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::{service_name, text, word};
use super::{bytes_rule, rule, server_name};

fn termination() -> impl Strategy<Value = Termination> {
    let clients = prop_oneof![
        Just(ClientValidation::None),
        text().prop_map(|roots_pem| ClientValidation::Required { roots_pem }),
        text().prop_map(|roots_pem| ClientValidation::Optional { roots_pem }),
        text().prop_map(|problem| ClientValidation::Impossible { problem }),
    ];
    (vec(word(), 0..3), clients)
        .prop_map(|(certificates, clients)| Termination { certificates, clients })
}

fn listener() -> impl Strategy<Value = Listener> {
    use ListenerSpeaks::{Http, Https, Tcp, Tls, TlsPassthrough, Udp};
    let speaks = prop_oneof![
        Just(Http),
        termination().prop_map(Https),
        termination().prop_map(Tls),
        Just(TlsPassthrough),
        Just(Tcp),
        Just(Udp),
    ];
    let routes = (option::of(server_name()), vec(rule().prop_map(Arc::new), 0..2))
        .prop_map(|(host, rules)| HostRules { host, rules });
    let bytes = vec(bytes_rule().prop_map(Arc::new), 0..2);
    (word(), any::<u16>(), option::of(server_name()), speaks, vec(routes, 0..3), bytes).prop_map(
        |(name, port, host, speaks, routes, bytes)| {
            Listener::new(name, port, host, speaks).with_routes(routes).with_bytes(bytes)
        },
    )
}

pub(crate) fn gateway() -> impl Strategy<Value = Gateway> {
    let proof = prop_oneof![
        Just(Proof::None),
        word().prop_map(Proof::Certificate),
        text().prop_map(|problem| Proof::Impossible { problem }),
    ];
    let challenge = (word(), word(), word()).prop_map(|(host, token, answer)| Challenge {
        host,
        token,
        answer,
    });
    (service_name(), vec(listener(), 0..4), proof, vec(challenge, 0..3)).prop_map(
        |(service, listeners, proof, challenges)| {
            let gateway = Gateway::new(service, listeners).with_proof(proof);
            gateway.with_challenges(challenges)
        },
    )
}

pub(crate) fn certificate() -> impl Strategy<Value = Certificate> {
    let name = (service_name(), word(), word()).prop_map(|(gateway, namespace, name)| {
        let secret = format!("{namespace}/{name}").into();
        CertificateName { gateway, secret }
    });
    (name, word(), word()).prop_map(|(name, chain, key)| Certificate {
        key: name,
        chain_pem: chain.to_string(),
        key_pem: key.to_string().into(),
    })
}
