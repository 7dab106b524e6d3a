//! Finds the one image that is meant: by its name, then by this machine's platform.
//!
//! Every document is checked against the digest and size by which it was found, before it is read.
//! Whoever meant something that is not there learns what is.

use std::collections::BTreeSet;
use std::io::{self, Read};

use serde::de::DeserializeOwned;

use crate::archive::{Archive, ArchiveError};
use crate::content::Slice;
use crate::digest::Digest;
use crate::documents::{
    CONFIG, Configuration, Descriptor, DockerManifest, INDEX, MANIFEST, Manifest, Platform,
};
use crate::limits::{Exceeded, Limits, within};
use crate::reference::Reference;
use crate::source::{Form, Source};

/// The document with which a layout of OCI begins.
pub(crate) const INDEX_FILE: &str = "index.json";
/// The document with which an archive of Docker begins.
const DOCKER_FILE: &str = "manifest.json";
/// Where content lies that is known by its digest.
const BLOBS: &str = "blobs/sha256/";
/// The only operating system that runs here.
const OS: &str = "linux";

/// An image that cannot be found, or whose documents are wrong.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read at all.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// It has no image.
    #[error("{source_text} has no image: there is neither index.json nor manifest.json")]
    NoImage {
        /// Where.
        source_text: String,
    },
    /// Part of the image is not there.
    #[error("{what} is not there")]
    Missing {
        /// Which part.
        what: String,
    },
    /// Content that a document names by its digest is not there.
    #[error("{what} is not there")]
    MissingBlob {
        /// Which part.
        what: String,
        /// Its digest.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
    },
    /// A document cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// Which one.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A document is no JSON, or not that of an image.
    #[error("{what} is not as OCI and Docker write it")]
    Json {
        /// Which one.
        what: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A document is too large or has too much in it.
    #[error("{what} is too large")]
    Bound {
        /// Which one.
        what: String,
        /// The bound.
        source: Exceeded,
    },
    /// Content is not what its name says.
    #[error("{what} has digest {found}; it was changed or is damaged, load the image again")]
    Digest {
        /// Which content.
        what: String,
        /// Its digest.
        found: Digest,
    },
    /// Content is shorter or longer than its descriptor says.
    #[error("{what} has {found} bytes instead of {expected}; load the image again")]
    Size {
        /// Which content.
        what: String,
        /// As described.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// A document has something that is not supported, or contradicts itself.
    #[error("{what} {reason}")]
    Unsupported {
        /// Which one.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no image of this name.
    #[error("no image is named {name:?}; there are {}", listed(.names))]
    Name {
        /// As written.
        name: String,
        /// Names that are there.
        names: Vec<String>,
    },
    /// There are several images.
    #[error("there are several images; add one of these names after a colon: {}", listed(.names))]
    Ambiguous {
        /// Names that are there.
        names: Vec<String>,
    },
    /// There is none for this machine.
    #[error("there is no image for {wanted}, only for {}", listed(.available))]
    Platform {
        /// This machine.
        wanted: String,
        /// What is there.
        available: Vec<String>,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// An image, with all that is needed to unpack it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) digest: Digest,
    pub(crate) configuration: Configuration,
    /// None if the image is unpacked already.
    pub(crate) layers: Vec<Layer>,
}

/// A layer that has not been looked at.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) content: Slice,
    /// Of the content as it is stored; archives of Docker do not have it.
    pub(crate) digest: Option<Digest>,
    /// Of the content before compression.
    pub(crate) diff_id: Digest,
}

/// Looks for the image in an archive.
pub(crate) struct Finder<'a, S> {
    pub(crate) archive: &'a Archive,
    pub(crate) source: &'a Source,
    /// The machine's, as Go names it.
    pub(crate) architecture: &'a str,
    pub(crate) limits: &'a Limits,
    /// Whether the image with this configuration is unpacked already: then its layers are not
    /// looked for.
    pub(crate) is_stored: S,
}

impl<S: Fn(&Digest) -> bool> Finder<'_, S> {
    pub(crate) fn find(&self) -> Result<Found, ManifestError> {
        let is_there = |name| Ok::<_, ManifestError>(self.archive.file(name)?.is_some());
        let found = if self.source.form != Form::Docker && is_there(INDEX_FILE)? {
            self.of_layout()?
        } else if self.source.form != Form::Oci && is_there(DOCKER_FILE)? {
            self.of_docker()?
        } else {
            return Err(ManifestError::NoImage { source_text: self.source.to_string() });
        };
        let (has, wanted) = (&found.configuration, self.architecture);
        let is_ours = [("", ""), (OS, ""), ("", wanted), (OS, wanted)]
            .contains(&(&*has.os, &*has.architecture));
        if is_ours {
            return Ok(found);
        }
        let platform = Platform {
            os: has.os.clone(),
            architecture: has.architecture.clone(),
            variant: has.variant.clone(),
        };
        Err(self.no_platform([&platform]))
    }

    fn of_layout(&self) -> Result<Found, ManifestError> {
        let index: Manifest = self.json(INDEX_FILE, &self.read(INDEX_FILE)?)?;
        let listed = index.manifests.unwrap_or_default();
        self.bound(INDEX_FILE, listed.len(), self.limits.index_entries, "entries")?;
        let images: Vec<Descriptor> = listed.into_iter().filter(Descriptor::is_image).collect();
        let top = self.of_name(&images)?;
        let (manifest, what) = self.manifest(top)?;
        self.of_manifest(manifest, &what)
    }

    /// The image that was asked for by name, or the only one.
    fn of_name<'d>(&self, images: &'d [Descriptor]) -> Result<&'d Descriptor, ManifestError> {
        let names = || {
            let names = images.iter().map(|image| {
                let named = image.names().next().map(str::to_owned);
                named.unwrap_or_else(|| image.digest.to_string())
            });
            names.collect::<BTreeSet<String>>().into_iter().collect::<Vec<_>>()
        };
        let chosen: Vec<&Descriptor> = match &self.source.name {
            Some(wanted) => {
                let is_meant = |it: &&Descriptor| it.names().any(|name| is_same(name, wanted));
                images.iter().filter(is_meant).collect()
            }
            None => images.iter().collect(),
        };
        let Some(first) = chosen.first().copied() else {
            return Err(match &self.source.name {
                Some(name) => ManifestError::Name { name: name.clone(), names: names() },
                None => ManifestError::NoImage { source_text: self.source.to_string() },
            });
        };
        if chosen.iter().all(|image| image.digest == first.digest) {
            return Ok(first);
        }
        // The same image for several platforms, without an index of its own.
        let is_like_first = |it: &&Descriptor| it.names().eq(first.names());
        if chosen.iter().all(is_like_first) && chosen.iter().all(|it| it.platform.is_some()) {
            return self.of_platform(&chosen);
        }
        Err(ManifestError::Ambiguous { names: names() })
    }

    /// The image for this machine; the variant that asks least of the processor.
    fn of_platform<'d>(&self, images: &[&'d Descriptor]) -> Result<&'d Descriptor, ManifestError> {
        let platforms = || images.iter().filter_map(|image| image.platform.as_ref());
        let fitting = images.iter().filter(|image| {
            let platform = image.platform.as_ref();
            platform.is_some_and(|it| it.os == OS && it.architecture == self.architecture)
        });
        let least = fitting.min_by_key(|image| {
            let variant = image.platform.as_ref().and_then(|it| it.variant.as_deref());
            variant.unwrap_or_default().to_owned()
        });
        if let Some(image) = least {
            return Ok(image);
        }
        // One that does not say; its configuration will.
        let mut silent = images.iter().filter(|image| image.platform.is_none());
        match (silent.next(), silent.next()) {
            (Some(image), None) => Ok(image),
            _ => Err(self.no_platform(platforms())),
        }
    }

    /// The manifest at this descriptor, or in the index there.
    fn manifest(&self, top: &Descriptor) -> Result<(Manifest, String), ManifestError> {
        let mut descriptor = top.clone();
        for _ in 0..=self.limits.index_depth {
            let what = format!("manifest {}", descriptor.digest);
            let document: Manifest = self.json(&what, &self.blob(&what, &descriptor)?)?;
            let unsupported =
                |reason: String| Err(ManifestError::Unsupported { what: what.clone(), reason });
            if document.schema_version == Some(1) {
                return unsupported("is of Docker's first schema: push the image again".to_owned());
            }
            let is_manifest = document.config.is_some() || document.layers.is_some();
            // What one reader takes for an index and another for a manifest has two digests' worth
            // of content under one.
            let expected: &[&str] = match (&document.manifests, is_manifest) {
                (Some(_), true) => {
                    return unsupported("is both an index and a manifest".to_owned());
                }
                (None, false) => return unsupported("is neither index nor manifest".to_owned()),
                (Some(_), false) => &INDEX,
                (None, true) => &MANIFEST,
            };
            for given in [&descriptor.media_type, &document.media_type] {
                if !given.is_empty() && !expected.contains(&&**given) {
                    return unsupported(format!("has media type {given:?}"));
                }
            }
            let Some(listed) = document.manifests else { return Ok((document, what)) };
            self.bound(&what, listed.len(), self.limits.index_entries, "entries")?;
            let images: Vec<&Descriptor> = listed.iter().filter(|it| it.is_image()).collect();
            descriptor = self.of_platform(&images)?.clone();
        }
        let source = Exceeded { what: "indexes in one another", limit: self.limits.index_depth };
        Err(ManifestError::Bound { what: format!("manifest {}", top.digest), source })
    }

    fn of_manifest(&self, manifest: Manifest, what: &str) -> Result<Found, ManifestError> {
        let unsupported =
            |reason: String| Err(ManifestError::Unsupported { what: what.to_owned(), reason });
        let Some(config) = manifest.config else {
            return unsupported("has no configuration".to_owned());
        };
        let media_type = &config.media_type;
        if !media_type.is_empty() && !CONFIG.contains(&&**media_type) {
            return unsupported(format!("is not of an image but of {media_type:?}"));
        }
        let layers = manifest.layers.unwrap_or_default();
        self.bound(what, layers.len(), self.limits.layers, "layers")?;
        let what = format!("configuration {}", config.digest);
        let configuration: Configuration = self.json(&what, &self.blob(&what, &config)?)?;
        if (self.is_stored)(&config.digest) {
            return Ok(Found { digest: config.digest, configuration, layers: Vec::new() });
        }
        let mut contents = Vec::new();
        for layer in layers {
            let media_type = &layer.media_type;
            if !media_type.contains(".tar") || media_type.ends_with("encrypted") {
                return unsupported(format!("has a layer of media type {media_type:?}"));
            }
            let what = format!("layer {}", layer.digest);
            let content = self.content(&what, &layer, self.limits.blob_bytes)?;
            contents.push((content, Some(layer.digest)));
        }
        let layers = with_diff_ids(&configuration, contents, &what)?;
        Ok(Found { digest: config.digest, configuration, layers })
    }

    fn of_docker(&self) -> Result<Found, ManifestError> {
        let images: Vec<DockerManifest> = self.json(DOCKER_FILE, &self.read(DOCKER_FILE)?)?;
        self.bound(DOCKER_FILE, images.len(), self.limits.index_entries, "entries")?;
        let names = || {
            let names = images.iter().flat_map(|image| image.repo_tags.iter().cloned());
            names.collect::<Vec<String>>()
        };
        let mut chosen = images.iter().filter(|image| match &self.source.name {
            Some(wanted) => image.repo_tags.iter().any(|name| is_same(name, wanted)),
            None => true,
        });
        let image = match (chosen.next(), chosen.next(), &self.source.name) {
            (Some(image), None, _) => image,
            (Some(_), Some(_), _) => return Err(ManifestError::Ambiguous { names: names() }),
            (None, _, Some(name)) => {
                return Err(ManifestError::Name { name: name.clone(), names: names() });
            }
            (None, _, None) => {
                return Err(ManifestError::NoImage { source_text: self.source.to_string() });
            }
        };
        self.bound(DOCKER_FILE, image.layers.len(), self.limits.layers, "layers")?;
        let what = format!("configuration {}", image.config);
        let bytes = self.read(&image.config)?;
        let digest = Digest::of(&bytes);
        let named = image.config.strip_suffix(".json").and_then(Digest::from_hex);
        if named.or_else(|| digest_in(&image.config)).is_some_and(|named| named != digest) {
            return Err(ManifestError::Digest { what, found: digest });
        }
        let configuration: Configuration = self.json(&what, &bytes)?;
        let mut contents = Vec::new();
        for layer in &image.layers {
            let content = self.archive.file(layer)?;
            let what = format!("layer {layer}");
            let content = content.ok_or(ManifestError::Missing { what: what.clone() })?;
            within(content.size(), self.limits.blob_bytes, "bytes of a layer")
                .map_err(|source| ManifestError::Bound { what, source })?;
            contents.push((content, digest_in(layer)));
        }
        let layers = with_diff_ids(&configuration, contents, &what)?;
        Ok(Found { digest, configuration, layers })
    }

    /// A whole document by its name.
    fn read(&self, name: &str) -> Result<Vec<u8>, ManifestError> {
        let content = self.archive.file(name)?;
        let content = content.ok_or_else(|| ManifestError::Missing { what: name.to_owned() })?;
        self.bytes(name, content)
    }

    /// A whole document by its descriptor.
    fn blob(&self, what: &str, descriptor: &Descriptor) -> Result<Vec<u8>, ManifestError> {
        let content = self.content(what, descriptor, self.limits.document_bytes)?;
        let bytes = self.bytes(what, content)?;
        let found = Digest::of(&bytes);
        if found != descriptor.digest {
            return Err(ManifestError::Digest { what: what.to_owned(), found });
        }
        Ok(bytes)
    }

    /// Content by its descriptor; its digest is not yet known.
    fn content(
        &self,
        what: &str,
        descriptor: &Descriptor,
        limit: u64,
    ) -> Result<Slice, ManifestError> {
        let what = || what.to_owned();
        within(descriptor.size, limit, "bytes")
            .map_err(|source| ManifestError::Bound { what: what(), source })?;
        let name = blob_name(&descriptor.digest);
        let content = self.archive.file(&name)?.ok_or_else(|| ManifestError::MissingBlob {
            what: what(),
            digest: descriptor.digest,
            size: descriptor.size,
        })?;
        let (expected, found) = (descriptor.size, content.size());
        if expected != found {
            return Err(ManifestError::Size { what: what(), expected, found });
        }
        Ok(content)
    }

    fn bytes(&self, what: &str, mut content: Slice) -> Result<Vec<u8>, ManifestError> {
        within(content.size(), self.limits.document_bytes, "bytes")
            .map_err(|source| ManifestError::Bound { what: what.to_owned(), source })?;
        let mut bytes = Vec::new();
        content
            .read_to_end(&mut bytes)
            .map_err(|source| ManifestError::Read { what: what.to_owned(), source })?;
        Ok(bytes)
    }

    fn json<T: DeserializeOwned>(&self, what: &str, bytes: &[u8]) -> Result<T, ManifestError> {
        serde_json::from_slice(bytes)
            .map_err(|source| ManifestError::Json { what: what.to_owned(), source })
    }

    fn bound(
        &self,
        what: &str,
        number: usize,
        limit: u64,
        of: &'static str,
    ) -> Result<(), ManifestError> {
        within(number as u64, limit, of)
            .map_err(|source| ManifestError::Bound { what: what.to_owned(), source })
    }

    fn no_platform<'p>(&self, there: impl IntoIterator<Item = &'p Platform>) -> ManifestError {
        let available = there.into_iter().map(|platform| {
            let variant = platform.variant.iter().map(|variant| format!("/{variant}"));
            let variant: String = variant.collect();
            format!("{}/{}{variant}", platform.os, platform.architecture)
        });
        let available: BTreeSet<String> = available.collect();
        ManifestError::Platform {
            wanted: format!("{OS}/{}", self.architecture),
            available: available.into_iter().collect(),
        }
    }
}

