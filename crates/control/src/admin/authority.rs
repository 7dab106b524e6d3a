//! The certificate authority's part of the administration API.
//!
//! `POST /ca/revoke` takes `{"serial": ...}` (hexadecimal, or decimal as proxies list it), `{"pod":
//! "namespace/name"}` or `{"identity": "spiffe://..."}`; `POST /ca/rotate` begins a rotation, with
//! `?finish=true` ends it. Nothing here may show a key.

use std::time::SystemTime;

use ambit_manifest::ObjectName;
use ambit_model::identity::Identity;
use ambit_tls::certificate::Serial;
use ambit_wire::admin::{
    ApiVersion, Certificates, IssuedCertificate, Revocation, RevokedCertificate, RevokedNow,
    RotationStatus, control,
};
use ambit_words::error_chain;
use http::{Method, StatusCode};
use k8s_openapi::jiff::Timestamp;

use super::Admin;
use crate::ca::{CaError, Issued, Revoked, Which};
use crate::http_server::{Answer, Question};

impl Admin {
    /// Answers a question below `/ca/`.
    pub(super) fn authority(&self, path: &str, question: &Question) -> Answer {
        match (&question.method, path) {
            (&Method::GET, control::ROTATION) => {
                let rotation = self.authority.rotation(&self.world.holders());
                Answer::json(StatusCode::OK, &RotationStatus { api_version: ApiVersion, rotation })
            }
            (&Method::GET, control::CERTIFICATES) => {
                let (issued, revoked) = self.authority.certificates();
                let certificates = Certificates {
                    api_version: ApiVersion,
                    items: issued.iter().map(self::issued).collect(),
                    revoked: revoked.iter().map(self::revoked).collect(),
                };
                Answer::json(StatusCode::OK, &certificates)
            }
            (&Method::POST, control::ROTATE) => self.rotate(question),
            (&Method::POST, control::REVOKE) => self.revoke(question),
            _ => Answer::error(
                StatusCode::NOT_FOUND,
                "ask GET /ca/rotation, GET /ca/certificates, POST /ca/rotate or POST /ca/revoke",
            ),
        }
    }

    fn rotate(&self, question: &Question) -> Answer {
        let is_set = |name: &str| question.query.get(name).is_some_and(|value| value != "false");
        let (holders, now) = (self.world.holders(), SystemTime::now());
        let done = if is_set("finish") {
            self.authority.finish_rotation(&holders, is_set("force"), now)
        } else {
            self.authority.begin_rotation(&holders, now)
        };
        match done {
            Ok(rotation) => {
                tracing::info!(status = ?rotation, "root rotation");
                Answer::json(StatusCode::OK, &RotationStatus { api_version: ApiVersion, rotation })
            }
            Err(error) => failed(&error),
        }
    }

    fn revoke(&self, question: &Question) -> Answer {
        let which = match self.which(&question.body) {
            Ok(which) => which,
            Err(message) => return Answer::error(StatusCode::BAD_REQUEST, &message),
        };
        match self.authority.revoke(&which, SystemTime::now()) {
            Ok(revoked) => {
                tracing::warn!(?which, count = revoked.len(), "certificates revoked");
                if let Err(answer) = self.tell_replicas() {
                    return answer;
                }
                let revoked = revoked.iter().map(self::revoked).collect();
                let revoked = RevokedNow { api_version: ApiVersion, revoked };
                Answer::json(StatusCode::OK, &revoked)
            }
            Err(error) => failed(&error),
        }
    }

    /// Whoever revokes must know whether the other replicas do too. Questions are answered on
    /// threads that may wait.
    fn tell_replicas(&self) -> Result<(), Answer> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let told = tokio::runtime::Handle::current().block_on(cluster.exchange(&self.authority));
        told.map_err(|error| {
            let message = format!(
                "revoked on this replica, but the others do not know it yet; this is tried again \
                 every 5 s while this replica runs: {}",
                error_chain(&error)
            );
            Answer::error(StatusCode::SERVICE_UNAVAILABLE, &message)
        })
    }

    fn which(&self, body: &[u8]) -> Result<Which, String> {
        let usage = "write {\"serial\": HEX}, {\"pod\": \"NAMESPACE/NAME\"} or {\"identity\": \
                     \"spiffe://...\"}";
        let asked: Revocation =
            serde_json::from_slice(body).map_err(|error| format!("{error}; {usage}"))?;
        match asked {
            Revocation { serial: Some(serial), pod: None, identity: None, unlisted } => {
                self.serial(&serial, unlisted)
            }
            Revocation { serial: None, pod: Some(pod), identity: None, unlisted: false } => {
                self.holder(&pod)
            }
            Revocation { serial: None, pod: None, identity: Some(identity), unlisted: false } => {
                let identity = identity.parse().map_err(|error| error_chain(&error))?;
                Ok(Which::Identity(identity))
            }
            _ => Err(format!("exactly one thing can be revoked at a time; {usage}")),
        }
    }

    /// A serial as the ledger writes it, or as proxies do. An unknown one is more likely a typing
    /// error than another authority's, and revoking nothing must not look like success.
    fn serial(&self, text: &str, unlisted: bool) -> Result<Which, String> {
        let given: Serial = text.parse().map_err(|error| error_chain(&error))?;
        let (issued, _) = self.authority.certificates();
        let mut known = issued.iter().filter_map(|entry| entry.serial.parse::<Serial>().ok());
        match known.find(|serial| *serial == given || serial.to_decimal() == text) {
            Some(serial) => Ok(Which::Serial(serial)),
            None if unlisted => Ok(Which::Serial(given)),
            None => Err(format!(
                "no certificate with serial {text} is in force, see GET /ca/certificates; if \
                 another authority issued it, write it in hexadecimal and add \"unlisted\": true"
            )),
        }
    }

    /// A pod's certificate is its identity's on its node; other pods there with that identity share
    /// it.
    fn holder(&self, pod: &str) -> Result<Which, String> {
        let builder = self.world.read();
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        let object = ObjectName::new(namespace, name);
        let (record, _) = builder
            .store()
            .pod(&object)
            .ok_or_else(|| format!("there is no pod {namespace}/{name}; see /get/pods"))?;
        let trust_domain = builder.mesh().trust_domain.clone();
        let account = record.service_account.clone();
        let identity = Identity::new(trust_domain, object.namespace, account);
        Ok(Which::Holder { identity, node: record.node.to_string() })
    }
}

fn issued(entry: &Issued) -> IssuedCertificate {
    IssuedCertificate {
        serial: entry.serial.clone(),
        identity: entry.identity.clone(),
        node: entry.node.clone(),
        issued_at: time(entry.issued_at),
        not_after: time(entry.not_after),
    }
}

fn revoked(entry: &Revoked) -> RevokedCertificate {
    RevokedCertificate {
        serial: entry.serial.clone(),
        identity: entry.identity.clone(),
        node: entry.node.clone(),
        revoked_at: time(entry.revoked_at),
        not_after: entry.not_after.map(time),
    }
}

/// Seconds since 1970 as RFC 3339 writes them.
pub(super) fn time(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| Timestamp::from_second(unix).ok());
    time.map_or_else(|| unix.to_string(), |time| time.to_string())
}

fn failed(error: &CaError) -> Answer {
    let status = match error {
        CaError::Rotation(_) | CaError::NotSpread(_) => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Answer::error(status, &error_chain(error))
}
