//! A request, as far as it matters, and the objects that it names.

use http::Method;
use serde_json::Value;

use crate::form::Form;
use crate::resource::Resource;
use crate::selector::Selectors;

/// A request, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path.
    pub path: &'a str,
    /// What follows the `?`; empty without one.
    pub query: &'a str,
    /// Its header Accept.
    pub accept: Option<&'a str>,
    /// Its header Content-Type.
    pub content_type: Option<&'a str>,
}

/// The objects of a kind that are asked for, and how they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Their kind.
    pub resource: Resource,
    /// Their namespace; without one those of all.
    pub namespace: Option<String>,
    pub(crate) api_version: &'static str,
    pub(crate) selectors: Selectors,
    pub(crate) form: Form,
}

/// One object that is asked for, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Single {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace; empty for one without.
    pub namespace: String,
    /// Its name.
    pub name: String,
    pub(crate) api_version: &'static str,
    pub(crate) form: Form,
}

/// A text in an object, if there is one.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}
