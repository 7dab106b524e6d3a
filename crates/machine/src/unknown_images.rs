//! Containers of manifests whose images mean nothing on a machine: found before anything starts.
//!
//! Nothing here may find an image unknown that admission then takes, or the other way round: both
//! ask [`command_line`].

use ambit_manifest::{Finding, Manifests, Typed};

use crate::image::{ImageError, ImageMap, command_line, ways};
use crate::import::ImageSources;

/// Every container whose image means nothing, each with its place in the manifests; those that are
/// about to be imported from `sources` have a meaning. A command that takes no `--image` has no
/// `images`.
pub fn unknown_images(
    manifests: &Manifests,
    images: Option<&ImageMap>,
    sources: &ImageSources,
) -> Vec<Finding> {
    let (none, mut found) = (ImageMap::default(), Vec::new());
    for object in &manifests.objects {
        let (spec, prefix) = match &object.typed {
            Typed::Pod(pod) => (pod.spec.as_ref(), "spec".to_owned()),
            it => {
                let Some(template) = it.pod_template() else { continue };
                let at = object.key.kind.template_at().unwrap_or_default();
                (template.spec.as_ref(), format!("{at}.spec"))
            }
        };
        let Some(spec) = spec else { continue };
        let initial = spec.init_containers.as_deref().unwrap_or_default();
        for (list, containers) in [("initContainers", initial), ("containers", &spec.containers)] {
            for (index, container) in containers.iter().enumerate() {
                let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
                let image = container.image.as_deref().unwrap_or_default();
                let (command, args) = (words(&container.command), words(&container.args));
                if sources.contains(image) {
                    continue;
                }
                let Err(error) = command_line(image, &command, &args, images.unwrap_or(&none))
                else {
                    continue;
                };
                let field = format!("{prefix}.{list}[{index}].image");
                let (what, remedy) = in_words(&error, images.is_some());
                found.push(object.finding(field, what, remedy));
            }
        }
    }
    found
}

fn in_words(error: &ImageError, takes_images: bool) -> (String, String) {
    match error {
        ImageError::Unknown { image, name } => (
            format!("{image:?} means nothing on this machine"),
            match takes_images {
                true => ways(image, name),
                false => "add a `command`".to_owned(),
            },
        ),
        ImageError::SampleWithoutName { image } => (
            format!("{image:?} needs to be told which sample it is"),
            "add its name, as in args: [\"echo\"]".to_owned(),
        ),
        ImageError::NoCommand { image } => {
            (format!("{image:?} does not say what it runs"), "add a `command`".to_owned())
        }
        // Of the command line, or known only to admission.
        ImageError::User { .. } | ImageError::Argument { .. } | ImageError::Quote { .. } => {
            (error.to_string(), "correct the argument".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_manifest::{Input, load};

    use super::*;
    use crate::import::ImageArguments;

    #[test]
    fn unknown_images_are_found_with_their_place() {
        let text = "\
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec:
  initContainers:
  - name: first
    image: shop/first:1
  containers:
  - name: known
    image: busybox
  - name: sample
    image: ambit/sample:1
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: b, namespace: default}
spec:
  selector: {matchLabels: {app: b}}
  template:
    metadata: {labels: {app: b}}
    spec:
      containers:
      - name: said
        image: shop/said:2
      - name: cart
        image: registry:5000/shop/cart:2
      - name: own
        image: shop/own
        command: [run]
";
        let input = Input::Text { name: "app.yaml".to_owned(), text: text.to_owned() };
        let manifests = load(&[input]).expect("valid");
        let images = ImageMap::parse(["shop/said=/opt/said"]).expect("right");
        let sources = ImageSources::default();
        let found = unknown_images(&manifests, Some(&images), &sources);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let nothing = "means nothing on this machine";
        let cart = ways("registry:5000/shop/cart:2", "registry:5000/shop/cart");
        let expected = [
            &format!(
                "app.yaml:7: Pod default/a: spec.initContainers[0].image: \"shop/first:1\" \
                 {nothing}; {}",
                ways("shop/first:1", "shop/first")
            ),
            "app.yaml:12: Pod default/a: spec.containers[1].image: \"ambit/sample:1\" needs to be \
             told which sample it is; add its name, as in args: [\"echo\"]",
            &format!(
                "app.yaml:26: Deployment default/b: spec.template.spec.containers[1].image: \
                 \"registry:5000/shop/cart:2\" {nothing}; {cart}"
            ),
        ];
        assert!(cart.contains("docker-daemon:registry:5000/shop/cart:2, containerd:"), "{cart}");
        assert_eq!(found, expected);
        let remedy = &unknown_images(&manifests, None, &sources)[0].remedy;
        assert_eq!(remedy, "add a `command`", "there is no --image");
        let all = ["shop/first=a", "registry:5000/shop/cart=b", "ambit/sample=c"];
        let images = images.extended(ImageMap::parse(all).expect("right"));
        assert_eq!(unknown_images(&manifests, Some(&images), &sources), []);
        let all = ["shop/first=oci:a", "registry:5000/shop/cart=oci:b", "ambit/sample=oci:c"];
        let read = ImageArguments::parse(all).expect("right");
        let images = ImageMap::parse(["shop/said=/opt/said"]).expect("right");
        assert_eq!(unknown_images(&manifests, Some(&images), &read.sources), []);
    }
}
