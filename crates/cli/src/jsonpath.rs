//! Templates of `-o jsonpath=` and `-o custom-columns=`, as kubectl reads them.
//!
//! kubectl's language is older than RFC 9535 and differs from it: text around braces, `range`, keys
//! with escaped dots, and `['a.b', 'c']`, which means two paths. So no library of the RFC reads it.
//! What is not there prints nothing, as for `kubectl get`.

mod parse;

use std::cmp::Ordering;

use ambit_words::names::NOTHING;
use serde_json::{Number, Value};

pub(crate) use parse::TemplateError;

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template(Vec<Part>);

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// Printed unchanged.
    Text(String),
    /// What a path leads to, with spaces between.
    Path(Path),
    /// The parts, once for each of what a path leads to.
    Range(Path, Vec<Part>),
}

/// Steps from a value to others.
type Path = Vec<Step>;

/// One step.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `.name`: the value of a key.
    Key(String),
    /// `*`: all elements, or the values of all keys.
    All,
    /// `..`: the value and all mappings and lists within it.
    Descend,
    /// `[start:end:step]`, and `[index]`; counted from the end if negative.
    Slice { start: Option<i64>, end: Option<i64>, step: usize },
    /// `[index]`: an element.
    Element(i64),
    /// `['a', 'b']`: what each of these paths leads to.
    Union(Vec<Path>),
    /// `[?(@.a == "b")]`: the elements for which it is so.
    Filter { left: Operand, right: Option<(Comparison, Operand)> },
}

/// What a filter compares.
#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// What the element has at this path.
    Of(Path),
    /// This.
    Literal(Value),
}

/// How a filter compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Template {
    /// The text for a value.
    pub(crate) fn print(&self, value: &Value) -> String {
        let mut text = String::new();
        print(&self.0, value, &mut text);
        text
    }
}

fn print(parts: &[Part], value: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(literal) => text.push_str(literal),
            Part::Path(path) => text.push_str(&joined(&walk(path, vec![value]), " ")),
            Part::Range(path, parts) => {
                walk(path, vec![value]).into_iter().for_each(|it| print(parts, it, text));
            }
        }
    }
}

/// A column of `-o custom-columns=`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CustomColumn {
    /// Its title.
    pub(crate) title: String,
    path: Path,
}

impl CustomColumn {
    /// Its text for an object.
    pub(crate) fn cell(&self, value: &Value) -> String {
        let found = walk(&self.path, vec![value]);
        if found.is_empty() { NOTHING.to_owned() } else { joined(&found, ",") }
    }
}

fn joined(values: &[&Value], between: &str) -> String {
    let text = |value: &&Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    values.iter().map(text).collect::<Vec<_>>().join(between)
}

/// Where a path leads from these values.
fn walk<'a>(path: &[Step], mut values: Vec<&'a Value>) -> Vec<&'a Value> {
    for step in path {
        values = match step {
            // First all of the first path, then all of the second.
            Step::Union(paths) => paths.iter().flat_map(|it| walk(it, values.clone())).collect(),
            step => values.into_iter().flat_map(|value| take(step, value)).collect(),
        };
    }
    values
}

fn take<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Key(key) => value.get(key).into_iter().collect(),
        Step::All => children(value),
        Step::Descend => {
            let mut all = Vec::new();
            descend(value, &mut all);
            all
        }
        Step::Slice { start, end, step } => slice(value, *start, *end, *step),
        Step::Element(index) => {
            let elements = value.as_array().map(Vec::as_slice).unwrap_or_default();
            place(*index, elements.len()).and_then(|it| elements.get(it)).into_iter().collect()
        }
        Step::Union(_) => walk(std::slice::from_ref(step), vec![value]),
        Step::Filter { left, right } => {
            let holds = |it: &&Value| is_so(left, right.as_ref(), it);
            value.as_array().into_iter().flatten().filter(holds).collect()
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(elements) => elements.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn descend<'a>(value: &'a Value, all: &mut Vec<&'a Value>) {
    if matches!(value, Value::Array(_) | Value::Object(_)) {
        all.push(value);
        children(value).into_iter().for_each(|it| descend(it, all));
    }
}

fn slice(value: &Value, start: Option<i64>, end: Option<i64>, step: usize) -> Vec<&Value> {
    let elements = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let limit = elements.len();
    let within = |it: i64| place(it, limit).map_or(0, |it| it.min(limit));
    let start = start.map_or(0, within);
    let end = end.map_or(limit, within).max(start);
    elements[start..end].iter().step_by(step).collect()
}

/// An index from the front; none for one before the front.
fn place(index: i64, count: usize) -> Option<usize> {
    let front = if index < 0 { index.saturating_add_unsigned(count as u64) } else { index };
    usize::try_from(front).ok()
}

fn is_so(left: &Operand, right: Option<&(Comparison, Operand)>, element: &Value) -> bool {
    let Some((comparison, right)) = right else {
        return value_of(left, element).is_some();
    };
    match (value_of(left, element), value_of(right, element)) {
        (Some(left), Some(right)) => comparison.holds(left, right),
        _ => false,
    }
}

