//! What entries for traces, logs and metrics have in common.

use super::written::{ModeMatch, ProviderName};
use crate::FieldPath;
use crate::remarks::Remarks;

/// The mode that an entry is for.
pub(super) fn mode(written: Option<&ModeMatch>) -> Option<&str> {
    written.and_then(|it| it.mode.as_deref())
}

/// Whether an entry is for what a waypoint reports, with a remark if not.
pub(super) fn is_for_servers(mode: Option<&str>, at: &FieldPath, remarks: &mut Remarks) -> bool {
    let at = at.field("match").field("mode");
    match mode {
        None | Some("CLIENT_AND_SERVER" | "SERVER" | "") => true,
        Some("CLIENT") => {
            let what = "a waypoint reports as the server: this entry has no effect";
            remarks.unhonoured(true, &at, what, "use SERVER or CLIENT_AND_SERVER");
            false
        }
        Some(other) => {
            let what = format!("`{other}` is no mode: this entry has no effect");
            remarks.wrong(&at, what, "use CLIENT_AND_SERVER, CLIENT or SERVER");
            false
        }
    }
}

/// The names of providers.
pub(super) fn names(
    written: &[ProviderName],
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Vec<String> {
    for (index, provider) in written.iter().enumerate() {
        if provider.name.is_empty() {
            let at = at.field("providers").index(index).field("name");
            remarks.wrong(&at, "it is empty", "name a provider of the mesh configuration");
        }
    }
    written.iter().map(|it| it.name.clone()).collect()
}
