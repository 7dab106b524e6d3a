//! Why a write is refused, in Kubernetes' words.
//!
//! The machine's own words stay as they are: they name the field and the remedy. What is added is
//! the reason, by which clients decide what to do.

use ambit_kubeapi::{Cause, Resource, Status};
use ambit_manifest::Finding;

use crate::objects::{ApplyError, Kind, ObjectRef};

/// Which command has the options that a remedy may name.
const IMAGE_OPTION: &str = "--image ";

/// What a client is told that deletes a node.
const NODES: &str = "nodes are the machine's own; choose their number with `ambit up --nodes`, and \
                     close one with `kubectl cordon`";

/// A kind that the machine keeps, as the API names it.
pub(super) fn resource(kind: Kind) -> Resource {
    Resource {
        kind: kind.name(),
        plural: kind.plural(),
        namespaced: kind.is_namespaced(),
        api_versions: kind.api_versions(),
        only_read: None,
    }
}

/// A finding without its place: the client knows what it has sent.
pub(super) fn words(finding: &Finding) -> String {
    let Cause { field, message } = cause(finding);
    if field.is_empty() { message } else { format!("{field}: {message}") }
}

pub(super) fn cause(finding: &Finding) -> Cause {
    let Finding { field, what, remedy, .. } = finding;
    // The options of a client's own commands are others.
    let more = if remedy.contains(IMAGE_OPTION) { " (of `ambit up` or `ambit apply`)" } else { "" };
    Cause { field: field.clone(), message: format!("{what}; {remedy}{more}") }
}

/// There is no such namespace.
pub(super) fn no_namespace(name: &str) -> Status {
    Status::not_found(&resource(Kind::Namespace), name)
}

/// Why the machine has not changed an object.
pub(super) fn of(of: &Resource, name: &str, error: ApplyError) -> Status {
    let is_namespace = |object: &ObjectRef| object.plural == Kind::Namespace.plural();
    match &error {
        ApplyError::Absent { .. } => return Status::not_found(of, name),
        ApplyError::Node { .. } => return Status::not_allowed(NODES),
        ApplyError::LastingNamespace { object } => {
            let name = &object.name;
            let why = "is forbidden: this namespace may not be deleted; delete what is in it";
            return Status::forbidden(format!("namespaces {name:?} {why}"));
        }
        ApplyError::Missing { missing, .. } if is_namespace(missing) => {
            return no_namespace(&missing.name);
        }
        ApplyError::Terminating { object } if is_namespace(object) && of.namespaced => {
            return Status::forbidden(format!(
                "unable to create new content in namespace {} because it is being terminated",
                object.name
            ));
        }
        ApplyError::Terminating { .. } => {
            return Status::conflict(of, name, "it is being deleted; wait until it is gone");
        }
        ApplyError::Store(_) | ApplyError::Record(_) => {
            return Status::internal(format!("{:#}", anyhow::Error::new(error)));
        }
        _ => {}
    }
    let field = match &error {
        ApplyError::Immutable { field, .. } | ApplyError::Missing { field, .. } => {
            (*field).to_owned()
        }
        ApplyError::Refused { field, .. } => field.clone(),
        ApplyError::Schedule { .. } => "spec.schedule".to_owned(),
        ApplyError::TimeZone { .. } => "spec.timeZone".to_owned(),
        ApplyError::Selector { .. } => "spec.selector".to_owned(),
        ApplyError::Address { .. } | ApplyError::AddressesExhausted { .. } => {
            "spec.clusterIP".to_owned()
        }
        ApplyError::ExternalName { .. } => "spec.type".to_owned(),
        ApplyError::BadName { .. } | ApplyError::LongName { .. } => "metadata.name".to_owned(),
        _ => String::new(),
    };
    let message = format!("{:#}", anyhow::Error::new(error));
    Status::invalid(of, name, &[Cause { field, message }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::StoreError;

    #[test]
    fn reasons_are_those_of_kubernetes() {
        let check = |error: ApplyError, code: u16, part: &str| {
            let status = of(&resource(Kind::Deployment), "web", error);
            assert_eq!(status.code().as_u16(), code, "{status:?}");
            let message = status.to_json()["message"].to_string();
            assert!(message.contains(part), "{message}");
        };
        let web = || ObjectRef::new(Kind::Deployment, Some("a"), "web");
        let namespace = || ObjectRef::new(Kind::Namespace, None, "a");
        check(ApplyError::Absent { object: web() }, 404, "deployments.apps \\\"web\\\" not found");
        let lasting = ApplyError::LastingNamespace { object: namespace() };
        check(lasting, 403, "namespaces \\\"a\\\" is forbidden: this namespace may not be deleted");
        let (field, missing) = ("metadata.namespace", Box::new(namespace()));
        let no_namespace = ApplyError::Missing { object: web(), field, missing };
        check(no_namespace, 404, "namespaces \\\"a\\\" not found");
        let going = ApplyError::Terminating { object: namespace() };
        check(going, 403, "namespace a because it is being terminated");
        check(ApplyError::Terminating { object: web() }, 409, "is being deleted");
        let immutable = ApplyError::Immutable { object: web(), field: "spec.selector" };
        check(immutable, 422, "spec.selector: Deployment a/web: spec.selector cannot change");
        let source = std::io::Error::other("full");
        let store = StoreError::Stage { path: "/x".into(), source };
        check(ApplyError::Store(store), 500, "cannot write /x");
    }

    #[test]
    fn a_finding_is_a_cause_without_its_place() {
        let finding = Finding {
            location: ambit_manifest::Location { file: "request".to_owned(), line: 0 },
            object: "Pod a/web".to_owned(),
            field: "spec.containers[0].image".to_owned(),
            what: "\"x\" means nothing on this machine".to_owned(),
            remedy: "import it with --image x=oci:PATH".to_owned(),
        };
        let expected = "spec.containers[0].image: \"x\" means nothing on this machine; import it \
                        with --image x=oci:PATH (of `ambit up` or `ambit apply`)";
        assert_eq!(words(&finding), expected);
        let whole = Finding { field: String::new(), remedy: "do".to_owned(), ..finding };
        assert_eq!(words(&whole), "\"x\" means nothing on this machine; do");
    }
}
