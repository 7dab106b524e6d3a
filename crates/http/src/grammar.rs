//! Which bytes may be where. The lowest file: everything that is read is checked by these.

pub(crate) use ambit_model::http::normal::is_target_byte;

/// A letter of a token: methods, field names, protocols.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether this is a token, and so not empty.
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_token_byte(*byte))
}

/// A byte of a field's value, a reason or a chunk extension: no control character but the tab.
pub(crate) fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// The text without the spaces and tabs around it.
pub(crate) fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The members of a comma-separated list, without the empty ones.
pub(crate) fn members(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trimmed).filter(|member| !member.is_empty())
}
