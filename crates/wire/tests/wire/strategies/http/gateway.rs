//! Arbitrary gateways at the edge, and certificates.

use std::sync::Arc;

use ambit_model::http::certificate::{Certificate, CertificateName};
use ambit_model::http::gateway::{
    Challenge, ClientValidation, Gateway, GatewayRoute, GatewayRouteName, Listener, ListenerSpeaks,
    Place, Proof, Termination,
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
    (word(), any::<u16>(), option::of(server_name()), speaks)
        .prop_map(|(name, port, host, speaks)| Listener::new(name, port, host, speaks))
}

pub(crate) fn route() -> impl Strategy<Value = GatewayRoute> {
    let name = (service_name(), "[a-z]{1,9}/[a-z]{1,9}/[a-z]{1,9}")
        .prop_map(|(gateway, route)| GatewayRouteName { gateway, route: route.into() });
    let hosts = (any::<bool>(), vec(server_name(), 0..3)).prop_map(|(every, hosts)| {
        every.then_some(None).into_iter().chain(hosts.into_iter().map(Some)).collect()
    });
    let place = (word(), hosts).prop_map(|(listener, hosts)| Place { listener, hosts });
    let rules = vec(rule().prop_map(Arc::new), 0..2);
    let connections = vec(bytes_rule().prop_map(Arc::new), 0..2);
    (name, vec(place, 0..3), rules, connections).prop_map(|(name, places, rules, connections)| {
        GatewayRoute { name, places, rules, connections }
    })
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
