//! `compression`: which responses are compressed.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::compression::{Coding, Compression as Meant};
use serde::{Deserialize, Serialize};

use crate::FieldPath;
use crate::matching::is_token;
use crate::remarks::Remarks;

/// Most media types.
const TYPES_MAX: usize = 64;
/// The largest size below which bodies may be left as they are.
const MIN_BYTES_MAX: u64 = 1 << 30;

/// As it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Compression {
    /// The codings, the best first; an empty list compresses nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) algorithms: Option<Vec<String>>,
    /// Smaller bodies stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_bytes: Option<i64>,
    /// The media types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_types: Option<Vec<String>>,
}

/// What it means. Of one that is wrong nothing is compressed: nobody can say which responses were
/// meant not to be.
pub(super) fn read(
    written: &Compression,
    unreadable: Option<&str>,
    spec: &FieldPath,
    remarks: &mut Remarks,
) -> Arc<Meant> {
    let (at, mut own) = (spec.field("compression"), Remarks::default());
    let default = Meant::default();
    let algorithms = written.algorithms.as_deref();
    let codings = algorithms.map(|it| codings(it, &at.field("algorithms"), &mut own));
    let content_types = written.content_types.as_deref();
    let types = content_types.map(|it| types(it, &at.field("contentTypes"), &mut own));
    let min_bytes = written.min_bytes.map(|number| {
        let converted = u64::try_from(number).ok().filter(|it| *it <= MIN_BYTES_MAX);
        if converted.is_none() {
            let what = format!("{number} is out of range");
            own.wrong(&at.field("minBytes"), what, format!("use 0 to {MIN_BYTES_MAX}"));
        }
        converted.unwrap_or_default()
    });
    let is_well = own.0.is_empty() && unreadable.is_none();
    remarks.0.extend(own.0);
    Arc::new(match is_well {
        false => Meant::none(),
        true => Meant {
            codings: codings.unwrap_or(default.codings),
            min_bytes: min_bytes.unwrap_or(default.min_bytes),
            content_types: types.unwrap_or(default.content_types),
        },
    })
}

fn codings(names: &[String], at: &FieldPath, remarks: &mut Remarks) -> Vec<Coding> {
    let mut codings = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let at = at.index(index);
        match Coding::ALL.into_iter().find(|it| it.name() == name) {
            None => remarks.wrong(&at, format!("`{name}` is not known here"), "use br or gzip"),
            Some(coding) if codings.contains(&coding) => {
                remarks.wrong(&at, format!("`{name}` is there twice"), "remove one of the two");
            }
            Some(coding) => codings.push(coding),
        }
    }
    codings
}

fn types(written: &[String], at: &FieldPath, remarks: &mut Remarks) -> Vec<Text> {
    if written.is_empty() || written.len() > TYPES_MAX {
        let what = format!("1 to {TYPES_MAX} types are allowed, here are {}", written.len());
        remarks.wrong(at, what, "name the types; `algorithms: []` compresses nothing");
    }
    let is_name = |text: &str| is_token(text) && !text.contains('*');
    let is_type = |text: &str| {
        let parts = text.split_once('/');
        parts.is_some_and(|(kind, sub)| is_name(kind) && (sub == "*" || is_name(sub)))
    };
    for (index, text) in written.iter().enumerate().filter(|(_, text)| !is_type(text)) {
        let what = format!("`{text}` is no media type");
        remarks.wrong(&at.index(index), what, "write for example text/html or text/*");
    }
    written.iter().map(|it| it.to_ascii_lowercase().into()).collect()
}
