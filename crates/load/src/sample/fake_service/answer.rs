//! The JSON of a service's answer, which it also reads from the services it calls.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One service's answer, with those of the services that it called. Names and order are
/// fake-service's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uri: String,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) ip_addresses: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) start_time: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) end_time: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) duration: String,
    /// Of the called service's response; none in a service's own part.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) body: Value,
    /// By URI as configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) upstream_calls: BTreeMap<String, Answer>,
    /// HTTP status; -1 when there was no response.
    pub(super) code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl Answer {
    /// The text that is sent.
    pub(super) fn to_text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("answers can be written as JSON");
        text.push(b'\n');
        text
    }
}

/// A moment as fake-service writes it, in UTC.
pub(super) fn timestamp(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).expect("the clock is within the calendar");
    time.strftime("%Y-%m-%dT%H:%M:%S.%6f").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_have_six_digits() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_042);
        assert_eq!(timestamp(time), "2023-11-14T22:13:20.000042");
    }
}
