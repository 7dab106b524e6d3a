//! One layer on its way into the tree: decompressed, checked and unpacked in one pass.

use std::io::{self, Read};

use crate::content::{Bounded, Counted, Stream, decompressed, drain};
use crate::digest::{Digest, Hashing};
use crate::entries::TarError;
use crate::halt::Guard;
use crate::limits::{Budget, Limits};
use crate::manifest::Layer;
use crate::unpack::{UnpackError, Unpacker};

/// A layer that does not become part of the tree.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// It cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// It is not what the image's documents say.
    #[error("its {what} is {found} instead of {expected}: load the image again")]
    Digest {
        /// Of which form of it.
        what: &'static str,
        /// As the documents say.
        expected: Digest,
        /// As it is.
        found: Digest,
    },
}

impl From<io::Error> for LayerError {
    fn from(error: io::Error) -> Self {
        UnpackError::from(TarError::from(error)).into()
    }
}

/// Unpacks a layer on top of those before, and checks both of its digests.
///
/// What is unpacked is not yet proven; the tree is thrown away if it turns out wrong. Nothing is
/// read twice.
pub(crate) fn unpack(
    layer: &Layer,
    unpacker: &mut Unpacker<'_>,
    unpacked: &mut Budget,
    limits: &Limits,
    guard: &Guard<'_>,
) -> Result<(), LayerError> {
    let (counted, compressed) = Counted::new(guard.over(layer.content.clone()));
    let mut stored = Hashing::new(counted);
    let bounded = |plain| Bounded::new(guard.over(plain), unpacked, compressed, limits);
    let diff_id = decompressed(&mut stored).map_err(LayerError::from);
    let diff_id = diff_id.and_then(|plain| unpack_plain(bounded(plain), unpacker));
    // Whoever got damaged data should learn that, and not what it looks like.
    let may_be_damaged = match &diff_id {
        Ok(_) => true,
        Err(LayerError::Unpack(UnpackError::Tar(error))) => {
            matches!(error, TarError::Read(_) | TarError::Header { .. })
        }
        Err(_) => false,
    };
    if may_be_damaged {
        drain(&mut stored)?;
        if let Some(expected) = layer.digest {
            compare("digest", expected, stored.digest())?;
        }
    }
    compare("digest before compression", layer.diff_id, diff_id?)
}

/// The digest of what was unpacked.
fn unpack_plain(plain: impl Read, unpacker: &mut Unpacker<'_>) -> Result<Digest, LayerError> {
    let mut plain = Hashing::new(plain);
    unpacker.layer(Stream(&mut plain))?;
    drain(&mut plain)?;
    Ok(plain.digest())
}

fn compare(what: &'static str, expected: Digest, found: Digest) -> Result<(), LayerError> {
    if expected == found { Ok(()) } else { Err(LayerError::Digest { what, expected, found }) }
}
