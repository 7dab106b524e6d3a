//! Fetches an image from a registry into a layout of OCI, from which a store imports it.
//!
//! TLS comes from the caller ([`Connect`]): this crate names no library for it.

mod challenge;
mod client;
mod credentials;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use crate::digest::Digest;
use crate::documents::{INDEX, MANIFEST};
use crate::layout::{FetchOptions, Layout, LayoutError, Parts};
use crate::reference::Reference;
use crate::source::Source;
use crate::store::Store;

pub use client::{Connect, Endpoint, HttpError};
pub use credentials::{Credentials, CredentialsError};

use client::Client;

/// Where images of the default registry really are.
const DEFAULT_REGISTRY: (&str, &str) = ("docker.io", "registry-1.docker.io");

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
    /// What it sends is not the image.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It takes for ever.
    #[error("{reference} is not here after {} seconds; try again nearer to it", .after.as_secs())]
    Timeout {
        /// The image.
        reference: Reference,
        /// How long was waited.
        after: Duration,
    },
}

/// Fetches an image into a directory, as a layout with this image alone.
///
/// The layers of an image that is in the store already are left out. The directory must be empty,
/// and nobody else's: [`Store::scratch`] makes one. Files are written on the calling thread.
pub async fn pull<C: Connect>(
    connect: &C,
    credentials: &Credentials,
    reference: &Reference,
    options: &FetchOptions,
    store: &Store,
    directory: &Path,
) -> Result<Source, PullError> {
    let registry = reference.registry();
    let credentials = credentials.of(registry).map_err(|source| {
        let registry = registry.to_owned();
        PullError::Credentials { registry, source }
    })?;
    let (short, real) = DEFAULT_REGISTRY;
    let host = if registry == short { real } else { registry };
    let client = Client::new(connect, host, reference.repository(), credentials);
    let client = client.map_err(|error| http(reference, registry, error))?;
    let mut pull = Pull { client, reference };
    let image = reference.to_string();
    let layout = Layout { image: &image, sender: registry, directory, store, options };
    let after = options.timeout;
    let elapsed = |_| PullError::Timeout { reference: reference.clone(), after };
    timeout(after, pull.layout(&layout)).await.map_err(elapsed)?
}

struct Pull<'p, C> {
    client: Client<'p, C>,
    reference: &'p Reference,
}

fn http(reference: &Reference, what: &str, error: HttpError) -> PullError {
    let (reference, what, source) = (reference.clone(), what.to_owned(), Box::new(error));
    PullError::Http { reference, what, source }
}

impl<C: Connect> Pull<'_, C> {
    /// Begins with the document that the image's name means.
    async fn layout(&mut self, layout: &Layout<'_>) -> Result<Source, PullError> {
        let expected = self.reference.digest();
        let version = match (expected, self.reference.tag()) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.unwrap_or_default().to_owned(),
        };
        let what = format!("manifest {version}");
        let limit = layout.options.limits.document_bytes;
        let fetched = self.client.manifest(&version, &accepted(), limit).await;
        let (media_type, bytes) = fetched.map_err(|error| http(self.reference, &what, error))?;
        layout.begin(&media_type, expected, &bytes)?;
        let source = layout.fill(self).await?;
        Ok(source.shown_as(format!("registry:{}", self.reference)))
    }
}

impl<C: Connect> Parts for Pull<'_, C> {
    type Error = PullError;

    async fn fetch(
        &mut self,
        what: &str,
        digest: &Digest,
        size: u64,
        file: &mut File,
    ) -> Result<Digest, PullError> {
        let failed = |error| http(self.reference, what, error);
        if !what.starts_with("manifest ") {
            return self.client.blob(digest, size, file).await.map_err(failed);
        }
        let fetched = self.client.manifest(&digest.to_string(), &accepted(), size).await;
        let (_, bytes) = fetched.map_err(failed)?;
        file.write_all(&bytes).map_err(|error| failed(HttpError::Write(error)))?;
        Ok(Digest::of(&bytes))
    }
}

fn accepted() -> String {
    [INDEX, MANIFEST].concat().join(", ")
}
