//! Layers whose makers want to write where they must not: each is refused, and nothing is left.

use std::fs;

use tar::EntryType;

use crate::build::{Layer, Parts, Place, check, check_at, tree};

/// Layers that name the files beside the store.
fn check_outside(layer: impl Fn(&str) -> Layer, expected: Result<&[&str], &str>) {
    let place = Place::new();
    let outside = place.path("outside").display().to_string();
    check_at(&place, &[layer(&outside)], expected);
}

#[test]
fn paths_do_not_lead_out() {
    for path in ["../x", "a/../../x", "a/..", "..", "/../x", "./../x", "a/../b"] {
        check(&[Layer::new().file(path, "1")], Err("it has a part \"..\""));
        check(&[Layer::new().dir(path, 0o755)], Err("it has a part \"..\""));
    }
    let pax = Layer::new().pax(&[("path", "../x")]).file("good", "1");
    check(&[pax], Err("it has a part \"..\""));
    let long = Layer::new().long_name(b"a/../../x\0").file("good", "1");
    check(&[long], Err("it has a part \"..\""));
    let whiteout = Layer::new().file("../.wh.x", "");
    check(&[whiteout], Err("it has a part \"..\""));
    let zero = Layer::new().pax(&[("path", "a\0b")]).file("good", "1");
    check(&[zero], Err("it has a zero byte"));
}

#[test]
fn absolute_paths_stay_inside() {
    let place = Place::new();
    let victim = place.path("outside/victim").display().to_string();
    let layer = Layer::new().file(&victim, "hostile").file("/etc/ambit-image-test", "1");
    let image = place.import(&Parts::new([layer]).layout()).unwrap();
    place.assert_outside_untouched();
    assert!(!fs::exists("/etc/ambit-image-test").unwrap());
    let inside = image.root.join(victim.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside).unwrap(), "hostile");
}

#[test]
fn links_do_not_lead_out() {
    // A link may say anything; it means something inside the image only.
    let place = Place::new();
    let outside = place.path("outside").display().to_string();
    let layer = Layer::new()
        .link("l", &outside)
        .file("l/victim", "hostile")
        .file("l/new", "hostile")
        .link("up", "../../../../../../../../..")
        .file("up/above", "hostile")
        .link("chain", "up/../../l")
        .file("chain/again", "hostile")
        .file("l/.wh.victim", "");
    let image = place.import(&Parts::new([layer]).layout()).unwrap();
    place.assert_outside_untouched();
    let inside = image.root.join(outside.trim_start_matches('/'));
    assert_eq!(tree(&inside), ["again=hostile", "new=hostile", "victim=hostile"]);
    assert_eq!(fs::read_to_string(image.root.join("above")).unwrap(), "hostile");
}

#[test]
fn whiteouts_do_not_lead_out() {
    let lead =
        |path: &'static str| move |outside: &str| Layer::new().link("l", outside).file(path, "");
    let place = Place::new();
    let outside = place.path("outside").display().to_string();
    let kept = format!("l->{outside}");
    for path in ["l/.wh.victim", "l/.wh..wh..opq"] {
        check_at(&place, &[lead(path)(&outside)], Ok(&[&kept]));
    }
    for path in [".wh.", ".wh..", ".wh...", "a/.wh...", "a/.wh."] {
        check_outside(lead(path), Err("it is a whiteout of no name"));
    }
    check(&[Layer::new().file(".wh.a/b", "")], Err("kept for whiteouts"));
    check(&[Layer::new().dir("x/.wh.a/b/", 0o755)], Err("kept for whiteouts"));
}

#[test]
fn hard_links_do_not_lead_out() {
    check_outside(
        |outside| Layer::new().hard("x", &format!("{outside}/victim")),
        Err("it is not there"),
    );
    check(&[Layer::new().hard("x", "../../outside/victim")], Err("it has a part \"..\""));
    check_outside(
        |outside| Layer::new().link("l", outside).hard("x", "l/victim"),
        Err("it is not there"),
    );
    // The link itself gets another name; what is written to it replaces it.
    let place = Place::new();
    let victim = place.path("outside/victim").display().to_string();
    let layer = Layer::new().link("l", &victim).hard("x", "l").file("x", "hostile");
    check_at(&place, &[layer], Ok(&[&format!("l->{victim}"), "x=hostile"]));
    check(
        &[Layer::new().hard("x", "missing")],
        Err("target \"missing\" cannot be used: it is not there"),
    );
    check(&[Layer::new().dir("d", 0o755).hard("x", "d")], Err("a part of it is not a directory"));
    check(&[Layer::new().hard("x", "")], Err("names the root"));
    check(&[Layer::new().file("d/x", "").hard("d", "d/x")], Err("it is not there"));
    check(&[Layer::new().pax(&[("linkpath", "a\0b")]).hard("x", "y")], Err("zero byte"));
}

