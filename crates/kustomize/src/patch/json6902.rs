//! JSON patches (RFC 6902), with what kustomize's library adds: an index may count
//! from the end, and `replace` makes a field that is missing.
//!
//! What an operation copies is bounded, in size and in depth: a patch can copy a value into itself.

use std::fmt::Display;

use serde_json::Value;

use crate::error::Fault;
use crate::limits::{
    COPIED_NODES_MAX, COPIED_SIZE_MAX_BYTES, OPERATIONS_MAX, PATH_PARTS_MAX, SHOWN_LEN_MAX,
    VALUE_DEPTH_MAX,
};
use crate::measure::measure;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Adds a value, or puts it in the place of another.
    Add(Vec<String>, Value),
    /// Removes the value that is there.
    Remove(Vec<String>),
    /// Replaces the value that is there.
    Replace(Vec<String>, Value),
    /// Moves a value.
    Move(Vec<String>, Vec<String>),
    /// Copies a value.
    Copy(Vec<String>, Vec<String>),
    /// Fails if another value is there.
    Test(Vec<String>, Value),
}

/// Reads a patch.
pub(crate) fn read(patch: &Value) -> Result<Vec<Operation>, Fault> {
    let Some(operations) = patch.as_array() else {
        return Err(Fault::new("a JSON patch is a list", "write a list of operations"));
    };
    if operations.len() > OPERATIONS_MAX {
        let what = format!("more than {OPERATIONS_MAX} operations");
        return Err(Fault::new(what, "split the patch"));
    }
    operations
        .iter()
        .enumerate()
        .map(|(index, it)| operation(it).map_err(|it| at(index, it)))
        .collect()
}

/// Applies a patch. The value is in an unknown state after an error.
pub(crate) fn apply(value: &mut Value, patch: &[Operation]) -> Result<(), Fault> {
    let mut copied = Copied::default();
    for (index, operation) in patch.iter().enumerate() {
        apply_one(value, operation, &mut copied).map_err(|it| at(index, it))?;
    }
    Ok(())
}

/// What the operations of a patch have copied and moved.
#[derive(Default)]
struct Copied {
    nodes: usize,
    bytes: usize,
}

impl Copied {
    /// Counts a value that is copied, before it is.
    fn copy(&mut self, value: &Value) -> Result<(), Fault> {
        self.bytes += measure(value).bytes;
        if self.bytes > COPIED_SIZE_MAX_BYTES {
            let what = format!("the patch copies more than {COPIED_SIZE_MAX_BYTES} bytes");
            return Err(Fault::new(what, "copy less"));
        }
        self.pass(value)
    }

    /// Counts a value that is looked at as a whole.
    fn pass(&mut self, value: &Value) -> Result<(), Fault> {
        self.nodes += measure(value).nodes;
        if self.nodes > COPIED_NODES_MAX {
            let what = format!("the patch copies and moves more than {COPIED_NODES_MAX} values");
            return Err(Fault::new(what, "copy less"));
        }
        Ok(())
    }
}

fn at(index: usize, fault: Fault) -> Fault {
    Fault { what: format!("operation {}: {}", index + 1, fault.what), ..fault }
}

fn operation(value: &Value) -> Result<Operation, Fault> {
    let text = |field: &str| {
        value.get(field).and_then(Value::as_str).ok_or_else(|| {
            Fault::new(format!("`{field}` is missing or no text"), "write op, path and value")
        })
    };
    let path = pointer(text("path")?)?;
    let new = || value.get("value").cloned().unwrap_or_default();
    match text("op")? {
        "add" => Ok(Operation::Add(path, new())),
        "remove" => Ok(Operation::Remove(path)),
        "replace" => Ok(Operation::Replace(path, new())),
        "move" => Ok(Operation::Move(pointer(text("from")?)?, path)),
        "copy" => Ok(Operation::Copy(pointer(text("from")?)?, path)),
        "test" => Ok(Operation::Test(path, new())),
        other => Err(Fault::new(
            format!("the operation {:?} is unknown", short(other)),
            "write add, remove, replace, move, copy or test",
        )),
    }
}

