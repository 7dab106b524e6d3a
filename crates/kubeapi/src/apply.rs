//! Server-side apply: what a client wants an object to be, and which fields are whose.
//!
//! Every client that writes has a set of fields, in `metadata.managedFields` as in Kubernetes: of
//! one that applies those that it wants, of another one those that it has changed. Who applies
//! changes its own fields, takes back those that it wanted before and wants no more, and is refused
//! where another one's field would change.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};

use ambit_kustomize::Mergeable;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::status::Cause;

/// What a server writes into metadata itself.
const OWN_METADATA: [&str; 8] = [
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];
/// Most managers of one object; the oldest that changed it is forgotten.
const MANAGERS_MAX: usize = 20;
/// Conflicts of which no more are looked for, and the longest part of a path that one shows.
const CONFLICTS_MAX: usize = 1_000;
const SHOWN_LEN_MAX: usize = 200;
/// Stands for an element of a list itself, beside its fields.
const ITSELF: &str = ".";

/// A set of fields: as Kubernetes writes it (`FieldsV1`), a tree of what each has below it.
type Set = Map<String, Value>;

/// A field that another client has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Its path.
    pub(crate) field: String,
    /// Who has it.
    pub(crate) manager: String,
}

impl Conflict {
    /// As a refusal says it.
    pub(crate) fn cause(&self) -> Cause {
        let message = format!("conflict with {:?}", self.manager);
        Cause { field: self.field.clone(), message }
    }
}

/// Who writes, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) manager: &'a str,
    pub(crate) now: Timestamp,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    manager: String,
    applies: bool,
    api_version: String,
    time: Value,
    fields: Set,
}

/// Makes of an object what a client wants that applies.
pub(crate) fn apply(
    current: Option<&Value>,
    wanted: &Value,
    writer: Writer<'_>,
    is_forced: bool,
) -> Result<Value, Vec<Conflict>> {
    let of = Mergeable::of(text(wanted, "apiVersion"), text(wanted, "kind"));
    let mut entries = entries(current);
    let own = entries.iter().position(|it| it.applies && it.manager == writer.manager);
    let own = own.map(|at| entries.remove(at));
    let wanted_said = said(wanted);
    let new = set_of(&wanted_said, of);
    let mut object = current.cloned().unwrap_or_else(|| wanted_said.clone());
    let mut conflicts = Vec::new();
    if let Some(current) = current {
        let others: Vec<(&str, &Set)> =
            entries.iter().map(|it| (it.manager.as_str(), &it.fields)).collect();
        find_conflicts(&said(current), &wanted_said, of, &others, "", &mut conflicts);
    }
    if !conflicts.is_empty() {
        if !is_forced {
            return Err(conflicts);
        }
        let taken = current.and_then(|it| changed(&said(it), &wanted_said, of));
        let taken = taken.unwrap_or_default();
        entries.iter_mut().for_each(|it| subtract(&mut it.fields, &taken));
    }
    if current.is_some() {
        object = merged(object, wanted_said, of);
        let others: Vec<&Set> = entries.iter().map(|it| &it.fields).collect();
        if let Some(own) = &own {
            take_back(&mut object, &own.fields, Some(&new), &others, of);
        }
    }
    let is_same = own.as_ref().is_some_and(|it| it.fields == new);
    let time = own.filter(|_| is_same).map_or_else(|| time(writer.now), |it| it.time);
    let (manager, api_version) = (writer.manager.to_owned(), text(wanted, "apiVersion").to_owned());
    entries.push(Entry { manager, applies: true, api_version, time, fields: new });
    write_entries(&mut object, entries);
    Ok(object)
}

