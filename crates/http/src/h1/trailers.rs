//! The fields behind a chunked body.

use super::lines::{Kind, Limits, Progress};
use super::{options, parse};
use crate::fields::{Fields, known::Known};
use crate::refused::Refused;

/// A trailer section that is not whole yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    bytes: Vec<u8>,
    progress: Progress,
}

impl Section {
    /// Takes bytes of the section; says how many, and what the fields are once it is whole.
    ///
    /// What was taken before is kept, within the limit of a head. Most bodies have no trailers,
    /// and for these nothing is kept at all.
    pub(super) fn take(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<(usize, Option<Fields>), Refused> {
        if self.bytes.is_empty() && input.starts_with(b"\r\n") {
            return Ok((2, Some(Fields::new(limits.fields))));
        }
        let before = self.bytes.len();
        // The scan refuses what is larger; until then it may see one byte more than the limit.
        let room = (limits.head_bytes + 1).saturating_sub(before).min(input.len());
        self.bytes.extend_from_slice(&input[..room]);
        let Some(place) = self.progress.advance(&self.bytes, Kind::Trailers, limits)? else {
            return Ok((room, None));
        };
        let text = &self.bytes[place.clone()];
        let fields = parse::section(text, limits.fields)?;
        Ok((place.end - before, Some(allowed(fields)?)))
    }
}

/// Refuses trailers that frame or route messages, which only an attacker sends, and drops those
/// that come too late to be acted upon (RFC 9110, 6.5.1).
pub(crate) fn allowed(mut fields: Fields) -> Result<Fields, Refused> {
    let frames =
        |known| matches!(known, Known::ContentLength | Known::TransferEncoding | Known::Host);
    if fields.iter().any(|field| field.known.is_some_and(frames)) {
        return Err(Refused::Trailer);
    }
    // What is known controls, authenticates or describes a message; proxies set the rest.
    fields.retain(|field| !options::belongs_in_head(field));
    Ok(fields)
}
