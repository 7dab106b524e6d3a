//! Expressions, by tables.

use super::*;
use crate::http::head::NamedValues;

const NAMES: [&str; 8] =
    ["request.method", "request.headers", "n", "u", "list", "map", "missing", "long"];

struct Known {
    fields: Vec<(String, String)>,
    long: String,
}

impl Known {
    fn new() -> Self {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let fields = vec![pair("x-env", "prod"), pair("twice", "a"), pair("twice", "b")];
        Self { fields, long: "x".repeat(20 << 10) }
    }
}

struct Fields<'a>(NamedValues<'a>);

impl Attributes for (&Known, Fields<'_>) {
    fn attribute(&self, name: &str) -> Option<Value<'_>> {
        let list = |all: &[&'static str]| {
            Value::List(all.iter().map(|it| Value::text(*it)).collect::<Vec<_>>().into())
        };
        Some(match name {
            "request.method" => Value::text("GET"),
            "request.headers" => Value::Fields(&self.1.0),
            "n" => Value::Int(3),
            "u" => Value::Uint(3),
            "list" => list(&["a", "b"]),
            "map" => {
                Value::Map(vec![("k".into(), Value::text("v")), ("n".into(), Value::Null)].into())
            }
            "long" => Value::text(&*self.0.long),
            _ => return None,
        })
    }
}

fn value(source: &str) -> Result<String, String> {
    let known = Known::new();
    let attributes = (&known, Fields(NamedValues(&known.fields)));
    let expression = Expression::new(source, &NAMES).map_err(|error| error.to_string())?;
    let value = expression.evaluate(&attributes);
    value.map(|it| it.to_string()).map_err(|error| error.to_string())
}

