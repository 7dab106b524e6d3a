//! A layer of an image by a stranger: no bytes may panic, write outside, or leave anything behind.
#![no_main]

use ambit_image::{Digest, Limits, Options, Ownership, Source, Store};
use libfuzzer_sys::fuzz_target;

/// So much of the temporary directory one run may take.
const UNPACKED_MAX_BYTES: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let place = tempfile::tempdir().expect("there is a temporary directory");
    let outside = place.path().join("outside");
    std::fs::create_dir(&outside).expect("it is empty");
    let options = Options {
        ownership: Ownership::Caller,
        architecture: "amd64".to_owned(),
        limits: Limits {
            archive_bytes: UNPACKED_MAX_BYTES,
            unpacked_bytes: UNPACKED_MAX_BYTES,
            entries: 1_000,
            // What is free there must not decide what is tried.
            kept_bytes: 0,
            kept_files: 0,
            ..Limits::default()
        },
        ..Options::default()
    };
    let store = Store::open(&place.path().join("store"), options).expect("a store opens");
    let layout = place.path().join("layout");
    write_layout(&layout, bytes);
    match store.import(&Source::at(&layout)) {
        Ok(image) => assert!(image.root.is_dir()),
        Err(_) => {
            let images = std::fs::read_dir(place.path().join("store/images"));
            assert_eq!(images.expect("it is of the store").count(), 0);
        }
    }
    let left = std::fs::read_dir(place.path().join("store/unfinished"));
    assert_eq!(left.expect("it is of the store").count(), 0);
    assert_eq!(std::fs::read_dir(outside).expect("it was made").count(), 0);
});

/// An image with this layer alone. Its digest before compression is that of the layer as it is, so
/// that layers without compression can be right.
fn write_layout(layout: &std::path::Path, layer: &[u8]) {
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("it is empty");
    let blob = |media_type: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes).to_string();
        std::fs::write(blobs.join(&digest["sha256:".len()..]), bytes).expect("it can be written");
        format!(
            "{{\"mediaType\":\"application/vnd.oci.image.{media_type}\",\
             \"digest\":\"{digest}\",\"size\":{}}}",
            bytes.len()
        )
    };
    let config = format!(
        "{{\"os\":\"linux\",\"architecture\":\"amd64\",\"rootfs\":{{\"diff_ids\":[\"{}\"]}}}}",
        Digest::of(layer)
    );
    let config = blob("config.v1+json", config.as_bytes());
    let layer = blob("layer.v1.tar", layer);
    let manifest = format!("{{\"schemaVersion\":2,\"config\":{config},\"layers\":[{layer}]}}");
    let manifest = blob("manifest.v1+json", manifest.as_bytes());
    let index = format!("{{\"schemaVersion\":2,\"manifests\":[{manifest}]}}");
    std::fs::write(layout.join("index.json"), index).expect("it can be written");
}
