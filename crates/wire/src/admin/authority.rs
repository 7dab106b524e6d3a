//! The certificate authority's part of control's administration, below `/ca/`.

use serde::{Deserialize, Serialize};

use super::{ApiVersion, Word};

/// The answer of `/ca/rotation` and `/ca/rotate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RotationStatus {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// How far it has come.
    #[serde(flatten)]
    pub rotation: Rotation,
}

/// How far a rotation of the root has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// How far.
    pub phase: RotationPhase,
    /// Holders of certificates, an identity on a node each, that have not renewed since the phase
    /// began.
    pub waiting_for: usize,
    /// What happens next, or what to do: a sentence.
    pub next: Word,
}

/// How far a rotation of the root has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotationPhase {
    /// No rotation.
    #[default]
    Steady,
    /// The new root is trusted; nothing is signed by it yet.
    Trusted,
    /// The new root signs; the old one is still trusted.
    Active,
    /// A phase of a newer control plane.
    #[serde(other)]
    Unknown,
}

/// What the authority has signed and revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// Certificates in force.
    pub items: Vec<IssuedCertificate>,
    /// Certificates on the revocation list.
    pub revoked: Vec<RevokedCertificate>,
}

/// A certificate in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedCertificate {
    /// Its serial number, hexadecimal.
    pub serial: String,
    /// Whose it is: `spiffe://...`.
    pub identity: String,
    /// The node that asked for it; `entry:NAMESPACE/ACCOUNT` for the WorkloadEntries of an account.
    pub node: String,
    /// When it was signed.
    pub issued_at: String,
    /// When it ends.
    pub not_after: String,
}

/// A certificate on the revocation list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedCertificate {
    /// Its serial number, hexadecimal.
    pub serial: String,
    /// Whose it was, if this authority issued it.
    pub identity: Option<String>,
    /// The node that had asked for it, if this authority issued it.
    pub node: Option<String>,
    /// When it was revoked.
    pub revoked_at: String,
    /// When it ends by itself; null for one that this authority did not issue, which stays on the
    /// list.
    pub not_after: Option<String>,
}

/// What to revoke: exactly one of serial, pod and identity. An unknown field is an error: otherwise
/// it would be silently ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Revocation {
    /// A serial number, hexadecimal, or decimal as proxies list it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The serial is of a certificate that another replica or an earlier authority issued.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
    /// `NAMESPACE/NAME`: what its node holds for its identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `spiffe://...`: all of it, on all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// What a revocation has revoked; nothing if all of it was revoked before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevokedNow {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The certificates.
    pub revoked: Vec<RevokedCertificate>,
}
