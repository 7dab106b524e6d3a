//! Fetches an image from a registry into a layout of OCI, from which a store imports it.
//!
//! Only what the image for this machine needs is fetched: `Finder` looks for the image in what is
//! there and names the next thing that is missing, until nothing is. So a registry's image is
//! chosen and checked by the same code as one in a file.
//!
//! TLS comes from the caller ([`Connect`]): this crate names no library for it.

mod challenge;
mod client;
mod credentials;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::archive::Archive;
use crate::digest::Digest;
use crate::documents::{INDEX, MANIFEST, host_architecture};
use crate::halt::Halt;
use crate::limits::{Budget, Exceeded, Limits};
use crate::manifest::{Finder, INDEX_FILE, ManifestError, blob_name};
use crate::reference::Reference;
use crate::source::Source;
use crate::store::Store;

pub use client::{Connect, Endpoint, HttpError};
pub use credentials::{Credentials, CredentialsError};

use client::Client;

/// Where images of the default registry really are.
const DEFAULT_REGISTRY: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// For all parts of one image together.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How images are fetched.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Who the caller is to registries.
    pub credentials: Credentials,
    /// As Go names it.
    pub architecture: String,
    /// What an image may be at most.
    pub limits: Limits,
    /// How long all of one image may take, however steadily it comes.
    pub timeout: Duration,
}

impl Default for PullOptions {
    /// For this machine, by nobody.
    fn default() -> Self {
        Self {
            credentials: Credentials::default(),
            architecture: host_architecture().to_owned(),
            limits: Limits::default(),
            timeout: FETCH_TIMEOUT,
        }
    }
}

