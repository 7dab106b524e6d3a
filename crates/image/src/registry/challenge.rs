//! What a registry demands before it answers: the `WWW-Authenticate` header of RFC 9110.

/// A demand that can be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Name and password, with each request.
    Basic,
    /// A token, from this address.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// The first demand of a header that is known.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, parameters) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut rest) = (None, None, parameters);
        while let Some((name, value, after)) = parameter(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                _ => {}
            }
            rest = after;
        }
        Some(Self::Bearer { realm: realm?, service })
    }
}

/// `name="value"` or `name=value`, and what comes after the comma.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once('=')?;
    let name = name.trim_matches([' ', ',']);
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, after) = rest.split_once(',').unwrap_or((rest, ""));
        return Some((name, value.trim().to_owned(), after));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((name, value, &quoted[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            _ => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_of_two_kinds() {
        let bearer = |realm: &str, service: Option<&str>| {
            let service = service.map(str::to_owned);
            Some(Challenge::Bearer { realm: realm.to_owned(), service })
        };
        for (header, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://a.b/t\",service=\"s\",scope=\"repository:x:pull,push\"",
                bearer("https://a.b/t", Some("s")),
            ),
            ("bearer scope=\"a=b\", Realm=\"r\\\"q\"", bearer("r\"q", None)),
            ("Bearer realm=plain, service=s", bearer("plain", Some("s"))),
            ("Bearer service=\"s\"", None),
            ("Bearer realm=\"open", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
