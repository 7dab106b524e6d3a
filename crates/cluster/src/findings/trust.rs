//! Roots and certificates: is everybody handed the same, and how long do they hold?

use std::collections::BTreeMap;

use ambit_wire::admin::CertificateState;
use ambit_words::names::ROOT_CONFIG_MAP as ROOT;
use jiff::Timestamp;
use serde_json::Value;
use x509_parser::pem::Pem;

use super::{Report, labelled_namespaces, listed};
use crate::Facts;
use crate::facts::List;
use crate::json::namespace;

/// A root that ends sooner is told.
const ROOT_DAYS_MIN: i64 = 30;
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// Of a certificate's life so much must be left, in percent; it is renewed at half.
const LIFE_LEFT_MIN_PERCENT: i64 = 20;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    roots(facts, report);
    certificates(facts, report);
}

fn roots(facts: &Facts, report: &mut Report) {
    let Some(maps) = facts.list(List::RootConfigMaps) else { return };
    let root =
        |map: &Value| map["data"]["root-cert.pem"].as_str().map(str::trim).map(str::to_owned);
    let by_namespace: BTreeMap<&str, String> = maps
        .iter()
        .filter_map(|map| Some((namespace(map), root(map).filter(|root| !root.is_empty())?)))
        .collect();
    let own = by_namespace.get(&*facts.mesh_namespace);
    let labelled = labelled_namespaces(facts);
    let needed = || labelled.iter().copied().chain([facts.mesh_namespace.as_str()]);
    for namespace in needed() {
        let place = format!("ConfigMap {namespace}/{ROOT}");
        match (by_namespace.get(namespace), own) {
            (None, _) => report.error("no-root", place).says(
                "is missing or has no root-cert.pem: nobody there can verify the control plane",
                "control writes it: see `ambit logs --kube control`",
            ),
            (Some(root), Some(own)) if root != own => report.error("root-differs", place).says(
                format!("holds another root than namespace {}", facts.mesh_namespace),
                "find who writes it (another mesh's control plane?); control would put it right",
            ),
            _ => {}
        }
    }
    if let Some(own) = own {
        expiry(facts, own, report);
    }
}

fn expiry(facts: &Facts, root: &str, report: &mut Report) {
    let place = format!("ConfigMap {}/{ROOT}", facts.mesh_namespace);
    let ends: Vec<i64> = Pem::iter_from_buffer(root.as_bytes())
        .filter_map(|pem| Some(pem.ok()?.parse_x509().ok()?.validity().not_after.timestamp()))
        .collect();
    // While roots are changed there are two, and the newer one counts.
    let Some(end) = ends.into_iter().max() else {
        let what = "holds no certificate that can be read";
        report.error("root-unreadable", place).says(what, "see `ambit logs --kube control`");
        return;
    };
    let left = end.saturating_sub(facts.now.as_second());
    let remedy = "put the old and the new root into root-cert.pem of the Secret cacerts, its other \
                  entries a certificate lifetime later, and take the old root out after another; \
                  every replica of control follows within 30 seconds";
    let when = Timestamp::from_second(end).map(|it| it.to_string()).unwrap_or_default();
    if left <= 0 {
        let what = format!("the root ended at {when}: no connection is accepted");
        report.error("root-expired", place).says(what, remedy);
    } else if left < ROOT_DAYS_MIN * DAY_SECONDS {
        let what = format!("the root ends in {} days, at {when}", left / DAY_SECONDS);
        report.warning("root-expires", place).says(what, remedy);
    }
}

fn certificates(facts: &Facts, report: &mut Report) {
    let mut silent = Vec::new();
    for (node, answer) in &facts.certificates {
        let held = match answer {
            Ok(held) => held,
            Err(error) => {
                silent.push(format!("{node} ({error})"));
                continue;
            }
        };
        for certificate in held {
            let place = || format!("{} on node {node}", certificate.identity);
            let remedy = || format!("see `ambit logs --kube proxy/{node}`");
            if let CertificateState::Unavailable(reason) = &certificate.state {
                let what = format!("has no certificate: {reason}");
                report.error("no-certificate", place()).says(what, remedy());
            }
            let Some(leaf) = certificate.cert_chain.first() else { continue };
            let time = |text: &str| text.parse::<Timestamp>().ok();
            let (Some(from), Some(to)) = (time(&leaf.valid_from), time(&leaf.expiration_time))
            else {
                continue;
            };
            let left = to.as_second() - facts.now.as_second();
            let life = to.as_second() - from.as_second();
            if left <= 0 {
                let what = format!("its certificate ended at {to}: its connections are refused");
                report.error("certificate-expired", place()).says(what, remedy());
            } else if left.saturating_mul(100) < life.saturating_mul(LIFE_LEFT_MIN_PERCENT) {
                let what = format!("its certificate ends at {to} and was not renewed in time");
                report.warning("certificate-expires", place()).says(what, remedy());
            }
        }
    }
    if !silent.is_empty() {
        let what = "its certificates cannot be asked for";
        report.warning("proxy-silent", format!("Node {}", listed(&silent))).says(what, "");
    }
}