fn value_of<'a>(operand: &'a Operand, element: &'a Value) -> Option<&'a Value> {
    match operand {
        Operand::Of(path) => walk(path, vec![element]).into_iter().next(),
        Operand::Literal(value) => Some(value),
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Number(left), Value::Number(right)) => order(left, right),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            _ => None,
        };
        // Values of different types are not the same, and have no order.
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::Unequal => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => order.is_some_and(Ordering::is_le),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        }
    }
}

fn order(left: &Number, right: &Number) -> Option<Ordering> {
    match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The object of kubectl's documentation of its templates, with some labels more.
    fn documented() -> Value {
        json!({
            "kind": "List",
            "items": [
                {
                    "kind": "None",
                    "metadata": {"name": "127.0.0.1", "labels": {"kubernetes.io/hostname": "a"}},
                    "status": {
                        "capacity": {"cpu": "4"},
                        "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]
                    }
                },
                {
                    "kind": "None",
                    "metadata": {"name": "127.0.0.2"},
                    "status": {
                        "capacity": {"cpu": "8"},
                        "addresses": [
                            {"type": "LegacyHostIP", "address": "127.0.0.2"},
                            {"type": "another", "address": "127.0.0.3"}
                        ]
                    }
                }
            ],
            "users": [
                {"name": "myself", "user": {}, "age": 3},
                {"name": "e2e", "user": {"username": "admin", "password": "secret"}, "age": 4}
            ]
        })
    }

    #[test]
    fn templates_print_what_kubectls_documentation_says() {
        let check = |template: &str, expected: &str| {
            let read: Template = template.parse().expect(template);
            assert_eq!(read.print(&documented()), expected, "{template}");
        };
        check("kind is {.kind}", "kind is List");
        check("{['kind']}", "List");
        check("{.kind}{@.kind}{$.kind}", "ListListList");
        check("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2");
        check("{..name}", "127.0.0.1 127.0.0.2 myself e2e");
        check("{.users[0].name}", "myself");
        check("{.users[-1].name} {.users[-1:].name}", "e2e e2e");
        check("{.users[0:2].name} {.users[::2].name}", "myself e2e myself");
        check("{.users[0,1].name}", "myself e2e");
        check(
            "{.items[*]['metadata.name', 'status.capacity']}",
            "127.0.0.1 127.0.0.2 {\"cpu\":\"4\"} {\"cpu\":\"8\"}",
        );
        check("{.users[?(@.name==\"e2e\")].user.password}", "secret");
        check("{.users[?(@.age > 3)].name} {.users[?(@.age<=3.5)].name}", "e2e myself");
        check("{.users[?(@.name!='e2e')].name}", "myself");
        check("{.users[?(@.user.username)].name}", "e2e");
        check(
            "{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}",
            "[127.0.0.1, {\"cpu\":\"4\"}] [127.0.0.2, {\"cpu\":\"8\"}] ",
        );
        check(
            "{range .items[*]}{.metadata.name}{'\\t'}{range .status.addresses[*]}{.address};{end}\
             {\"\\n\"}{end}",
            "127.0.0.1\t127.0.0.1;\n127.0.0.2\t127.0.0.2;127.0.0.3;\n",
        );
        check("{range .items[*].metadata.name}<{@}>{end}", "<127.0.0.1><127.0.0.2>");
        check("{.items[0].metadata.labels.kubernetes\\.io/hostname}", "a");
        check("{.items[0].metadata.labels['kubernetes\\.io/hostname']}", "a");
        check("{.items[*].status.addresses[?(@.type==\"another\")].address}", "127.0.0.3");
        check("{.users[*].age} {.nothing}{.users[7].name}{.users[-7].name}", "3 4 ");
        check("{.users[1].user.*}", "secret admin");
        check("no braces .kind", "no braces .kind");
        check("", "");
    }

    #[test]
    fn a_template_that_is_none_is_an_error() {
        let check = |template: &str, expected: &str| {
            let error = template.parse::<Template>().expect_err(template).to_string();
            assert!(error.contains(expected), "{template}: {error}");
        };
        check("{.kind", "a } is missing");
        check("{range .items[*]}x", "{end} is missing");
        check("{end}", "without {range");
        check("{.items[0}", "a ] is missing");
        check("{.items[a]}", "\"a\"");
        check("{.items[?(@.a==)]}", "filter");
        check("{.items[?(@.a == \"b\" && @.c)]}", "filter");
        check("{kind}", "kind");
        check("{\"open}", "quote");
    }

    #[test]
    fn custom_columns_are_paths_with_titles() {
        let columns = CustomColumn::all(
            "NAME:.metadata.name,CPU:{.status.capacity.cpu},\
            AT:status.addresses[*].address,L:.metadata.labels.a",
        )
        .expect("columns");
        let rows = |item: &Value| columns.iter().map(|it| it.cell(item)).collect::<Vec<_>>();
        let titles: Vec<&str> = columns.iter().map(|it| it.title.as_str()).collect();
        assert_eq!(titles, ["NAME", "CPU", "AT", "L"]);
        let item = &documented()["items"][1];
        assert_eq!(rows(item), ["127.0.0.2", "8", "127.0.0.2,127.0.0.3", NOTHING]);
        assert!(CustomColumn::all("NAME").is_err());
        assert!(CustomColumn::all("").is_err());
        assert!(CustomColumn::all("A:.a[").is_err());
    }
}
