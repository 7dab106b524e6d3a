//! Finds where this kernel keeps the fields of its structures (BTF, the kernel's own description of
//! its types).
//!
//! Offsets differ from build to build, so none is written down here. Whatever is missing or looks
//! different is an error, and the kernel path is not used then: nothing is guessed.

use std::fs::File;

use crate::sys::mapping::Mapping;

/// Where the kernel describes its types.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// What a description begins with.
pub(super) const MAGIC: u16 = 0xeb9f;
/// A name, kind and length, and a size or type.
const HEADER_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
const ENUMERATOR_BYTES: usize = 8;
/// `BTF_KIND_ENUM`, `BTF_KIND_STRUCT` and `BTF_KIND_UNION`.
const ENUM: u32 = 6;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// Anonymous members within anonymous members: deeper than the kernel has any.
const MAX_DEPTH: usize = 8;

/// Why a field was not found.
#[derive(Debug, thiserror::Error)]
pub enum TypesError {
    /// There is no description.
    #[error("the kernel does not describe its types in {KERNEL} (CONFIG_DEBUG_INFO_BTF)")]
    Missing(#[source] std::io::Error),
    /// It cannot be read.
    #[error("the kernel's description of its types in {KERNEL} cannot be read")]
    Malformed,
    /// The field is not there.
    #[error("this kernel's {structure} has no field {field}")]
    NoField {
        /// Of which structure.
        structure: &'static str,
        /// Which.
        field: &'static str,
    },
}

/// A description of types.
///
/// It is some megabytes, needed once. So it lies in memory that goes back to the system at once,
/// and no index is made of it.
pub(super) struct Types<B> {
    bytes: B,
    /// Where the types' names begin.
    names: usize,
    /// Where the types begin and end.
    types: std::ops::Range<usize>,
}

impl Types<Mapping> {
    /// That of the running kernel.
    pub(super) fn of_kernel() -> Result<Self, TypesError> {
        let file = File::open(KERNEL).map_err(TypesError::Missing)?;
        let bytes = Mapping::of_content(file).map_err(TypesError::Missing)?;
        Self::parse(bytes).ok_or(TypesError::Malformed)
    }
}

impl<B: AsRef<[u8]>> Types<B> {
    fn parse(content: B) -> Option<Self> {
        let bytes = content.as_ref();
        if u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let start = header.checked_add(word(bytes, 8)? as usize)?;
        let end = start.checked_add(word(bytes, 12)? as usize)?;
        let names = header.checked_add(word(bytes, 16)? as usize)?;
        Some(Self { bytes: content, names, types: start..end })
    }