fn pointer(text: &str) -> Result<Vec<String>, Fault> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let unescape = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let parts: Vec<String> = text.trim_start_matches('/').split('/').map(unescape).collect();
    if !text.starts_with('/') || parts.len() > PATH_PARTS_MAX {
        let what = format!("the path {:?} does not begin with / or is too long", short(text));
        return Err(Fault::new(what, "write it as in /spec/replicas"));
    }
    Ok(parts)
}

fn apply_one(value: &mut Value, operation: &Operation, copied: &mut Copied) -> Result<(), Fault> {
    match operation {
        Operation::Add(path, new) => add(value, path, new.clone()),
        Operation::Remove(path) => remove(value, path).map(drop),
        Operation::Replace(path, new) => replace(value, path, new),
        Operation::Move(from, to) => {
            let taken = remove(value, from)?;
            copied.pass(&taken)?;
            add(value, to, taken)
        }
        Operation::Copy(from, to) => {
            let there = found(value, from)?;
            copied.copy(there)?;
            let taken = there.clone();
            add(value, to, taken)
        }
        Operation::Test(path, expected) => {
            let there = found(value, path).map_or(&Value::Null, |it| it);
            if there == expected {
                return Ok(());
            }
            let (path, there) = (short(path.join("/")), short(there));
            let what = format!("/{path} is {there}, not {}", short(expected));
            Err(Fault::new(what, "correct the patch or the resource"))
        }
    }
}

/// The beginning of what a message shows.
fn short(what: impl Display) -> String {
    let mut shown = what.to_string();
    if let Some((end, _)) = shown.char_indices().nth(SHOWN_LEN_MAX) {
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

fn missing(path: &[String]) -> Fault {
    let what = format!("the resource has no /{}", short(path.join("/")));
    Fault::new(what, "correct the path, or add what is above it first")
}

fn index_of(part: &str, length: usize) -> Option<usize> {
    match part.parse::<isize>().ok()? {
        index if index < 0 => length.checked_sub(index.unsigned_abs()),
        index => usize::try_from(index).ok(),
    }
}

fn found<'a>(value: &'a mut Value, path: &[String]) -> Result<&'a mut Value, Fault> {
    let mut here = value;
    for part in path {
        let next = match here {
            Value::Object(map) => map.get_mut(part),
            Value::Array(items) => {
                index_of(part, items.len()).and_then(|index| items.get_mut(index))
            }
            _ => None,
        };
        here = next.ok_or_else(|| missing(path))?;
    }
    Ok(here)
}

/// As in kustomize's library, the field of a map need not be there.
fn replace(value: &mut Value, path: &[String], new: &Value) -> Result<(), Fault> {
    if let Some((last, above)) = path.split_last()
        && let Value::Object(map) = found(value, above)?
    {
        map.insert(last.clone(), new.clone());
        return Ok(());
    }
    *found(value, path)? = new.clone();
    Ok(())
}

fn add(value: &mut Value, path: &[String], new: Value) -> Result<(), Fault> {
    if measure(&new).depth + path.len() > VALUE_DEPTH_MAX {
        let what = format!("the result is nested more than {VALUE_DEPTH_MAX} levels deep");
        return Err(Fault::new(what, "nest less"));
    }
    let Some((last, above)) = path.split_last() else {
        *value = new;
        return Ok(());
    };
    match found(value, above)? {
        Value::Object(map) => {
            map.insert(last.clone(), new);
            Ok(())
        }
        Value::Array(items) if last == "-" => {
            items.push(new);
            Ok(())
        }
        Value::Array(items) => {
            // From the end, -1 is the place behind the last element.
            let index = index_of(last, items.len() + 1).filter(|index| *index <= items.len());
            items.insert(index.ok_or_else(|| missing(path))?, new);
            Ok(())
        }
        _ => Err(missing(path)),
    }
}

