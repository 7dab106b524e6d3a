//! Lists of pods in the Kubernetes API server's own encoding.
//!
//! Writing and reading protobuf takes a fraction of the time of JSON, and fields of a pod that
//! nobody needs are skipped. A list grows with the cluster, so it is read as it arrives, pod by
//! pod. Reading judges nothing: callers treat these pods like the same pods in JSON.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::proto::kubernetes::{ListMeta, Pod, TypeMeta};

/// The media type, for `Accept` and `Content-Type`.
pub use ambit_words::media_types::KUBERNETES_PROTOBUF as MEDIA_TYPE;

/// What every message begins with; `k8s.io/apimachinery/pkg/runtime.Unknown` follows.
const MAGIC: &[u8] = b"k8s\0";
/// Longest single part of a list. The API server's store takes objects of 1.5 MiB.
const PART_MAX: u64 = 16 << 20;
/// Longest key and length of a field.
const HEAD_MAX: usize = 20;

/// Why a body is no list of pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodListError {
    /// It does not begin as every message does.
    #[error("the body does not begin with \"k8s\\0\"")]
    Magic,
    /// It is no protobuf, or a part of it is none.
    #[error("{0}")]
    Encoding(#[from] prost::DecodeError),
    /// A part is longer than any object can be, or of a type that no part has.
    #[error("a field of the list is none that a list has")]
    Field,
    /// It is something else, such as a status.
    #[error("the body is a {0:?} and no PodList of v1")]
    Kind(String),
    /// What it holds is compressed.
    #[error("the body is encoded as {0:?}")]
    Compressed(String),
    /// The body ended early.
    #[error("the body ends before the list does")]
    Cut,
}

/// A part of a list, in the order in which they come.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// The version of the whole list; first.
    Metadata(ListMeta),
    /// A pod.
    Pod(Box<Pod>),
}

/// Reads a list of pods as its bytes come.
#[derive(Debug, Default)]
pub struct PodListReader {
    buffer: BytesMut,
    place: Place,
}

/// Where in the body the buffer begins.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    /// In the envelope; whether its kind was seen.
    Envelope { is_list: bool },
    /// In the list itself, with so many bytes left of it.
    List { left: u64 },
    /// In the envelope, after the list.
    End,
}

