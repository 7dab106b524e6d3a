//! Images that are too large in one way or another, and the bound that stops each.

use std::slice;

use ambit_image::{Digest, Limits, Source};
use serde_json::json;
use tar::EntryType;

use crate::build::{INDEX, Layer, Parts, Place, archive, blob, check_at, gzip, index, whole};

/// An image under limits that are tighter in one place.
fn check(change: impl FnOnce(&mut Limits), layers: &[Layer], part: &str) {
    let mut limits = Limits::default();
    change(&mut limits);
    check_at(&Place::limits(limits), layers, Err(part));
}

fn check_files(limits: Limits, files: &[(String, Vec<u8>)], part: &str) {
    let place = Place::limits(limits);
    let text = whole(&place.import(files).unwrap_err());
    assert!(text.contains(part), "{text}\nhas not: {part}");
    place.assert_nothing_left();
}

#[test]
fn entries_are_counted_over_all_layers() {
    let many = (0..60).fold(Layer::new(), |layer, number| layer.file(&format!("{number}"), ""));
    let part = "more than 100 entries in all layers of an image";
    check(|it| it.entries = 100, &[many.clone(), many], part);
    let implied = Layer::new().file(&"d/".repeat(101), "").file("x", "");
    check(|it| it.entries = 100, &[implied], part);
}

#[test]
fn a_hundred_thousand_entries_and_one() {
    let mut layer = Layer::new();
    for number in 0..=100_000 {
        layer = layer.link(&format!("{number}"), "x");
    }
    check(|it| it.entries = 100_000, &[layer], "\"100000\" is refused: more than 100000 entries");
}

#[test]
fn a_share_of_the_file_system_stays_free() {
    let full = |it: &mut Limits| (it.kept_bytes, it.kept_divisor) = (u64::MAX, 1);
    check(full, &[Layer::new().file("x", "")], "choose a directory elsewhere with --state");
    // One that is compressed as a whole is written out first.
    let place =
        Place::limits(Limits { kept_bytes: u64::MAX, kept_divisor: 1, ..Limits::default() });
    let whole_archive = gzip(&archive(&Parts::new([Layer::new().file("x", "")]).layout()));
    std::fs::write(place.path("all.tar.gz"), whole_archive).unwrap();
    let error = place.open().import(&Source::at(&place.path("all.tar.gz"))).unwrap_err();
    assert!(whole(&error).contains("Ambit leaves to others"), "{}", whole(&error));
    place.assert_nothing_left();
}

#[test]
fn names_are_bounded() {
    let part = "more than 4095 bytes of a path";
    check(|_| {}, &[Layer::new().file(&"abc/".repeat(1100), "")], part);
    let long = "n".repeat(256);
    check(|_| {}, &[Layer::new().file(&long, "")], "more than 255 bytes of a name");
    check(|_| {}, &[Layer::new().hard("x", &long)], "more than 255 bytes of a name");
    let deep = "d/".repeat(129);
    check(|_| {}, &[Layer::new().file(&deep, "")], "more than 128 directories");
    let target = "t".repeat(4096);
    check(|_| {}, &[Layer::new().link("x", &target)], "more than 4095 bytes of a link's target");
    let many = Layer::new().file("one", "").file("two", "").file("three", "");
    check(|it| it.names_bytes = 200, &[many], "more than 200 bytes of names in a layer");
}

#[test]
fn depth_is_bounded_after_links() {
    let half = vec!["d"; 100].join("/");
    let layer = Layer::new().dir(&half, 0o755).link("l", &half).file(&format!("l/{half}/x"), "");
    check(|_| {}, &[layer], "more than 128 directories above a file");
}

#[test]
fn extended_headers_are_bounded() {
    let long = "v".repeat(1 << 20);
    let layer = Layer::new().pax(&[("comment", &long)]).file("x", "");
    check(|_| {}, &[layer], "more than 1048576 bytes of an extended header");
    let layer = (0..9).fold(Layer::new(), |layer, _| layer.pax(&[("a", "b")])).file("x", "");
    check(|_| {}, &[layer], "more than 8 extended headers in a row");
    // A header that promises more than there is does not make the reader keep anything.
    let layer = Layer::new().header("x", "", b"", |header| {
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(1 << 40);
    });
    check(|_| {}, &[layer], "more than 1048576 bytes");
}

#[test]
fn files_and_layers_are_bounded() {
    let layer = Layer::new().file("x", &"1".repeat(2000));
    check(|it| it.file_bytes = 1999, slice::from_ref(&layer), "more than 1999 bytes of one file");
    let part = "more than 7000 bytes in all layers of an image";
    check(|it| it.unpacked_bytes = 7000, &[layer.clone(), layer.clone()], part);
    check(|it| it.blob_bytes = 3000, slice::from_ref(&layer), "more than 3000 bytes");
    check(|it| it.layers = 2, &[layer.clone(), layer.clone(), layer], "more than 2 layers");
    let huge = Layer::new().header("x", "", b"", |header| header.set_size(1 << 40));
    check(|_| {}, &[huge], "more than 17179869184 bytes of one file");
    let huge = Layer::new().header("x", "", b"", |header| header.set_size(1 << 33));
    check(|_| {}, &[huge], "unexpected end of file");
}

