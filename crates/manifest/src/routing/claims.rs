//! Claims of a token where a VirtualService writes fields: `@request.auth.claims.a.b`, or
//! `@request.auth.claims[a][b]` for names with dots in them.
//!
//! No client can send a field of such a name: `@` is no letter of one.

use ambit_model::Text;
use ambit_model::http::matching::{ClaimMatch, ValueMatch};

use crate::FieldPath;
use crate::virtual_service::{HttpMatch, StringMatch};

const CLAIMS: &str = "@request.auth.claims";

/// The keys of the claim that `name` means, one within the other; `None` for the name of a field.
pub(super) fn keys(name: &str) -> Option<Result<Vec<Text>, String>> {
    let wrong = || {
        format!(
            "`{name}` is no claim: write @request.auth.claims.NAME or @request.auth.claims[NAME]"
        )
    };
    let rest = match name.strip_prefix(CLAIMS) {
        None => return name.starts_with('@').then(|| Err(wrong())),
        Some(rest) => rest,
    };
    let keys: Option<Vec<&str>> = match rest.split_at_checked(1) {
        Some((".", path)) => Some(path.split('.').collect()),
        Some(("[", path)) => path.strip_suffix(']').map(|path| path.split("][").collect()),
        _ => None,
    };
    let is_key = |key: &&str| !key.is_empty() && !key.contains(['[', ']']);
    let keys = keys.filter(|keys| keys.iter().all(is_key)).ok_or_else(wrong);
    Some(keys.map(|keys| keys.into_iter().map(Text::from).collect()))
}

/// The claims that a match compares, whose values `value` reads; and where one is not named as a
/// claim is, and why.
pub(super) fn compared(
    written: &HttpMatch,
    at: &FieldPath,
    mut value: impl FnMut(&StringMatch, &FieldPath) -> ValueMatch,
) -> (Vec<ClaimMatch>, Vec<(FieldPath, String)>) {
    let (mut claims, mut wrong) = (Vec::new(), Vec::new());
    let fields = [("headers", &written.headers), ("withoutHeaders", &written.without_headers)];
    for (field, all) in fields {
        for (name, compared) in all {
            let at = at.field(field).field(name);
            match keys(name) {
                None => {}
                Some(Ok(keys)) => {
                    let (value, is_inverted) = (value(compared, &at), field != "headers");
                    claims.push(ClaimMatch { keys, value, is_inverted });
                }
                Some(Err(what)) => wrong.push((at, what)),
            }
        }
    }
    (claims, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_named_with_dots_or_brackets() {
        for (name, expected) in [
            ("end-user", None),
            ("request.auth.claims.a", None),
            ("@request.auth.claims.group", Some(&["group"][..])),
            ("@request.auth.claims.org.unit", Some(&["org", "unit"])),
            ("@request.auth.claims[group]", Some(&["group"])),
            ("@request.auth.claims[https://a.b/c][unit]", Some(&["https://a.b/c", "unit"])),
            ("@request.auth.claims.Group", Some(&["Group"])),
        ] {
            let read = keys(name).map(|it| it.expect("a claim"));
            let read: Option<Vec<&str>> =
                read.as_ref().map(|keys| keys.iter().map(|it| &**it).collect());
            assert_eq!(read.as_deref(), expected, "{name}");
        }
        for name in [
            "@request.auth.claims",
            "@request.auth.claims.",
            "@request.auth.claims..a",
            "@request.auth.claims[]",
            "@request.auth.claims[a",
            "@request.auth.claims[a]b",
            "@request.auth.claims[a]x[b]",
            "@request.auth.claimsa",
            "@request.auth.principal",
        ] {
            assert!(keys(name).is_some_and(|it| it.is_err()), "{name}");
        }
    }
}
