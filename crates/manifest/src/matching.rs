//! Texts as Istio's resources compare them, and names of fields.

use ambit_model::Text;
use ambit_model::policy::TextMatch;

/// How a text of Istio's resources is compared; `None` for an empty one.
pub(crate) fn text(value: &str) -> Option<TextMatch> {
    Some(match value {
        "" => return None,
        "*" => TextMatch::Presence,
        _ => match (value.strip_prefix('*'), value.strip_suffix('*')) {
            (Some(end), _) => TextMatch::Suffix(Text::from(end)),
            (None, Some(start)) => TextMatch::Prefix(Text::from(start)),
            (None, None) => TextMatch::Exact(Text::from(value)),
        },
    })
}

/// Whether a text is a token (RFC 9110, section 5.6.2), as a field's name is.
pub(crate) fn is_token(text: &str) -> bool {
    let is_mark = |it: u8| b"!#$%&'*+-.^_`|~".contains(&it);
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_alphanumeric() || is_mark(it))
}
