//! What layers make of one tree.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use ambit_image::{Omitted, Ownership};
use tar::EntryType;

use crate::build::{Layer, Parts, Place, check, whole};

#[test]
fn later_layers_change_earlier_ones() {
    let base = Layer::new()
        .dir("./", 0o755)
        .dir("etc/", 0o755)
        .file("etc/a", "1")
        .file("etc/b", "1")
        .dir("var/", 0o755)
        .file("var/cache/x", "1")
        .file("var/cache/deep/y", "1");
    let second = Layer::new()
        .file("etc/.wh.a", "")
        .file("etc/b", "2")
        .dir("var/cache/", 0o755)
        .file("var/cache/.wh..wh..opq", "")
        .file("var/cache/z", "2");
    let third = Layer::new().file("etc/a", "3").file(".wh.nothing", "");
    let expected = ["etc/", "etc/a=3", "etc/b=2", "var/", "var/cache/", "var/cache/z=2"];
    check(&[base.clone(), second.clone(), third], Ok(&expected));
    let without = ["etc/", "etc/b=2", "var/", "var/cache/", "var/cache/z=2"];
    check(&[base, second], Ok(&without));
}

#[test]
fn whiteouts_spare_what_their_own_layer_brings() {
    let base = Layer::new().file("d/old", "1").file("d/e/old", "1").file("f", "1");
    let opaque_last =
        Layer::new().file("d/e/new", "2").file("d/new", "2").file("d/.wh..wh..opq", "");
    check(&[base.clone(), opaque_last], Ok(&["d/", "d/e/", "d/e/new=2", "d/new=2", "f=1"]));
    let whiteout_last = Layer::new().file("d/e/new", "2").file(".wh.d", "").file("f", "2");
    check(&[base.clone(), whiteout_last.clone()], Ok(&["d/", "d/e/", "d/e/new=2", "f=2"]));
    let again = whiteout_last.file(".wh.f", "");
    check(&[base.clone(), again], Ok(&["d/", "d/e/", "d/e/new=2", "f=2"]));
    let all = Layer::new().file(".wh..wh..opq", "").file("g", "2");
    check(&[base, all], Ok(&["g=2"]));
}

#[test]
fn whiteouts_of_nothing_change_nothing() {
    let base = Layer::new().file("a", "1").file("f", "1");
    let second = Layer::new()
        .file("no/where/.wh.x", "")
        .file("no/.wh..wh..opq", "")
        .file("f/.wh.x", "")
        .file(".wh..wh.plnk", "")
        .file(".wh..wh.aufs/x", "");
    check(&[base, second], Ok(&["a=1", "f=1"]));
}

#[test]
fn entries_replace_what_is_there_except_directories() {
    let base = Layer::new().file("d/x", "1").file("f", "1").link("l", "f").file("e/x", "1");
    let second = Layer::new()
        .dir("d", 0o700)
        .dir("f", 0o755)
        .file("f/in", "2")
        .file("l", "2")
        .link("e", "d");
    check(&[base, second], Ok(&["d/", "d/x=1", "e->d", "f/", "f/in=2", "l=2"]));
}

#[test]
fn links_on_the_way_are_followed_inside_the_image() {
    let base = Layer::new()
        .file("usr/bin/sh", "1")
        .link("bin", "/usr/bin")
        .link("sbin", "usr/bin")
        .link("up", "../../../usr")
        .link("usr/lib", "../lib")
        .link("dangling", "/made/here");
    let second = Layer::new()
        .file("bin/x", "2")
        .file("sbin/y", "2")
        .file("up/z", "2")
        .file("usr/lib/l", "2")
        .file("dangling/d", "2")
        .file("bin/.wh.sh", "");
    let expected = [
        "bin->/usr/bin",
        "dangling->/made/here",
        "lib/",
        "lib/l=2",
        "made/",
        "made/here/",
        "made/here/d=2",
        "sbin->usr/bin",
        "up->../../../usr",
        "usr/",
        "usr/bin/",
        "usr/bin/x=2",
        "usr/bin/y=2",
        "usr/lib->../lib",
        "usr/z=2",
    ];
    check(&[base, second], Ok(&expected));
}

#[test]
fn a_directory_replaces_a_link() {
    let base = Layer::new().file("usr/bin/sh", "1").link("bin", "/usr/bin");
    let second = Layer::new().dir("bin/", 0o755).file("bin/x", "2");
    check(&[base, second], Ok(&["bin/", "bin/x=2", "usr/", "usr/bin/", "usr/bin/sh=1"]));
}

#[test]
fn hard_links_are_other_names_of_one_file() {
    let place = Place::new();
    let base = Layer::new().file("a/x", "1").link("b", "/a").link("s", "nowhere");
    let second = Layer::new()
        .hard("y", "b/x")
        .hard("z", "/a/x")
        .hard("a/x", "a/x")
        .hard("t", "s")
        .file("a/x", "2");
    let image = place.import(&Parts::new([base, second]).layout()).unwrap();
    let number = |name: &str| fs::symlink_metadata(image.root.join(name)).unwrap().ino();
    assert_eq!(number("y"), number("z"));
    assert_ne!(number("y"), number("a/x"), "a file that comes again is another one");
    assert_eq!(fs::read_to_string(image.root.join("y")).unwrap(), "1");
    assert_eq!(number("s"), number("t"));
}