#[test]
fn values() {
    for (source, expected) in [
        ("request.method == 'GET'", "true"),
        ("request.method", "GET"),
        ("request.method in ['GET', 'HEAD']", "true"),
        ("request.headers['x-env'] == 'prod'", "true"),
        ("request.headers['X-Env']", "prod"),
        ("has(request.headers.nothing)", "false"),
        ("'twice' in request.headers", "true"),
        ("has(map.x) || n == 3", "true"),
        ("has(request.method)", "true"),
        ("n + 4 * 2 - 1", "10"),
        ("n == u && n == 3.0 && u < 3.5 && -n < u", "true"),
        ("9007199254740993 == 9007199254740992.0", "false"),
        ("7 / 2 + 7 % 4", "6"),
        ("-7 / 2", "-3"),
        ("'a' + 'b'", "ab"),
        ("1 == 'a'", "false"),
        ("[1, 2] == [1.0, 2u]", "true"),
        ("[1, 'a', null]", r#"[1,"a",null]"#),
        ("list[1]", "b"),
        ("map.k + map['k']", "vv"),
        ("map", r#"{"k":"v","n":null}"#),
        ("map == map", "true"),
        ("has(map.k) && !has(map.x) && 'k' in map", "true"),
        ("size(list) + size('äö') + 'abc'.size()", "7"),
        ("list.all(x, x < 'c')", "true"),
        ("list.exists(x, x == 'b')", "true"),
        ("list.exists_one(x, x < 'c')", "false"),
        ("map.exists(k, k == 'k')", "true"),
        ("list.exists(x, [x].all(y, y == x && x == 'a'))", "true"),
        ("'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')", "true"),
        ("'abc'.matches('b') && !'abc'.matches('^b') && matches('abc', '^a.c$')", "true"),
        ("'aBc'.upperAscii() + 'aBc'.lowerAscii()", "ABCabc"),
        ("int('12') + int(2.9) + int(1u)", "15"),
        ("string(1) + string(true) + string(1.5)", "1true1.5"),
        ("double('1.5') + double(1)", "2.5"),
        ("n > 2 ? 'many' : 'few'", "many"),
        // What decides, decides whatever the rest is.
        ("missing == 1 || true", "true"),
        ("false && missing == 1", "false"),
        ("missing == 1 && false", "false"),
        ("[1, 2].exists(x, x == 2 || x / 0 == 1)", "true"),
        ("1.0 / 0.0 > 1.0", "true"),
        ("0.0 / 0.0 == 0.0 / 0.0 || 0.0 / 0.0 < 1.0", "false"),
    ] {
        assert_eq!(value(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn what_has_no_value_is_an_error() {
    for (source, expected) in [
        ("missing == 1", "there is no missing"),
        ("missing == 1 || false", "there is no missing"),
        ("map.x == 1", "there is no x"),
        ("request.headers.nothing == ''", "there is no nothing"),
        ("request.headers['twice'] == 'a'", "is there more than once"),
        ("list[2]", "no such member"),
        ("list[-1]", "no such member"),
        ("1 / 0", "divided by zero"),
        ("9223372036854775807 + 1", "too large"),
        ("int(1e30)", "too large"),
        ("int('x')", "no number"),
        ("1 < 'a'", "have no order"),
        ("1 + 1.0", "two numbers of one kind"),
        ("!1", "it needs true or false"),
        ("request.method && true", "it needs true or false"),
        ("n.x", "it needs a map"),
        ("request.headers == request.headers", "names of single members"),
        ("request.headers.exists(x, true)", "a map whose names are known"),
    ] {
        let error = value(source).expect_err(source);
        assert!(error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_before_there_is_a_request() {
    let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
    let lists = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let fields = format!("map{}", ".a".repeat(40));
    let long = format!("'{}'", "a".repeat(3000));
    for (source, expected) in [
        ("", "line 1, column 1"),
        ("a ==", "at line 1"),
        ("true &&\n)", "at line 2"),
        ("request.body == 1", r#""request.body" is not known; known are request.method"#),
        ("other", r#""other" is not known"#),
        ("has(other.x)", r#""other" is not known"#),
        ("list.exists(x, y == 1)", r#""y" is not known"#),
        ("list.map(x, x)", "a macro that makes a list"),
        ("list.filter(x, true)", "a macro that makes a list"),
        ("{'a': 1} == map", "a map that is written out"),
        ("T{a: 1} == map", "a message"),
        ("b'a' == b'a'", "bytes"),
        ("timestamp('x') == 1", "the function timestamp with 1 arguments"),
        ("size()", "the function size with 0 arguments"),
        ("contains('a', 'b')", "the function contains"),
        ("'1'.int() == 1", "the function int"),
        ("'a'.matches(request.method)", "`matches` with anything but a literal"),
        ("'a'.matches('(')", "the regular expression"),
        (&deep, "deep within one another"),
        (&fields, "deep within one another"),
        (&lists, "recursion limit"),
        (&long, "at most 2048 are read"),
    ] {
        let error = Expression::new(source, &NAMES).expect_err(source).to_string();
        assert!(error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn a_condition_is_true_or_false() {
    for (source, is_one) in [
        ("request.method == 'GET'", true),
        ("map.k", true),
        ("n > 1 ? true : list.exists(x, x)", true),
        ("'a'", false),
        ("n + 1", false),
        ("size(list)", false),
        ("n > 1 ? true : 'a'", false),
    ] {
        assert_eq!(Expression::condition(source, &NAMES).is_ok(), is_one, "{source}");
    }
    let known = Known::new();
    let attributes = (&known, Fields(NamedValues(&known.fields)));
    let text = Expression::condition("request.method", &NAMES).expect("it may be");
    assert!(text.holds(&attributes).is_err(), "it is text");
}

#[test]
fn a_long_chain_is_no_deep_one() {
    let brackets = format!("{}1{}", "(".repeat(900), ")".repeat(900));
    assert_eq!(value(&brackets).as_deref(), Ok("1"));
    let not = format!("{}true", "!".repeat(1001));
    assert_eq!(value(&not).as_deref(), Ok("false"));
    let chain = vec!["n == 1"; 200].join(" || ");
    assert_eq!(value(&chain).as_deref(), Ok("false"));
}

#[test]
fn no_expression_takes_more_than_its_steps() {
    let sum = vec!["long"; 30].join(" + ");
    assert_eq!(value(&format!("size({sum}) > 0")), Err(EvaluationError::Length.to_string()));
    let twelve = format!("[{}]", vec!["1"; 30].join(","));
    let nested = (0..4)
        .fold("false".to_owned(), |inner, depth| format!("{twelve}.exists(x{depth}, {inner})"));
    assert_eq!(value(&nested), Err(EvaluationError::Steps.to_string()));
    // Nothing that follows is asked any more.
    assert_eq!(value(&format!("{nested} || true")), Err(EvaluationError::Steps.to_string()));
    let matches = ["long.matches('y')"; 10].join(" || ");
    assert_eq!(value(&matches), Err(EvaluationError::Steps.to_string()));
}
