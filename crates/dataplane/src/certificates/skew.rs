//! Whether a certificate that was just signed fits the clock of this node.
//!
//! The authority dates the certificate by its own clock. A fresh certificate has its whole life
//! before it, so one that is not valid yet, or has almost no life left, shows that the two clocks
//! differ. Which of them is wrong cannot be known here.

use std::time::{Duration, SystemTime};

use ambit_tls::WorkloadCertificate;
use ambit_tls::error::moment;

/// A fresh certificate with less than this part of its life left shows that clocks differ.
const LEAST_SHARE: u32 = 8;

/// The clocks of the authority and of this node differ.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate authority dated a new certificate from {} to {}, and it is {} here: the clock \
     of this node or of the control plane is wrong; correct it, for example by NTP",
    moment(.not_before), moment(.not_after), moment(.now)
)]
pub(super) struct Skew {
    not_before: SystemTime,
    not_after: SystemTime,
    now: SystemTime,
}

impl Skew {
    /// The clocks' difference, if a certificate that was just signed shows one.
    pub(super) fn of(certificate: &WorkloadCertificate, now: SystemTime) -> Option<Self> {
        let (not_before, not_after) = (certificate.not_before(), certificate.not_after());
        let skew = Self { not_before, not_after, now };
        let left = not_after.duration_since(now).unwrap_or_default();
        (not_before > now || left < skew.life() / LEAST_SHARE).then_some(skew)
    }

    /// How long the certificate lives by the clock of the authority.
    pub(super) fn life(&self) -> Duration {
        self.not_after.duration_since(self.not_before).unwrap_or_default()
    }
}
