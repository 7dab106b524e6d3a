//! The documents of an image: index, manifest and configuration, as OCI and Docker write them.
//!
//! These types are what is read. Nothing here decides which image is meant.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::digest::Digest;

/// The manifest of one image, and Docker's name of it.
pub(crate) const MANIFEST: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// A list of manifests, mostly one for each platform, and Docker's name of it.
pub(crate) const INDEX: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// How the media types of configurations of images end, and what other things have instead.
pub(crate) const CONFIG: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// The name that whoever wrote a layout gave an image: a reference, a tag, or any text.
const ANNOTATION_NAME: &str = "org.opencontainers.image.ref.name";
/// The complete name, by containerd and Docker.
const ANNOTATION_FULL_NAME: &str = "io.containerd.image.name";
/// Not an image but a statement on one.
const ANNOTATION_KIND: &str = "vnd.docker.reference.type";

/// Where content is found, and what it must be.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "null_is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// The names that this image has where it lies, the complete one first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let keys = [ANNOTATION_FULL_NAME, ANNOTATION_NAME];
        keys.into_iter().filter_map(|key| self.annotations.get(key)).map(String::as_str)
    }

    /// Whether this is an image at all: builders add statements on how it was made.
    pub(crate) fn is_image(&self) -> bool {
        let is_unknown = self.platform.as_ref().is_some_and(|it| it.os == "unknown");
        !is_unknown && !self.annotations.contains_key(ANNOTATION_KIND)
    }
}

/// For which machines an image is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    pub(crate) variant: Option<String>,
}

/// An index or a manifest: one document must not be both.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) schema_version: Option<u64>,
    pub(crate) manifests: Option<Vec<Descriptor>>,
    pub(crate) config: Option<Descriptor>,
    pub(crate) layers: Option<Vec<Descriptor>>,
}

/// One image in the `manifest.json` of a Docker archive: names of files in it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerManifest {
    pub(crate) config: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) layers: Vec<String>,
}

/// The configuration of an image.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    pub(crate) variant: Option<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) config: Process,
    pub(crate) rootfs: RootFs,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RootFs {
    /// The digest of each layer before compression.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) diff_ids: Vec<Digest>,
}

/// How an image's process is started.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Process {
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) user: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) exposed_ports: BTreeMap<String, serde::de::IgnoredAny>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) env: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) volumes: BTreeMap<String, serde::de::IgnoredAny>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) working_dir: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) stop_signal: Option<String>,
}

/// Go writes `null` for lists and maps that are empty.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
