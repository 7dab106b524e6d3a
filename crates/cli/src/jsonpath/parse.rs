//! Reads templates and paths.

use std::str::FromStr;

use serde_json::Value;

use super::{Comparison, CustomColumn, Operand, Part, Path, Step, Template};

/// Deepest nesting of a template: deeper ones would only exhaust the stack.
const DEPTH_MAX: usize = 32;
/// Characters that end a key.
const ENDS: [char; 8] = ['.', ',', '[', ']', '$', '@', '{', '}'];

/// Why a template cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("a }} is missing after {{{0}")]
    Brace(String),
    #[error("a ] is missing in {0:?}")]
    Bracket(String),
    #[error("a quote is not closed in {0:?}")]
    Quote(String),
    #[error("{{end}} without {{range ...}} before it")]
    End,
    #[error("{{range ...}} is not closed: an {{end}} is missing")]
    Range,
    #[error("{{range ...}} is nested more than {DEPTH_MAX} times")]
    Depth,
    #[error("{0:?} is no path: paths begin with '.', '[', '@' or '$', as .metadata.name")]
    Path(String),
    #[error("{0:?} is neither an index, a slice nor a quoted key; write [0], [0:2] or ['key']")]
    Index(String),
    #[error("{0:?} is no filter; write [?(@.key == \"value\")], with one comparison")]
    Filter(String),
    #[error("{0:?} is no column; write TITLE:.path.of.a.field")]
    Column(String),
}

type Result<T> = std::result::Result<T, TemplateError>;

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self> {
        let mut rest = text;
        let parts = parts(&mut rest, 0)?;
        Ok(Self(parts))
    }
}

/// Reads up to the end, or within a range up to its `{end}`.
fn parts(rest: &mut &str, depth: usize) -> Result<Vec<Part>> {
    if depth > DEPTH_MAX {
        return Err(TemplateError::Depth);
    }
    let mut parts = Vec::new();
    while let Some((literal, inside)) = rest.split_once('{') {
        if !literal.is_empty() {
            parts.push(Part::Text(literal.to_owned()));
        }
        let (action, after) = action(inside)?;
        *rest = after;
        match action {
            "end" if depth == 0 => return Err(TemplateError::End),
            "end" => return Ok(parts),
            action => match action.strip_prefix("range").filter(|it| is_path(it.trim_start())) {
                Some(of) => {
                    let of = path(of)?;
                    parts.push(Part::Range(of, self::parts(rest, depth + 1)?));
                }
                None => parts.push(of_action(action)?),
            },
        }
    }
    if depth > 0 {
        return Err(TemplateError::Range);
    }
    if !rest.is_empty() {
        parts.push(Part::Text((*rest).to_owned()));
    }
    Ok(parts)
}

/// What is between braces, and what follows them. A brace in quotes closes nothing.
fn action(inside: &str) -> Result<(&str, &str)> {
    let end = find(inside, |c| c == '}')?;
    let end = end.ok_or_else(|| TemplateError::Brace(inside.to_owned()))?;
    Ok((inside[..end].trim(), &inside[end + 1..]))
}

/// Where the first such character is, outside quotes and not escaped.
fn find(text: &str, is_it: impl Fn(char) -> bool) -> Result<Option<usize>> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if is_it(c) => return Ok(Some(at)),
            (None, _) => {}
        }
    }
    match quote {
        Some(_) => Err(TemplateError::Quote(text.to_owned())),
        None => Ok(None),
    }
}

fn is_path(text: &str) -> bool {
    text.starts_with(['.', '[', '@', '$'])
}

fn of_action(action: &str) -> Result<Part> {
    match unquoted(action) {
        Some(text) => Ok(Part::Text(text)),
        None => Ok(Part::Path(path(action)?)),
    }
}

/// The text of a literal in quotes, with `\n`, `\t` and the like read.
fn unquoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|it| matches!(it, '"' | '\''))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut read = String::new();
    let mut characters = inner.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next()? {
                'n' => read.push('\n'),
                't' => read.push('\t'),
                'r' => read.push('\r'),
                other => read.push(other),
            },
            c if c == quote => return None,
            c => read.push(c),
        }
    }
    Some(read)
}

/// Reads a path such as `.items[0].metadata.name`.
fn path(text: &str) -> Result<Path> {
    let mut steps = Vec::new();
    let mut rest = text.trim();
    if !is_path(rest) {
        return Err(TemplateError::Path(text.trim().to_owned()));
    }
    while let Some(first) = rest.chars().next() {
        rest = match first {
            // The value itself.
            '@' | '$' => &rest[1..],
            c if c.is_whitespace() => rest.trim_start(),
            '[' => {
                let end = find(&rest[1..], |c| c == ']')?;
                let end = end.ok_or_else(|| TemplateError::Bracket(rest.to_owned()))? + 1;
                steps.push(bracket(rest[1..end].trim())?);
                &rest[end + 1..]
            }
            '.' if rest.starts_with("..") => {
                steps.push(Step::Descend);
                key(&rest[2..], &mut steps)
            }
            '.' => key(&rest[1..], &mut steps),
            _ => return Err(TemplateError::Path(text.trim().to_owned())),
        };
    }
    Ok(steps)
}

