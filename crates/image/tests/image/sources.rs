//! Where images lie, which one is meant, and whether it is what it says.

use std::fs;
use std::path::PathBuf;

use ambit_image::{Digest, Image, ImageError, Source};
use serde_json::{Value, json};

use crate::build::{
    CONFIG, INDEX, LAYER, Layer, MANIFEST, Parts, Place, archive, blob, gzip, index, tree, whole,
};

type Files = Vec<(String, Vec<u8>)>;

fn image() -> Parts {
    let mut image = Parts::new([Layer::new().file("a", "1"), Layer::new().file("b", "2")]);
    image.config["config"] = json!({
        "User": "web", "ExposedPorts": {"80/tcp": {}}, "Env": ["PATH=/bin:/usr/bin", "A=b=c"],
        "Entrypoint": ["/serve"], "Cmd": null, "WorkingDir": "/srv", "Labels": {"k": "v"},
        "StopSignal": "SIGQUIT", "Volumes": {"/data": {}},
    });
    image
}

/// Another image: only its file says so.
fn other(text: &str, name: &str) -> Parts {
    let mut image = Parts::new([Layer::new().file("which", text)]);
    image.names = vec![name.to_owned()];
    image
}

#[track_caller]
fn assert_error(result: Result<Image, ImageError>, part: &str) {
    match result {
        Ok(image) => panic!("not refused with {part}: {image:?}"),
        Err(error) => assert!(whole(&error).contains(part), "{}\nhas not: {part}", whole(&error)),
    }
}

#[track_caller]
fn refused(files: &Files, part: &str) {
    let place = Place::new();
    assert_error(place.import(files), part);
    place.assert_nothing_left();
}

#[test]
fn every_form_gives_the_same_image() {
    let place = Place::new();
    let image = image();
    let written = |name: &str, bytes: Vec<u8>| {
        fs::write(place.path(name), bytes).unwrap();
        place.path(name).display().to_string()
    };
    place.write("dir", &image.layout());
    let dir = place.path("dir").display().to_string();
    let oci = written("oci.tar", archive(&image.layout()));
    let oci_gz = written("oci.tar.gz", gzip(&archive(&image.layout())));
    let packed = written("packed.tar", archive(&image.clone().gzip().layout()));
    let zstd = written("zstd.tar", archive(&image.clone().zstd().layout()));
    let docker = written("docker.tar", archive(&image.docker()));
    let docker_gz = written("docker.tar.gz", gzip(&archive(&image.docker())));
    for text in [
        format!("oci:{dir}"),
        format!("oci:{dir}:shop/cart:1"),
        format!("oci:{oci}"),
        format!("oci-archive:{oci}"),
        format!("oci-archive:{oci_gz}:docker.io/shop/cart:1"),
        format!("oci:{packed}"),
        format!("oci:{zstd}"),
        format!("oci:{docker}"),
        format!("docker-archive:{docker}"),
        format!("docker-archive:{docker_gz}:shop/cart:1"),
    ] {
        let place = Place::new();
        let found = place.open().import(&Source::parse(&text).unwrap());
        let found = found.unwrap_or_else(|error| panic!("{text}: {}", whole(&error)));
        assert_eq!(tree(&found.root), ["a=1", "b=2"], "{text}");
        assert_eq!(found.digest, Digest::of(image.config.to_string().as_bytes()), "{text}");
    }
    for (text, part) in [
        (format!("oci-archive:{docker}"), "neither index.json nor manifest.json"),
        (format!("docker-archive:{dir}"), "neither index.json nor manifest.json"),
        (format!("oci:{dir}/nowhere"), "cannot open"),
        (format!("oci:{oci}:shop/cart:2"), "no image is named \"shop/cart:2\"; there are shop/"),
        (format!("docker-archive:{docker}:x"), "no image is named \"x\"; there are shop/cart:1"),
        ("oci:/dev/zero".to_owned(), "not a regular file"),
    ] {
        let place = Place::new();
        assert_error(place.open().import(&Source::parse(&text).unwrap()), part);
        place.assert_nothing_left();
    }
}