#[test]
fn an_absolute_path_begins_at_the_root_of_the_image() {
    // Builders of images write such paths, and Docker and containerd read them so.
    let layer = Layer::new().dir("/ko-app", 0o755).file("/ko-app/serve", "1").file("//x", "1");
    check(&[layer], Ok(&["ko-app/", "ko-app/serve=1", "x=1"]));
}

#[test]
fn what_is_no_file_is_left_out_and_counted() {
    let place = Place::new();
    let layer = Layer::new()
        .special("dev/null", EntryType::Char)
        .special("dev/sda", EntryType::Block)
        .special("pipe", EntryType::Fifo)
        .pax(&[("SCHILY.xattr.security.capability", "x"), ("SCHILY.xattr.user.a", "y")])
        .mode("su", 0o4755)
        .mode("plain", 0o755)
        .dir("shared", 0o2775)
        .dir("tmp", 0o1777);
    let files = Parts::new([Layer::new().file("pipe", "1"), layer]).layout();
    let image = place.import(&files).unwrap();
    let mode = |root: &std::path::Path, name: &str| {
        fs::symlink_metadata(root.join(name)).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!(image.omitted, Omitted { special_files: 3, privileged_files: 2, attributes: 2 });
    assert!(!image.root.join("pipe").exists(), "the file of the lower layer is replaced");
    assert_eq!(fs::read_dir(image.root.join("dev")).unwrap().count(), 0);
    for (name, expected) in [("su", 0o755), ("plain", 0o755), ("shared", 0o775), ("tmp", 0o1777)] {
        assert_eq!(mode(&image.root, name), expected, "{name}");
    }
}

#[test]
fn modes_owners_and_times_are_kept() {
    let owned = |layer: Layer, path: &str, kind: EntryType, mode: u32| {
        let target = if kind == EntryType::Symlink { "file" } else { "" };
        layer.header(path, target, b"", |header| {
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(1234);
            header.set_gid(99_999);
        })
    };
    let layer = owned(Layer::new(), "file", EntryType::Regular, 0o640);
    let layer = owned(layer, "dir", EntryType::Directory, 0o500);
    let layer = owned(layer, "link", EntryType::Symlink, 0o777).file("dir/in", "").file("x/y", "");
    let files = Parts::new([layer]).layout();
    let place = Place::new();
    let of = |root: &std::path::Path, name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    let image = place.import(&files).unwrap();
    let caller = of(&place.path("store"), "").uid();
    assert_eq!(of(&image.root, "file").mode() & 0o7777, 0o640);
    assert_eq!(of(&image.root, "dir").mode() & 0o7777, 0o700, "always open to the caller");
    for name in ["file", "dir", "link"] {
        assert_eq!(of(&image.root, name).mtime(), 1_600_000_000, "{name}");
        assert_eq!(of(&image.root, name).uid(), caller, "{name}");
    }
    assert_eq!(of(&image.root, "x").mode() & 0o7777, 0o755);
    assert_eq!(of(&image.root, "").mode() & 0o7777, 0o755);
    if caller != 0 {
        return;
    }
    let mut keeping = Place::new();
    keeping.options.ownership = Ownership::Keep;
    let image = keeping.import(&files).unwrap();
    assert_eq!(of(&image.root, "dir").mode() & 0o7777, 0o500);
    for name in ["file", "dir", "link"] {
        let metadata = of(&image.root, name);
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 99_999), "{name}");
        assert_eq!(metadata.mtime(), 1_600_000_000, "{name}");
    }
    assert_eq!(of(&image.root, "x").uid(), 0);
}

#[test]
fn names_may_be_anything_but_parts_of_paths() {
    let long = "n".repeat(255);
    let deep = vec!["d"; 100].join("/");
    let layer = Layer::new()
        .file("with space", "1")
        .file("ü\n*?", "2")
        .file("...", "3")
        .file(&format!("x/{long}"), "4")
        .long_name(b"gnu\0rest is ignored")
        .file("other", "5")
        .pax(&[("path", "pax")])
        .file("other", "6")
        .file(&format!("{deep}/f"), "7")
        .file(".wh", "8")
        .header("old-style-dir/", "", b"its data", |header| header.as_old_mut().linkflag = [0])
        .file("a-file/", "9");
    let place = Place::new();
    let imported = place.import(&Parts::new([layer]).layout());
    let image = imported.unwrap_or_else(|error| panic!("{}", whole(&error)));
    let read = |name: &str| fs::read_to_string(image.root.join(name)).unwrap();
    for (name, expected) in [("with space", "1"), ("ü\n*?", "2"), ("...", "3"), ("gnu", "5")] {
        assert_eq!(read(name), expected);
    }
    assert_eq!((read(&format!("x/{long}")), read("pax")), ("4".to_owned(), "6".to_owned()));
    assert_eq!((read(&format!("{deep}/f")), read(".wh")), ("7".to_owned(), "8".to_owned()));
    assert_eq!(read("a-file"), "9");
    assert!(image.root.join("old-style-dir").is_dir());
}
