//! What authorization services have said of a request so far.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::authorize::Custom;
use ambit_model::http::authorizer::Authorizer;
use ambit_wire::ext_authz::FieldChange;

use crate::engine::position::Rules;

/// What services have said.
#[derive(Default)]
pub(super) struct Consulted {
    /// Those that let the request pass.
    passed: Vec<(Text, Arc<Authorizer>)>,
    /// The fields of the request that they have changed, which no client may change again.
    pub(super) changed: Vec<String>,
    /// What they set in the response.
    pub(super) response: Vec<FieldChange>,
}

impl Consulted {
    /// Notes that a provider lets the request pass.
    pub(super) fn pass(&mut self, name: Text, provider: Arc<Authorizer>) {
        self.passed.push((name, provider));
    }

    /// Whether a provider was asked, and lets the request pass.
    pub(super) fn has_asked(&self, custom: &Custom) -> bool {
        self.passed.iter().any(|(name, _)| *name == custom.provider)
    }

    /// Whether a provider lets the request pass that is still what it was then.
    pub(super) fn still_passes(&self, custom: &Custom, rules: &impl Rules) -> bool {
        let now = rules.authorizers().get(&custom.provider);
        self.passed.iter().any(|(name, then)| *name == custom.provider && now == Some(then))
    }
}