#[test]
fn the_configuration_is_kept() {
    let place = Place::new();
    let config = place.import(&image().layout()).unwrap().config;
    assert_eq!(config.entrypoint, ["/serve"]);
    assert!(config.cmd.is_empty());
    let variables = [("PATH", "/bin:/usr/bin"), ("A", "b=c")];
    assert_eq!(config.env, variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!((&*config.user, config.stop_signal.as_deref()), ("web", Some("SIGQUIT")));
    assert_eq!((config.working_dir, config.exposed_ports), ("/srv".into(), vec!["80/tcp".into()]));
    assert_eq!((config.volumes, &*config.labels["k"]), (vec![PathBuf::from("/data")], "v"));
    assert!(config.platform.starts_with("linux/"));
    let bare = Place::new().import(&Parts::new([Layer::new()]).layout()).unwrap().config;
    assert_eq!(bare.working_dir, PathBuf::from("/"));
}

#[test]
fn one_of_several_images_is_named() {
    let (cart, web) = (other("cart", "shop/cart:1"), other("web", "web"));
    let mut files = Vec::new();
    let manifests = [cart.manifest(&mut files), web.manifest(&mut files)];
    index(&mut files, &manifests);
    let place = Place::new();
    place.write("dir", &files);
    let find = |name: &str| {
        let text = format!("oci:{}{name}", place.path("dir").display());
        place.open().import(&Source::parse(&text).unwrap())
    };
    assert_eq!(tree(&find(":shop/cart:1").unwrap().root), ["which=cart"]);
    assert_eq!(tree(&find(":web").unwrap().root), ["which=web"]);
    assert_eq!(tree(&find(":docker.io/shop/cart:1").unwrap().root), ["which=cart"]);
    assert_error(
        find(""),
        "several images; add one of these names after a colon: shop/cart:1, web",
    );
    assert_error(find(":nginx"), "no image is named \"nginx\"; there are shop/cart:1, web");
    let mut docker = cart.docker();
    let second = web.docker();
    let list =
        |files: &Files| -> Value { serde_json::from_slice(&files.last().unwrap().1).unwrap() };
    let both = json!([list(&docker)[0], list(&second)[0]]).to_string();
    docker.pop();
    docker.extend(second);
    docker.last_mut().unwrap().1 = both.into_bytes();
    fs::write(place.path("docker"), archive(&docker)).unwrap();
    let text = format!("docker-archive:{}", place.path("docker").display());
    assert_error(place.open().import(&Source::parse(&text).unwrap()), "shop/cart:1, web");
}

#[test]
fn one_image_may_have_several_names() {
    let mut files = Vec::new();
    let first = image().manifest(&mut files);
    let mut second = first.clone();
    second["annotations"] = json!({
        "io.containerd.image.name": "docker.io/shop/cart:2",
        "org.opencontainers.image.ref.name": "2",
    });
    index(&mut files, &[first, second]);
    let place = Place::new();
    place.write("dir", &files);
    for name in ["", ":shop/cart:1", ":docker.io/shop/cart:2", ":2"] {
        let text = format!("oci:{}{name}", place.path("dir").display());
        let found = place.open().import(&Source::parse(&text).unwrap());
        assert_eq!(tree(&found.unwrap().root), ["a=1", "b=2"], "{name}");
    }
}

/// The index of an image for several platforms: each with a variant, maybe.
fn for_platforms(platforms: &[(&str, &str, Option<&str>)], is_nested: bool) -> Files {
    let mut files = Vec::new();
    let mut listed = Vec::new();
    for (os, architecture, variant) in platforms {
        let mut image = other(&format!("{os}/{architecture}"), "web");
        image.config["os"] = json!(os);
        image.config["architecture"] = json!(architecture);
        let mut descriptor = image.manifest(&mut files);
        descriptor["platform"] = json!({"os": os, "architecture": architecture});
        if let Some(variant) = variant {
            descriptor["platform"]["variant"] = json!(variant);
        }
        listed.push(descriptor);
    }
    let mut statement = blob(&mut files, MANIFEST, b"{}");
    statement["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    listed.push(statement);
    if is_nested {
        let nested = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed});
        listed = vec![blob(&mut files, INDEX, nested.to_string().as_bytes())];
    }
    index(&mut files, &listed);
    files
}

#[test]
fn the_platform_is_this_machines() {
    for is_nested in [true, false] {
        for architecture in ["amd64", "arm64"] {
            let files = for_platforms(
                &[
                    ("windows", "amd64", None),
                    ("linux", "arm64", Some("v8")),
                    ("linux", "amd64", None),
                    ("linux", "amd64", Some("v3")),
                ],
                is_nested,
            );
            let mut place = Place::new();
            place.options.architecture = architecture.to_owned();
            let image = place.import(&files).unwrap();
            assert_eq!(tree(&image.root), [format!("which=linux/{architecture}")]);
            place.options.architecture = "s390x".to_owned();
            let part = "no image for linux/s390x, only for linux/amd64, linux/amd64/v3, \
                        linux/arm64/v8, windows/amd64";
            assert_error(place.import(&files), part);
        }
    }
    let mut wrong = image();
    wrong.config["architecture"] = json!("sparc");
    refused(&wrong.layout(), "only for linux/sparc");
    refused(&wrong.docker(), "only for linux/sparc");
}