    /// Where each type begins; the first has number 1.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let next = |at: &usize| {
            let details = details_bytes(self.word(*at + 4)?)?;
            at.checked_add(HEADER_BYTES + details).filter(|next| *next < self.types.end)
        };
        let first = Some(self.types.start).filter(|first| *first < self.types.end);
        std::iter::successors(first, next)
    }

    /// Where the type of this kind and name begins.
    fn named(&self, kind: u32, name: &str) -> Option<usize> {
        self.places()
            .find(|&at| self.kind(at) == Some(kind) && self.name_is(at, name) == Some(true))
    }

    /// How far into a structure a field is, in bytes.
    pub(super) fn offset(
        &self,
        structure: &'static str,
        field: &'static str,
    ) -> Result<i16, TypesError> {
        let missing = || TypesError::NoField { structure, field };
        let at = self.named(STRUCT, structure).ok_or_else(missing)?;
        let offset = self.field(at, field, MAX_DEPTH).ok_or_else(missing)?;
        i16::try_from(offset).map_err(|_| missing())
    }

    /// The value of an enumerator.
    pub(super) fn value(
        &self,
        enumeration: &'static str,
        enumerator: &'static str,
    ) -> Result<u32, TypesError> {
        let missing = TypesError::NoField { structure: enumeration, field: enumerator };
        let found = self.named(ENUM, enumeration).and_then(|at| {
            let count = self.word(at + 4)? & 0xffff;
            let places = (0..count as usize).map(|it| at + HEADER_BYTES + it * ENUMERATOR_BYTES);
            let mut named = places.filter(|&at| self.name_is(at, enumerator) == Some(true));
            self.word(named.next()? + 4)
        });
        found.ok_or(missing)
    }

    /// The offset of a field of the type at `at`, also within its anonymous members.
    fn field(&self, at: usize, field: &str, depth: usize) -> Option<u32> {
        let info = self.word(at + 4)?;
        for member in 0..info & 0xffff {
            let at = at + HEADER_BYTES + member as usize * MEMBER_BYTES;
            let bits = self.word(at + 8)?;
            // With bit-fields, the upper byte of each offset is a width.
            let bits = if info >> 31 == 1 { bits & 0xff_ffff } else { bits };
            if self.name_is(at, field)? {
                return Some(bits / 8);
            }
            if self.word(at)? == 0 && depth > 0 {
                let inner = self.places().nth(self.word(at + 4)?.checked_sub(1)? as usize)?;
                let is_group = matches!(self.kind(inner)?, STRUCT | UNION);
                let found = is_group.then(|| self.field(inner, field, depth - 1)).flatten();
                if let Some(offset) = found {
                    return Some(bits / 8 + offset);
                }
            }
        }
        None
    }

    fn word(&self, at: usize) -> Option<u32> {
        word(self.bytes.as_ref(), at)
    }

    fn kind(&self, at: usize) -> Option<u32> {
        Some(self.word(at + 4)? >> 24 & 0x1f)
    }

    /// Whether the name whose place is written at `at` is this one.
    fn name_is(&self, at: usize, name: &str) -> Option<bool> {
        let start = self.names.checked_add(self.word(at)? as usize)?;
        let rest = self.bytes.as_ref().get(start..)?;
        Some(rest.get(..name.len()) == Some(name.as_bytes()) && rest.get(name.len()) == Some(&0))
    }
}

/// How long what follows the header of a type is. (`include/uapi/linux/btf.h`)
fn details_bytes(info: u32) -> Option<usize> {
    let length = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        STRUCT | UNION | 15 | 19 => length * MEMBER_BYTES,
        // Enumerations, prototypes.
        ENUM | 13 => length * ENUMERATOR_BYTES,
        // Pointers, forwards, names, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure `pair` of an integer `first` and of an anonymous one that holds `second`; and an
    /// enumeration of the last name, in which the first has the value 7.
    fn pair() -> Vec<u8> {
        let names = b"\0int\0pair\0first\0second\0";
        let types: Vec<u32> = [
            vec![1, 1 << 24, 4, 32],
            vec![0, STRUCT << 24 | 1, 4, 16, 1, 0],
            vec![5, STRUCT << 24 | 2, 8, 10, 1, 0, 0, 2, 32],
            vec![16, ENUM << 24 | 1, 4, 10, 7],
        ]
        .concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let lengths = [24, 0, types.len(), types.len(), names.len()];
        let lengths = lengths.into_iter().flat_map(|length| (length as u32).to_ne_bytes());
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(lengths);
        bytes.extend(types);
        bytes.extend(names);
        bytes
    }

    #[test]
    fn fields_are_found_also_in_anonymous_members() {
        let types = Types::parse(pair()).expect("parsed");
        assert_eq!(types.offset("pair", "first").expect("there"), 0);
        assert_eq!(types.offset("pair", "second").expect("there"), 4);
        for (structure, field) in [("pair", "third"), ("pai", "first"), ("pair2", "first")] {
            let error = types.offset(structure, field).expect_err("not there");
            assert!(error.to_string().contains(field), "{error}");
        }
        assert_eq!(types.value("second", "first").expect("there"), 7);
        types.value("second", "second").expect_err("not there");
    }

    #[test]
    fn what_is_cut_short_or_twisted_never_panics() {
        let whole = pair();
        for end in 0..whole.len() {
            if let Some(types) = Types::parse(whole[..end].to_vec()) {
                let _maybe = types.offset("pair", "second");
            }
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut twisted = whole.clone();
                twisted[at] = value;
                if let Some(types) = Types::parse(twisted) {
                    let _maybe = types.offset("pair", "second");
                    let _maybe = types.value("second", "first");
                }
            }
        }
    }
}