/// Notes whose the fields are that a client has changed.
pub(crate) fn note_update(before: Option<&Value>, object: &mut Value, writer: Writer<'_>) {
    let api_version = text(object, "apiVersion").to_owned();
    let of = Mergeable::of(&api_version, text(object, "kind"));
    let mut entries = entries(before);
    let now = said(object);
    let fields = match before {
        Some(before) => changed(&said(before), &now, of).unwrap_or_default(),
        None => set_of(&now, of),
    };
    for entry in &mut entries {
        let is_own = !entry.applies && entry.manager == writer.manager;
        if !is_own {
            subtract(&mut entry.fields, &fields);
        }
        keep_present(&mut entry.fields, &now, of);
    }
    if !fields.is_empty() {
        let is_own = |it: &Entry| !it.applies && it.manager == writer.manager;
        let own = entries.iter().position(is_own).map(|at| entries.remove(at));
        let mut all = own.map(|it| it.fields).unwrap_or_default();
        unite(&mut all, fields);
        let (manager, time) = (writer.manager.to_owned(), time(writer.now));
        entries.push(Entry { manager, applies: false, api_version, time, fields: all });
    }
    write_entries(object, entries);
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn time(now: Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Drops what clients may say of metadata, but only the server writes.
pub(crate) fn drop_own_metadata(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in OWN_METADATA {
            metadata.remove(field);
        }
    }
}

/// What clients say of an object: without its identity, and without what the server writes.
fn said(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        for field in ["apiVersion", "kind", "status"] {
            fields.remove(field);
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in OWN_METADATA.iter().chain(&["name", "namespace", "generateName"]) {
            metadata.remove(*field);
        }
        if metadata.is_empty() {
            object.as_object_mut().map(|fields| fields.remove("metadata"));
        }
    }
    object
}

fn entries(object: Option<&Value>) -> Vec<Entry> {
    let all = object.and_then(|it| it.pointer("/metadata/managedFields"));
    let entry = |it: &Value| {
        Some(Entry {
            manager: text(it, "manager").to_owned(),
            applies: text(it, "operation") == "Apply",
            api_version: text(it, "apiVersion").to_owned(),
            time: it["time"].clone(),
            fields: it.get("fieldsV1")?.as_object()?.clone(),
        })
    };
    all.and_then(Value::as_array).into_iter().flatten().filter_map(entry).collect()
}

fn write_entries(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|it| it.applies || !it.fields.is_empty());
    while entries.len() > MANAGERS_MAX {
        let oldest = entries.iter().position(|it| !it.applies).unwrap_or(0);
        entries.remove(oldest);
    }
    let entry = |it: Entry| {
        json!({
            "manager": it.manager,
            "operation": if it.applies { "Apply" } else { "Update" },
            "apiVersion": it.api_version,
            "time": it.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": it.fields,
        })
    };
    object["metadata"]["managedFields"] = entries.into_iter().map(entry).collect();
}

/// A part of a value: its name in a set, and what is known of it.
type Part<'a> = (String, &'a Value, Mergeable);

/// Parts by their names; of several with one name the first.
fn by_name<'a>(parts: Vec<Part<'a>>) -> HashMap<String, (&'a Value, Mergeable)> {
    let mut named = HashMap::with_capacity(parts.len());
    for (name, value, of) in parts {
        named.entry(name).or_insert((value, of));
    }
    named
}

/// The parts of a value that have names in a set, with what is known of each.
fn parts(value: &Value, of: Mergeable) -> Option<Vec<Part<'_>>> {
    match (value, of.keys()) {
        (Value::Object(map), _) if !map.is_empty() && !of.is_atomic() => {
            let parts = map.iter();
            Some(parts.map(|(name, it)| (format!("f:{name}"), it, of.field(name))).collect())
        }
        (Value::Array(items), Some(keys)) => {
            let part = |it| (item_name(it, keys), it, of.element());
            Some(items.iter().map(part).collect())
        }
        _ => None,
    }
}

/// The name of an element: its keys, with Kubernetes' defaults.
fn element_name(element: &Value, keys: &[&str]) -> String {
    let mut named = Map::new();
    for key in keys {
        match element.get(*key) {
            Some(value) => drop(named.insert((*key).to_owned(), value.clone())),
            None if *key == "protocol" => drop(named.insert((*key).to_owned(), json!("TCP"))),
            None => {}
        }
    }
    format!("k:{}", Value::Object(named))
}

/// The name of an item of a list whose elements have these keys; none of scalars.
fn item_name(item: &Value, keys: &[&str]) -> String {
    match keys {
        [] => format!("v:{item}"),
        keys => element_name(item, keys),
    }
}

