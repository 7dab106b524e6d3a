//! From text to a compiled expression: names, functions and depth are checked here.

use cel::common::ast::operators as op;
use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::parser::PrattParser;

use super::node::{Comparison, Function, Node, Operator, Quantifier};
use crate::http::matching::Pattern;

/// The longest expression that is read.
const SOURCE_MAX_BYTES: usize = 2 << 10;
/// How deep parts may lie within one another.
const DEPTH_MAX: usize = 32;
/// How deep the parser goes: brackets around brackets are no parts.
const PARSER_DEPTH_MAX: u16 = 48;
/// Mistakes that the parser tries to read on after: the first one is told.
const PARSER_RECOVERY_MAX: u32 = 4;

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It is longer than any should be.
    #[error("it is {0} bytes long, at most {SOURCE_MAX_BYTES} are read; make it several policies")]
    TooLong(usize),
    /// It is no expression.
    #[error("it cannot be read at line {line}, column {column}: {what}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What the parser says.
        what: String,
    },
    /// Its parts lie too deep within one another.
    #[error("its parts lie more than {DEPTH_MAX} deep within one another; write it flatter")]
    TooDeep,
    /// It uses a name that means nothing.
    #[error("{name:?} is not known; known are {known}")]
    UnknownName {
        /// The name.
        name: String,
        /// Those that are.
        known: String,
    },
    /// It calls a function that does not exist, or with the wrong arguments.
    #[error(
        "the function {0} with {1} arguments is not known; known are size, contains, startsWith, \
         endsWith, matches, lowerAscii, upperAscii, int, double, string, has, all, exists and \
         exists_one"
    )]
    UnknownFunction(String, usize),
    /// It uses a part of CEL that is left out.
    #[error("{0} cannot be used here")]
    Unsupported(&'static str),
    /// The regular expression of `matches` is wrong.
    #[error("{0}")]
    Pattern(String),
    /// Its value is never true or false.
    #[error("its value is neither true nor false; compare it with something")]
    NoTruth,
}

type Compiled = Result<Node, ExpressionError>;

/// Compiles `source`, which may use `names`.
pub(super) fn compile(source: &str, names: &[&str]) -> Compiled {
    if source.len() > SOURCE_MAX_BYTES {
        return Err(ExpressionError::TooLong(source.len()));
    }
    let parser = PrattParser::new()
        .max_recursion_depth(PARSER_DEPTH_MAX)
        .error_recovery_limit(PARSER_RECOVERY_MAX);
    let parsed = parser.parse(source).map_err(|errors| syntax(&errors))?;
    Compiler { names, variables: Vec::new(), depth: 0 }.node(&parsed)
}

fn syntax(errors: &cel::ParseErrors) -> ExpressionError {
    let Some(first) = errors.errors.first() else {
        return ExpressionError::Syntax { line: 1, column: 1, what: "it is empty".to_owned() };
    };
    let place = |at: isize| usize::try_from(at).unwrap_or_default().max(1);
    let what = first.msg.lines().next().unwrap_or_default();
    let what = what.strip_prefix("Syntax error: ").unwrap_or(what).to_owned();
    ExpressionError::Syntax { line: place(first.pos.0), column: place(first.pos.1), what }
}

struct Compiler<'n> {
    names: &'n [&'n str],
    /// The variables of the macros around, from the outermost.
    variables: Vec<String>,
    depth: usize,
}

