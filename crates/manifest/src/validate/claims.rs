//! Rules for PersistentVolumeClaim, and for the claims that a StatefulSet makes. They are
//! Kubernetes'.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};

use super::core::one_of;
use crate::finding::{Issues, Path};
use crate::quantity::quantity;

/// Checks a PersistentVolumeClaim.
pub(crate) fn claim(claim: &PersistentVolumeClaim, issues: &mut Issues) {
    let at = Path::at("spec");
    match &claim.spec {
        Some(spec) => claim_spec(spec, &at, issues),
        None => issues.error(&at, "a claim needs a spec", "say `accessModes` and `resources`"),
    }
}

/// Checks what is claimed.
pub(crate) fn claim_spec(spec: &PersistentVolumeClaimSpec, at: &Path, issues: &mut Issues) {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let at_modes = at.field("accessModes");
    if modes.is_empty() {
        issues.error(&at_modes, "at least 1 access mode is required", "write `[ReadWriteOnce]`");
    }
    let known = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
    for (index, mode) in modes.iter().enumerate() {
        one_of(Some(mode), &known, &at_modes.index(index), issues);
    }
    let modes = ["Filesystem", "Block"];
    one_of(spec.volume_mode.as_deref(), &modes, &at.field("volumeMode"), issues);
    let requests = spec.resources.as_ref().and_then(|it| it.requests.as_ref());
    let size = requests.and_then(|requests| requests.get("storage"));
    if size.and_then(|size| quantity(&size.0, 0)).is_none_or(|bytes| bytes == 0) {
        issues.error(
            &at.field("resources").field("requests").field("storage"),
            "it says how much is claimed, and must be a quantity above 0",
            "write for example `1Gi`",
        );
    }
}
