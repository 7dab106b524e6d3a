//! Finds policy conditions that this version does not know.
//!
//! prost drops unknown fields silently. In a policy that is dangerous: a condition added by a newer
//! control plane would vanish and the rule around it would match more than was meant. This walks
//! the encoded message beside the decoder. It never changes or interprets a value.

/// A message type: its known fields, and the type of those that are messages themselves.
struct Schema(&'static [(u64, Option<&'static Schema>)]);

const AUTHORIZATION_RULES: u64 = 5;

static RULE: Schema = Schema(&[(1, Some(&CLAUSE))]);
static CLAUSE: Schema = Schema(&[(2, Some(&MATCH))]);
static MATCH: Schema = Schema(&[
    (1, Some(&STRING_MATCH)),
    (2, Some(&STRING_MATCH)),
    (3, Some(&STRING_MATCH)),
    (4, Some(&STRING_MATCH)),
    (5, Some(&ADDRESS)),
    (6, Some(&ADDRESS)),
    (7, Some(&ADDRESS)),
    (8, Some(&ADDRESS)),
    (9, None),
    (10, None),
    (11, Some(&SERVICE_ACCOUNT_MATCH)),
    (12, Some(&SERVICE_ACCOUNT_MATCH)),
    (13, None),
]);
static STRING_MATCH: Schema = Schema(&[(1, None), (2, None), (3, None), (4, None)]);
static ADDRESS: Schema = Schema(&[(1, None), (2, None)]);
static SERVICE_ACCOUNT_MATCH: Schema = Schema(&[(1, None), (2, None)]);

/// For each rule of an encoded Authorization, in order, whether it holds fields beyond this
/// version. `None` when the bytes cannot be walked.
pub(super) fn rules(authorization: &[u8]) -> Option<Vec<bool>> {
    let mut rest = authorization;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (field, payload) = next(&mut rest)?;
        if field == AUTHORIZATION_RULES {
            found.push(beyond(&RULE, payload?));
        }
    }
    Some(found)
}

/// Whether a message, or one inside it, holds a field that its schema does not know.
fn beyond(schema: &Schema, mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let Some((field, payload)) = next(&mut rest) else { return true };
        let Some((_, inner)) = schema.0.iter().find(|(known, _)| *known == field) else {
            return true;
        };
        if let (Some(inner), Some(payload)) = (inner, payload)
            && beyond(inner, payload)
        {
            return true;
        }
    }
    false
}

/// The next field's number and, when it is length-delimited, its bytes.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Option<&'a [u8]>)> {
    let key = varint(rest)?;
    let payload = match key & 7 {
        0 => {
            varint(rest)?;
            None
        }
        1 => {
            take(rest, 8)?;
            None
        }
        2 => {
            let length = varint(rest)?;
            Some(take(rest, length)?)
        }
        5 => {
            take(rest, 4)?;
            None
        }
        _ => return None,
    };
    Some((key >> 3, payload))
}

/// Splits off a payload; none when it claims more bytes than there are.
fn take<'a>(rest: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = left;
    Some(taken)
}

/// At most ten bytes, as protobuf has it.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
