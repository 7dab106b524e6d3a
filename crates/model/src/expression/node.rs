//! A compiled expression.

use crate::Text;
use crate::http::matching::Pattern;

/// One part of an expression.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text),
    List(Vec<Node>),
    /// What is known under this name.
    Attribute(Text),
    /// Whether something is known under this name.
    HasAttribute(Text),
    /// The variable of the macro at this depth, from the outermost.
    Variable(usize),
    Field(Box<Node>, Text),
    HasField(Box<Node>, Text),
    /// Of a list or map, what is at an index.
    Index(Box<[Node; 2]>),
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    /// Condition, then, else.
    Choose(Box<[Node; 3]>),
    Compare(Comparison, Box<[Node; 2]>),
    In(Box<[Node; 2]>),
    Compute(Operator, Box<[Node; 2]>),
    Call(Function, Vec<Node>),
    Matches(Box<Node>, Pattern),
    /// Over the members of the first, the second with one more variable.
    Quantify(Quantifier, Box<[Node; 2]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    LowerAscii,
    UpperAscii,
    Int,
    Double,
    String,
}

impl Function {
    /// The function, by its name and the number of its arguments, what it is called on included.
    pub(super) fn of(name: &str, arguments: usize) -> Option<Self> {
        Some(match (name, arguments) {
            ("size", 1) => Self::Size,
            ("contains", 2) => Self::Contains,
            ("startsWith", 2) => Self::StartsWith,
            ("endsWith", 2) => Self::EndsWith,
            ("lowerAscii", 1) => Self::LowerAscii,
            ("upperAscii", 1) => Self::UpperAscii,
            ("int", 1) => Self::Int,
            ("double", 1) => Self::Double,
            ("string", 1) => Self::String,
            _ => return None,
        })
    }

    /// Whether it is written as `value.name()`; the others are written as `name(value)`. Of `size`
    /// there are both.
    pub(super) fn is_written(self, on_value: bool) -> bool {
        match self {
            Self::Size => true,
            Self::Contains
            | Self::StartsWith
            | Self::EndsWith
            | Self::LowerAscii
            | Self::UpperAscii => on_value,
            Self::Int | Self::Double | Self::String => !on_value,
        }
    }
}

impl Node {
    /// Whether its value may be true or false: what is known of a request may be anything.
    pub(super) fn may_be_truth(&self) -> bool {
        match self {
            Self::Bool(_)
            | Self::Attribute(_)
            | Self::HasAttribute(_)
            | Self::Variable(_)
            | Self::Field(..)
            | Self::HasField(..)
            | Self::Index(_)
            | Self::Not(_)
            | Self::And(_)
            | Self::Or(_)
            | Self::Compare(..)
            | Self::In(_)
            | Self::Matches(..)
            | Self::Quantify(..) => true,
            Self::Choose(parts) => parts[1].may_be_truth() && parts[2].may_be_truth(),
            Self::Call(function, _) => {
                matches!(function, Function::Contains | Function::StartsWith | Function::EndsWith)
            }
            Self::Null
            | Self::Int(_)
            | Self::Uint(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::List(_)
            | Self::Negate(_)
            | Self::Compute(..) => false,
        }
    }
}
