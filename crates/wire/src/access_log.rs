//! A JSON format of the access log, as operators write it.

use ambit_model::http::access_log::{Format, FormatError};
use serde_json::{Map, Value};

/// Why a JSON format is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonFormatError {
    /// It is no object.
    #[error("a JSON format is an object, for example {{\"code\": \"%RESPONSE_CODE%\"}}: {0}")]
    Json(String),
    /// A value is no text.
    #[error("the value of {0:?} must be a text with operators")]
    Value(String),
    /// An operator is wrong.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Reads `{"key": "format", ...}`.
pub fn json_format(text: &str) -> Result<Format, JsonFormatError> {
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| JsonFormatError::Json(error.to_string()))?;
    let mut fields = Vec::with_capacity(object.len());
    for (key, value) in &object {
        let format = value.as_str().ok_or_else(|| JsonFormatError::Value(key.clone()))?;
        fields.push((&**key, format));
    }
    Ok(Format::json(fields)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_texts_is_a_format_and_nothing_else_is() {
        let check = |text: &str, expected: &str| {
            let told =
                json_format(text).map_or_else(|error| error.to_string(), |_| "ok".to_owned());
            assert!(told.starts_with(expected), "{text}: {told}");
        };
        check("{\"code\": \"%RESPONSE_CODE%\"}", "ok");
        check("[]", "a JSON format is an object, for example {\"code\": \"%RESPONSE_CODE%\"}: ");
        check("{\"a\": 1}", "the value of \"a\" must be a text with operators");
        check("{\"a\": {\"b\": \"c\"}}", "the value of \"a\" must be a text with operators");
        check("{\"a\": \"%NO%\"}", "operator %NO% is not supported");
    }
}