fn remove(value: &mut Value, path: &[String]) -> Result<Value, Fault> {
    let Some((last, above)) = path.split_last() else {
        return Err(Fault::new("a patch cannot remove the whole resource", "name a field"));
    };
    let removed = match found(value, above)? {
        Value::Object(map) => map.remove(last),
        Value::Array(items) => index_of(last, items.len())
            .filter(|index| *index < items.len())
            .map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or_else(|| missing(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(value: Value, patch: Value) -> Result<Value, String> {
        let mut value = value;
        let operations = read(&patch).map_err(|it| it.what)?;
        apply(&mut value, &operations).map_err(|it| it.what)?;
        Ok(value)
    }

    fn check(value: Value, patch: Value, expected: Result<Value, &str>) {
        let found = patched(value, patch);
        assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|it| *it));
    }

    #[test]
    fn operations_do_what_the_rfc_says() {
        let value = json!({"a": [1, 2], "b": {"c~/d": "x"}});
        check(
            value.clone(),
            json!([
                {"op": "test", "path": "/a/0", "value": 1},
                {"op": "add", "path": "/a/-", "value": 3},
                {"op": "add", "path": "/a/0", "value": 0},
                {"op": "replace", "path": "/a/-1", "value": 4},
                {"op": "remove", "path": "/b/c~0~1d"},
                {"op": "move", "from": "/a/1", "path": "/b/e"},
                {"op": "copy", "from": "/b", "path": "/f"},
            ]),
            Ok(json!({"a": [0, 2, 4], "b": {"e": 1}, "f": {"e": 1}})),
        );
        let no = json!([{"op": "replace", "path": "/x/y", "value": 1}]);
        check(value.clone(), no, Err("operation 1: the resource has no /x"));
        let made = json!([{"op": "replace", "path": "/x", "value": 1}]);
        check(json!({}), made, Ok(json!({"x": 1})));
        let test = json!([{"op": "test", "path": "/a/0", "value": 2}]);
        check(value.clone(), test, Err("operation 1: /a/0 is 1, not 2"));
        let unknown = json!([{"op": "jump", "path": "/a"}]);
        check(value, unknown, Err("operation 1: the operation \"jump\" is unknown"));
    }

    #[test]
    fn messages_show_the_beginning_of_what_is_long() {
        let value = json!({"a": "é".repeat(100_000)});
        let test = json!([{"op": "test", "path": "/a", "value": "y".repeat(100_000)}]);
        let error = patched(value.clone(), test).expect_err("another one");
        assert!(error.len() < 1_000 && error.contains("éé..., not \"yy"), "{error}");
        let remove = json!([{"op": "remove", "path": format!("/{}", "z".repeat(100_000))}]);
        assert!(patched(value.clone(), remove).expect_err("it is not there").len() < 1_000);
        let absent = json!([{"op": "test", "path": "/b", "value": null}]);
        assert_eq!(patched(value.clone(), absent), Ok(value));
    }

    #[test]
    fn a_patch_cannot_grow_without_bound() {
        let copy = json!({"op": "copy", "from": "/a", "path": "/a/b"});
        let found = patched(
            json!({"a": {"c": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}),
            Value::Array(vec![copy; 200]),
        );
        assert!(found.expect_err("too much").contains("copies and moves more than"));
        let text = json!({"op": "copy", "from": "/a", "path": "/b/-"});
        let found = patched(
            json!({"a": "x".repeat(64 << 10), "b": []}),
            Value::Array(vec![text.clone(); 49]),
        );
        assert!(found.expect_err("too much").contains("copies more than 3145728 bytes"));
        let there = json!({"a": "x".repeat(64 << 10), "b": []});
        assert!(patched(there, Value::Array(vec![text; 48])).is_ok());
        let to_and_fro = [
            json!({"op": "move", "from": "/a", "path": "/b"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let moves: Vec<Value> = to_and_fro.into_iter().cycle().take(1_000).collect();
        let found = patched(json!({"a": vec![0; 1_000]}), Value::Array(moves));
        assert!(found.expect_err("too much").contains("moves more than"));
        let mut deep = vec![json!({"op": "add", "path": "/a", "value": {}})];
        for _ in 0..300 {
            deep.push(json!({"op": "add", "path": "/b", "value": {}}));
            deep.push(json!({"op": "move", "from": "/a", "path": "/b/a"}));
            deep.push(json!({"op": "move", "from": "/b", "path": "/a"}));
        }
        assert!(patched(json!({}), Value::Array(deep)).expect_err("too deep").contains("nested"));
    }
}