impl PodListReader {
    /// Takes the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next part; none until more bytes came.
    pub fn next_part(&mut self) -> Result<Option<Part>, PodListError> {
        loop {
            match self.place {
                Place::Start => {
                    let have = self.buffer.len().min(MAGIC.len());
                    if self.buffer[..have] != MAGIC[..have] {
                        return Err(PodListError::Magic);
                    }
                    if have < MAGIC.len() {
                        return Ok(None);
                    }
                    self.buffer.advance(have);
                    self.place = Place::Envelope { is_list: false };
                }
                Place::Envelope { is_list } => match self.envelope(is_list)? {
                    Some(place) => self.place = place,
                    None => return Ok(None),
                },
                Place::List { left: 0 } => self.place = Place::End,
                Place::End => match self.field()? {
                    Some((3, encoding, _)) if !encoding.is_empty() => {
                        let encoding = String::from_utf8_lossy(&encoding).into_owned();
                        return Err(PodListError::Compressed(encoding));
                    }
                    Some((2, ..)) => return Err(PodListError::Field),
                    Some(_) => {}
                    None => return Ok(None),
                },
                Place::List { left } => {
                    let Some((tag, value, taken)) = self.field()? else { return Ok(None) };
                    let left = left.checked_sub(taken).ok_or(PodListError::Field)?;
                    self.place = Place::List { left };
                    match tag {
                        1 => return Ok(Some(Part::Metadata(ListMeta::decode(value)?))),
                        2 => return Ok(Some(Part::Pod(Box::new(Pod::decode(value)?)))),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Whether the body may end here.
    pub fn end(&self) -> Result<(), PodListError> {
        match self.place {
            Place::List { left: 0 } | Place::End if self.buffer.is_empty() => Ok(()),
            _ => Err(PodListError::Cut),
        }
    }

    /// Reads one field of the envelope; answers where the buffer begins then.
    fn envelope(&mut self, is_list: bool) -> Result<Option<Place>, PodListError> {
        let Some((tag, length, head)) = head(&self.buffer)? else { return Ok(None) };
        // Of runtime.Unknown 1 is the kind, 2 the object, 3 its encoding.
        if tag == 2 {
            if !is_list {
                return Err(PodListError::Kind(String::new()));
            }
            self.buffer.advance(head);
            return Ok(Some(Place::List { left: length }));
        }
        let Some((tag, value, _)) = self.field()? else { return Ok(None) };
        match tag {
            1 => {
                let kind = TypeMeta::decode(value)?;
                if kind.kind != "PodList" || kind.api_version != "v1" {
                    return Err(PodListError::Kind(kind.kind));
                }
                Ok(Some(Place::Envelope { is_list: true }))
            }
            _ => Ok(Some(Place::Envelope { is_list })),
        }
    }

    /// Takes a whole field: its tag, its value and its length with both.
    fn field(&mut self) -> Result<Option<(u32, Bytes, u64)>, PodListError> {
        let Some((tag, length, head)) = head(&self.buffer)? else { return Ok(None) };
        if length > PART_MAX {
            return Err(PodListError::Field);
        }
        let value = usize::try_from(length).map_err(|_| PodListError::Field)?;
        if self.buffer.len() - head < value {
            return Ok(None);
        }
        self.buffer.advance(head);
        let taken = length + u64::try_from(head).map_err(|_| PodListError::Field)?;
        Ok(Some((tag, self.buffer.split_to(value).freeze(), taken)))
    }
}

/// Tag and length of the field that `bytes` begin with, and the length of both.
fn head(bytes: &[u8]) -> Result<Option<(u32, u64, usize)>, PodListError> {
    let mut rest = &bytes[..bytes.len().min(HEAD_MAX)];
    let whole = rest.len();
    let may_grow = whole < HEAD_MAX;
    let read = decode_key(&mut rest).and_then(|key| Ok((key, decode_varint(&mut rest)?)));
    match read {
        Ok(((tag, WireType::LengthDelimited), length)) => {
            Ok(Some((tag, length, whole - rest.len())))
        }
        Ok(_) => Err(PodListError::Field),
        // A number that was cut looks like a wrong one.
        Err(_) if may_grow => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::kubernetes::{ObjectMeta, PodList, Unknown};
    use proptest::prelude::*;

    fn body(kind: &str, api_version: &str, list: &PodList, encoding: &str) -> Vec<u8> {
        let type_meta = TypeMeta { api_version: api_version.into(), kind: kind.into() };
        let wrapped = Unknown {
            type_meta: Some(type_meta),
            raw: list.encode_to_vec().into(),
            content_encoding: encoding.into(),
        };
        [MAGIC, &wrapped.encode_to_vec()].concat()
    }

    fn sample(pods: usize) -> PodList {
        let metadata = ListMeta { resource_version: "7".into() };
        let items = (0..pods).map(|n| {
            let name = format!("web-{n}").repeat(n * 9 + 1);
            let metadata = ObjectMeta { name: name.into(), ..Default::default() };
            Pod { metadata: Some(metadata), ..Default::default() }
        });
        PodList { metadata: Some(metadata), items: items.collect() }
    }

    /// Reads `pieces` one after the other.
    fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<PodList, PodListError> {
        let mut reader = PodListReader::default();
        let mut list = PodList::default();
        for piece in pieces {
            reader.feed(piece);
            while let Some(part) = reader.next_part()? {
                match part {
                    Part::Metadata(metadata) => list.metadata = Some(metadata),
                    Part::Pod(pod) => list.items.push(*pod),
                }
            }
        }
        reader.end().map(|()| list)
    }

    #[test]
    fn only_a_list_of_pods_is_one() {
        let read = |body: &[u8]| read(std::iter::once(body));
        let list = sample(2);
        let good = body("PodList", "v1", &list, "");
        assert_eq!(read(&good), Ok(list.clone()));
        let kind = |kind: &str| Err(PodListError::Kind(kind.into()));
        assert_eq!(read(&body("Status", "v1", &list, "")), kind("Status"));
        assert_eq!(read(&body("PodList", "v2", &list, "")), kind("PodList"));
        let gzip = Err(PodListError::Compressed("gzip".into()));
        assert_eq!(read(&body("PodList", "v1", &list, "gzip")), gzip);
        assert_eq!(read(b"{\"kind\":\"PodList\"}"), Err(PodListError::Magic));
        let unnamed = Unknown { raw: list.encode_to_vec().into(), ..Default::default() };
        assert_eq!(read(&[MAGIC, &unnamed.encode_to_vec()].concat()), kind(""));
        // A pod that says it is longer than its list, one that is longer than any, a number.
        let wrapped = body("PodList", "v1", &PodList::default(), "");
        for (list, wrong) in [
            (&[2, 0x12, 9][..], PodListError::Field),
            (&[9, 0x12, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0], PodListError::Field),
            (&[2, 0x08, 1], PodListError::Field),
        ] {
            let bytes = [&wrapped[..], &[0x12], list, &[0; 9]].concat();
            assert_eq!(read(&bytes), Err(wrong), "{list:?}");
        }
    }

    #[test]
    fn a_body_that_ends_early_is_no_list() {
        let good = body("PodList", "v1", &sample(3), "");
        for end in 0..good.len() {
            let cut = read(std::iter::once(&good[..end]));
            assert_eq!(cut, Err(PodListError::Cut), "cut after {end} bytes");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(pods in 0_usize..20, size in 1_usize..300) {
            let list = sample(pods);
            let body = body("PodList", "v1", &list, "");
            prop_assert_eq!(read(body.chunks(size)), Ok(list));
        }
    }
}
