//! How the keys of an object's issuers are, in words.

use ambit_manifest::policy::{KeySource, StatusCondition};
use k8s_openapi::jiff::Timestamp;

use crate::registry::IssuerKeys;

/// The type of the condition that says whether the keys are there which an object names by URL.
pub(crate) const KEYS_FETCHED: &str = "ambit.io/KeysFetched";

/// What is wrong with the keys of one issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// All its tokens are refused; otherwise older keys go on being used.
    pub(crate) is_without: bool,
    /// A sentence.
    pub(crate) what: String,
}

/// What is wrong with the keys at `source`, if anything is.
pub(crate) fn trouble(source: &KeySource, state: &IssuerKeys) -> Option<Trouble> {
    let problem = state.problem.as_ref()?;
    let failed = format!("failed at {}: {}", when(problem.at), problem.what);
    let what = match state.fetched.map(when) {
        Some(fetched) => format!(
            "the keys at {source} are those of {fetched}, and go on being used; fetching them \
             again {failed}"
        ),
        None => format!(
            "the keys at {source} were never fetched, so all tokens of the issuer are refused; \
             the last try {failed}"
        ),
    };
    Some(Trouble { is_without: state.keys.is_none(), what })
}

/// The condition of an object with these issuers; `None` where it names none by URL.
pub(crate) fn condition(issuers: &[(KeySource, Option<&IssuerKeys>)]) -> Option<StatusCondition> {
    if issuers.is_empty() {
        return None;
    }
    let troubles: Vec<Trouble> =
        issuers.iter().filter_map(|(source, state)| trouble(source, (*state)?)).collect();
    let unasked = issuers.iter().filter(|(_, state)| state.is_none());
    let unasked = unasked.map(|(source, _)| format!("the keys at {source} were not asked for yet"));
    let message: Vec<String> =
        troubles.iter().map(|it| it.what.clone()).chain(unasked.clone()).collect();
    let (status, reason) = match () {
        () if troubles.iter().any(|it| it.is_without) => ("False", "NotFetched"),
        () if unasked.clone().next().is_some() => ("Unknown", "Pending"),
        () if !troubles.is_empty() => ("False", "Stale"),
        () => ("True", "Fetched"),
    };
    let message = match message.is_empty() {
        true => "all keys that are named by URL are there".to_owned(),
        false => message.join("; "),
    };
    Some(StatusCondition { kind: KEYS_FETCHED, status, reason, message })
}

/// A time in seconds since 1970, as status tells it.
fn when(unix: u64) -> String {
    let seconds = i64::try_from(unix).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| unix.to_string(), |it| it.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::KeysProblem;

    #[test]
    fn a_condition_says_which_keys_are_missing_or_old_and_since_when() {
        let source = KeySource::Uri("https://a/keys".into());
        let problem = || Some(KeysProblem { at: 60, what: "no answer".into() });
        let keys = || Some("{}".into());
        let good = IssuerKeys { keys: keys(), fetched: Some(0), problem: None };
        let old = IssuerKeys { problem: problem(), ..good.clone() };
        let missing = IssuerKeys { problem: problem(), ..IssuerKeys::default() };
        let told = |states: &[Option<&IssuerKeys>]| {
            let issuers: Vec<_> = states.iter().map(|it| (source.clone(), *it)).collect();
            condition(&issuers).map(|it| format!("{} {}: {}", it.status, it.reason, it.message))
        };
        let stale = "the keys at https://a/keys are those of 1970-01-01T00:00:00Z, and go on being \
                     used; fetching them again failed at 1970-01-01T00:01:00Z: no answer";
        let none = "the keys at https://a/keys were never fetched, so all tokens of the issuer are \
                    refused; the last try failed at 1970-01-01T00:01:00Z: no answer";
        let unasked = "the keys at https://a/keys were not asked for yet";
        for (states, expected) in [
            (&[][..], None),
            (&[Some(&good)], Some("True Fetched: all keys that are named by URL are there".into())),
            (&[Some(&good), Some(&old)], Some(format!("False Stale: {stale}"))),
            (&[Some(&old), Some(&missing)], Some(format!("False NotFetched: {stale}; {none}"))),
            (&[None, Some(&good)], Some(format!("Unknown Pending: {unasked}"))),
        ] {
            assert_eq!(told(states), expected);
        }
    }
}