#[test]
fn small_layers_do_not_become_large() {
    let limits = Limits { ratio_free_bytes: 1 << 20, ..Limits::default() };
    let zeros = "\0".repeat(8 << 20);
    let image = Parts::new([Layer::new().file("x", &zeros)]);
    let part = "the archive is too large: more than 200 times the size of its compressed data";
    let error = |image: Parts| {
        let place = Place::limits(limits.clone());
        let text = whole(&place.import(&image.layout()).unwrap_err());
        place.assert_nothing_left();
        text
    };
    for text in [error(image.clone().gzip()), error(image.clone().zstd())] {
        assert!(text.contains("more than 200 times"), "{text}");
    }
    // After the end of the archive too.
    let mut padded = Parts::new([Layer::new().file("x", "")]);
    padded.layers[0].0.extend(vec![0; 8 << 20]);
    let text = error(padded.gzip());
    assert!(text.contains(part), "{text}");
    // And in an archive that is compressed as a whole.
    let place = Place::limits(limits.clone());
    std::fs::write(place.path("archive"), gzip(&archive(&image.layout()))).unwrap();
    let source = ambit_image::Source::at(&place.path("archive"));
    let text = whole(&place.open().import(&source).unwrap_err());
    assert!(text.contains("too large an archive: more than 200 times"), "{text}");
    place.assert_nothing_left();
}

#[test]
fn documents_are_bounded() {
    let image = Parts::new([Layer::new().file("x", "")]);
    let limits = || Limits { document_bytes: 1000, ..Limits::default() };
    let mut large = image.clone();
    large.config["comment"] = json!("c".repeat(1000));
    check_files(limits(), &large.layout(), "configuration sha256:");
    check_files(limits(), &large.docker(), "more than 1000 bytes");
    let mut files = image.layout();
    let index = files.iter_mut().find(|(name, _)| name == "index.json").unwrap();
    index.1.extend(vec![b' '; 1000]);
    check_files(limits(), &files, "index.json is too large: more than 1000 bytes");
    let mut files = Vec::new();
    let manifest = image.manifest(&mut files);
    crate::build::index(&mut files, &[manifest.clone(), manifest.clone(), manifest]);
    let limits = Limits { index_entries: 2, ..Limits::default() };
    check_files(limits, &files, "index.json is too large: more than 2 entries");
}

#[test]
fn indexes_in_indexes_end() {
    let mut files = Vec::new();
    let image = Parts::new([Layer::new().file("x", "")]);
    let platform = json!({"os": "linux", "architecture": image.config["architecture"]});
    let mut descriptor = image.manifest(&mut files);
    for _ in 0..5 {
        descriptor["platform"] = platform.clone();
        let nested = json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string();
        descriptor = blob(&mut files, INDEX, nested.as_bytes());
    }
    index(&mut files, &[descriptor]);
    check_files(Limits::default(), &files, "more than 4 indexes in one another");
    // An index cannot contain its own digest; one that says so is not what it says.
    let (mut files, claimed) = (Vec::new(), Digest::of(b"itself").to_string());
    let itself = json!({
        "mediaType": INDEX, "digest": claimed, "size": 0, "platform": platform,
    });
    let mut nested = json!({"schemaVersion": 2, "manifests": [itself]});
    let size = nested.to_string().len() + 2;
    nested["manifests"][0]["size"] = json!(size);
    let text = nested.to_string();
    let mut descriptor = nested["manifests"][0].clone();
    descriptor["size"] = json!(text.len());
    files.push((format!("blobs/sha256/{}", &claimed[7..]), text.into_bytes()));
    index(&mut files, &[descriptor]);
    check_files(Limits::default(), &files, "it was changed or is damaged");
}

#[test]
fn members_of_archives_are_bounded() {
    let place = Place::limits(Limits { archive_members: 3, ..Limits::default() });
    let image = Parts::new([Layer::new().file("x", "")]);
    let check = |bytes: &[u8], part: &str| {
        std::fs::write(place.path("archive"), bytes).unwrap();
        let source = ambit_image::Source::at(&place.path("archive"));
        let text = whole(&place.open().import(&source).unwrap_err());
        assert!(text.contains(part), "{text}");
        place.assert_nothing_left();
    };
    for kind in [EntryType::Regular, EntryType::Symlink, EntryType::Link] {
        let (name, target) = match kind {
            EntryType::Regular => ("n".repeat(4096), ""),
            _ => ("n".to_owned(), &*"t".repeat(4096)),
        };
        let layer = Layer::new().entry(&name, kind, 0o644, target, b"");
        check(&layer.end(), "too large an archive: more than 4095 bytes of a path");
    }
    let whole = archive(&image.layout());
    check(&whole, "more than 3 members of the archive");
    check(&whole[..1000], "is not a good archive");
    check(&gzip(&whole)[..200], "cannot decompress");
    check(b"", "has no image");
    check(&[b'x'; 2000], "its sum is wrong");
    check(b"\xfd7zXZ\0...", "compressed with xz");
}

/// What makes a test in a process of its own.
const ALONE: &str = "AMBIT_TEST_ALONE";

/// A layer whose directories have long paths of short names must not take many times its size.
#[test]
fn deep_directories_take_little_memory() {
    if std::env::var_os(ALONE).is_none() {
        let name = "bounds::deep_directories_take_little_memory";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let said = command.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        return;
    }
    let deep = "d/".repeat(100);
    let layer = (0..5_000).fold(Layer::new(), |layer, _| layer.dir(&deep, 0o755));
    let place = Place::new();
    let source = place.write("dir", &Parts::new([layer]).gzip().layout());
    peak_kib();
    let before = peak_kib();
    place.open().import(&source).unwrap();
    let taken = peak_kib() - before;
    assert!(taken < 8 << 10, "{taken} KiB for 5,000 paths of 200 bytes");
}

/// The most memory that this process has had since it was asked before.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