#[test]
fn files_are_not_written_through_what_they_replace() {
    let place = Place::new();
    let victim = place.path("outside/victim").display().to_string();
    let layer = Layer::new().link("x", &victim).file("x", "hostile");
    check_at(&place, &[layer], Ok(&["x=hostile"]));
    let place = Place::new();
    let outside = place.path("outside").display().to_string();
    let layer = Layer::new()
        .file("d/victim", "1")
        .link("d", &outside)
        .dir("d", 0o777)
        .file("d/victim", "hostile");
    check_at(&place, &[layer], Ok(&["d/", "d/victim=hostile"]));
    // The directory that was the last one is one no longer.
    let place = Place::new();
    let outside = place.path("outside").display().to_string();
    let layer = Layer::new()
        .file("d/a", "1")
        .link("d", &format!("{outside}/no"))
        .file("d/victim", "hostile");
    let image = place.import(&Parts::new([layer]).layout()).unwrap();
    place.assert_outside_untouched();
    assert!(image.root.join("d").is_symlink());
}

#[test]
fn links_that_lead_nowhere_end() {
    let layer = Layer::new().link("a", "b").link("b", "a").file("a/x", "1");
    check(&[layer], Err("more than 40 symbolic links"));
    let layer = Layer::new().link("a", "a/a/a/a").file("a/x", "1");
    check(&[layer], Err("more than 40 symbolic links"));
    let layer = Layer::new().link("a", "").file("x", "1");
    check(&[layer], Err("its target \"\""));
    let layer = Layer::new().link("a", &"x/".repeat(2040)).file("a/x", "1");
    check(&[layer], Err("more than 128 directories above a file"));
    let layer = Layer::new().dir("x", 0o755).link("a", &"x/../".repeat(600)).file("a/y", "1");
    check(&[layer], Err("more than 1000 names on the way"));
    let around = "x/../".repeat(100);
    let layer = Layer::new().dir("x", 0o755).link("a", &around).file("a/y", "1");
    check(&[layer], Ok(&[&format!("a->{around}"), "x/", "y=1"]));
}

#[test]
fn a_file_is_no_directory() {
    let layer = Layer::new().file("f", "1").file("f/x", "1");
    check(&[layer], Err("a part of it is not a directory"));
    check(&[Layer::new().file("./", "1")], Err("only a directory"));
    check(&[Layer::new().link("/", "x")], Err("only a directory"));
    check(&[Layer::new().hard(".", "x")], Err("only a directory"));
}

#[test]
fn what_is_not_of_images_is_refused() {
    check(&[Layer::new().special("x", EntryType::GNUSparse)], Err("sparse"));
    let sparse = Layer::new()
        .pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "1099511627776")])
        .file("GNUSparseFile.0/x", "");
    check(&[sparse], Err("sparse"));
    check(&[Layer::new().special("x", EntryType::new(b'V'))], Err("its type is 'V'"));
    for id in [u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX >> 8] {
        let layer = Layer::new().pax(&[("uid", &id.to_string())]).file("x", "");
        let mut place = Place::new();
        place.options.ownership = ambit_image::Ownership::Keep;
        check_at(&place, &[layer], Err("none of Linux"));
    }
}

#[test]
fn emptying_a_directory_again_and_again_is_cheap() {
    // Listed each time, this would take minutes.
    let mut layer = Layer::new();
    for number in 0..20_000 {
        layer = layer.link(&format!("d/{number}"), "x").file("d/.wh..wh..opq", "");
    }
    let place = Place::new();
    let image = place.import(&Parts::new([Layer::new().file("d/old", ""), layer]).layout());
    let image = image.unwrap();
    assert_eq!(fs::read_dir(image.root.join("d")).unwrap().count(), 20_000);
}

#[test]
fn the_same_name_twice_is_the_last_one() {
    let layer = Layer::new().file("x", "1").file("./x", "2").file("x", "3");
    check(&[layer], Ok(&["x=3"]));
    let layer = Layer::new().file("x", "1").dir("x", 0o755).file("x", "2");
    check(&[layer], Ok(&["x=2"]));
    let layer = Layer::new().file("d/x", "1").hard("y", "d/x").file("d", "2");
    check(&[layer], Ok(&["d=2", "y=1"]));
}
