//! The second waypoint of a service, to which a share of its new connections goes.
//!
//! It is named as Istio names it: by labels, with the share in an annotation, on the service or on
//! the namespace whose waypoint it inherits. Something wrong with it never takes the first waypoint
//! away: the service then has that one alone. Nothing here looks at a Gateway.

use std::collections::BTreeMap;

use ambit_words::annotations::USE_WAYPOINT_CANARY_WEIGHT;
use ambit_words::labels::{NONE, USE_WAYPOINT, USE_WAYPOINT_CANARY, USE_WAYPOINT_CANARY_NAMESPACE};

use crate::gateway::Unbound;

/// The whole of which a canary gets a share.
pub const WHOLE: u32 = 100;

/// What a service, or its namespace, says of waypoints.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its annotation [`USE_WAYPOINT_CANARY_WEIGHT`].
    pub weight: Option<&'a str>,
}

/// A canary that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canary<'a> {
    /// The name of its Gateway.
    pub name: &'a str,
    /// The namespace of that, where it is not the service's.
    pub namespace: Option<&'a str>,
    /// How many of [`WHOLE`] connections go there; `Err` is what was written instead.
    pub share: Result<u32, &'a str>,
}

/// Why a service has no canary, although it names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It is the service's first waypoint too.
    SameAsPrimary,
    /// Its share is no whole number from 0 to [`WHOLE`].
    Weight,
    /// It is no waypoint for the service.
    Unbound(Unbound),
}

/// The canary of a service. A namespace is asked only if the service has its waypoint from there.
pub fn canary<'a>(own: Said<'a>, of_namespace: Said<'a>) -> Option<Canary<'a>> {
    let inherits = !own.labels.contains_key(USE_WAYPOINT);
    let is_own = own.labels.contains_key(USE_WAYPOINT_CANARY) || !inherits;
    let labels = if is_own { own.labels } else { of_namespace.labels };
    let name = labels.get(USE_WAYPOINT_CANARY).filter(|it| !["", NONE].contains(&it.as_str()))?;
    let inherited = of_namespace.weight.filter(|_| inherits);
    let share = own.weight.or(inherited).map_or(Ok(0), |text| {
        // No sign and no space: what is not plainly a number was meant otherwise.
        let is_plain = text.bytes().all(|it| it.is_ascii_digit());
        text.parse().ok().filter(|share| is_plain && *share <= WHOLE).ok_or(text)
    });
    let namespace = labels.get(USE_WAYPOINT_CANARY_NAMESPACE).map(String::as_str);
    Some(Canary { name, namespace, share })
}

impl Unfit {
    /// The reason in a condition; Istio's for the same.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SameAsPrimary => "CanarySameAsPrimary",
            Self::Weight => "CanaryInvalidWeight",
            Self::Unbound(unbound) => unbound.reason(),
        }
    }

    /// What is wrong, after the waypoint's name.
    pub fn what(self) -> String {
        match self {
            Self::SameAsPrimary => "is the first waypoint too".to_owned(),
            Self::Weight => {
                format!("has no share: {USE_WAYPOINT_CANARY_WEIGHT} is no whole number to {WHOLE}")
            }
            Self::Unbound(unbound) => unbound.what().to_owned(),
        }
    }

    /// What to do about it, besides naming no canary.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::SameAsPrimary => "name another waypoint",
            Self::Weight => "write a whole number from 0 to 100",
            Self::Unbound(unbound) => unbound.remedy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let key = |key: &str| format!("istio.io/use-waypoint{key}");
        pairs.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect()
    }

    /// Name, namespace and share of the canary.
    fn check(
        own: (&[(&str, &str)], Option<&str>),
        of_namespace: (&[(&str, &str)], Option<&str>),
        expected: Option<(&str, Option<&str>, Result<u32, &str>)>,
    ) {
        let (own_labels, namespace_labels) = (labels(own.0), labels(of_namespace.0));
        let own = Said { labels: &own_labels, weight: own.1 };
        let of_namespace = Said { labels: &namespace_labels, weight: of_namespace.1 };
        let found = canary(own, of_namespace).map(|it| (it.name, it.namespace, it.share));
        assert_eq!(found, expected, "{own:?} {of_namespace:?}");
    }

    #[test]
    fn a_service_names_its_canary_or_inherits_it_with_its_waypoint() {
        let nothing: &[(&str, &str)] = &[];
        let own = [("", "one"), ("-canary", "two")];
        let far = [("", "one"), ("-canary", "two"), ("-canary-namespace", "infra")];
        let canary = [("-canary", "two")];
        check((nothing, None), (nothing, Some("5")), None);
        check((&own, Some("5")), (nothing, None), Some(("two", None, Ok(5))));
        check((&far, None), (nothing, Some("7")), Some(("two", Some("infra"), Ok(0))));
        check((nothing, None), (&own, Some("5")), Some(("two", None, Ok(5))));
        check((nothing, Some("6")), (&own, Some("5")), Some(("two", None, Ok(6))));
        check((&canary, None), (&far, Some("5")), Some(("two", None, Ok(5))));
        // Its own waypoint, then, and no canary beside it.
        check((&[("", "one")], Some("5")), (&own, Some("5")), None);
        for none in ["", "none"] {
            check((&[("-canary", none)], None), (&own, Some("5")), None);
        }
    }

    #[test]
    fn a_share_is_a_whole_number_to_a_hundred() {
        let own = [("", "one"), ("-canary", "two")];
        for (text, expected) in [("0", Ok(0)), ("100", Ok(100)), ("007", Ok(7))] {
            check((&own, Some(text)), (&[], None), Some(("two", None, expected)));
        }
        for text in ["", "101", "-1", "+5", "5%", " 5", "0.5", "4294967296", "five"] {
            check((&own, Some(text)), (&[], None), Some(("two", None, Err(text))));
        }
    }
}