/// Reads a key, which may be absent before a bracket, and says what follows it.
fn key<'a>(text: &'a str, steps: &mut Path) -> &'a str {
    let (mut name, mut escaped, mut end) = (String::new(), false, text.len());
    for (at, c) in text.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            c if !escaped && (ENDS.contains(&c) || c.is_whitespace()) => {
                end = at;
                break;
            }
            c => {
                escaped = false;
                name.push(c);
            }
        }
    }
    match name.as_str() {
        "" => {}
        "*" => steps.push(Step::All),
        _ => steps.push(Step::Key(name)),
    }
    &text[end..]
}

/// Reads what is within brackets.
fn bracket(text: &str) -> Result<Step> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(filter) = text.strip_prefix('?') {
        return self::filter(filter.trim());
    }
    let mut paths = Vec::new();
    let mut rest = text;
    loop {
        let end = find(rest, |c| c == ',')?;
        let (one, after) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        paths.push(member(one.trim())?);
        match after {
            Some(after) => rest = after,
            None => break,
        }
    }
    // One of a single step is that step.
    match paths.as_mut_slice() {
        [path] if path.len() == 1 => Ok(path.remove(0)),
        _ => Ok(Step::Union(paths)),
    }
}

/// Reads an index, a slice, or a quoted key, which is a path: dots in keys are escaped.
fn member(text: &str) -> Result<Path> {
    let is_quoted = |quote| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    if is_quoted('\'') || is_quoted('"') {
        return path(&format!(".{}", &text[1..text.len() - 1]));
    }
    let wrong = || TemplateError::Index(text.to_owned());
    let number = |text: &str| match text.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| wrong()),
    };
    let fields: Vec<Option<i64>> = text.split(':').map(number).collect::<Result<_>>()?;
    Ok(vec![match *fields.as_slice() {
        [Some(index)] => Step::Element(index),
        [start, end] => Step::Slice { start, end, step: 1 },
        [start, end, step] => {
            let step = usize::try_from(step.unwrap_or(1)).ok().filter(|it| *it > 0);
            Step::Slice { start, end, step: step.ok_or_else(wrong)? }
        }
        _ => return Err(wrong()),
    }])
}

/// Reads `(@.key == "value")`.
fn filter(text: &str) -> Result<Step> {
    let wrong = || TemplateError::Filter(text.to_owned());
    let inner = text.strip_prefix('(').and_then(|it| it.strip_suffix(')')).ok_or_else(wrong)?;
    let Some(at) = find(inner, |c| matches!(c, '=' | '!' | '<' | '>'))? else {
        return Ok(Step::Filter { left: operand(inner).ok_or_else(wrong)?, right: None });
    };
    let (left, rest) = inner.split_at(at);
    let (comparison, right) = Comparison::read(rest).ok_or_else(wrong)?;
    let left = operand(left).ok_or_else(wrong)?;
    let right = operand(right).ok_or_else(wrong)?;
    Ok(Step::Filter { left, right: Some((comparison, right)) })
}

fn operand(text: &str) -> Option<Operand> {
    let text = text.trim();
    if let Some(text) = unquoted(text) {
        return Some(Operand::Literal(Value::String(text)));
    }
    if is_path(text) {
        let is_one = !text.contains(['&', '|', '(']);
        return path(text).ok().filter(|_| is_one).map(Operand::Of);
    }
    let literal: Value = serde_json::from_str(text).ok()?;
    (!literal.is_array() && !literal.is_object()).then_some(Operand::Literal(literal))
}

impl Comparison {
    /// Reads an operator, and says what follows it.
    fn read(text: &str) -> Option<(Self, &str)> {
        // The longer ones first.
        let all = [
            ("==", Self::Equal),
            ("!=", Self::Unequal),
            ("<=", Self::LessOrEqual),
            (">=", Self::GreaterOrEqual),
            ("<", Self::Less),
            (">", Self::Greater),
        ];
        all.into_iter().find_map(|(word, it)| text.strip_prefix(word).map(|rest| (it, rest)))
    }
}

impl CustomColumn {
    /// Reads `TITLE:.path,TITLE:.path`. As for kubectl, the braces and the first dot may be left
    /// away.
    pub(crate) fn all(text: &str) -> Result<Vec<Self>> {
        let column = |text: &str| {
            let wrong = || TemplateError::Column(text.to_owned());
            let (title, of) = text.split_once(':').ok_or_else(wrong)?;
            let bare = of.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(of);
            if title.is_empty() || bare.is_empty() {
                return Err(wrong());
            }
            let path = if is_path(bare) { path(bare)? } else { path(&format!(".{bare}"))? };
            Ok(Self { title: title.to_owned(), path })
        };
        let mut columns = Vec::new();
        let mut rest = text;
        // A comma in brackets is of a union.
        while let Some(end) = outside_brackets(rest, ',') {
            columns.push(column(&rest[..end])?);
            rest = &rest[end + 1..];
        }
        columns.push(column(rest)?);
        Ok(columns)
    }
}

fn outside_brackets(text: &str, wanted: char) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            c if c == wanted && depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}
