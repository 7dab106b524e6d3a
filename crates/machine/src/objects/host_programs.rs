//! Containers that run a program of this computer because their image means nothing.
//!
//! A `command` says what runs, so that this is no error: whoever writes it may mean just that. But
//! who brings a manifest from a cluster may take it for the program of the image, so an apply warns
//! of each such image once.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ObjectRef;
use crate::image::{ImageMap, host_program, repository};

/// Those of one apply, by their images.
#[derive(Default)]
pub(super) struct HostPrograms(BTreeMap<String, Containers>);

/// The containers of an image.
struct Containers {
    /// The first, and the program that it runs.
    container: String,
    object: ObjectRef,
    program: String,
    others: usize,
}

impl HostPrograms {
    /// Notes those of an object that has pods, or makes them.
    pub(super) fn note(&mut self, object: &ObjectRef, value: &Value, images: &ImageMap) {
        let templates = ["/spec/jobTemplate/spec/template/spec", "/spec/template/spec"];
        let mut specs = templates.iter().filter_map(|at| value.pointer(at));
        let Some(spec) = specs.next().or_else(|| value.get("spec")) else { return };
        let lists = ["initContainers", "containers"].into_iter();
        for container in lists.filter_map(|list| spec[list].as_array()).flatten() {
            let text = |field: &str| container[field].as_str().unwrap_or_default();
            let words = container["command"].as_array().into_iter().flatten();
            let command: Vec<String> = words.filter_map(Value::as_str).map(str::to_owned).collect();
            let image = text("image");
            let Some(program) = host_program(image, &command, images) else { continue };
            let found = self.0.entry(image.to_owned());
            found.and_modify(|it| it.others += 1).or_insert_with(|| Containers {
                container: text("name").to_owned(),
                object: object.clone(),
                program: program.to_owned(),
                others: 0,
            });
        }
    }

    /// One warning for each image, however many containers have it.
    pub(super) fn warnings(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|(image, containers)| {
            let Containers { container, object, program, others } = containers;
            let run = match others {
                0 => "runs".to_owned(),
                more => format!("and {more} more run"),
            };
            format!(
                "image {image:?} is not on this machine: container {container} of {object} {run} \
                 {program:?} of this computer; --image {}=oci:PATH gives it the image",
                repository(&image)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::Kind;

    #[test]
    fn an_image_is_warned_of_once() {
        let images = ImageMap::parse(["shop/known=/opt/known"]).expect("a command");
        fn container(name: &str, image: &str, command: &[&str]) -> Value {
            json!({"name": name, "image": image, "command": command})
        }
        let web = container("web", "docker.io/shop/web:1", &["nginx", "-g"]);
        let spec = json!({
            "initContainers": [container("first", "shop/known", &["sh"])],
            "containers": [web, container("two", "docker.io/shop/web:1", &["sh"]),
                {"name": "none", "image": "shop/other"}],
        });
        let mut found = HostPrograms::default();
        let of = |kind, name| ObjectRef::new(kind, Some("a"), name);
        found.note(&of(Kind::Pod, "b"), &json!({"spec": spec}), &images);
        found.note(
            &of(Kind::Deployment, "c"),
            &json!({"spec": {"template": {"spec": spec}}}),
            &images,
        );
        let job = json!({"containers": [container("job", "shop/job", &["run"])]});
        let job = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": job}}}}});
        found.note(&of(Kind::CronJob, "d"), &job, &images);
        found.note(&of(Kind::Service, "e"), &json!({"spec": {"ports": []}}), &images);
        assert_eq!(
            found.warnings().collect::<Vec<_>>(),
            [
                "image \"docker.io/shop/web:1\" is not on this machine: container web of Pod a/b \
                 and 3 more run \"nginx\" of this computer; --image shop/web=oci:PATH gives it \
                 the image",
                "image \"shop/job\" is not on this machine: container job of CronJob a/d runs \
                 \"run\" of this computer; --image shop/job=oci:PATH gives it the image",
            ]
        );
    }
}
