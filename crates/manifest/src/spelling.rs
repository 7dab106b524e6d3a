//! Typos: which known word a user may have meant.
//!
//! Nothing here changes what a user wrote; callers say which word they suspect.

use ambit_words::{annotations, labels};

pub(crate) use ambit_words::spelling::distance;
pub use ambit_words::spelling::nearest;

/// Label keys that Ambit reads. A key that is almost one of them has no effect, and Kubernetes
/// takes it without complaint.
const LABELS: [&str; 11] = [
    labels::DATAPLANE_MODE,
    labels::USE_WAYPOINT,
    labels::USE_WAYPOINT_NAMESPACE,
    labels::USE_WAYPOINT_CANARY,
    labels::USE_WAYPOINT_CANARY_NAMESPACE,
    labels::INGRESS_USE_WAYPOINT,
    labels::WAYPOINT_FOR,
    labels::CUT_OPEN_CONNECTIONS,
    labels::CANONICAL_NAME,
    labels::CANONICAL_REVISION,
    labels::SERVICE_NAME,
];
/// Annotation keys that users write and Ambit reads, but for that of a policy's condition, whose
/// slips are errors.
const ANNOTATIONS: [&str; 8] = [
    annotations::BYPASS_INBOUND_CAPTURE,
    annotations::USE_WAYPOINT_CANARY_WEIGHT,
    annotations::GATEWAY_NAME_OVERRIDE,
    annotations::GATEWAY_SERVICE_ACCOUNT,
    annotations::DRY_RUN,
    annotations::ACME_DIRECTORY,
    annotations::ACME_EMAIL,
    annotations::ACME_DIRECTORY_CA,
];
/// How many letters of a key may be wrong for it to be taken for a slip.
const SLIPS_MAX: usize = 2;

/// The label key that `key` was probably meant to be; `None` for a right key and for any other.
pub fn meant_label(key: &str) -> Option<&'static str> {
    meant(key, &LABELS)
}

/// The same for the key of an annotation.
pub(crate) fn meant_annotation(key: &str) -> Option<&'static str> {
    meant(key, &ANNOTATIONS)
}

fn meant(key: &str, known: &[&'static str]) -> Option<&'static str> {
    if known.contains(&key) {
        return None;
    }
    let is_near = |known: &&&str| {
        known.len().abs_diff(key.len()) <= SLIPS_MAX && distance(known, key) <= SLIPS_MAX
    };
    known.iter().find(is_near).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_key_that_is_a_letter_off_is_told_from_others() {
        for (key, expected) in [
            ("istio.io/dataplane-mod", Some("istio.io/dataplane-mode")),
            ("istio.io/data-plane-mode", Some("istio.io/dataplane-mode")),
            ("istio.io/Dataplane-Mode", Some("istio.io/dataplane-mode")),
            ("istio.io/use_waypoint", Some("istio.io/use-waypoint")),
            ("ambit.io/cut-open-conections", Some("ambit.io/cut-open-connections")),
            ("istio.io/dataplane-mode", None),
            ("istio.io/waypoint-for", None),
            ("istio.io/use-waypoint-canary", None),
            ("istio.io/rev", None),
            ("app.kubernetes.io/name", None),
            ("kubernetes.io/metadata.name", None),
        ] {
            assert_eq!(meant_label(key), expected, "{key}");
        }
        for (key, expected) in [
            ("istio.io/dryrun", Some(annotations::DRY_RUN)),
            ("istio.io/dry-run", None),
            ("ambit.io/acme-directry", Some(annotations::ACME_DIRECTORY)),
            ("ambit.io/acme-directory", None),
            ("ambit.io/acme-directory-ca", None),
            ("ambit.io/acme-mail", Some(annotations::ACME_EMAIL)),
            ("kubectl.kubernetes.io/last-applied-configuration", None),
        ] {
            assert_eq!(meant_annotation(key), expected, "{key}");
        }
    }
}