/// Where the items of a list are, by their names; of several with one name the first.
fn places(items: &[Value], keys: &[&str]) -> HashMap<String, usize> {
    let mut places = HashMap::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        places.entry(item_name(item, keys)).or_insert(at);
    }
    places
}

/// All fields of a value.
fn set_of(value: &Value, of: Mergeable) -> Set {
    let mut set = Set::new();
    for (name, part, of) in parts(value, of).into_iter().flatten() {
        let mut below = set_of(part, of);
        if name.starts_with("k:") {
            below.insert(ITSELF.to_owned(), json!({}));
        }
        set.insert(name, Value::Object(below));
    }
    set
}

/// The fields of a value that are not so in another one; none if it only lacks some.
fn changed(before: &Value, after: &Value, of: Mergeable) -> Option<Set> {
    let (Some(old), Some(new)) = (parts(before, of), parts(after, of)) else {
        return Some(set_of(after, of));
    };
    let (old, mut set) = (by_name(old), Set::new());
    for (name, part, of) in new {
        match old.get(&name) {
            Some((old, _)) if *old == part => {}
            Some((old, _)) => {
                if let Some(below) = changed(old, part, of) {
                    set.insert(name, Value::Object(below));
                }
            }
            None => unite(&mut set, single(name, set_of(part, of))),
        }
    }
    (!set.is_empty()).then_some(set)
}

fn single(name: String, mut below: Set) -> Set {
    if name.starts_with("k:") {
        below.insert(ITSELF.to_owned(), json!({}));
    }
    Map::from_iter([(name, Value::Object(below))])
}

/// Whether a set holds the field itself that a part of it stands for.
fn is_whole(below: &Set) -> bool {
    below.is_empty() || below.contains_key(ITSELF)
}

fn below<'a>(set: &'a Set, name: &str) -> Option<&'a Set> {
    set.get(name).and_then(Value::as_object)
}

fn find_conflicts(
    live: &Value,
    wanted: &Value,
    of: Mergeable,
    others: &[(&str, &Set)],
    path: &str,
    found: &mut Vec<Conflict>,
) {
    let adds_nothing = match (live, wanted) {
        (Value::Object(_), Value::Object(wanted)) => wanted.is_empty() && !of.is_atomic(),
        (Value::Array(_), Value::Array(wanted)) => wanted.is_empty() && of.keys().is_some(),
        _ => false,
    };
    if others.is_empty() || live == wanted || adds_nothing || found.len() >= CONFLICTS_MAX {
        return;
    }
    let (Some(there), Some(parts)) = (parts(live, of), parts(wanted, of)) else {
        for (manager, _) in others.iter().filter(|(_, set)| is_whole(set)) {
            found.push(Conflict { field: path.to_owned(), manager: (*manager).to_owned() });
        }
        return;
    };
    let there = by_name(there);
    for (name, wanted, of) in parts {
        let Some((live, _)) = there.get(&name) else { continue };
        let others: Vec<(&str, &Set)> =
            others.iter().filter_map(|(who, set)| Some((*who, below(set, &name)?))).collect();
        let path = match name.split_once(':') {
            Some(("f", field)) => format!("{path}.{}", short(field)),
            Some((_, element)) => format!("{path}[{}]", short(element)),
            None => path.to_owned(),
        };
        find_conflicts(live, wanted, of, &others, &path, found);
    }
}

/// The beginning of a part of a path.
fn short(part: &str) -> &str {
    part.char_indices().nth(SHOWN_LEN_MAX).map_or(part, |(end, _)| &part[..end])
}

