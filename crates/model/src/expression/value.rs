//! Values, and where those of a request come from.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;

use crate::http::head::Fields;

/// What is known of a request, by name.
pub trait Attributes {
    /// The value of `name`, one of the names that the expression was compiled with; `None` where
    /// this request has none.
    fn attribute(&self, name: &str) -> Option<Value<'_>>;
}

/// A value, borrowed from the expression or from what is known of a request.
#[derive(Clone)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number without a sign.
    Uint(u64),
    /// A number with a fraction.
    Double(f64),
    /// Text.
    Text(Cow<'a, str>),
    /// Several values in order.
    List(Rc<[Value<'a>]>),
    /// Values by name.
    Map(Rc<[(Cow<'a, str>, Value<'a>)]>),
    /// Fields of a head, by name in any case. One with several lines cannot be read.
    Fields(&'a dyn Fields),
    /// What is looked up by name when it is asked for.
    Named(&'a dyn Lookup),
}

/// Values by name, made when they are asked for.
pub trait Lookup {
    /// The value of this name.
    fn get(&self, name: &str) -> Option<Value<'_>>;
}

/// What a name leads to.
pub(super) enum Found<'a> {
    Value(Value<'a>),
    Nothing,
    /// A field with several lines: whoever reads it may read another one.
    Several,
}

impl<'a> Value<'a> {
    /// A text.
    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text(text.into())
    }

    /// What it is, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Uint(_) => "a whole number",
            Self::Double(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) | Self::Fields(_) | Self::Named(_) => "a map",
        }
    }

    /// What a map has under this name; `None` for anything else.
    pub(super) fn member(&self, name: &str) -> Option<Found<'a>> {
        let found = |value: Option<Value<'a>>| value.map_or(Found::Nothing, Found::Value);
        match self {
            Self::Map(all) => {
                let member = all.iter().find(|(key, _)| key == name);
                Some(found(member.map(|(_, value)| value.clone())))
            }
            Self::Fields(fields) => Some(field(*fields, &name.to_ascii_lowercase())),
            Self::Named(all) => Some(found(all.get(name))),
            _ => None,
        }
    }

    /// How many values it consists of.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::List(all) => 1 + all.iter().map(Self::weight).sum::<usize>(),
            Self::Map(all) => 1 + all.iter().map(|(_, value)| value.weight()).sum::<usize>(),
            _ => 1,
        }
    }

    /// The order of two values, where there is one.
    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(one), Self::Bool(other)) => Some(one.cmp(other)),
            (Self::Text(one), Self::Text(other)) => Some(one.cmp(other)),
            (Self::Double(one), Self::Double(other)) => one.partial_cmp(other),
            (Self::Double(one), other) => order_of_double(*one, other.whole()?),
            (one, Self::Double(other)) => {
                order_of_double(*other, one.whole()?).map(Ordering::reverse)
            }
            (one, other) => Some(one.whole()?.cmp(&other.whole()?)),
        }
    }

    fn whole(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some((*value).into()),
            Self::Uint(value) => Some((*value).into()),
            _ => None,
        }
    }
}

/// Compares without losing digits: a double beyond 2^53 holds fewer than an integer.
fn order_of_double(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Saturates: every integer of 64 bits is within.
    let truncated = double.trunc() as i128;
    Some(
        truncated
            .cmp(&whole)
            .then_with(|| double.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)),
    )
}

fn field<'a>(fields: &'a dyn Fields, name: &str) -> Found<'a> {
    let mut lines = 0;
    fields.any(name, &mut |_| {
        lines += 1;
        lines > 1
    });
    match (lines, fields.value(name)) {
        (2.., _) => Found::Several,
        (_, Some(value)) => Found::Value(Value::Text(as_text(value))),
        (_, None) => Found::Nothing,
    }
}

fn as_text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
    }
}

/// As a log or a field takes it: text as it is, lists and maps as in JSON; what is looked up by
/// name is not shown.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Uint(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::List(all) => {
                f.write_str("[")?;
                for (index, value) in all.iter().enumerate() {
                    write!(f, "{}{}", if index > 0 { "," } else { "" }, Quoted(value))?;
                }
                f.write_str("]")
            }
            Self::Map(all) => {
                f.write_str("{")?;
                for (index, (key, value)) in all.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{key:?}:{}", Quoted(value))?;
                }
                f.write_str("}")
            }
            Self::Fields(_) | Self::Named(_) => f.write_str("{...}"),
        }
    }
}

/// A value within another.
struct Quoted<'v, 'a>(&'v Value<'a>);

impl fmt::Display for Quoted<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Text(text) => write!(f, "{text:?}"),
            other => other.fmt(f),
        }
    }
}

/// Its kind alone: a value may be a secret.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", self.kind())
    }
}
