//! Copies one namespace's application into others, as the published experiment grows.
//!
//! The namespace whose name ends in `-1` is the pattern; the names of copies end in `-2`, `-3` and
//! so on. Objects in other namespaces are not part of the pattern and are left out.

use std::collections::BTreeSet;

use super::modes::Application;
use super::pods::PodGroup;

/// The end of the pattern's name.
const FIRST: &str = "-1";

/// Why nothing is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--namespaces repeats the one namespace whose name ends in `-1`, and the workloads are in {}; \
     rename the one to repeat",
    if self.0.is_empty() { "none".to_owned() } else { self.0.join(", ") }
)]
pub struct RepeatError(Vec<String>);

/// The pattern in `count` namespaces. Copies cannot all lie on the nodes that the pattern names, so
/// they may go anywhere.
pub fn repeat(application: &Application, count: u32) -> Result<Application, RepeatError> {
    let all = application.pods.iter().chain(&application.daemons);
    let namespaces: BTreeSet<&str> = all.map(|it| it.namespace.as_str()).collect();
    let patterns: Vec<&str> = namespaces.iter().copied().filter(|it| it.ends_with(FIRST)).collect();
    let &[pattern] = &patterns[..] else {
        return Err(RepeatError(namespaces.into_iter().map(str::to_owned).collect()));
    };
    let stem = pattern.strip_suffix(FIRST).expect("patterns were chosen by it");
    let names: Vec<String> = (1..=count).map(|number| format!("{stem}-{number}")).collect();
    let copies = |groups: &[PodGroup]| -> Vec<PodGroup> {
        let of_pattern = groups.iter().filter(|it| it.namespace == pattern);
        let of_pattern: Vec<PodGroup> = of_pattern.map(|it| it.clone().on_any_node()).collect();
        let copy = |name: &String| of_pattern.iter().map(|it| it.in_namespace(name)).collect();
        names.iter().flat_map::<Vec<PodGroup>, _>(copy).collect()
    };
    let has_service = application.service_namespaces.contains(pattern);
    Ok(Application {
        pods: copies(&application.pods),
        daemons: copies(&application.daemons),
        service_namespaces: names.iter().filter(|_| has_service).cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resources;

    #[test]
    fn one_namespace_is_repeated_and_the_others_left_out() {
        let pods = |namespace: &str| PodGroup::plain(namespace, "web", 2, Resources::default());
        let application = Application {
            pods: vec![pods("client"), pods("ns-1")],
            daemons: vec![],
            service_namespaces: BTreeSet::from(["ns-1".to_owned()]),
        };
        let repeated = repeat(&application, 3).unwrap();
        let names: Vec<String> = repeated.pods.iter().map(PodGroup::full_name).collect();
        assert_eq!(names, ["ns-1/web", "ns-2/web", "ns-3/web"]);
        assert_eq!(repeated.service_namespaces.len(), 3);
        let none = Application { pods: vec![pods("shop")], ..Application::default() };
        let expected = "--namespaces repeats the one namespace whose name ends in `-1`, and the \
                        workloads are in shop; rename the one to repeat";
        assert_eq!(repeat(&none, 3).unwrap_err().to_string(), expected);
    }
}
