//! Checks what a Gateway says of certificates by ACME.
//!
//! A directory that is none is an error. What HTTP-01 cannot prove is a warning: the listener's
//! status says the same, and the others are served.

use ambit_words::annotations::{ACME_DIRECTORY, ACME_DIRECTORY_CA, ACME_EMAIL};

use super::names::{dns_subdomain, require};
use crate::finding::{Issues, Path};
use crate::gateway::acme::{Acme, check_directory, secret, wanted};
use crate::gateway::listeners::judge;
use crate::gateway::{Gateway, Position};

/// Checks the annotations of a Gateway; `position` is where its pods are, if its class is known.
pub(super) fn gateway(gateway: &Gateway, position: Option<Position>, issues: &mut Issues) {
    let Some(all) = &gateway.metadata.annotations else { return };
    let at = |key: &str| Path::at("metadata").field("annotations").field(key);
    let keys = [ACME_DIRECTORY, ACME_EMAIL, ACME_DIRECTORY_CA];
    let Some(first) = keys.into_iter().find(|key| all.contains_key(*key)) else { return };
    if position == Some(Position::Waypoint) {
        let what = "a waypoint has its certificate of the mesh: this has no effect";
        return issues.warn(&at(first), what, "remove it, or use the class ambit");
    }
    let Some(directory) = all.get(ACME_DIRECTORY) else {
        let what = format!("without {ACME_DIRECTORY} this has no effect");
        return issues.warn(&at(first), what, "name the directory too");
    };
    if let Err(what) = check_directory(directory) {
        let remedy = "write it as in https://acme-v02.api.letsencrypt.org/directory";
        issues.error(&at(ACME_DIRECTORY), what, remedy);
    }
    if let Some(email) = all.get(ACME_EMAIL).filter(|it| !is_email(it)) {
        let what = format!("`{email}` is no address");
        issues.error(&at(ACME_EMAIL), what, "write it as in ops@example.com");
    }
    if let Some(name) = all.get(ACME_DIRECTORY_CA) {
        require(issues, &at(ACME_DIRECTORY_CA), dns_subdomain, name);
    }
    let listeners = judge(&gateway.spec);
    let wanted = wanted(gateway, &listeners);
    let is_right = matches!(Acme::of(gateway), Some(Ok(_)));
    for (index, listener) in listeners.iter().enumerate().filter(|_| is_right) {
        let secret = secret(gateway, listener);
        if let Some(Err(why)) = secret.and_then(|secret| wanted.get(secret)) {
            let at = Path::at("spec").field("listeners").index(index);
            let remedy = "correct it, or put a certificate into its Secret yourself";
            issues.warn(&at, format!("no certificate is ordered: {why}"), remedy);
        }
    }
}

fn is_email(text: &str) -> bool {
    let is_plain = text.bytes().all(|it| it.is_ascii_graphic() && it != b',' && it != b':');
    let halves = text.split_once('@');
    is_plain && halves.is_some_and(|(name, host)| !name.is_empty() && host.contains('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_cannot_be_ordered_is_said_beforehand() {
        let check = |annotations: Value, class: &str, host: &str, expected: &[&str]| {
            let gateway = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "in", "namespace": "edge", "annotations": annotations},
                "spec": {"gatewayClassName": class, "listeners": [
                    {"name": "web", "protocol": "HTTP", "port": 80},
                    {"name": "tls", "protocol": "HTTPS", "port": 443, "hostname": host,
                        "tls": {"certificateRefs": [{"name": "own"}]}}]},
            });
            let read = serde_json::from_value(gateway).expect("a Gateway");
            let mut issues = Issues::default();
            let position = Position::of_class(class, None);
            super::gateway(&read, position, &mut issues);
            let found = issues.errors.iter().chain(&issues.warnings);
            let found: Vec<String> = found.map(|it| format!("{it:?}")).collect();
            assert_eq!(found.len(), expected.len(), "{annotations} {found:?}");
            for (found, part) in found.iter().zip(expected) {
                assert!(found.contains(part), "{annotations}: {found}");
            }
        };
        let directory = || json!({ACME_DIRECTORY: "https://acme.example/dir"});
        check(json!({}), "ambit", "a.example", &[]);
        check(directory(), "ambit", "a.example", &[]);
        check(directory(), "ambit", "*.example", &["wildcard"]);
        check(directory(), "ambit-waypoint", "a.example", &["no effect"]);
        check(json!({ACME_EMAIL: "a@example.com"}), "ambit", "a.example", &["no effect"]);
        check(json!({ACME_DIRECTORY: "http://a"}), "ambit", "*.example", &["https://"]);
        let with = |key: &str, value: &str| {
            let mut all = directory();
            all[key] = json!(value);
            all
        };
        check(with(ACME_EMAIL, "ops@example.com"), "ambit", "a.example", &[]);
        check(with(ACME_EMAIL, "mailto:ops@example.com"), "ambit", "a.example", &["no address"]);
        check(with(ACME_DIRECTORY_CA, "No_Name"), "ambit", "a.example", &["acme-directory-ca"]);
    }
}
