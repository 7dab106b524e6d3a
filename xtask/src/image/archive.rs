//! An OCI image layout of one layer, in a tar archive.
//!
//! As in the OCI image specification 1.1: `oci-layout`, `index.json`, and blobs named by their
//! digest. One layer, one platform. Readers must know zstd: containerd 1.5 and Docker 23 do.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tar::Tar;

/// The highest level whose window, 8 MiB, every reader should take (RFC 8878, 3.1.1.1.2).
const ZSTD_LEVEL: i32 = 19;

/// An image to be written.
pub(crate) struct Image {
    /// `NAME:TAG` under which importers know it.
    pub(crate) name: String,
    /// The program it runs.
    pub(crate) entry_point: String,
    /// The time of everything in it.
    pub(crate) created_unix: u64,
    /// Its entries; their parent directories are added.
    pub(crate) entries: Vec<Entry>,
    /// Of its layer.
    pub(crate) compression: Compression,
}

/// Whether a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Small to send: the binary comes to 72 % of its size with gzip.
    Zstd,
    /// Quick to make and to import.
    None,
}

/// A file of an image.
pub(crate) struct Entry {
    path: String,
    mode: u32,
    content: Vec<u8>,
}

impl Entry {
    /// What can be run.
    pub(crate) fn program(path: &str, content: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o755, content }
    }

    /// What can be read.
    pub(crate) fn text(path: &str, content: &str) -> Self {
        Self { path: path.to_owned(), mode: 0o644, content: content.as_bytes().to_vec() }
    }

    /// Where it is.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// A blob and what refers to it.
struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&content), content }
    }

    fn json(media_type: &'static str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into_bytes())
    }

    fn descriptor(&self) -> Value {
        let size = self.content.len();
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": size })
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

impl Image {
    /// Writes the archive; says the manifest's digest.
    pub(crate) fn write(&self, output: &Path) -> Result<String> {
        let content = members(self.created_unix, &self.entries)?;
        let unpacked = digest(&content);
        let layer = match self.compression {
            Compression::None => Blob::new("application/vnd.oci.image.layer.v1.tar", content),
            Compression::Zstd => {
                Blob::new("application/vnd.oci.image.layer.v1.tar+zstd", zstd(&content)?)
            }
        };
        let configuration = Blob::json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": architecture(),
                "os": "linux",
                "config": { "Entrypoint": [self.entry_point], "WorkingDir": "/" },
                "rootfs": { "type": "layers", "diff_ids": [unpacked] },
            }),
        );
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = Blob::json(
            manifest_type,
            &json!({
                "schemaVersion": 2,
                "mediaType": manifest_type,
                "config": configuration.descriptor(),
                "layers": [layer.descriptor()],
            }),
        );
        let mut archive = Tar::new(self.created_unix);
        archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        archive.file("index.json", 0o644, self.index(&manifest).to_string().as_bytes())?;
        archive.directory("blobs", 0o755)?;
        archive.directory("blobs/sha256", 0o755)?;
        for blob in [&manifest, &configuration, &layer] {
            archive.file(&blob.path(), 0o644, &blob.content)?;
        }
        std::fs::write(output, archive.finish())
            .with_context(|| format!("write {}", output.display()))?;
        Ok(manifest.digest)
    }

    fn index(&self, manifest: &Blob) -> Value {
        let mut descriptor = manifest.descriptor();
        descriptor["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        let tag = self.name.rsplit(':').next().unwrap_or_default();
        descriptor["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag,
        });
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        })
    }
}

/// Entries as a compressed tar archive.
pub(crate) fn packed(time: u64, entries: &[Entry]) -> Result<Vec<u8>> {
    gzip(&members(time, entries)?)
}

/// Entries as a tar stream, each below its directories.
fn members(time: u64, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut stream = Tar::new(time);
    let mut made = BTreeSet::new();
    for entry in entries {
        let path = entry.path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            if made.insert(&path[..end]) {
                stream.directory(&path[..end], 0o755)?;
            }
        }
        stream.file(path, entry.mode, &entry.content)?;
    }
    Ok(stream.finish())
}

/// The machine as Go, and with it OCI, calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Compressed for a layer.
fn zstd(content: &[u8]) -> Result<Vec<u8>> {
    zstd::encode_all(content, ZSTD_LEVEL).context("compress")
}

/// Compressed, with a header that knows neither name nor time.
fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let level = flate2::Compression::best();
    let mut encoder = flate2::GzBuilder::new().mtime(0).write(Vec::new(), level);
    encoder.write_all(content).context("compress")?;
    encoder.finish().context("compress")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_gives_the_same_digest() {
        let place = std::env::temp_dir().join(format!("ambit-archive-{}", std::process::id()));
        let write = |text: &str, compression| {
            let image = Image {
                name: "registry.local/x:1".into(),
                entry_point: "/bin/x".into(),
                created_unix: 1,
                entries: vec![
                    Entry::program("/bin/x", b"x".to_vec()),
                    Entry::text("/bin/text", text),
                ],
                compression,
            };
            let digest = image.write(&place).expect("written");
            (digest, std::fs::read(&place).expect("read"))
        };
        let first = write("a", Compression::Zstd);
        assert_eq!(first, write("a", Compression::Zstd));
        assert_ne!(first.0, write("b", Compression::Zstd).0);
        let plain = write("a", Compression::None);
        let text = String::from_utf8_lossy(&plain.1);
        assert!(text.contains(&format!(r#""digest":"{}""#, plain.0)), "index.json names it");
        assert!(text.contains("registry.local/x:1"));
        std::fs::remove_file(&place).expect("removed");
    }
}
