//! What an authorization service may change of a request and of its response.
//!
//! It is trusted with everything but what frames a message and what only proxies say: with those it
//! could smuggle a second request, or another identity.

use ambit_wire::ext_authz::{Change, FieldChange};

use crate::engine::filters;
use crate::fields::{Fields, is_alike};
use crate::head::RequestHead;
use crate::path::Path;
use crate::refused::Refused;

/// What frames a message, names its host, or concerns one connection alone.
const FRAMING: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Whether a field of a message is nobody's to change.
pub(super) fn is_framing(name: &str) -> bool {
    name.starts_with(':') || FRAMING.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// Whether a field of a request may not be changed.
fn is_reserved(name: &str) -> bool {
    is_framing(name)
        || is_alike(name.as_bytes(), filters::CLIENT_CERTIFICATE)
        || filters::is_command(name.as_bytes())
}

/// Changes the fields of a request. What may not be changed stays as it is.
pub(super) fn change_request(
    fields: &mut Fields,
    remove: &[String],
    changes: &[FieldChange],
) -> Result<(), Refused> {
    for name in remove.iter().filter(|name| !is_reserved(name)) {
        fields.remove_alike(name);
    }
    changes.iter().filter(|it| !is_reserved(&it.name)).try_for_each(|it| {
        // What a client sends beside it must not be taken for what the service says.
        if it.how == Change::Set {
            fields.remove_disguised(&it.name);
        }
        change(fields, it)
    })
}

/// Changes the fields of a response.
pub(super) fn change_response(fields: &mut Fields, changes: &[FieldChange]) -> Result<(), Refused> {
    changes.iter().filter(|it| !is_framing(&it.name)).try_for_each(|it| change(fields, it))
}

fn change(fields: &mut Fields, change: &FieldChange) -> Result<(), Refused> {
    let FieldChange { name, value, how } = change;
    let is_there = || fields.first(name.as_str()).is_some();
    let put = match how {
        Change::SetIfAbsent if is_there() => Ok(()),
        Change::SetIfPresent if !is_there() => Ok(()),
        Change::Append => fields.append(name.as_str(), value),
        Change::Set | Change::SetIfAbsent | Change::SetIfPresent => {
            fields.set(name.as_str(), value)
        }
    };
    put.map_err(|_| Refused::HeadTooLarge)
}

/// Changes the parameters of a request's query; the path stays as it is.
pub(super) fn change_query(
    head: &mut RequestHead,
    remove: &[String],
    set: &[(String, String)],
) -> Result<(), Refused> {
    if remove.is_empty() && set.is_empty() {
        return Ok(());
    }
    let Some(path) = head.path_mut() else { return Ok(()) };
    let is_replaced = |pair: &str| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        let set = set.iter().map(|(name, _)| name);
        remove.iter().chain(set).any(|it| *it == name)
    };
    let query = path.query().unwrap_or_default();
    let kept = query.split('&').filter(|pair| !pair.is_empty() && !is_replaced(pair));
    let mut pairs: Vec<String> = kept.map(str::to_owned).collect();
    pairs.extend(set.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))));
    let text = match pairs.is_empty() {
        true => path.path().to_owned(),
        false => format!("{}?{}", path.path(), pairs.join("&")),
    };
    *path = Path::parse(text.as_bytes())?;
    Ok(())
}

/// Percent-encodes what is not plain in a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use crate::fields::FieldLimits;
    use crate::head::{Method, Target, Version};

    fn set(name: &str, value: &str, how: Change) -> FieldChange {
        FieldChange { name: name.to_owned(), value: value.to_owned().into(), how }
    }

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new(FieldLimits::default());
        for (name, value) in all {
            fields.append(*name, value.as_bytes()).expect("a field");
        }
        fields
    }

    fn text(fields: &Fields) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = fields.iter().map(|it| format!("{}={}", text(it.name), text(it.value)));
        all.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn fields_are_added_replaced_and_removed() {
        let mut request = fields(&[("a", "1"), ("b", "1"), ("cookie", "s"), ("c", "1")]);
        let changes = [
            set("A", "2", Change::Set),
            set("b", "2", Change::Append),
            set("c", "2", Change::SetIfAbsent),
            set("d", "2", Change::SetIfAbsent),
            set("e", "2", Change::SetIfPresent),
        ];
        change_request(&mut request, &["Cookie".to_owned()], &changes).expect("valid");
        assert_eq!(text(&request), "A=2 b=1 c=1 b=2 d=2");
        // A server may read `_` as `-`.
        let mut request = fields(&[("x_user", "evil"), ("x_gone", "evil"), ("x_other", "1")]);
        let changes = [set("x-user", "ann", Change::Set), set("x-other", "2", Change::Append)];
        change_request(&mut request, &["x-gone".to_owned()], &changes).expect("valid");
        assert_eq!(text(&request), "x_other=1 x-user=ann x-other=2");
    }

    #[test]
    fn what_frames_a_request_or_names_its_client_stays() {
        let given = [
            ("content-length", "5"),
            ("x-forwarded-client-cert", "By=a;URI=b"),
            ("x-envoy-max-retries", "1"),
            ("te", "trailers"),
        ];
        let mut request = fields(&given);
        let before = text(&request);
        let names = FRAMING.iter().chain(&[":path", ":authority", "X-Forwarded-Client-Cert"]);
        let names: Vec<String> =
            names.chain(&["X-Envoy-Retry-On"]).map(|it| (*it).into()).collect();
        let changes: Vec<_> = names.iter().map(|it| set(it, "evil", Change::Append)).collect();
        change_request(&mut request, &names, &changes).expect("nothing is changed");
        assert_eq!(text(&request), before);
        let mut response = fields(&[("content-length", "5")]);
        change_response(&mut response, &changes).expect("valid");
        assert_eq!(text(&response).matches("evil").count(), 2, "{}", text(&response));
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for (name, value) in [("a b", "1"), ("a", "1\r\nb: 2"), ("", "1")] {
            let changes = [set(name, value, Change::Set)];
            assert!(change_request(&mut fields(&[]), &[], &changes).is_err(), "{name:?}");
        }
    }

    #[test]
    fn parameters_are_replaced_and_encoded() {
        let check = |target: &str, remove: &[&str], set: &[(&str, &str)], expected: &str| {
            let host = Authority::parse(b"h").expect("a host");
            let path = Path::parse(target.as_bytes()).expect("a path");
            let method = Method::parse("GET").expect("a method");
            let target = Target::Origin { path, host };
            let mut head = RequestHead::new(method, target, Version::Http11, fields(&[]))
                .expect("parts that fit");
            let remove: Vec<String> = remove.iter().map(|it| (*it).to_owned()).collect();
            let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let set: Vec<_> = set.iter().map(own).collect();
            change_query(&mut head, &remove, &set).expect("a path");
            assert_eq!(head.path().expect("a path").as_str(), expected);
        };
        check("/a?token=x&b=1", &["token"], &[], "/a?b=1");
        check("/a?token=x", &["token"], &[], "/a");
        check("/a?b&c=1&c=2", &[], &[("c", "3 &")], "/a?b&c=3%20%26");
        check("/a", &[], &[("c", "\r\n#?")], "/a?c=%0D%0A%23%3F");
        check("/a%2Fb?", &[], &[("c", "1")], "/a%2Fb?c=1");
    }
}
