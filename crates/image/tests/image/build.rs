//! Makes images, and says what became of them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ambit_image::{Digest, Image, ImageError, Limits, Options, Ownership, Source, Store};
use serde_json::{Value, json};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// The media type of a layer without compression.
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A layer being written. Paths and targets are written as they are given.
#[derive(Clone, Default)]
pub(crate) struct Layer(pub(crate) Vec<u8>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn file(self, path: &str, data: &str) -> Self {
        self.entry(path, EntryType::Regular, 0o644, "", data.as_bytes())
    }

    pub(crate) fn mode(self, path: &str, mode: u32) -> Self {
        self.entry(path, EntryType::Regular, mode, "", b"")
    }

    pub(crate) fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(path, EntryType::Directory, mode, "", b"")
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Symlink, 0o777, target, b"")
    }

    pub(crate) fn hard(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Link, 0o644, target, b"")
    }

    pub(crate) fn special(self, path: &str, kind: EntryType) -> Self {
        self.entry(path, kind, 0o644, "", b"")
    }

    /// Records of PAX for the entry after them.
    pub(crate) fn pax(self, records: &[(&str, &str)]) -> Self {
        let record = |(key, value): &(&str, &str)| {
            let body = format!(" {key}={value}\n");
            let length =
                (1..).find(|length: &usize| length.to_string().len() + body.len() == *length);
            format!("{}{body}", length.unwrap())
        };
        let data: String = records.iter().map(record).collect();
        self.entry("pax", EntryType::XHeader, 0o644, "", data.as_bytes())
    }

    /// A name of GNU's for the entry after it.
    pub(crate) fn long_name(self, name: &[u8]) -> Self {
        self.entry("././@LongLink", EntryType::GNULongName, 0o644, "", name)
    }

    pub(crate) fn entry(
        self,
        path: &str,
        kind: EntryType,
        mode: u32,
        target: &str,
        data: &[u8],
    ) -> Self {
        self.header(path, target, data, |header| {
            header.set_entry_type(kind);
            header.set_mode(mode);
        })
    }

    pub(crate) fn header(
        mut self,
        path: &str,
        target: &str,
        data: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        if path.len() > 100 {
            self = self.pax(&[("path", path)]);
        }
        if target.len() > 100 {
            self = self.pax(&[("linkpath", target)]);
        }
        let mut header = Header::new_ustar();
        let fill = |field: &mut [u8; 100], text: &str| {
            let length = text.len().min(100);
            field[..length].copy_from_slice(&text.as_bytes()[..length]);
        };
        fill(&mut header.as_old_mut().name, path);
        fill(&mut header.as_old_mut().linkname, target);
        header.set_size(data.len() as u64);
        header.set_mtime(1_600_000_000);
        header.set_uid(0);
        header.set_gid(0);
        change(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// The end that tar demands.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// An image: its layers as they are stored, and before compression.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) layers: Vec<(Vec<u8>, Digest)>,
    pub(crate) config: Value,
    pub(crate) names: Vec<String>,
}

impl Parts {
    pub(crate) fn new(layers: impl IntoIterator<Item = Layer>) -> Self {
        let layers = layers.into_iter().map(Layer::end);
        let layers: Vec<_> = layers.map(|plain| (plain.clone(), Digest::of(&plain))).collect();
        let mut parts = Self { layers, config: json!({}), names: vec!["shop/cart:1".to_owned()] };
        parts.describe();
        parts
    }

    /// A configuration that fits the layers.
    pub(crate) fn describe(&mut self) {
        let diff_ids: Vec<_> = self.layers.iter().map(|(_, diff_id)| diff_id.to_string()).collect();
        let own = self.config.as_object().cloned().unwrap_or_default();
        self.config = json!({
            "os": "linux",
            "architecture": Options::default().architecture,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        self.config.as_object_mut().unwrap().extend(own);
    }

    pub(crate) fn gzip(mut self) -> Self {
        for (layer, _) in &mut self.layers {
            *layer = gzip(layer);
        }
        self
    }

    pub(crate) fn zstd(mut self) -> Self {
        use ruzstd::encoding::{CompressionLevel, compress_to_vec};
        for (layer, _) in &mut self.layers {
            *layer = compress_to_vec(&layer[..], CompressionLevel::Fastest);
        }
        self
    }

    /// The files of a layout with this image alone.
    pub(crate) fn layout(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        let manifest = self.manifest(&mut files);
        index(&mut files, &[manifest]);
        files
    }

    /// Adds the image to the files of a layout; the descriptor of its manifest.
    pub(crate) fn manifest(&self, files: &mut Vec<(String, Vec<u8>)>) -> Value {
        let config = blob(files, CONFIG, self.config.to_string().as_bytes());
        let layers: Vec<_> = self.layers.iter().map(|(it, _)| blob(files, LAYER, it)).collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let mut descriptor = blob(files, MANIFEST, manifest.to_string().as_bytes());
        if let Some(name) = self.names.first() {
            descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        }
        descriptor
    }

    /// The files of an archive of Docker's before version 25.
    pub(crate) fn docker(&self) -> Vec<(String, Vec<u8>)> {
        let config = self.config.to_string().into_bytes();
        let mut files = Vec::new();
        let name = format!("{}.json", &Digest::of(&config).to_string()[7..]);
        let names: Vec<_> =
            (0..self.layers.len()).map(|number| format!("layer{number}/layer.tar")).collect();
        let manifest = json!([{"Config": name, "RepoTags": self.names, "Layers": names}]);
        for (name, (layer, _)) in names.iter().zip(&self.layers) {
            files.push((name.clone(), layer.clone()));
        }
        files.push((name, config));
        files.push(("manifest.json".to_owned(), manifest.to_string().into_bytes()));
        files
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Adds content to a layout; its descriptor.
pub(crate) fn blob(files: &mut Vec<(String, Vec<u8>)>, media_type: &str, bytes: &[u8]) -> Value {
    let digest = Digest::of(bytes).to_string();
    files.push((format!("blobs/sha256/{}", &digest[7..]), bytes.to_vec()));
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

/// Adds the list of images to a layout.
pub(crate) fn index(files: &mut Vec<(String, Vec<u8>)>, manifests: &[Value]) {
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    files.push(("index.json".to_owned(), index.to_string().into_bytes()));
    files.push(("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
}

pub(crate) fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let layer = files.iter().fold(Layer::new(), |layer, (name, bytes)| {
        layer.entry(name, EntryType::Regular, 0o644, "", bytes)
    });
    layer.end()
}

/// A store in a directory of its own, beside files that no image may touch.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) options: Options,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/victim"), "untouched").unwrap();
        let options = Options { ownership: Ownership::Caller, ..Options::default() };
        Self { directory, options }
    }

    pub(crate) fn limits(limits: Limits) -> Self {
        let mut place = Self::new();
        place.options.limits = limits;
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(&self.path("store"), self.options.clone()).unwrap()
    }

    /// Writes files into a directory.
    pub(crate) fn write(&self, name: &str, files: &[(String, Vec<u8>)]) -> Source {
        for (file, bytes) in files {
            let path = self.path(name).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        Source::at(&self.path(name))
    }

    pub(crate) fn import(&self, files: &[(String, Vec<u8>)]) -> Result<Image, ImageError> {
        let name = "layout";
        let _none_yet = fs::remove_dir_all(self.path(name));
        self.open().import(&self.write(name, files))
    }

    /// How many images are in the store.
    pub(crate) fn images(&self) -> usize {
        fs::read_dir(self.path("store/images")).unwrap().count()
    }

    /// That nothing is in the store and nothing beside it was touched.
    pub(crate) fn assert_nothing_left(&self) {
        for name in ["store/images", "store/unfinished"] {
            let left: Vec<_> = fs::read_dir(self.path(name)).unwrap().collect();
            assert!(left.is_empty(), "{name}: {left:?}");
        }
        self.assert_outside_untouched();
    }

    pub(crate) fn assert_outside_untouched(&self) {
        let victim = self.path("outside/victim");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        let metadata = fs::metadata(victim).unwrap();
        assert_eq!((metadata.nlink(), metadata.permissions().mode() & 0o7777), (1, 0o644));
        assert_eq!(fs::read_dir(self.path("outside")).unwrap().count(), 1);
    }
}

/// An error with all its causes.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

/// A tree as lines: `dir/`, `file=content`, `link->target`; sorted.
pub(crate) fn tree(root: &Path) -> Vec<String> {
    fn walk(root: &Path, directory: &Path, lines: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_symlink() {
                lines.push(format!("{name}->{}", fs::read_link(&path).unwrap().display()));
            } else if metadata.is_dir() {
                lines.push(format!("{name}/"));
                walk(root, &path, lines);
            } else {
                lines.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut lines = Vec::new();
    walk(root, root, &mut lines);
    lines.sort();
    lines
}

/// Unpacks layers, and compares the tree or the error.
pub(crate) fn check(layers: &[Layer], expected: Result<&[&str], &str>) {
    check_at(&Place::new(), layers, expected);
}

pub(crate) fn check_at(place: &Place, layers: &[Layer], expected: Result<&[&str], &str>) {
    let imported = place.import(&Parts::new(layers.iter().cloned()).layout());
    match (imported, expected) {
        (Ok(image), Ok(expected)) => assert_eq!(tree(&image.root), expected),
        (Err(error), Err(part)) => {
            let text = whole(&error);
            assert!(text.contains(part), "{text}\nhas not: {part}");
            place.assert_nothing_left();
        }
        (Ok(image), Err(part)) => panic!("not refused with {part}: {:?}", tree(&image.root)),
        (Err(error), Ok(_)) => panic!("{}", whole(&error)),
    }
    place.assert_outside_untouched();
}