/// A value with what is wanted of it; what is not mentioned stays.
fn merged(live: Value, wanted: Value, of: Mergeable) -> Value {
    match (live, wanted, of.keys()) {
        (Value::Object(mut map), Value::Object(wanted), _) if !of.is_atomic() => {
            for (name, value) in wanted {
                let about = of.field(&name);
                let value = match map.get_mut(&name).map(Value::take) {
                    Some(old) => merged(old, value, about),
                    None => value,
                };
                map.insert(name, value);
            }
            Value::Object(map)
        }
        (Value::Array(mut items), Value::Array(wanted), Some(keys)) => {
            let mut places = places(&items, keys);
            for value in wanted {
                match places.entry(item_name(&value, keys)) {
                    Slot::Occupied(at) => {
                        let there = &mut items[*at.get()];
                        *there = merged(there.take(), value, of.element());
                    }
                    Slot::Vacant(place) => {
                        place.insert(items.len());
                        items.push(value);
                    }
                }
            }
            Value::Array(items)
        }
        (_, wanted, _) => wanted,
    }
}

/// Removes the fields of `old` that are neither in `new` nor another client's.
fn take_back(value: &mut Value, old: &Set, new: Option<&Set>, others: &[&Set], of: Mergeable) {
    let keys = of.keys().unwrap_or_default();
    let places = value.as_array().map(|items| places(items, keys)).unwrap_or_default();
    let mut gone = HashSet::new();
    for (name, of_old) in old.iter().filter_map(|(name, it)| Some((name, it.as_object()?))) {
        if name == ITSELF {
            continue;
        }
        let of_new = new.and_then(|it| below(it, name));
        let of_others: Vec<&Set> = others.iter().filter_map(|it| below(it, name)).collect();
        let is_gone = of_new.is_none() && of_others.is_empty() && is_whole(of_old);
        let is_empty = |it: &Value| it.as_object().is_some_and(Map::is_empty);
        match (&mut *value, name.split_once(':')) {
            (Value::Object(map), Some(("f", field))) => {
                let Some(part) = map.get_mut(field) else { continue };
                if !is_gone {
                    take_back(part, of_old, of_new, &of_others, of.field(field));
                }
                if is_gone || of_new.is_none() && is_empty(part) {
                    map.remove(field);
                }
            }
            (Value::Array(items), Some(_)) => {
                let Some(at) = places.get(name) else { continue };
                if is_gone {
                    gone.insert(*at);
                } else {
                    take_back(&mut items[*at], of_old, of_new, &of_others, of.element());
                }
            }
            _ => {}
        }
    }
    if let Value::Array(items) = value {
        let mut at = 0..;
        items.retain(|_| at.next().is_some_and(|at| !gone.contains(&at)));
    }
}

fn unite(set: &mut Set, more: Set) {
    for (name, of_more) in more {
        match (set.get_mut(&name), of_more) {
            (Some(Value::Object(below)), Value::Object(of_more)) => {
                // A field that is one's as a whole stays so.
                let was_whole = is_whole(below) || is_whole(&of_more);
                unite(below, of_more);
                if was_whole && !below.is_empty() && name.starts_with("k:") {
                    below.insert(ITSELF.to_owned(), json!({}));
                }
            }
            (_, of_more) => drop(set.insert(name, of_more)),
        }
    }
}

/// Takes the fields of another set out of a set.
fn subtract(set: &mut Set, minus: &Set) {
    for (name, of_minus) in minus.iter().filter_map(|(name, it)| Some((name, it.as_object()?))) {
        let Some(of_set) = set.get_mut(name).and_then(Value::as_object_mut) else { continue };
        if of_set.is_empty() {
            if is_whole(of_minus) {
                set.remove(name);
            }
            continue;
        }
        subtract(of_set, of_minus);
        if of_set.is_empty() {
            set.remove(name);
        }
    }
}

