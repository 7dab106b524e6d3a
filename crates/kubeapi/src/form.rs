//! Which form of an answer a client asks for, by the header Accept.
//!
//! kubectl asks for tables first and takes objects as well. Controllers ask for protobuf first,
//! which is passed over, and take JSON.

use crate::status::Status;

/// How objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Objects,
    /// Only their metadata: `PartialObjectMetadata`.
    Metadata,
    /// As rows of a `Table`, with this of each object beside it.
    Table(Beside),
}

/// What of an object goes beside its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    Metadata,
    Object,
}

/// How discovery documents are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryForm {
    /// One for each group and version.
    Single,
    /// One for everything, `apidiscovery.k8s.io/v2`.
    Aggregated,
}

/// One of the types that a client accepts, with its parameters.
struct Accepted<'a> {
    name: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Accepted<'_> {
    fn is_json(&self) -> bool {
        ["application/json", "application/*", "*/*"].contains(&self.name)
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }
}

fn accepted(header: Option<&str>) -> impl Iterator<Item = Accepted<'_>> {
    let header = header.filter(|it| !it.trim().is_empty()).unwrap_or("*/*");
    header.split(',').map(|one| {
        let mut parts = one.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        Accepted { name, parameters: parts.filter_map(|it| it.split_once('=')).collect() }
    })
}

impl Form {
    /// The first form that the client accepts and the server has. `include` is the parameter
    /// includeObject.
    pub(crate) fn of(accept: Option<&str>, include: Option<&str>) -> Result<Self, Status> {
        let form = |it: Accepted<'_>| match it.parameter("as") {
            _ if !it.is_json() => None,
            None => Some(Ok(Self::Objects)),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList")
                if it.parameter("v") == Some("v1") =>
            {
                Some(Ok(Self::Metadata))
            }
            Some("Table") if it.parameter("v") == Some("v1") => Some(match include {
                None | Some("Metadata") => Ok(Self::Table(Beside::Metadata)),
                Some("None") => Ok(Self::Table(Beside::Nothing)),
                Some("Object") => Ok(Self::Table(Beside::Object)),
                Some(other) => Err(Status::bad_request(format!(
                    "includeObject: {other:?} is none of None, Metadata and Object"
                ))),
            }),
            Some(_) => None,
        };
        accepted(accept).find_map(form).unwrap_or_else(|| Err(Status::not_acceptable()))
    }
}

impl DiscoveryForm {
    pub(crate) fn of(accept: Option<&str>) -> Result<Self, Status> {
        let form = |it: Accepted<'_>| match it.parameter("as") {
            _ if !it.is_json() => None,
            None => Some(Self::Single),
            Some("APIGroupDiscoveryList") if it.parameter("v") == Some("v2") => {
                Some(Self::Aggregated)
            }
            Some(_) => None,
        };
        accepted(accept).find_map(form).ok_or_else(Status::not_acceptable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_is_there_is_taken() {
        let check = |accept: &str, include: Option<&str>, expected: Result<Form, u16>| {
            let form = Form::of(Some(accept), include).map_err(|it| it.code().as_u16());
            assert_eq!(form, expected, "{accept}");
        };
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                       application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        check(kubectl, None, Ok(Form::Table(Beside::Metadata)));
        check(kubectl, Some("Object"), Ok(Form::Table(Beside::Object)));
        check(kubectl, Some("None"), Ok(Form::Table(Beside::Nothing)));
        check(kubectl, Some("All"), Err(400));
        check("", None, Ok(Form::Objects));
        check("application/vnd.kubernetes.protobuf, application/json", None, Ok(Form::Objects));
        check("application/vnd.kubernetes.protobuf,*/*", None, Ok(Form::Objects));
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        check(partial, None, Ok(Form::Metadata));
        check("application/vnd.kubernetes.protobuf", None, Err(406));
        check("text/html;,;;=,", None, Err(406));
    }

    #[test]
    fn discovery_is_aggregated_for_those_who_ask() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let older = v2.replace("v=v2", "v=v2beta1");
        let both = format!("{v2},{older},application/json");
        let either = format!("{older},application/json");
        assert_eq!(DiscoveryForm::of(Some(&both)), Ok(DiscoveryForm::Aggregated));
        assert_eq!(DiscoveryForm::of(Some(&either)), Ok(DiscoveryForm::Single));
        assert_eq!(DiscoveryForm::of(None), Ok(DiscoveryForm::Single));
        assert!(DiscoveryForm::of(Some("text/plain")).is_err());
    }
}
