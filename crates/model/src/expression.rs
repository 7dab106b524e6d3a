//! Expressions of the Common Expression Language (CEL), over what is known of a request.
//!
//! The crate `cel` parses. What it has parsed is compiled here once, names and functions are looked
//! up then, and a small evaluator walks the result: it borrows from the request, takes a bounded
//! number of steps whatever the request holds, and never panics. The crate's own interpreter has no
//! bound and compiles regular expressions anew each time.
//!
//! | part of CEL | here |
//! |---|---|
//! | literals | null, truth values, integers, doubles, text, lists |
//! | logic | `&&` `\|\|` `!` `?:` |
//! | operators | `==` `!=` `<` `<=` `>` `>=` `in` `+` `-` `*` `/` `%` `[]` `.` |
//! | macros | `has`, `all`, `exists`, `exists_one` |
//! | functions | `size`, `contains`, `startsWith`, `endsWith`, `matches` |
//! | | `lowerAscii`, `upperAscii`, `int`, `double`, `string` |
//!
//! `matches` takes a literal, whose regular expression is compiled with the rest. Maps and bytes
//! are not written; `map` and `filter` build lists and are left out.
//!
//! What is missing or of the wrong kind is an error, as CEL has it: `false && error` is false,
//! `true && error` the error. Whoever asks decides what an error means, and never lets it pass for
//! a permission.

mod compile;
mod evaluate;
mod node;
mod value;

use std::fmt;
use std::sync::Arc;

use crate::Text;

pub use self::compile::ExpressionError;
pub use self::evaluate::EvaluationError;
pub use self::value::{Attributes, Lookup, Value};

/// An expression that was compiled. Cloning it is cheap.
#[derive(Clone)]
pub struct Expression {
    source: Text,
    root: Arc<node::Node>,
}

impl Expression {
    /// Compiles `source`; `names` are those that it may use, as in `request.method`. At most 2 KiB
    /// and 32 levels of nesting.
    pub fn new(source: &str, names: &[&str]) -> Result<Self, ExpressionError> {
        let root = compile::compile(source, names)?;
        Ok(Self { source: source.into(), root: Arc::new(root) })
    }

    /// As [`Expression::new`], where the value must be true or false as far as that shows before
    /// there is a request.
    pub fn condition(source: &str, names: &[&str]) -> Result<Self, ExpressionError> {
        let expression = Self::new(source, names)?;
        if expression.root.may_be_truth() { Ok(expression) } else { Err(ExpressionError::NoTruth) }
    }

    /// The value for these attributes.
    pub fn evaluate<'a>(
        &'a self,
        attributes: &'a dyn Attributes,
    ) -> Result<Value<'a>, EvaluationError> {
        evaluate::evaluate(&self.root, attributes)
    }

    /// Whether it is true for these attributes; an error if it is neither true nor false.
    pub fn holds(&self, attributes: &dyn Attributes) -> Result<bool, EvaluationError> {
        match self.evaluate(attributes)? {
            Value::Bool(value) => Ok(value),
            other => Err(EvaluationError::Kind { wanted: "true or false", got: other.kind() }),
        }
    }

    /// As it was written.
    pub fn source(&self) -> &Text {
        &self.source
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.source)
    }
}

#[cfg(test)]
mod tests;