/// Takes out of a set what an object does not have.
fn keep_present(set: &mut Set, object: &Value, of: Mergeable) {
    let parts = by_name(parts(object, of).unwrap_or_default());
    set.retain(|name, of_set| {
        if name == ITSELF {
            return true;
        }
        let Some((part, of)) = parts.get(name) else { return false };
        let Some(of_set) = of_set.as_object_mut() else { return false };
        if of_set.is_empty() {
            return true;
        }
        keep_present(of_set, part, *of);
        !of_set.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(spec: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "a"}, "spec": spec})
    }

    fn containers(containers: Value) -> Value {
        json!({"template": {"spec": {"containers": containers}}})
    }

    fn writer(manager: &str) -> Writer<'_> {
        Writer { manager, now: "2026-01-31T12:00:00Z".parse().expect("a time") }
    }

    fn applied(current: Option<&Value>, spec: Value, manager: &str) -> Value {
        apply(current, &deployment(spec), writer(manager), false).expect("no conflict")
    }

    #[test]
    fn who_applies_takes_back_what_it_wants_no_more() {
        let first = json!({"replicas": 2, "paused": true, "template": {"spec": {"containers": [
            {"name": "a", "image": "1", "ports": [{"containerPort": 80}]}, {"name": "b"}]}}});
        let mut object = applied(None, first, "helm");
        // What the server adds, and what others add, stays.
        object["spec"]["strategy"] = json!({"type": "RollingUpdate"});
        let port = &mut object["spec"]["template"]["spec"]["containers"][0]["ports"][0];
        port["protocol"] = json!("TCP");
        let second = json!({"replicas": 3, "template": {"spec": {"containers": [
            {"name": "a", "image": "2", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}});
        let object = applied(Some(&object), second, "helm");
        let expected = json!({"replicas": 3, "strategy": {"type": "RollingUpdate"},
        "template": {"spec": {"containers": [
            {"name": "a", "image": "2", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
        ]}}});
        assert_eq!(object["spec"], expected);
    }

    #[test]
    fn a_field_of_another_is_a_conflict() {
        let object = applied(None, json!({"replicas": 2}), "helm");
        let mut scaled = object.clone();
        scaled["spec"]["replicas"] = json!(5);
        note_update(Some(&object), &mut scaled, writer("kubectl-scale"));
        let again = deployment(json!({"replicas": 2}));
        let refused = apply(Some(&scaled), &again, writer("helm"), false);
        let (field, manager) = (".spec.replicas".to_owned(), "kubectl-scale".to_owned());
        assert_eq!(refused, Err(vec![Conflict { field, manager }]));
        let same = deployment(json!({"replicas": 5}));
        assert!(apply(Some(&scaled), &same, writer("helm"), false).is_ok(), "both want it");
        let forced = apply(Some(&scaled), &again, writer("helm"), true).expect("it is forced");
        assert_eq!(forced["spec"]["replicas"], 2);
        let managers = forced["metadata"]["managedFields"].as_array().expect("managers");
        let managers: Vec<&Value> = managers.iter().map(|it| &it["manager"]).collect();
        assert_eq!(managers, ["helm"], "nothing of the other one is left");
    }

    #[test]
    fn an_empty_map_wants_nothing() {
        let mut object = applied(None, json!({"strategy": {}, "args": ["x"]}), "helm");
        object["spec"]["strategy"] = json!({"type": "RollingUpdate"});
        let again = applied(Some(&object), json!({"strategy": {}}), "other");
        assert_eq!(again["spec"]["strategy"], json!({"type": "RollingUpdate"}));
        let atomic = deployment(json!({"args": []}));
        assert!(apply(Some(&object), &atomic, writer("other"), false).is_err(), "all of a list");
    }

    #[test]
    fn conflicts_are_bounded() {
        let long = "é".repeat(1_000);
        let of = |what: u32| {
            let fields = (0..2_000).map(|it| (format!("f{it}"), json!(what)));
            let fields = Value::Object(fields.collect());
            json!({ &long: fields })
        };
        let object = applied(None, of(1), "helm");
        let other = deployment(of(2));
        let refused = apply(Some(&object), &other, writer("other"), false).expect_err("helm's");
        assert_eq!(refused.len(), CONFLICTS_MAX);
        assert_eq!(refused[0].field.chars().count(), ".spec.".len() + SHOWN_LEN_MAX + ".f0".len());
        let forced = apply(Some(&object), &other, writer("other"), true).expect("it is forced");
        assert_eq!(forced["spec"], of(2));
    }

    #[test]
    fn fields_that_others_want_too_stay() {
        let one = applied(None, json!({"replicas": 2, "paused": true}), "one");
        let both = applied(Some(&one), json!({"replicas": 2}), "two");
        let left = applied(Some(&both), json!({"paused": true}), "one");
        assert_eq!(left["spec"], json!({"replicas": 2, "paused": true}));
        let left = applied(Some(&left), json!({}), "two");
        assert_eq!(left["spec"], json!({"paused": true}));
    }

    #[test]
    fn the_sets_are_those_of_kubernetes() {
        let spec = containers(json!([{"name": "a", "args": ["x"], "env": []}]));
        let object = applied(None, spec, "helm");
        let expected = json!([{
            "manager": "helm", "operation": "Apply", "apiVersion": "apps/v1",
            "time": "2026-01-31T12:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:template": {"f:spec": {"f:containers": {
                "k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:args": {}, "f:env": {}},
            }}}}},
        }]);
        assert_eq!(object["metadata"]["managedFields"], expected);
    }

    #[test]
    fn long_lists_take_little_time() {
        let began = std::time::Instant::now();
        let pod = |finalizers: Vec<String>, names: Vec<String>| {
            let containers: Vec<Value> = names.iter().map(|it| json!({ "name": it })).collect();
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"finalizers": finalizers},
                "spec": {"containers": containers}})
        };
        let all = |from: usize| (from..from + 5_000).map(|it| format!("x{it}")).collect();
        let first = apply(None, &pod(all(0), all(0)), writer("a"), false).expect("it is new");
        let both = apply(Some(&first), &pod(all(2_500), all(2_500)), writer("b"), false);
        let both = both.expect("no conflict");
        let mut less = apply(Some(&both), &pod(all(2_500), all(2_500)), writer("a"), false)
            .expect("no conflict");
        assert_eq!(less["metadata"]["finalizers"].as_array().map(Vec::len), Some(5_000));
        less["spec"]["containers"] = json!([{"name": "x7499"}]);
        note_update(Some(&both), &mut less, writer("c"));
        // Compared each with each other, these would take minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn a_selector_is_replaced_as_a_whole() {
        let of = |labels: Value| json!({"selector": {"matchLabels": labels}});
        let object = applied(None, of(json!({"app": "web", "tier": "a"})), "helm");
        let set = &object["metadata"]["managedFields"][0]["fieldsV1"];
        assert_eq!(*set, json!({"f:spec": {"f:selector": {}}}));
        let again = applied(Some(&object), of(json!({"app": "web"})), "helm");
        assert_eq!(again["spec"], of(json!({"app": "web"})));
        let other = deployment(of(json!({"tier": "b"})));
        let refused = apply(Some(&object), &other, writer("other"), false);
        let (field, manager) = (".spec.selector".to_owned(), "helm".to_owned());
        assert_eq!(refused, Err(vec![Conflict { field, manager }]));
        let forced = apply(Some(&object), &other, writer("other"), true).expect("it is forced");
        assert_eq!(forced["spec"], of(json!({"tier": "b"})));
        let empty = apply(Some(&object), &deployment(json!({"selector": {}})), writer("x"), false);
        assert!(empty.is_err(), "all of it");
        let none = applied(Some(&object), json!({}), "helm");
        assert_eq!(none["spec"], json!({}));
    }

    #[test]
    fn what_is_gone_is_nobodys() {
        let object = applied(None, json!({"replicas": 2, "paused": true}), "helm");
        let mut without = object.clone();
        without["spec"] = json!({"replicas": 2});
        note_update(Some(&object), &mut without, writer("edit"));
        let set = &without["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
        assert_eq!(*set, json!({"f:replicas": {}}));
        assert!(without["metadata"]["managedFields"][1].is_null(), "the other one has nothing");
    }

    #[test]
    fn managers_are_bounded() {
        let mut object = deployment(json!({"replicas": 0}));
        for count in 1..=30 {
            let before = object.clone();
            object["metadata"]["labels"][format!("l{count}")] = json!("x");
            note_update(Some(&before), &mut object, writer(&format!("m{count}")));
        }
        let managers = object["metadata"]["managedFields"].as_array().expect("managers");
        assert_eq!((managers.len(), &managers[0]["manager"]), (MANAGERS_MAX, &json!("m11")));
    }
}
