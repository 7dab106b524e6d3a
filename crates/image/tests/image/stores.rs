//! What a store keeps, and what it does when others are at it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;

use ambit_image::{Digest, Options, Source, Store};

use crate::build::{Layer, Parts, Place, tree, whole};

fn image(text: &str, name: &str) -> Parts {
    let mut image = Parts::new([Layer::new().file("which", text)]);
    image.names = vec![name.to_owned()];
    image
}

#[test]
fn one_image_is_there_once_however_it_comes() {
    let place = Place::new();
    let first = place.import(&image("1", "shop/cart:1").layout()).unwrap();
    let again = place.import(&image("1", "docker.io/shop/cart:1").docker()).unwrap();
    assert_eq!(first, again);
    let second = place.import(&image("2", "shop/cart:1").layout()).unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(place.images(), 2);
    let store = place.open();
    assert_eq!(store.find(&first.digest).unwrap(), Some(first));
    assert_eq!(store.find(&Digest::of(b"none")).unwrap(), None);
}

#[test]
fn an_image_that_is_there_needs_no_layers() {
    let place = Place::new();
    let mut files = image("1", "web").layout();
    let first = place.import(&files).unwrap();
    let layer = format!("blobs/sha256/{}", &image("1", "web").layers[0].1.to_string()[7..]);
    let before = files.len();
    files.retain(|(name, _)| *name != layer);
    assert_eq!(files.len(), before - 1);
    assert_eq!(place.import(&files).unwrap(), first);
    let elsewhere = Place::new();
    let text = whole(&elsewhere.import(&files).unwrap_err());
    assert!(text.contains("layer sha256:"), "{text}");
}

#[test]
fn an_import_that_is_stopped_leaves_nothing() {
    let place = Place::new();
    let options = Options::default();
    let store = Store::open(&place.path("store"), options.clone()).unwrap();
    // Small when it is stored, and long to unpack.
    let zeros = "0".repeat(64 << 20);
    let large = (0..8).fold(Layer::new(), |it, number| it.file(&format!("f{number}"), &zeros));
    let directory = place.write("layout", &Parts::new([large]).gzip().layout());
    let stopped = thread::scope(|scope| {
        let import = scope.spawn(|| store.import(&directory));
        let begun = || fs::read_dir(place.path("store/unfinished")).unwrap().count() > 0;
        while !begun() && !import.is_finished() {
            thread::yield_now();
        }
        options.stop.stop();
        import.join().unwrap()
    });
    assert!(whole(&stopped.unwrap_err()).contains("interrupted"));
    place.assert_nothing_left();
    let again = store.import(&directory);
    assert!(whole(&again.unwrap_err()).contains("interrupted"), "a stop is for good");
    place.assert_nothing_left();
}

#[test]
fn only_the_caller_can_enter() {
    let place = Place::new();
    place.open();
    let mode = fs::metadata(place.path("store")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn imports_of_one_image_at_once_unpack_it_once() {
    // A lock of a file belongs to whoever opened it, so threads are as good as processes.
    let place = Place::new();
    let large = (0..500).fold(Layer::new(), |layer, number| {
        layer.file(&format!("d{}/f{number}", number % 7), &"x".repeat(number))
    });
    let source = place.write("dir", &Parts::new([large]).layout());
    let start = Barrier::new(8);
    let images: Vec<_> = thread::scope(|scope| {
        let import = || {
            start.wait();
            place.open().import(&source).map_err(|error| whole(&error))
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(import)).collect();
        threads.into_iter().map(|it| it.join().unwrap().unwrap()).collect()
    });
    assert!(images.windows(2).all(|two| two[0] == two[1]));
    assert_eq!(fs::read_dir(place.path("store/images")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(place.path("store/unfinished")).unwrap().count(), 0);
    assert_eq!(tree(&images[0].root).len(), 507);
}

#[test]
fn the_next_one_removes_what_the_dead_left() {
    let place = Place::new();
    place.open();
    let image = image("1", "web");
    let config = Digest::of(image.config.to_string().as_bytes());
    let left = place.path("store/unfinished").join(&config.to_string()[7..]);
    fs::create_dir_all(left.join("root/half")).unwrap();
    fs::write(left.join("root/half/file"), "").unwrap();
    fs::write(place.path("store/unfinished/archive-1-0"), "").unwrap();
    place.open();
    place.assert_nothing_left();
    // One that somebody works at stays.
    fs::create_dir_all(left.join("root")).unwrap();
    let held = File::open(&left).unwrap();
    held.lock().unwrap();
    place.open();
    assert!(left.exists());
    // Its death is enough: an import does not wait for the next start.
    let store = place.open();
    drop(held);
    let source = place.write("dir", &image.layout());
    assert_eq!(tree(&store.import(&source).unwrap().root), ["which=1"]);
}

#[test]
fn an_import_waits_for_another_one() {
    let place = Place::new();
    let store = place.open();
    let image = image("1", "web");
    let config = Digest::of(image.config.to_string().as_bytes());
    let path = place.path("store/unfinished").join(&config.to_string()[7..]);
    fs::create_dir(&path).unwrap();
    let held = File::open(&path).unwrap();
    held.lock().unwrap();
    let source = place.write("dir", &image.layout());
    thread::scope(|scope| {
        let import = scope.spawn(|| store.import(&source));
        // What the other one would do at its end, whether the import has begun to wait or not.
        fs::remove_dir(&path).unwrap();
        drop(held);
        assert!(import.join().unwrap().is_ok());
    });
}

#[test]
fn what_others_changed_is_an_error_that_says_where() {
    let place = Place::new();
    let image = place.import(&image("1", "web").layout()).unwrap();
    let record = image.root.with_file_name("image.json");
    fs::write(&record, "{").unwrap();
    let text = whole(&place.open().find(&image.digest).unwrap_err());
    assert!(text.contains(&record.display().to_string()), "{text}");
    let nowhere = Source::at(&place.path("nowhere"));
    let text = whole(&place.open().import(&nowhere).unwrap_err());
    assert!(text.contains("cannot open"), "{text}");
}
