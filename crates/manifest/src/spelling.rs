//! Typos: which known word a user may have meant.
//!
//! Nothing here changes what a user wrote; callers say which word they suspect.

use ambit_words::{annotations, labels};

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
const ANNOTATIONS: [&str; 5] = [
    annotations::BYPASS_INBOUND_CAPTURE,
    annotations::USE_WAYPOINT_CANARY_WEIGHT,
    annotations::GATEWAY_NAME_OVERRIDE,
    annotations::GATEWAY_SERVICE_ACCOUNT,
    annotations::DRY_RUN,
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

/// The one of `known` that `name` was probably meant to be: at most one letter is wrong, and one
/// more for every three.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let slips_max = 1 + name.len() / 3;
    let near = known.filter(|it| it.len().abs_diff(name.len()) <= slips_max);
    let near = near.map(|it| (distance(it, name), it)).min()?;
    (near.0 <= slips_max).then(|| near.1.to_owned())
}

/// How many letters must be put in, taken out or changed (Levenshtein), whatever their case.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (one, other) = (letters(one), letters(other));
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, other) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_if_it_is_near() {
        let known = ["app/web", "app/website", "shop/web", "db"];
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(nearest(name, known.into_iter()).as_deref(), expected, "{name}");
        };
        check("app/wbe", Some("app/web"));
        check("app/websit", Some("app/website"));
        check("sohp/web", Some("shop/web"));
        check("bd", None);
        check("dbs", Some("db"));
        check("app/nosuch", None);
    }

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
            ("kubectl.kubernetes.io/last-applied-configuration", None),
        ] {
            assert_eq!(meant_annotation(key), expected, "{key}");
        }
    }
}
