//! Why a connection that is no HTTP came to nothing.

use ambit_dataplane::failure::ResponseFlags;
use ambit_http::engine::position::Unreachable;

/// Why a connection came to nothing.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Istio's letters for it.
    pub(crate) flags: ResponseFlags,
    /// One word of a fixed set, for the counter of refusals.
    pub(crate) reason: &'static str,
    /// A sentence for the log.
    pub(crate) text: String,
}

impl Refused {
    /// What holds for it says no.
    pub(crate) fn denied(text: String) -> Self {
        Self { flags: ResponseFlags::Deny, reason: "denied", text }
    }

    /// Nothing takes it, for this reason.
    pub(crate) fn unreachable(reason: &'static str, text: String) -> Self {
        let flags = match reason {
            "overflow" => ResponseFlags::Overflow,
            Unreachable::DENIED => ResponseFlags::Deny,
            _ => ResponseFlags::Connect,
        };
        Self { flags, reason, text }
    }
}