#[test]
fn what_was_changed_is_refused() {
    let damaged = "it was changed or is damaged";
    let change = |files: &Files, is_meant: &dyn Fn(&str, &[u8]) -> bool, part: &str| {
        let mut files = files.clone();
        let (name, bytes) = files.iter_mut().find(|(name, bytes)| is_meant(name, bytes)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let name = name.clone();
        refused(&files, part);
        let bytes = files.iter_mut().find(|(other, _)| *other == name).unwrap();
        bytes.1.truncate(middle);
        refused(&files, if name.starts_with("blobs") { "bytes instead of" } else { part });
        files.retain(|(other, _)| *other != name);
        refused(&files, "is not there");
    };
    let has = |text: &'static str| {
        move |_: &str, bytes: &[u8]| String::from_utf8_lossy(bytes).contains(text)
    };
    let files = image().gzip().layout();
    change(&files, &has("\"layers\":["), damaged);
    change(&files, &has("\"rootfs\""), damaged);
    change(&files, &|_, bytes| bytes.starts_with(&[0x1f, 0x8b]), "its digest is sha256:");
    let mut docker = image().docker();
    refused(
        &{
            docker[0].1[520] ^= 1;
            docker
        },
        "its digest before compression is sha256:",
    );
    let mut docker = image().docker();
    let config = docker.iter_mut().find(|(name, _)| name.len() == 69).unwrap();
    config.1.push(b' ');
    refused(&docker, damaged);
}

#[test]
fn the_content_of_a_layer_is_checked_too() {
    let mut lying = image();
    lying.config["rootfs"]["diff_ids"][1] = json!(Digest::of(b"other").to_string());
    refused(&lying.clone().layout(), "unpack layer 2 of oci:");
    refused(&lying.layout(), "its digest before compression is sha256:");
    let mut fewer = image();
    fewer.config["rootfs"]["diff_ids"].as_array_mut().unwrap().pop();
    refused(&fewer.layout(), "describes 1 layers, but the image has 2");
    let mut other = image();
    other.config["rootfs"]["diff_ids"][0] = json!("sha512:00");
    refused(&other.layout(), "is not as OCI and Docker write it");
    let mut cut = Parts::new([Layer::new().file("x", &"1".repeat(5000))]);
    cut.layers[0].0.truncate(3000);
    refused(&cut.layout(), "unexpected end of file");
    let mut cut = cut.gzip();
    let length = cut.layers[0].0.len() - 4;
    cut.layers[0].0.truncate(length);
    refused(&cut.layout(), "unpack layer 1");
}

#[test]
fn what_is_no_image_is_refused() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut files = Vec::new();
        let config = blob(&mut files, CONFIG, image().config.to_string().as_bytes());
        let layers: Vec<Value> =
            image().layers.iter().map(|(layer, _)| blob(&mut files, LAYER, layer)).collect();
        let mut manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        change(&mut manifest);
        let descriptor = blob(&mut files, MANIFEST, manifest.to_string().as_bytes());
        index(&mut files, &[descriptor]);
        files
    };
    assert!(Place::new().import(&with(&|_| ())).is_ok());
    refused(&with(&|it| it["manifests"] = json!([])), "both an index and a manifest");
    refused(&with(&|it| it["mediaType"] = json!(INDEX)), "has media type");
    refused(&with(&|it| it["schemaVersion"] = json!(1)), "first schema");
    refused(
        &with(&|it| it["config"]["mediaType"] = json!("helm")),
        "not of an image but of \"helm\"",
    );
    refused(&with(&|it| it["layers"][0]["mediaType"] = json!("a.tar+encrypted")), "media type");
    refused(&with(&|it| it["layers"][0]["size"] = json!(7)), "bytes instead of 7");
    refused(&with(&|it| drop(it.as_object_mut().unwrap().remove("config"))), "no configuration");
    refused(&with(&|it| *it = json!({"schemaVersion": 2})), "neither index nor manifest");
    refused(&with(&|it| *it = json!([])), "not as OCI and Docker write it");
    refused(&vec![("index.json".into(), b"{}".to_vec())], "has no image");
    refused(&vec![("manifest.json".into(), b"[]".to_vec())], "has no image");
    refused(&vec![("x".into(), Vec::new())], "neither index.json nor manifest.json");
}

#[test]
fn archives_of_docker_may_link_layers() {
    let image = Parts::new([Layer::new().file("a", "1"), Layer::new().file("a", "1")]);
    let mut files = image.docker();
    files.remove(1);
    let linked = |target: &str| {
        let mut bytes = archive(&files);
        bytes.truncate(bytes.len() - 1024);
        Layer(bytes).link("layer1/layer.tar", target).end()
    };
    let import = |bytes: &[u8]| {
        let place = Place::new();
        fs::write(place.path("archive"), bytes).unwrap();
        place.open().import(&Source::at(&place.path("archive")))
    };
    assert_eq!(import(&linked("../layer0/layer.tar")).unwrap().entries, 2);
    assert_error(import(&linked("../../etc/passwd")), "layer layer1/layer.tar is not there");
    assert_error(import(&linked("layer.tar")), "layer layer1/layer.tar is not there");
}