/// Every layer has a digest in the configuration, in the same order.
fn with_diff_ids(
    configuration: &Configuration,
    contents: Vec<(Slice, Option<Digest>)>,
    what: &str,
) -> Result<Vec<Layer>, ManifestError> {
    let diff_ids = &configuration.rootfs.diff_ids;
    if diff_ids.len() != contents.len() {
        let (described, there) = (diff_ids.len(), contents.len());
        let reason = format!("describes {described} layers, but the image has {there}");
        return Err(ManifestError::Unsupported { what: what.to_owned(), reason });
    }
    let layers = contents.into_iter().zip(diff_ids);
    let layer =
        |((content, digest), diff_id): (_, &Digest)| Layer { content, digest, diff_id: *diff_id };
    Ok(layers.map(layer).collect())
}

/// Where content lies in a layout.
pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}

/// The digest that a file's name says it has.
fn digest_in(name: &str) -> Option<Digest> {
    name.strip_prefix(BLOBS).and_then(Digest::from_hex)
}

/// Whether two texts are equal, or name the same image.
fn is_same(name: &str, wanted: &str) -> bool {
    let parsed = || name.parse::<Reference>().ok().zip(wanted.parse::<Reference>().ok());
    name == wanted || parsed().is_some_and(|(name, wanted)| name == wanted)
}