/// An image that cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The registry does not answer as registries do.
    #[error("cannot fetch {what} of {reference}")]
    Http {
        /// The image.
        reference: Reference,
        /// Which part of it.
        what: String,
        /// Why.
        #[source]
        source: Box<HttpError>,
    },
    /// No credentials can be had for the registry.
    #[error("cannot log in to {registry}")]
    Credentials {
        /// Which one.
        registry: String,
        /// Why.
        source: CredentialsError,
    },
    /// The image's documents are wrong, or it is not for this machine.
    #[error("cannot use {reference}")]
    Manifest {
        /// The image.
        reference: Reference,
        /// Why.
        #[source]
        source: Box<ManifestError>,
    },
    /// The registry sent something else than was asked for.
    #[error("{registry} sent {found} instead of {expected}; try again")]
    Digest {
        /// Which one.
        registry: String,
        /// As asked.
        expected: Digest,
        /// As sent.
        found: Digest,
    },
    /// All parts of the image together are too large.
    #[error("{reference} is too large")]
    Bound {
        /// The image.
        reference: Reference,
        /// The bound.
        source: Exceeded,
    },
    /// It takes for ever.
    #[error("{reference} is not here after {} seconds; try again nearer to it", .after.as_secs())]
    Timeout {
        /// The image.
        reference: Reference,
        /// How long was waited.
        after: Duration,
    },
    /// The store's file system is too full for it.
    #[error("cannot fetch {what} of {reference}")]
    Room {
        /// The image.
        reference: Reference,
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

/// Fetches an image into a directory, as a layout with this image alone.
///
/// The layers of an image that is in the store already are left out. The directory must be empty,
/// and nobody else's: [`Store::scratch`] makes one. Files are written on the calling thread.
pub async fn pull<C: Connect>(
    connect: &C,
    reference: &Reference,
    options: &PullOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, PullError> {
    let registry = reference.registry();
    let credentials = options.credentials.of(registry).map_err(|source| {
        let registry = registry.to_owned();
        PullError::Credentials { registry, source }
    })?;
    let (short, real) = DEFAULT_REGISTRY;
    let host = if registry == short { real } else { registry };
    let client = Client::new(connect, host, reference.repository(), credentials);
    let mut pull = Pull {
        client: client.map_err(|error| http(reference, registry, error))?,
        reference,
        store,
    };
    let after = options.timeout;
    let elapsed = |_| PullError::Timeout { reference: reference.clone(), after };
    timeout(after, pull.layout(options, directory)).await.map_err(elapsed)??;
    Ok(Source::at(directory))
}

struct Pull<'p, C> {
    client: Client<'p, C>,
    reference: &'p Reference,
    store: &'p Store,
}

fn http(reference: &Reference, what: &str, error: HttpError) -> PullError {
    let (reference, what, source) = (reference.clone(), what.to_owned(), Box::new(error));
    PullError::Http { reference, what, source }
}

impl<C: Connect> Pull<'_, C> {
    /// Fills an empty directory.
    async fn layout(&mut self, options: &PullOptions, directory: &Path) -> Result<(), PullError> {
        let limits = &options.limits;
        let blobs = directory.join("blobs/sha256");
        write(&blobs, std::fs::create_dir_all(&blobs))?;
        self.begin(directory, limits).await?;
        let archive = Archive::Directory(directory.to_owned());
        let source = Source::at(directory);
        let architecture = &options.architecture;
        let is_stored = |digest: &Digest| self.store.has(digest);
        let finder = Finder { archive: &archive, source: &source, architecture, limits, is_stored };
        let mut total = Budget::new(limits.archive_bytes, "bytes in all parts of an image");
        loop {
            match finder.find() {
                Ok(_) => return Ok(()),
                Err(ManifestError::MissingBlob { what, digest, size }) => {
                    let reference = self.reference.clone();
                    total.take(size).map_err(|source| PullError::Bound { reference, source })?;
                    self.fetch(&what, &digest, size, directory).await?;
                }
                Err(error) => {
                    let (reference, source) = (self.reference.clone(), Box::new(error));
                    return Err(PullError::Manifest { reference, source });
                }
            }
        }
    }

    /// Fetches the document that the image's name means, and lists it as the only one.
    async fn begin(&mut self, directory: &Path, limits: &Limits) -> Result<(), PullError> {
        let reference = self.reference;
        let expected = reference.digest();
        let version = match (expected, reference.tag()) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.unwrap_or_default().to_owned(),
        };
        let what = format!("manifest {version}");
        let fetched = self.client.manifest(&version, &accepted(), limits.document_bytes).await;
        let (media_type, bytes) = fetched.map_err(|error| http(reference, &what, error))?;
        let digest = Digest::of(&bytes);
        self.compare(expected.unwrap_or(digest), digest)?;
        let path = directory.join(blob_name(&digest));
        write(&path, std::fs::write(&path, &bytes))?;
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": media_type, "digest": digest, "size": bytes.len(),
        }]});
        let path = directory.join(INDEX_FILE);
        write(&path, std::fs::write(&path, index.to_string()))
    }

    /// Fetches content that is missing, and keeps it only if it is the right one.
    async fn fetch(
        &mut self,
        what: &str,
        digest: &Digest,
        size: u64,
        directory: &Path,
    ) -> Result<(), PullError> {
        self.store.room(size).map_err(|source| {
            let (reference, what) = (self.reference.clone(), what.to_owned());
            PullError::Room { reference, what, source: Box::new(source) }
        })?;
        let failed = |error| http(self.reference, what, error);
        let path = directory.join(blob_name(digest));
        // Its name says only later what it is.
        let next = path.with_extension("next");
        let found = if what.starts_with("manifest ") {
            let version = digest.to_string();
            let fetched = self.client.manifest(&version, &accepted(), size).await;
            let (_, bytes) = fetched.map_err(failed)?;
            write(&next, std::fs::write(&next, &bytes))?;
            Digest::of(&bytes)
        } else {
            let mut file = write(&next, File::create(&next))?;
            self.client.blob(digest, size, &mut file).await.map_err(failed)?
        };
        self.compare(*digest, found)?;
        write(&path, std::fs::rename(&next, &path))
    }

    fn compare(&self, expected: Digest, found: Digest) -> Result<(), PullError> {
        if expected == found {
            return Ok(());
        }
        let registry = self.reference.registry().to_owned();
        Err(PullError::Digest { registry, expected, found })
    }
}

fn accepted() -> String {
    [INDEX, MANIFEST].concat().join(", ")
}

fn write<T>(path: &Path, result: io::Result<T>) -> Result<T, PullError> {
    result.map_err(|source| PullError::Write { path: path.to_owned(), source })
}
