//! Header fields and trailers in a flat form: one buffer of bytes, and an index into it.
//!
//! Two allocations hold all fields of a message. Names keep the case in which they came, because
//! some applications still look at it; they are found without regard to case. What a peer or a
//! policy puts in is checked here, so that no CR, LF or NUL can reach a head that is written.

pub(crate) mod known;

use thiserror::Error;

use crate::grammar;

use known::Known;

/// How many fields a message has at most, unless it is set otherwise: Envoy's default.
const DEFAULT_FIELDS: u16 = 100;

/// How many bytes all fields of a message have at most, unless it is set otherwise: Envoy's
/// default.
const DEFAULT_FIELD_BYTES: u32 = 60 * 1024;

/// What a proxy usually adds: who the client is, the request's number, the trace.
const ADDED_FIELDS: usize = 6;
/// Their bytes.
const ADDED_BYTES: usize = 256;

/// What a field costs besides its name and its value: colon, space and CRLF.
const SEPARATORS: usize = 4;

/// How much a message's fields may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLimits {
    /// The number of fields.
    pub(crate) number: u16,
    /// The bytes of all fields, as HTTP/1.1 writes them.
    pub(crate) bytes: u32,
}

impl Default for FieldLimits {
    fn default() -> Self {
        Self { number: DEFAULT_FIELDS, bytes: DEFAULT_FIELD_BYTES }
    }
}

/// Why a field is not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FieldError {
    /// The name is no token.
    #[error("the field's name is not a token")]
    Name,
    /// The value has a control character, or CR, LF or NUL.
    #[error("the field's value has a control character")]
    Value,
    /// There are as many fields as there may be.
    #[error("there are {0} fields already, as many as the limit allows")]
    TooMany(u16),
    /// The fields have as many bytes as they may have.
    #[error("with this field, all fields have more than {0} bytes, which is the limit")]
    TooLarge(u32),
}

/// A name: as it is written, and as what it is known.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    text: &'a [u8],
    known: Option<Known>,
}

impl Name<'_> {
    /// Whether this names the host, as HTTP/1.1 or as HTTP/2 calls it.
    pub(crate) fn is_host(self) -> bool {
        self.known == Some(Known::Host) || self.text.eq_ignore_ascii_case(b":authority")
    }
}

impl From<Known> for Name<'_> {
    fn from(known: Known) -> Self {
        Self { text: known.text().as_bytes(), known: Some(known) }
    }
}

impl<'a> From<&'a [u8]> for Name<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self { text, known: Known::of(text) }
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(text: &'a str) -> Self {
        Self::from(text.as_bytes())
    }
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name, in the case in which it came.
    pub name: &'a [u8],
    /// Its value, without whitespace around it.
    pub value: &'a [u8],
    /// The name, if the codec knows it.
    pub(crate) known: Option<Known>,
}

/// Where a field lies in the buffer: its name, and its value right behind.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    name_len: u32,
    value_len: u32,
    known: Option<Known>,
}

impl Entry {
    fn len(self) -> usize {
        self.name_len as usize + self.value_len as usize
    }

    fn cost(self) -> usize {
        self.len() + SEPARATORS
    }

    fn field(self, bytes: &[u8]) -> Field<'_> {
        let start = self.start as usize;
        let (name, value) = bytes[start..start + self.len()].split_at(self.name_len as usize);
        Field { name, value, known: self.known }
    }
}

/// The fields of a message, in their order.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// What the fields cost together; the buffer also holds what was replaced.
    cost: usize,
    limits: FieldLimits,
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Fields {}

impl Fields {
    /// No fields yet.
    pub(crate) fn new(limits: FieldLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// With room for what is about to be put in, and for what a proxy adds to it.
    pub(crate) fn with_capacity(limits: FieldLimits, number: usize, bytes: usize) -> Self {
        let bytes = Vec::with_capacity(bytes + ADDED_BYTES);
        let entries = Vec::with_capacity(number + ADDED_FIELDS);
        Self { bytes, entries, cost: 0, limits }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All fields in their order.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.entries.iter().map(|entry| entry.field(&self.bytes))
    }

    /// The values of all fields of this name, in their order.
    pub(crate) fn all<'a>(&'a self, name: impl Into<Name<'a>>) -> impl Iterator<Item = &'a [u8]> {
        let name = name.into();
        self.iter().filter(move |field| is_named(field, name)).map(|field| field.value)
    }

    /// The value of the first field of this name.
    pub(crate) fn first<'a>(&'a self, name: impl Into<Name<'a>>) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Puts a field behind the others. Whitespace around the value is left out.
    pub fn append<'a>(
        &mut self,
        name: impl Into<Name<'a>>,
        value: &[u8],
    ) -> Result<(), FieldError> {
        let (name, value) = checked(name.into(), value)?;
        let entry = self.store(name, value, 0, 0)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Puts a field in the place of the first one of its name and removes the others of this name.
    pub fn set<'a>(&mut self, name: impl Into<Name<'a>>, value: &[u8]) -> Result<(), FieldError> {
        let (name, value) = checked(name.into(), value)?;
        let bytes = &self.bytes;
        let same = self.entries.iter().filter(|entry| is_named(&entry.field(bytes), name));
        let (number, cost) = same.fold((0, 0), |(n, sum), entry| (n + 1, sum + entry.cost()));
        let entry = self.store(name, value, number, cost)?;
        let mut new = Some(entry);
        let bytes = &self.bytes;
        self.entries.retain_mut(|old| {
            if !is_named(&old.field(bytes), name) {
                return true;
            }
            let Some(new) = new.take() else { return false };
            *old = new;
            true
        });
        self.entries.extend(new);
        self.cost -= cost;
        Ok(())
    }