impl Compiler<'_> {
    fn node(&mut self, parsed: &IdedExpr) -> Compiled {
        if self.depth == DEPTH_MAX {
            return Err(ExpressionError::TooDeep);
        }
        self.depth += 1;
        let node = self.inner(&parsed.expr);
        self.depth -= 1;
        node
    }

    fn inner(&mut self, parsed: &Expr) -> Compiled {
        match parsed {
            Expr::Literal(value) => literal(value),
            Expr::Ident(name) => self.name(&[name]),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(it) => self.quantify(it),
            Expr::List(list) if list.optional_indices.is_empty() => {
                self.nodes(&list.elements).map(Node::List)
            }
            Expr::List(_) => Err(ExpressionError::Unsupported("an optional member of a list")),
            Expr::Map(_) => Err(ExpressionError::Unsupported("a map that is written out")),
            Expr::Struct(_) => Err(ExpressionError::Unsupported("a message")),
            Expr::Unspecified => Err(ExpressionError::Unsupported("a part that is empty")),
        }
    }

    fn nodes(&mut self, parsed: &[IdedExpr]) -> Result<Vec<Node>, ExpressionError> {
        parsed.iter().map(|it| self.node(it)).collect()
    }

    fn boxed(&mut self, parsed: &IdedExpr) -> Result<Box<Node>, ExpressionError> {
        self.node(parsed).map(Box::new)
    }

    /// What `a`, `a.b` or `a.b.c` means: a variable of a macro around or the longest name that is
    /// known, and fields of it.
    fn name(&self, segments: &[&String]) -> Compiled {
        if segments.len() > DEPTH_MAX {
            return Err(ExpressionError::TooDeep);
        }
        let fields = |node: Node, rest: &[&String]| {
            rest.iter().fold(node, |node, name| Node::Field(Box::new(node), name.as_str().into()))
        };
        if let Some(depth) = self.variables.iter().rposition(|it| it == segments[0]) {
            return Ok(fields(Node::Variable(depth), &segments[1..]));
        }
        for length in (1..=segments.len()).rev() {
            if let Some(name) = self.known(&segments[..length]) {
                return Ok(fields(Node::Attribute(name.into()), &segments[length..]));
            }
        }
        Err(ExpressionError::UnknownName { name: joined(segments), known: self.names.join(", ") })
    }

    fn known(&self, segments: &[&String]) -> Option<&str> {
        let name = joined(segments);
        self.names.iter().copied().find(|it| *it == name)
    }

    fn select(&mut self, select: &SelectExpr) -> Compiled {
        let of = segments(&select.operand.expr);
        let is_free = of.as_ref().is_some_and(|of| !self.variables.contains(of[0]));
        if let Some(of) = of.filter(|_| is_free) {
            let whole: Vec<&String> = of.iter().copied().chain([&select.field]).collect();
            if !select.test {
                return self.name(&whole);
            }
            if let Some(name) = self.known(&whole) {
                return Ok(Node::HasAttribute(name.into()));
            }
        }
        let of = self.boxed(&select.operand)?;
        let name = select.field.as_str().into();
        Ok(if select.test { Node::HasField(of, name) } else { Node::Field(of, name) })
    }

    fn call(&mut self, call: &CallExpr) -> Compiled {
        if call.target.is_none()
            && let Some(operator) = self.operator(call)
        {
            return operator;
        }
        let on = call.target.as_deref();
        let count = call.args.len() + usize::from(on.is_some());
        let unknown = || ExpressionError::UnknownFunction(call.func_name.clone(), call.args.len());
        if call.func_name == "matches" && count == 2 {
            let mut parts = on.into_iter().chain(&call.args);
            let (Some(text), Some(pattern)) = (parts.next(), parts.next()) else {
                return Err(unknown());
            };
            let Expr::Literal(LiteralValue::String(pattern)) = &pattern.expr else {
                return Err(ExpressionError::Unsupported("`matches` with anything but a literal"));
            };
            let pattern = Pattern::new(pattern.inner());
            let pattern = pattern.map_err(|error| ExpressionError::Pattern(error.to_string()))?;
            return Ok(Node::Matches(self.boxed(text)?, pattern));
        }
        let function = Function::of(&call.func_name, count);
        let function = function.filter(|it| it.is_written(on.is_some())).ok_or_else(unknown)?;
        let mut parts = Vec::with_capacity(count);
        for part in on.into_iter().chain(&call.args) {
            parts.push(self.node(part)?);
        }
        Ok(Node::Call(function, parts))
    }

    /// What an operator means; `None` for a function.
    fn operator(&mut self, call: &CallExpr) -> Option<Compiled> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Unequal};
        let pair = |this: &mut Self| match &call.args[..] {
            [one, other] => Ok(Box::new([this.node(one)?, this.node(other)?])),
            _ => Err(ExpressionError::UnknownFunction(call.func_name.clone(), call.args.len())),
        };
        let one = |this: &mut Self| match &call.args[..] {
            [one] => this.boxed(one),
            _ => Err(ExpressionError::UnknownFunction(call.func_name.clone(), call.args.len())),
        };
        let compare = |it: Comparison, this: &mut Self| Ok(Node::Compare(it, pair(this)?));
        let compute = |it: Operator, this: &mut Self| Ok(Node::Compute(it, pair(this)?));
        Some(match call.func_name.as_str() {
            op::LOGICAL_AND => self.flat(call).map(Node::And),
            op::LOGICAL_OR => self.flat(call).map(Node::Or),
            op::LOGICAL_NOT => one(self).map(Node::Not),
            op::NEGATE => one(self).map(Node::Negate),
            op::EQUALS => compare(Equal, self),
            op::NOT_EQUALS => compare(Unequal, self),
            op::LESS => compare(Less, self),
            op::LESS_EQUALS => compare(LessOrEqual, self),
            op::GREATER => compare(Greater, self),
            op::GREATER_EQUALS => compare(GreaterOrEqual, self),
            op::IN => pair(self).map(Node::In),
            op::INDEX => pair(self).map(Node::Index),
            op::ADD => compute(Operator::Add, self),
            op::SUBSTRACT => compute(Operator::Subtract, self),
            op::MULTIPLY => compute(Operator::Multiply, self),
            op::DIVIDE => compute(Operator::Divide, self),
            op::MODULO => compute(Operator::Remainder, self),
            op::CONDITIONAL => match self.nodes(&call.args) {
                Ok(parts) => match <[Node; 3]>::try_from(parts) {
                    Ok(parts) => Ok(Node::Choose(Box::new(parts))),
                    Err(_) => Err(ExpressionError::Unsupported("`?` without `:`")),
                },
                Err(error) => Err(error),
            },
            op::OPT_INDEX | op::OPT_SELECT => {
                Err(ExpressionError::Unsupported("an optional field"))
            }
            _ => return None,
        })
    }

    /// The parts of a chain of `&&` or of `||`: a long one is no deep one.
    fn flat(&mut self, call: &CallExpr) -> Result<Vec<Node>, ExpressionError> {
        let (mut parts, mut left) = (Vec::new(), Vec::new());
        left.extend(call.args.iter().rev());
        while let Some(part) = left.pop() {
            match &part.expr {
                Expr::Call(inner)
                    if inner.func_name == call.func_name && inner.target.is_none() =>
                {
                    left.extend(inner.args.iter().rev());
                }
                _ => parts.push(self.node(part)?),
            }
        }
        Ok(parts)
    }

    /// The macros that lead to truth; the parser has written them out as loops.
    fn quantify(&mut self, it: &ComprehensionExpr) -> Compiled {
        let unsupported = || ExpressionError::Unsupported("a macro that makes a list");
        let Expr::Call(step) = &it.loop_step.expr else { return Err(unsupported()) };
        let (quantifier, body) = match (step.func_name.as_str(), &step.args[..]) {
            (op::LOGICAL_AND, [_, body]) => (Quantifier::All, body),
            (op::LOGICAL_OR, [_, body]) => (Quantifier::Exists, body),
            // Whether the accumulator is a number tells it from `filter`.
            (op::CONDITIONAL, [body, _, _])
                if matches!(it.accu_init.expr, Expr::Literal(LiteralValue::Int(_))) =>
            {
                (Quantifier::ExistsOne, body)
            }
            _ => return Err(unsupported()),
        };
        let range = self.node(&it.iter_range)?;
        self.variables.push(it.iter_var.clone());
        let body = self.node(body);
        self.variables.pop();
        Ok(Node::Quantify(quantifier, Box::new([range, body?])))
    }
}

fn literal(value: &LiteralValue) -> Compiled {
    Ok(match value {
        LiteralValue::Null => Node::Null,
        LiteralValue::Boolean(value) => Node::Bool(*value.inner()),
        LiteralValue::Int(value) => Node::Int(*value.inner()),
        LiteralValue::UInt(value) => Node::Uint(*value.inner()),
        LiteralValue::Double(value) => Node::Double(*value.inner()),
        LiteralValue::String(text) => Node::Text(text.inner().into()),
        LiteralValue::Bytes(_) => return Err(ExpressionError::Unsupported("bytes")),
    })
}

/// The names of `a.b.c`, in order; `None` for anything else.
fn segments(mut parsed: &Expr) -> Option<Vec<&String>> {
    let mut segments = Vec::new();
    loop {
        match parsed {
            Expr::Ident(name) => {
                segments.push(name);
                segments.reverse();
                return Some(segments);
            }
            Expr::Select(select) if !select.test => {
                segments.push(&select.field);
                parsed = &select.operand.expr;
            }
            _ => return None,
        }
    }
}

fn joined(segments: &[&String]) -> String {
    segments.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(".")
}
