//! Issuers of tokens whose keys are missing or old, for `ambit status`.

use ambit_manifest::Kind;
use ambit_wire::admin::{Finding, Severity};

use crate::jwks::state;
use crate::view_builder::Builder;

/// All findings about them.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let store = builder.store();
    let all = store.request_authentications().flat_map(|(name, object)| {
        let keys = store.issuer_keys(object).into_iter();
        keys.filter_map(move |(source, state)| {
            let trouble = state::trouble(&source, state?)?;
            Some(Finding {
                severity: if trouble.is_without { Severity::Error } else { Severity::Warning },
                rule: "token-keys".into(),
                object: format!("{} {}/{}", Kind::RequestAuthentication, name.namespace, name.name),
                what: trouble.what,
                remedy: "make the issuer reachable for control, or write its keys as `jwks`".into(),
            })
        })
    });
    all.collect()
}
