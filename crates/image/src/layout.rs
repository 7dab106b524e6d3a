//! Fills an empty directory with one image from elsewhere, as a layout of OCI, from which a store
//! imports it.
//!
//! Only what the image for this machine needs is fetched: `Finder` looks for the image in what is
//! there and names the next thing that is missing, until nothing is. So an image is chosen and
//! checked by the same code wherever it is.

use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_words::host_architecture;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::archive::Archive;
use crate::digest::Digest;
use crate::exchange::Sink;
use crate::halt::Halt;
use crate::limits::{Budget, Exceeded, Limits};
use crate::manifest::{Finder, INDEX_FILE, ManifestError, blob_name};
use crate::source::Source;
use crate::store::Store;

/// For all parts of one image together.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How images are fetched.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// As Go names it.
    pub architecture: String,
    /// What an image may be at most.
    pub limits: Limits,
    /// How long all of one image may take, however steadily it comes.
    pub timeout: Duration,
}

impl Default for FetchOptions {
    /// For this machine.
    fn default() -> Self {
        Self {
            architecture: host_architecture().to_owned(),
            limits: Limits::default(),
            timeout: FETCH_TIMEOUT,
        }
    }
}

/// Parts of an image that are no layout.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The image's documents are wrong, or it is not for this machine.
    #[error("cannot use {image}")]
    Manifest {
        /// The image.
        image: String,
        /// Why.
        #[source]
        source: Box<ManifestError>,
    },
    /// Something else came than was asked for.
    #[error("{sender} sent {found} instead of {expected}; try again")]
    Digest {
        /// Who.
        sender: String,
        /// As asked.
        expected: Digest,
        /// As sent.
        found: Digest,
    },
    /// All parts of the image together are too large.
    #[error("{image} is too large")]
    Bound {
        /// The image.
        image: String,
        /// The bound.
        source: Exceeded,
    },
    /// The store's file system is too full for it.
    #[error("cannot fetch {what} of {image}")]
    Room {
        /// The image.
        image: String,
        /// Which part of it.
        what: String,
        /// Why.
        source: Box<Halt>,
    },
    /// It cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Who has the parts of an image.
pub(crate) trait Parts {
    type Error: From<LayoutError>;

    /// Writes a part to a file; the digest of what was written. `what` says which part it is.
    fn fetch(
        &mut self,
        what: &str,
        digest: &Digest,
        size: u64,
        file: &mut File,
    ) -> impl Future<Output = Result<Digest, Self::Error>>;
}

/// A file, and the digest of what is in it.
pub(crate) struct HashedFile<'f>(&'f mut File, Sha256);

impl<'f> HashedFile<'f> {
    pub(crate) fn new(file: &'f mut File) -> Self {
        Self(file, Sha256::new())
    }

    pub(crate) fn digest(self) -> Digest {
        Digest::from_bytes(self.1.finalize().into())
    }
}

impl Sink for HashedFile<'_> {
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.1.update(piece);
        self.0.write_all(piece)
    }
}

/// A directory that is to become a layout with one image. It must be empty, and nobody else's.
/// Files are written on the calling thread.
pub(crate) struct Layout<'l> {
    /// The image, for people.
    pub(crate) image: &'l str,
    /// Who sends it, for people.
    pub(crate) sender: &'l str,
    pub(crate) directory: &'l Path,
    pub(crate) store: &'l Store,
    pub(crate) options: &'l FetchOptions,
}

impl Layout<'_> {
    /// Lists a document as the only one: that which the image's name means.
    pub(crate) fn begin(
        &self,
        media_type: &str,
        expected: Option<Digest>,
        bytes: &[u8],
    ) -> Result<(), LayoutError> {
        let blobs = self.directory.join("blobs/sha256");
        write(&blobs, std::fs::create_dir_all(&blobs))?;
        let digest = Digest::of(bytes);
        self.compare(expected.unwrap_or(digest), digest)?;
        let path = self.directory.join(blob_name(&digest));
        write(&path, std::fs::write(&path, bytes))?;
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": media_type, "digest": digest, "size": bytes.len(),
        }]});
        let path = self.directory.join(INDEX_FILE);
        write(&path, std::fs::write(&path, index.to_string()))
    }

    /// Fetches what is missing for the image of this machine. The layers of an image that is in the
    /// store already are left out.
    pub(crate) async fn fill<P: Parts>(&self, parts: &mut P) -> Result<Source, P::Error> {
        let FetchOptions { architecture, limits, .. } = self.options;
        let archive = Archive::Directory(self.directory.to_owned());
        let source = Source::at(self.directory);
        let is_stored = |digest: &Digest| self.store.has(digest);
        let finder = Finder { archive: &archive, source: &source, architecture, limits, is_stored };
        let mut total = Budget::new(limits.archive_bytes, "bytes in all parts of an image");
        loop {
            match finder.find() {
                Ok(_) => return Ok(source),
                Err(ManifestError::MissingBlob { what, digest, size }) => {
                    let image = self.image.to_owned();
                    total.take(size).map_err(|source| LayoutError::Bound { image, source })?;
                    self.fetch(parts, &what, &digest, size).await?;
                }
                Err(error) => {
                    let (image, source) = (self.image.to_owned(), Box::new(error));
                    return Err(LayoutError::Manifest { image, source }.into());
                }
            }
        }
    }

    /// Fetches content that is missing, and keeps it only if it is the right one.
    async fn fetch<P: Parts>(
        &self,
        parts: &mut P,
        what: &str,
        digest: &Digest,
        size: u64,
    ) -> Result<(), P::Error> {
        self.room(what, size)?;
        let path = self.directory.join(blob_name(digest));
        // Its name says only later what it is.
        let next = path.with_extension("next");
        let mut file = write(&next, File::create(&next))?;
        let found = parts.fetch(what, digest, size, &mut file).await?;
        self.compare(*digest, found)?;
        Ok(write(&path, std::fs::rename(&next, &path))?)
    }

    /// Whether so many bytes more may be written.
    pub(crate) fn room(&self, what: &str, bytes: u64) -> Result<(), LayoutError> {
        self.store.room(bytes).map_err(|source| {
            let (image, what) = (self.image.to_owned(), what.to_owned());
            LayoutError::Room { image, what, source: Box::new(source) }
        })
    }

    fn compare(&self, expected: Digest, found: Digest) -> Result<(), LayoutError> {
        if expected == found {
            return Ok(());
        }
        Err(LayoutError::Digest { sender: self.sender.to_owned(), expected, found })
    }
}

/// Says where writing failed.
pub(crate) fn write<T>(path: &Path, result: io::Result<T>) -> Result<T, LayoutError> {
    result.map_err(|source| LayoutError::Write { path: path.to_owned(), source })
}
