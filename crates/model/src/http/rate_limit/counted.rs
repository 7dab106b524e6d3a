//! Which limits count a request, and what tells its sender apart.

use super::{Attribute, Condition, RateLimit};
use crate::http::authorize::Asked;

impl RateLimit {
    /// What tells the sender of this request apart, in the order of [`Self::distinct`]; `None` if
    /// the request does not count.
    pub fn counts(&self, asked: &Asked<'_>) -> Option<Vec<String>> {
        self.conditions
            .iter()
            .all(|it| it.holds(asked))
            .then(|| self.distinct.iter().map(|it| it.value(asked)).collect())?
    }
}

impl Condition {
    fn holds(&self, asked: &Asked<'_>) -> bool {
        let head = asked.head;
        match self {
            Self::Header(wanted) => wanted.holds(head.fields.value(&wanted.name).as_deref()),
            Self::Path(wanted) => wanted.matches(head.path),
            Self::Method(any_of) => any_of.iter().any(|method| **method == *head.method),
            Self::Principal(wanted) => wanted.matches(asked.source.principal()),
            Self::Namespace(wanted) => wanted.matches(asked.source.namespace()),
            Self::Source(block) => block.contains(&asked.source.ip()),
            Self::Claim { keys, value } => asked
                .token
                .is_some_and(|token| token.any_claim(keys, &mut |claim| value.matches(claim))),
        }
    }
}

impl Attribute {
    fn value(&self, asked: &Asked<'_>) -> Option<String> {
        match self {
            Self::Header(name) => {
                let value = asked.head.fields.value(name)?;
                Some(String::from_utf8_lossy(&value).into_owned())
            }
            Self::Principal => known(asked.source.principal()),
            Self::Namespace => known(asked.source.namespace()),
            Self::Source => Some(asked.source.ip().to_string()),
            Self::Claim(keys) => {
                let mut first = None;
                asked.token?.any_claim(keys, &mut |claim| {
                    first = Some(claim.to_owned());
                    true
                });
                first
            }
        }
    }
}

/// What is empty is not known.
fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