    /// Removes all fields of this name; says whether there was one.
    pub fn remove<'a>(&mut self, name: impl Into<Name<'a>>) -> bool {
        let (name, before) = (name.into(), self.len());
        self.retain(|field| !is_named(field, name));
        self.len() < before
    }

    /// Removes all fields that a server may take for this one ([`is_alike`]).
    pub(crate) fn remove_alike(&mut self, name: &str) {
        self.retain(|field| !is_alike(field.name, name));
    }

    /// Removes the fields that a server may take for this one, and leaves those of this very name.
    pub(crate) fn remove_disguised(&mut self, name: &str) {
        self.retain(|field| !is_disguised(field.name, name));
    }

    /// Keeps the fields that the function wants to keep.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&Field<'_>) -> bool) {
        let (bytes, cost) = (&self.bytes, &mut self.cost);
        self.entries.retain(|entry| {
            let kept = is_kept(&entry.field(bytes));
            *cost -= if kept { 0 } else { entry.cost() };
            kept
        });
    }

    /// Puts in a field that a parser has checked.
    pub(crate) fn append_parsed(&mut self, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
        let entry = self.store(name.into(), value, 0, 0)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Puts bytes into the buffer, where a number of fields of some cost will be removed for them.
    fn store(
        &mut self,
        name: Name<'_>,
        value: &[u8],
        freed: usize,
        freed_cost: usize,
    ) -> Result<Entry, FieldError> {
        let Name { text, known } = name;
        let cost = text.len() + value.len() + SEPARATORS;
        let limit = self.limits.bytes as usize;
        if self.len() - freed >= usize::from(self.limits.number) {
            return Err(FieldError::TooMany(self.limits.number));
        }
        if self.cost - freed_cost + cost > limit {
            return Err(FieldError::TooLarge(self.limits.bytes));
        }
        // Replaced fields take no more room than all fields may.
        if self.bytes.len() > self.cost + limit {
            self.compact();
        }
        let place = |len: usize| u32::try_from(len).map_err(|_| FieldError::TooLarge(u32::MAX));
        let start = place(self.bytes.len())?;
        let (name_len, value_len) = (place(text.len())?, place(value.len())?);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(value);
        self.cost += cost;
        Ok(Entry { start, name_len, value_len, known })
    }

    fn compact(&mut self) {
        let mut bytes = Vec::with_capacity(self.cost);
        for entry in &mut self.entries {
            let start = entry.start as usize;
            let text = &self.bytes[start..start + entry.len()];
            // The new buffer is shorter than the old one, whose places fitted.
            entry.start = bytes.len() as u32;
            bytes.extend_from_slice(text);
        }
        self.bytes = bytes;
    }
}

/// Whether a server may take a field for the one of another name: those of CGI and WSGI read `_` as
/// `-`.
pub(crate) fn is_alike(one: &[u8], other: &str) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let mut pairs = one.iter().zip(other.as_bytes());
    one.len() == other.len() && pairs.all(|(one, other)| folded(*one) == folded(*other))
}

/// Whether that is so though the names are not the same.
pub(crate) fn is_disguised(one: &[u8], other: &str) -> bool {
    is_alike(one, other) && !one.eq_ignore_ascii_case(other.as_bytes())
}

fn is_named(field: &Field<'_>, name: Name<'_>) -> bool {
    match name.known {
        Some(_) => field.known == name.known,
        None => field.known.is_none() && field.name.eq_ignore_ascii_case(name.text),
    }
}

fn checked<'n, 'v>(name: Name<'n>, value: &'v [u8]) -> Result<(Name<'n>, &'v [u8]), FieldError> {
    if !grammar::is_token(name.text) {
        return Err(FieldError::Name);
    }
    let value = grammar::trimmed(value);
    if !value.iter().all(|byte| grammar::is_value_byte(*byte)) {
        return Err(FieldError::Value);
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests;
