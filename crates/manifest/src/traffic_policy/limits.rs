//! `limits`: how much a request may be, and how long it may take.

use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::limits::RequestLimits;
use serde::{Deserialize, Serialize};

use crate::FieldPath;
use crate::remarks::Remarks;

/// As it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Limits {
    /// Bytes of the fields of the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_header_bytes: Option<i64>,
    /// Fields of the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_headers: Option<i64>,
    /// Bytes of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_body_bytes: Option<i64>,
    /// How long the body may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_timeout: Option<String>,
    /// How long nothing may move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stream_idle_timeout: Option<String>,
}

/// What it means. What is wrong takes all of it with it: nobody can say what was meant to pass.
pub(super) fn read(
    written: &Limits,
    unreadable: Option<&str>,
    spec: &FieldPath,
    remarks: &mut Remarks,
) -> RequestLimits {
    let (at, mut own) = (spec.field("limits"), Remarks::default());
    if *written == Limits::default() && unreadable.is_none() {
        own.wrong(&at, "it limits nothing", "add for example maxBodyBytes: 1048576");
    }
    let mut number = |number: Option<i64>, most: u64, field: &str| {
        let number = number?;
        let converted = u64::try_from(number).ok().filter(|it| (1..=most).contains(it));
        if converted.is_none() {
            let what = format!("{number} is out of range");
            own.wrong(&at.field(field), what, format!("use 1 to {most}"));
        }
        converted
    };
    let small = |number: u64| u32::try_from(number).ok();
    let head_bytes = number(written.max_header_bytes, 1 << 20, "maxHeaderBytes").and_then(small);
    let fields = number(written.max_headers, 256, "maxHeaders").and_then(small);
    let body_bytes = number(written.max_body_bytes, i64::MAX as u64, "maxBodyBytes");
    let mut time = |text: &Option<String>, field: &str| -> Option<Duration> {
        let time = own.duration(text.as_deref(), &at.field(field))?;
        if time.is_zero() {
            own.wrong(&at.field(field), "no request takes no time", "write for example 30s");
        }
        Some(time)
    };
    let body_timeout = time(&written.body_timeout, "bodyTimeout");
    let idle_timeout = time(&written.stream_idle_timeout, "streamIdleTimeout");
    let problem = unreadable.map(|why| format!("it cannot be read: {why}"));
    let said = own.0.first().map(|it| format!("{}: {}", it.at.as_str(), it.what));
    let problem = problem.or(said).map(Text::from);
    remarks.0.extend(own.0);
    RequestLimits { head_bytes, fields, body_bytes, body_timeout, idle_timeout, problem }
}
