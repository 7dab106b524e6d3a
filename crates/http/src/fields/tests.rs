//! What is put in, what is found, and what is refused.

use super::*;

/// A step, and what it yields.
enum Step {
    Append(&'static str, &'static [u8]),
    Set(&'static str, &'static [u8]),
    Remove(&'static str),
}
use Step::{Append, Remove, Set};

fn run(steps: &[Step], limits: FieldLimits) -> (Fields, Result<(), FieldError>) {
    let mut fields = Fields::new(limits);
    for step in steps {
        let done = match step {
            Append(name, value) => fields.append(*name, value),
            Set(name, value) => fields.set(*name, value),
            Remove(name) => {
                fields.remove(*name);
                Ok(())
            }
        };
        if done.is_err() {
            return (fields, done);
        }
    }
    (fields, Ok(()))
}

fn check(steps: &[Step], expected: &str) {
    let (fields, done) = run(steps, FieldLimits::default());
    done.expect("every step works");
    let text = fields.iter().map(|field| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}={}", text(field.name), text(field.value))
    });
    assert_eq!(text.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn order_and_case_are_kept() {
    check(
        &[Append("X-b", b"1"), Append("COOKIE", b"2"), Append("x-B", b"3")],
        "X-b=1 COOKIE=2 x-B=3",
    );
    check(&[Append("a", b" \t x y\t ")], "a=x y");
    check(&[Append("a", b"")], "a=");
}

#[test]
fn names_that_a_server_may_take_for_another_are_found() {
    let given = || {
        [
            Append("x-user", b"1"),
            Append("X_User", b"2"),
            Append("x_user", b"3"),
            Append("xuser", b""),
        ]
    };
    let (mut fields, _) = run(&given(), FieldLimits::default());
    fields.remove_disguised("x-user");
    assert_eq!((fields.len(), fields.first("x-user")), (2, Some(&b"1"[..])));
    let (mut fields, _) = run(&given(), FieldLimits::default());
    fields.remove_alike("X-USER");
    assert_eq!(fields.len(), 1);
}

#[test]
fn set_takes_the_first_place() {
    let three = || [Append("a", b"1"), Append("Host", b"2"), Append("A", b"3")];
    let with = |step| three().into_iter().chain([step]).collect::<Vec<_>>();
    check(&with(Set("a", b"new")), "a=new Host=2");
    check(&with(Set("host", b"new")), "a=1 host=new A=3");
    check(&with(Set("b", b"new")), "a=1 Host=2 A=3 b=new");
    check(&with(Remove("A")), "Host=2");
    check(&with(Remove("HOST")), "a=1 A=3");
    check(&with(Remove("b")), "a=1 Host=2 A=3");
}

#[test]
fn names_are_found_in_any_case() {
    let (fields, _) = run(
        &[Append("Content-Length", b"5"), Append("x-ID", b"1"), Append("X-id", b"2")],
        FieldLimits::default(),
    );
    assert_eq!(fields.first(Known::ContentLength), Some(&b"5"[..]));
    assert_eq!(fields.first("content-LENGTH"), Some(&b"5"[..]));
    assert_eq!(fields.all("X-Id").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(fields.first("x-i"), None);
}

#[test]
fn what_would_split_a_head_is_refused() {
    let put = |name: &'static str, value: &'static [u8]| {
        let (_, appended) = run(&[Append(name, value)], FieldLimits::default());
        let (_, set) = run(&[Set(name, value)], FieldLimits::default());
        assert_eq!(appended, set);
        appended
    };
    for value in [&b"a\r\nb: c"[..], b"a\nb", b"a\rb", b"a\0b", b"\x7f", b"\x0bchunked"] {
        assert_eq!(put("a", value), Err(FieldError::Value), "{value:?}");
    }
    for name in ["", "a b", "a:", "a\r\n", "\u{e9}", "a\0"] {
        assert_eq!(put(name, b"x"), Err(FieldError::Name), "{name:?}");
    }
    assert_eq!(put("a", b"caf\xe9 \xc3\xa9"), Ok(()));
}

#[test]
fn limits_hold_and_what_is_replaced_does_not_count() {
    let few = FieldLimits { number: 2, bytes: 1000 };
    let (_, third) = run(&[Append("a", b""), Append("b", b""), Append("c", b"")], few);
    assert_eq!(third, Err(FieldError::TooMany(2)));
    let (_, replaced) = run(&[Append("a", b""), Append("b", b""), Set("A", b"x")], few);
    assert_eq!(replaced, Ok(()));
    let small = FieldLimits { number: 100, bytes: 16 };
    let (_, fits) = run(&[Append("a", b"12345678901"), Set("a", b"10987654321")], small);
    assert_eq!(fits, Ok(()));
    let (_, large) = run(&[Append("a", b"123456789012")], small);
    assert_eq!(large, Err(FieldError::TooLarge(16)));
}

#[test]
fn replacing_for_ever_takes_no_more_room() {
    let mut fields = Fields::new(FieldLimits { number: 3, bytes: 100 });
    fields.append("first", b"stays").expect("room");
    for round in 0..10_000 {
        fields.set("x", round.to_string().as_bytes()).expect("room");
        assert!(fields.bytes.len() < 300, "{}", fields.bytes.len());
    }
    fields.remove("x");
    assert_eq!(fields.cost, "first".len() + "stays".len() + SEPARATORS);
    assert_eq!(fields.first("first"), Some(&b"stays"[..]));
}
