//! What a store keeps, and what it does when others are at it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;

use ambit_image::{Digest, Source};

use crate::build::{Layer, Parts, Place, tree, whole};

fn image(text: &str, name: &str) -> Parts {
    let mut image = Parts::new([Layer::new().file("which", text)]);
    image.names = vec![name.to_owned()];
    image
}

#[test]
fn images_are_found_by_name_and_digest_until_they_are_removed() {
    let place = Place::new();
    let store = place.open();
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(store.find("shop/cart:1").unwrap(), None);
    let first = place.import(&image("1", "shop/cart:1").layout()).unwrap();
    let again = place.import(&image("1", "docker.io/shop/cart:1").docker()).unwrap();
    assert_eq!(first, again, "one image, however it comes");
    for name in ["shop/cart:1", "docker.io/shop/cart:1", &first.digest.to_string()] {
        assert_eq!(store.find(name).unwrap().as_ref(), Some(&first), "{name}");
    }
    for name in ["shop/cart", "cart:1", "NO NAME", "sha256:12"] {
        assert_eq!(store.find(name).unwrap(), None, "{name}");
    }
    let second = place.import(&image("2", "shop/cart:1").layout()).unwrap();
    assert_eq!(store.find("shop/cart:1").unwrap().unwrap().digest, second.digest);
    assert_eq!(store.list().unwrap().len(), 2);
    let named = store.find(&first.digest.to_string()).unwrap().unwrap();
    assert!(named.names.is_empty(), "the name means the newer image");
    store.name(&first.digest, &"web".parse().unwrap()).unwrap();
    assert_eq!(store.find("docker.io/library/web:latest").unwrap().unwrap().digest, first.digest);
    assert!(store.name(&Digest::of(b"none"), &"web".parse().unwrap()).is_err());
    store.remove(&first.digest).unwrap();
    assert!(!first.root.exists());
    assert_eq!(store.find("web").unwrap(), None);
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(store.remove(&first.digest).is_err());
    store.remove(&second.digest).unwrap();
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
fn names_that_change_at_once_are_all_kept() {
    let place = Place::new();
    let image = place.import(&image("1", "web:first").layout()).unwrap();
    thread::scope(|scope| {
        for number in 0..8 {
            let (place, image) = (&place, &image);
            scope.spawn(move || {
                let name = format!("web:{number}").parse().unwrap();
                place.open().name(&image.digest, &name).unwrap();
            });
        }
    });
    assert_eq!(place.open().list().unwrap()[0].names.len(), 9);
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
    let text = whole(&place.open().list().unwrap_err());
    assert!(text.contains(&record.display().to_string()), "{text}");
    place.open().remove(&image.digest).unwrap();
    place.assert_nothing_left();
    let nowhere = Source::at(&place.path("nowhere"));
    let text = whole(&place.open().import(&nowhere).unwrap_err());
    assert!(text.contains("cannot open"), "{text}");
}
