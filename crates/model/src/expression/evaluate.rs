//! The value of a compiled expression.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::node::{Comparison, Function, Node, Operator, Quantifier};
use super::value::{Attributes, Found, Value};

/// Steps that one evaluation may take: a part of the expression, a member that is looked at, or
/// [`BYTES_PER_STEP`] of text. It takes a millisecond or two at most.
const STEPS_MAX: usize = 20_000;
/// Text that is compared, searched or copied in one step.
const BYTES_PER_STEP: usize = 64;
/// Text that a regular expression reads in one step.
const MATCHED_BYTES_PER_STEP: usize = 4;
/// 2^63, where integers end; exact as a double.
const INT_END: f64 = -(i64::MIN as f64);
/// The longest text that an expression may make: as much as a head.
const TEXT_MAX_BYTES: usize = 64 << 10;

/// Why an expression has no value for a request. It names what the expression names, and nothing
/// of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// Nothing is known under this name.
    #[error("there is no {0}")]
    Missing(String),
    /// A field of a head has several lines: others may read another one.
    #[error("the field {0} is there more than once")]
    Several(String),
    /// A value is of another kind than what is done with it asks for.
    #[error("it needs {wanted} and has {got}")]
    Kind {
        /// What is needed.
        wanted: &'static str,
        /// What is there.
        got: &'static str,
    },
    /// Two values that have no order.
    #[error("{0} and {1} have no order")]
    NoOrder(&'static str, &'static str),
    /// A number that has no place, or a division by zero.
    #[error("a number is too large, or divided by zero")]
    Arithmetic,
    /// An index beyond the end of a list.
    #[error("the list has no such member")]
    Index,
    /// A text that is no number.
    #[error("a text is no number")]
    Number,
    /// It takes too many steps for this request.
    #[error("it takes more than {STEPS_MAX} steps")]
    Steps,
    /// It makes a text that is too long.
    #[error("it makes a text of more than {TEXT_MAX_BYTES} bytes")]
    Length,
}

/// The value of `node`.
pub(super) fn evaluate<'a>(
    node: &'a Node,
    attributes: &'a dyn Attributes,
) -> Result<Value<'a>, EvaluationError> {
    Run { attributes, variables: Vec::new(), left: STEPS_MAX }.value(node)
}

struct Run<'a> {
    attributes: &'a dyn Attributes,
    variables: Vec<Value<'a>>,
    left: usize,
}

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

impl<'a> Run<'a> {
    fn value(&mut self, node: &'a Node) -> Outcome<'a> {
        self.spend(1)?;
        Ok(match node {
            Node::Null => Value::Null,
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Int(*value),
            Node::Uint(value) => Value::Uint(*value),
            Node::Double(value) => Value::Double(*value),
            Node::Text(text) => Value::Text(Cow::Borrowed(text)),
            Node::List(parts) => {
                let all: Result<Vec<_>, _> = parts.iter().map(|part| self.value(part)).collect();
                Value::List(all?.into())
            }
            Node::Attribute(name) => {
                let value = self.attributes.attribute(name);
                let value = value.ok_or_else(|| EvaluationError::Missing(name.to_string()))?;
                self.spend(value.weight())?;
                value
            }
            Node::HasAttribute(name) => Value::Bool(self.attributes.attribute(name).is_some()),
            Node::Variable(depth) => self.variable(*depth)?,
            Node::Field(of, name) => {
                let of = self.value(of)?;
                self.member(&of, name)?
            }
            Node::HasField(of, name) => {
                let of = self.value(of)?;
                Value::Bool(!matches!(self.found(&of, name)?, Found::Nothing))
            }
            Node::Index(parts) => self.index(parts)?,
            Node::Not(part) => Value::Bool(!self.truth(part)?),
            Node::Negate(part) => negated(&self.value(part)?)?,
            Node::And(parts) => Value::Bool(!self.any(parts.iter(), false)?),
            Node::Or(parts) => Value::Bool(self.any(parts.iter(), true)?),
            Node::Choose(parts) => {
                let [condition, then, otherwise] = &**parts;
                let chosen = if self.truth(condition)? { then } else { otherwise };
                self.value(chosen)?
            }
            Node::Compare(comparison, parts) => {
                let [one, other] = self.both(parts)?;
                Value::Bool(self.compare(*comparison, &one, &other)?)
            }
            Node::In(parts) => {
                let [member, all] = self.both(parts)?;
                Value::Bool(self.contains(&all, &member)?)
            }
            Node::Compute(operator, parts) => {
                let [one, other] = self.both(parts)?;
                self.compute(*operator, &one, &other)?
            }
            Node::Call(function, parts) => self.call(*function, parts)?,
            Node::Matches(part, pattern) => {
                let text = self.text(part)?;
                self.spend(text.len() / MATCHED_BYTES_PER_STEP)?;
                Value::Bool(pattern.is_in(text.as_bytes()))
            }
            Node::Quantify(quantifier, parts) => Value::Bool(self.quantify(*quantifier, parts)?),
        })
    }

    fn spend(&mut self, steps: usize) -> Result<(), EvaluationError> {
        // What is spent stays spent: an error must not make room for what comes behind `||`.
        self.left = self.left.saturating_sub(steps);
        if self.left == 0 { Err(EvaluationError::Steps) } else { Ok(()) }
    }

    fn spend_on_text(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.spend(bytes / BYTES_PER_STEP)
    }

    fn variable(&mut self, depth: usize) -> Outcome<'a> {
        let value = self.variables.get(depth).cloned();
        let value = value.ok_or_else(|| EvaluationError::Missing("variable".to_owned()))?;
        if let Value::Text(Cow::Owned(text)) = &value {
            self.spend_on_text(text.len())?;
        }
        Ok(value)
    }

