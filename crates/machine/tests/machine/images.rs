//! Images on a machine that has one user only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use ambit_image::registry::{Connect, Credentials, Endpoint};
use ambit_image::{Daemons, Digest};
use ambit_machine::{ImageArguments, Registries, objects};
use serde_json::{Value, json};
use tokio::io::DuplexStream;

use crate::lab::Lab;

/// No image here is in a registry.
struct Nowhere;

impl Connect for Nowhere {
    type Stream = DuplexStream;

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<DuplexStream> {
        panic!("{} is asked", endpoint.host);
    }
}

/// An archive as `docker save` writes it, of an image whose root has more groups than one, as that
/// of Alpine has. `user` is who it runs as.
fn archive(directory: &Path, user: &str) -> PathBuf {
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-euc", script]).current_dir(directory);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
    };
    shell(
        "mkdir -p root/bin root/etc
         for file in $(type -P bash sleep); do
             cp -L $file root/bin/
             for library in $(ldd $file | grep -o '/[^ ]*' || true); do
                 mkdir -p root$(dirname $library); cp -L $library root$library
             done
         done
         printf 'root:x:0:0::/home:/bin/bash\\nweb:x:71:72::/:\\n' > root/etc/passwd
         printf 'root:x:0:root\\nadm:x:4:root\\n' > root/etc/group
         tar --owner=0 --group=0 -C root -cf layer.tar .",
    );
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let layer = Digest::of(&fs::read(directory.join("layer.tar")).unwrap());
    let config = json!({
        "os": "linux",
        "architecture": architecture,
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "config": {"Cmd": ["sleep", "infinity"], "User": user, "Env": ["PATH=/bin"]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]);
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    shell("tar -cf image.tar manifest.json config.json layer.tar");
    directory.join("image.tar")
}

fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": image}]},
    })
}

/// The one user is the image's root, and nobody else.
pub(crate) async fn images_run_without_root(lab: &Lab) {
    let mut images = ambit_machine::image::ImageMap::default();
    let mut directories = Vec::new();
    let registries = Registries {
        connect: Nowhere,
        credentials: Credentials::default(),
        daemons: Daemons::default(),
    };
    for (name, user) in [("shop/root", "root"), ("shop/web", "web"), ("shop/group", "0:5")] {
        let directory = tempfile::tempdir().unwrap();
        let argument =
            format!("{name}=docker-archive:{}", archive(directory.path(), user).display());
        let arguments = ImageArguments::parse([argument.as_str()]).unwrap();
        let sources = &arguments.sources;
        let imported = sources.import_running(lab.layout(), &registries, &mut |_| {}).await;
        images = images.extended(imported.unwrap());
        directories.push(directory);
    }
    for (image, part) in
        [("shop/web", "user 71 with group 72"), ("shop/group", "user 0 with group 5")]
    {
        let refused = lab.client.apply_with_images(vec![pod("no", image)], images.clone(), false);
        let refused = ambit_words::error_chain(&refused.await.unwrap_err());
        assert!(refused.contains(part), "{refused}");
    }
    let mut asked = pod("asked", "shop/web");
    asked["spec"]["securityContext"] = json!({"runAsUser": 0, "supplementalGroups": [7]});
    let pods = vec![pod("own", "shop/root"), asked];
    let applied = lab.client.apply_with_images(pods, images, false).await.unwrap();
    let created = |change: &objects::Change| change.outcome == objects::Outcome::Created;
    assert!(applied.changes.iter().all(created), "{applied:?}");
    lab.ready().await;
    for name in ["own", "asked"] {
        let look = "echo $UID $HOME; : > /new && echo written; [[ -e /usr/bin/env ]] || echo own";
        assert_eq!(lab.exec(name, &["bash", "-c", look]).0, "0 /home\nwritten\nown\n", "{name}");
    }
}
