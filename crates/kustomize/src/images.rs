//! New names, tags and digests of images.
//!
//! An image is found in every list `containers` or `initContainers`, wherever it is, and in the
//! fields of the table. The name of an entry is a regular expression, as it is in kustomize.

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field};
use crate::identity::Gvk;
use crate::resource::Resources;
use crate::selector::regex;

/// One entry of `images`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Image {
    name: String,
    new_name: String,
    new_tag: String,
    tag_suffix: String,
    digest: String,
}

/// Changes the images that an entry names.
pub(crate) fn set_images(
    resources: &mut Resources,
    image: &Image,
    fields: &[FieldSpec],
) -> Result<(), Fault> {
    let pattern = format!(
        "^{}(:[a-zA-Z0-9_.{{}}-]*)?(@[a-zA-Z0-9]+([.+_-][a-zA-Z0-9]+)*:[a-zA-Z0-9_.{{}}-]*)?$",
        image.name
    );
    // kustomize takes a name that is no regular expression for one that fits nothing.
    let Ok(pattern) = regex(&pattern) else { return Ok(()) };
    for resource in &mut resources.0 {
        if Gvk::of(&resource.value).kind == "CustomResourceDefinition" {
            continue;
        }
        let identity = resource.identity();
        let changed = in_containers(&mut resource.value, image, &pattern).and_then(|()| {
            fields.iter().try_for_each(|field| {
                change_field(&mut resource.value, field, Missing::Skip, &mut |value| {
                    set(value, image, &pattern)
                })
            })
        });
        changed.map_err(|fault| Fault { what: format!("{identity}: {}", fault.what), ..fault })?;
    }
    Ok(())
}

fn in_containers(value: &mut Value, image: &Image, pattern: &Regex) -> Result<(), Fault> {
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                in_containers(child, image, pattern)?;
                let Value::Array(items) = child else { continue };
                if ["containers", "initContainers"].contains(&name.as_str()) {
                    let images = items.iter_mut().filter_map(|it| it.get_mut("image"));
                    for found in images.filter(|it| !it.is_null()) {
                        set(found, image, pattern)?;
                    }
                }
            }
            Ok(())
        }
        Value::Array(items) => {
            items.iter_mut().try_for_each(|it| in_containers(it, image, pattern))
        }
        _ => Ok(()),
    }
}

fn set(value: &mut Value, image: &Image, pattern: &Regex) -> Result<(), Fault> {
    let Some(old) = crate::identity::scalar_text(value) else {
        return Err(Fault::new("an image must be a text", "correct the resource"));
    };
    if pattern.is_match(&old) {
        *value = Value::String(changed(&old, image));
    }
    Ok(())
}

fn changed(old: &str, image: &Image) -> String {
    let (mut name, mut tag, mut digest) = split(old);
    let suffixed = format!("{tag}{}", image.tag_suffix);
    if !image.new_name.is_empty() {
        name = &image.new_name;
    }
    match (image.new_tag.as_str(), image.digest.as_str()) {
        ("", "") if image.tag_suffix.is_empty() => {}
        ("", "") => (tag, digest) = (&suffixed, ""),
        (new_tag, new_digest) => (tag, digest) = (new_tag, new_digest),
    }
    let mut all = name.to_owned();
    for (mark, part) in [(':', tag), ('@', digest)] {
        if !part.is_empty() {
            all.push(mark);
            all.push_str(part);
        }
    }
    all
}

/// Name, tag and digest. A colon before the first slash is that of a registry's port.
fn split(image: &str) -> (&str, &str, &str) {
    let path_at = image.find('/').unwrap_or(0);
    let at = image[path_at..].find('@').map(|it| it + path_at);
    let colon = image[path_at..].find(':').map(|it| it + path_at);
    match (colon, at) {
        (None, None) => (image, "", ""),
        (Some(colon), Some(at)) if colon < at => {
            (&image[..colon], &image[colon + 1..at], &image[at + 1..])
        }
        (_, Some(at)) => (&image[..at], "", &image[at + 1..]),
        (Some(colon), None) => (&image[..colon], &image[colon + 1..], ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, entry: &str, expected: &str) {
        let image: Image = serde_saphyr::from_str(entry).expect("an entry");
        let value = serde_json::json!({"kind": "X", "spec": {"containers": [{"image": old}]}});
        let mut resources =
            Resources(vec![crate::resource::Resource::new(value, std::path::Path::new("x.yaml"))]);
        set_images(&mut resources, &image, &[]).expect("an image");
        let found = &resources.0[0].value["spec"]["containers"][0]["image"];
        assert_eq!(found, expected, "{entry}");
    }

    #[test]
    fn names_tags_and_digests_are_changed() {
        check("nginx:1", "{name: nginx, newTag: '2'}", "nginx:2");
        check("nginx", "{name: nginx, newName: r.io:5000/n}", "r.io:5000/n");
        check("r.io:5000/n:1", "{name: 'r.io:5000/n', newTag: '2'}", "r.io:5000/n:2");
        check("n:1@sha256:ab", "{name: n, newTag: '2'}", "n:2");
        check("n:1", "{name: n, digest: 'sha256:cd'}", "n@sha256:cd");
        check("n:1", "{name: n, digest: 'sha256:cd', newTag: '3'}", "n:3@sha256:cd");
        check("nginx-x:1", "{name: nginx, newTag: '2'}", "nginx-x:1");
        check("n:1", "{name: n, tagSuffix: '-a'}", "n:1-a");
    }
}