    fn both(&mut self, parts: &'a [Node; 2]) -> Result<[Value<'a>; 2], EvaluationError> {
        Ok([self.value(&parts[0])?, self.value(&parts[1])?])
    }

    fn truth(&mut self, node: &'a Node) -> Result<bool, EvaluationError> {
        match self.value(node)? {
            Value::Bool(value) => Ok(value),
            other => Err(kind("true or false", &other)),
        }
    }

    fn text(&mut self, node: &'a Node) -> Result<Cow<'a, str>, EvaluationError> {
        match self.value(node)? {
            Value::Text(text) => {
                self.spend_on_text(text.len())?;
                Ok(text)
            }
            other => Err(kind("text", &other)),
        }
    }

    /// Whether one of them is `wanted`. That one decides, whatever the others are; without it an
    /// error is the result.
    fn any(
        &mut self,
        parts: impl Iterator<Item = &'a Node>,
        wanted: bool,
    ) -> Result<bool, EvaluationError> {
        let mut failed = None;
        for part in parts {
            match self.truth(part) {
                Ok(value) if value == wanted => return Ok(true),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    fn found(&mut self, of: &Value<'a>, name: &str) -> Result<Found<'a>, EvaluationError> {
        let found = of.member(name).ok_or_else(|| kind("a map", of))?;
        self.spend(match (of, &found) {
            (Value::Map(all), _) => all.len(),
            (_, Found::Value(value)) => value.weight(),
            _ => 1,
        })?;
        Ok(found)
    }

    fn member(&mut self, of: &Value<'a>, name: &str) -> Outcome<'a> {
        match self.found(of, name)? {
            Found::Value(value) => Ok(value),
            Found::Nothing => Err(EvaluationError::Missing(name.to_owned())),
            Found::Several => Err(EvaluationError::Several(name.to_owned())),
        }
    }

    fn index(&mut self, parts: &'a [Node; 2]) -> Outcome<'a> {
        let [of, at] = self.both(parts)?;
        let Value::List(all) = &of else {
            let Value::Text(name) = &at else { return Err(kind("text", &at)) };
            return self.member(&of, name);
        };
        let index = match at {
            Value::Int(index) => usize::try_from(index).map_err(|_| EvaluationError::Index)?,
            Value::Uint(index) => usize::try_from(index).map_err(|_| EvaluationError::Index)?,
            other => return Err(kind("a whole number", &other)),
        };
        all.get(index).cloned().ok_or(EvaluationError::Index)
    }

    fn compare(
        &mut self,
        comparison: Comparison,
        one: &Value<'a>,
        other: &Value<'a>,
    ) -> Result<bool, EvaluationError> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Unequal};
        if matches!(comparison, Equal | Unequal) {
            return Ok(self.is_equal(one, other)? == (comparison == Equal));
        }
        if let (Value::Text(one), Value::Text(other)) = (one, other) {
            self.spend_on_text(one.len().min(other.len()))?;
        }
        let order = one.order(other);
        let order = match order {
            Some(order) => order,
            // Nothing is less or greater than what is no number.
            None if [one, other].iter().all(|it| is_number(it)) => return Ok(false),
            None => return Err(EvaluationError::NoOrder(one.kind(), other.kind())),
        };
        Ok(match comparison {
            Less => order == Ordering::Less,
            LessOrEqual => order != Ordering::Greater,
            Greater => order == Ordering::Greater,
            GreaterOrEqual => order != Ordering::Less,
            Equal | Unequal => order == Ordering::Equal,
        })
    }

    /// Values of different kinds are not equal; numbers are compared as numbers.
    fn is_equal(&mut self, one: &Value<'a>, other: &Value<'a>) -> Result<bool, EvaluationError> {
        self.spend(1)?;
        match (one, other) {
            (Value::Null, Value::Null) => Ok(true),
            (Value::Text(one), Value::Text(other)) => {
                if one.len() == other.len() {
                    self.spend_on_text(one.len())?;
                }
                Ok(one == other)
            }
            (Value::List(one), Value::List(other)) if one.len() == other.len() => {
                for (one, other) in one.iter().zip(other.iter()) {
                    if !self.is_equal(one, other)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Map(one), Value::Map(other)) if one.len() == other.len() => {
                for (name, value) in one.iter() {
                    self.spend(other.len())?;
                    let Some((_, member)) = other.iter().find(|(key, _)| key == name) else {
                        return Ok(false);
                    };
                    if !self.is_equal(value, member)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Fields(_) | Value::Named(_), it) | (it, Value::Fields(_) | Value::Named(_)) => {
                Err(kind("names of single members", it))
            }
            (one, other) => Ok(one.order(other) == Some(Ordering::Equal)),
        }
    }

    fn contains(&mut self, all: &Value<'a>, member: &Value<'a>) -> Result<bool, EvaluationError> {
        let Value::List(all) = all else {
            let Value::Text(name) = member else { return Err(kind("text", member)) };
            return Ok(!matches!(self.found(all, name)?, Found::Nothing));
        };
        for one in all.iter() {
            if self.is_equal(one, member)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn compute(&mut self, operator: Operator, one: &Value<'a>, other: &Value<'a>) -> Outcome<'a> {
        use Operator::{Add, Divide, Multiply, Remainder, Subtract};
        let computed = match (one, other) {
            (Value::Int(one), Value::Int(other)) => match operator {
                Add => one.checked_add(*other),
                Subtract => one.checked_sub(*other),
                Multiply => one.checked_mul(*other),
                Divide => one.checked_div(*other),
                Remainder => one.checked_rem(*other),
            }
            .map(Value::Int),
            (Value::Uint(one), Value::Uint(other)) => match operator {
                Add => one.checked_add(*other),
                Subtract => one.checked_sub(*other),
                Multiply => one.checked_mul(*other),
                Divide => one.checked_div(*other),
                Remainder => one.checked_rem(*other),
            }
            .map(Value::Uint),
            (Value::Double(one), Value::Double(other)) if operator != Remainder => {
                Some(Value::Double(match operator {
                    Add => one + other,
                    Subtract => one - other,
                    Multiply => one * other,
                    Divide | Remainder => one / other,
                }))
            }
            (Value::Text(one), Value::Text(other)) if operator == Add => {
                let length = one.len() + other.len();
                if length > TEXT_MAX_BYTES {
                    return Err(EvaluationError::Length);
                }
                self.spend_on_text(length)?;
                Some(Value::text(format!("{one}{other}")))
            }
            (one, other) => {
                let wrong = if is_number(one) { other } else { one };
                return Err(kind("two numbers of one kind, or two texts to add", wrong));
            }
        };
        computed.ok_or(EvaluationError::Arithmetic)
    }

    fn call(&mut self, function: Function, parts: &'a [Node]) -> Outcome<'a> {
        let [first, rest @ ..] = parts else {
            return Err(EvaluationError::Missing("argument".to_owned()));
        };
        let with = |this: &mut Self, test: fn(&str, &str) -> bool| {
            let (text, part) = (this.text(first)?, this.text(&rest[0])?);
            Ok(Value::Bool(test(&text, &part)))
        };
        match function {
            Function::Contains => with(self, |text, part| text.contains(part)),
            Function::StartsWith => with(self, |text, part| text.starts_with(part)),
            Function::EndsWith => with(self, |text, part| text.ends_with(part)),
            Function::LowerAscii => Ok(Value::text(self.text(first)?.to_ascii_lowercase())),
            Function::UpperAscii => Ok(Value::text(self.text(first)?.to_ascii_uppercase())),
            Function::Size => {
                let size = match self.value(first)? {
                    Value::Text(text) => {
                        self.spend_on_text(text.len())?;
                        text.chars().count()
                    }
                    Value::List(all) => all.len(),
                    Value::Map(all) => all.len(),
                    other => return Err(kind("text, a list or a map", &other)),
                };
                i64::try_from(size).map(Value::Int).map_err(|_| EvaluationError::Arithmetic)
            }
            Function::Int => int(&self.value(first)?),
            Function::Double => double(&self.value(first)?),
            Function::String => match self.value(first)? {
                text @ Value::Text(_) => Ok(text),
                value @ (Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
                    Ok(Value::text(value.to_string()))
                }
                other => Err(kind("text, a number, true or false", &other)),
            },
        }
    }

    fn quantify(
        &mut self,
        quantifier: Quantifier,
        [range, body]: &'a [Node; 2],
    ) -> Result<bool, EvaluationError> {
        let members = match self.value(range)? {
            Value::List(all) => all.to_vec(),
            Value::Map(all) => all.iter().map(|(key, _)| Value::Text(key.clone())).collect(),
            other => return Err(kind("a list, or a map whose names are known", &other)),
        };
        self.spend(members.len())?;
        let (mut failed, mut true_ones) = (None, 0_usize);
        for member in members {
            self.variables.push(member);
            let held = self.truth(body);
            self.variables.pop();
            match (quantifier, held) {
                (Quantifier::All, Ok(false)) => return Ok(false),
                (Quantifier::Exists, Ok(true)) => return Ok(true),
                (_, Ok(held)) => true_ones += usize::from(held),
                (Quantifier::ExistsOne, Err(error)) => return Err(error),
                (_, Err(error)) => failed = failed.or(Some(error)),
            }
        }
        match (failed, quantifier) {
            (Some(error), _) => Err(error),
            (None, Quantifier::All) => Ok(true),
            (None, Quantifier::Exists) => Ok(false),
            (None, Quantifier::ExistsOne) => Ok(true_ones == 1),
        }
    }
}

fn kind(wanted: &'static str, got: &Value<'_>) -> EvaluationError {
    EvaluationError::Kind { wanted, got: got.kind() }
}

fn is_number(value: &Value<'_>) -> bool {
    matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))
}

fn negated<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Int(value) => value.checked_neg().map(Value::Int).ok_or(EvaluationError::Arithmetic),
        Value::Double(value) => Ok(Value::Double(-value)),
        other => Err(kind("a number with a sign", other)),
    }
}

fn int<'a>(value: &Value<'a>) -> Outcome<'a> {
    let whole = match value {
        Value::Int(value) => *value,
        Value::Uint(value) => i64::try_from(*value).map_err(|_| EvaluationError::Arithmetic)?,
        Value::Double(value) if *value > -INT_END && *value < INT_END => *value as i64,
        Value::Double(_) => return Err(EvaluationError::Arithmetic),
        Value::Text(text) => text.parse().map_err(|_| EvaluationError::Number)?,
        other => return Err(kind("a number, or text", other)),
    };
    Ok(Value::Int(whole))
}

fn double<'a>(value: &Value<'a>) -> Outcome<'a> {
    Ok(Value::Double(match value {
        Value::Int(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::Double(value) => *value,
        Value::Text(text) => text.parse().map_err(|_| EvaluationError::Number)?,
        other => return Err(kind("a number, or text", other)),
    }))
}
