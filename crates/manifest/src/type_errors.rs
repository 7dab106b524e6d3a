//! What is wrong with the type of a value, for somebody who writes manifests.
//!
//! Serde says it in the words of programs: `invalid type: sequence, expected struct Foo`. Its
//! message is all that it gives, so it is taken apart here. What is not of a form that is known
//! stays as it is: nothing may be lost on the way.

/// Numbers of programs, and the least and the most that they hold.
const NUMBERS: [(&str, &str, &str); 8] = [
    ("i8", "-128", "127"),
    ("i16", "-32768", "32767"),
    ("i32", "-2147483648", "2147483647"),
    ("i64", "-9223372036854775808", "9223372036854775807"),
    ("u8", "0", "255"),
    ("u16", "0", "65535"),
    ("u32", "0", "4294967295"),
    ("u64", "0", "18446744073709551615"),
];

/// What is wrong, and what to do.
pub(crate) struct TypeError {
    /// As the end of a sentence about a field.
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
}

impl TypeError {
    /// Of serde's message.
    pub(crate) fn new(message: &str) -> Self {
        let (kind, rest) = message.split_once(": ").unwrap_or((message, ""));
        let parted = rest.rsplit_once(", expected ");
        let found = match (kind, parted) {
            ("invalid type" | "invalid value", Some((found, expected))) => {
                Some(mismatch(kind, found, expected))
            }
            _ => None,
        };
        let own = found.or_else(|| variant(message)).or_else(|| field(message));
        own.unwrap_or_else(|| Self {
            what: match message.starts_with("data did not match any variant") {
                true => "is of none of the forms that it may have".to_owned(),
                false => message.to_owned(),
            },
            remedy: "write a value of the expected type",
        })
    }
}

/// A value of another type, or out of bounds.
fn mismatch(kind: &str, found: &str, expected: &str) -> TypeError {
    let is_scalar = ["integer", "boolean", "floating point"].iter().any(|it| found.starts_with(it));
    let remedy = match (found, expected) {
        _ if kind == "invalid value" => "write another value",
        (_, "a string") if is_scalar => "put the value in quotes",
        ("null" | "unit value", _) => "give a value or remove the field",
        _ if found.starts_with("string") => {
            "write the value without quotes and in the expected type"
        }
        _ => "write a value of the expected type",
    };
    let what = format!("is {}, and must be {}", given(found), wanted(kind, expected));
    TypeError { what, remedy }
}

/// What there is.
fn given(found: &str) -> String {
    match found {
        "map" => "a map of fields".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" | "Option value" => "empty".to_owned(),
        _ => {
            let names = [("string ", "the text "), ("boolean ", "")];
            let names = names.into_iter().chain([("integer ", "the number ")]);
            let mut names = names.chain([("floating point ", "the number ")]);
            let named = names.find_map(|(is, name)| Some((name, found.strip_prefix(is)?)));
            named.map_or_else(|| found.to_owned(), |(name, value)| format!("{name}{value}"))
        }
    }
}

/// What there must be.
fn wanted(kind: &str, expected: &str) -> String {
    let number = NUMBERS.iter().find(|(name, ..)| *name == expected);
    let is_name = expected.chars().all(|it| it.is_ascii_alphanumeric())
        && expected.starts_with(|it: char| it.is_ascii_uppercase());
    match expected {
        "a string" | "string" | "str" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a map of fields".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        _ if is_name || expected.starts_with("struct ") => "a map of fields".to_owned(),
        _ => match number {
            Some((_, least, most)) if kind == "invalid value" => {
                format!("a whole number from {least} to {most}")
            }
            Some(_) => "a whole number".to_owned(),
            None => expected.to_owned(),
        },
    }
}

/// A word that is none of those that may be there.
fn variant(message: &str) -> Option<TypeError> {
    let (found, expected) = message.strip_prefix("unknown variant ")?.rsplit_once(", expected ")?;
    let what = format!("is {found}, and must be {expected}");
    Some(TypeError { what, remedy: "use one of the listed values" })
}

/// A field that is not there, or that must not be.
fn field(message: &str) -> Option<TypeError> {
    let of = |what: &str, end: &str, remedy| {
        let name = message.strip_prefix(what)?.split(", expected ").next()?;
        Some(TypeError { what: format!("the field {name} {end}"), remedy })
    };
    of("missing field ", "is missing", "add it")
        .or_else(|| of("duplicate field ", "appears twice", "keep one of them"))
        .or_else(|| {
            let remedy = "remove it, or correct its spelling, case and indentation";
            of("unknown field ", "does not exist here", remedy)
        })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "what is read matters, and not what becomes of it")]
    struct Part {
        port: u16,
        #[serde(default)]
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        One,
        Two,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "what is read matters, and not what becomes of it")]
    enum Either {
        Number(u16),
        List(Vec<u16>),
    }

    fn check<T: DeserializeOwned + std::fmt::Debug>(value: Value, expected: &str) {
        let message = serde_json::from_value::<T>(value).expect_err(expected).to_string();
        let TypeError { what, remedy } = TypeError::new(&message);
        assert_eq!(format!("{what}; {remedy}"), expected, "{message}");
    }

    #[test]
    fn no_word_of_programs_is_left() {
        let other = "write a value of the expected type";
        let unquoted = "write the value without quotes and in the expected type";
        check::<i32>(
            json!("eighty"),
            &format!("is the text \"eighty\", and must be a whole number; {unquoted}"),
        );
        check::<bool>(json!(1), &format!("is the number `1`, and must be true or false; {other}"));
        check::<String>(
            json!(1.5),
            "is the number `1.5`, and must be text; put the value in quotes",
        );
        check::<String>(json!(true), "is `true`, and must be text; put the value in quotes");
        check::<String>(json!([]), &format!("is a list, and must be text; {other}"));
        check::<String>(
            json!(null),
            "is empty, and must be text; give a value or remove the field",
        );
        check::<Vec<u8>>(json!({}), &format!("is a map of fields, and must be a list; {other}"));
        check::<Part>(
            json!(5),
            &format!("is the number `5`, and must be a map of fields; {other}"),
        );
        check::<f64>(json!({}), &format!("is a map of fields, and must be a number; {other}"));
        check::<Either>(json!({}), &format!("is of none of the forms that it may have; {other}"));
    }

    #[test]
    fn bounds_words_and_fields_are_named() {
        let range = "a whole number from 0 to 65535; write another value";
        check::<u16>(json!(70_000), &format!("is the number `70000`, and must be {range}"));
        check::<Part>(json!({}), "the field `port` is missing; add it");
        check::<Part>(
            json!({"port": 1, "ports": 2}),
            "the field `ports` does not exist here; remove it, or correct its spelling, case and \
             indentation",
        );
        check::<Part>(
            json!({"port": 1, "kind": "Three"}),
            "is `Three`, and must be `One` or `Two`; use one of the listed values",
        );
    }

    #[test]
    fn what_is_not_known_stays() {
        let error = TypeError::new("the month has 30 days");
        assert_eq!(error.what, "the month has 30 days");
        // A text that looks like a message is no message.
        let error = TypeError::new("invalid type: string \", expected i32\", expected a map");
        assert_eq!(error.what, "is the text \", expected i32\", and must be a map of fields");
    }
}
