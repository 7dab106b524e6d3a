//! Follows changes of names: a field that holds the former name of a resource gets its present one.
//!
//! Which of several resources of one former name is meant is decided as in kustomize: by kind, by
//! namespace, then by the prefixes and suffixes that both were given.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, NameReference, change_field};
use crate::identity::{Gvk, Identity, scalar_text, text_at};
use crate::resource::{Resource, Resources};

/// What a reference may mean.
struct Candidate {
    previous: Vec<Identity>,
    now: Identity,
    original: Identity,
    prefixes: Vec<String>,
    suffixes: Vec<String>,
}

impl Candidate {
    fn of(resource: &Resource) -> Self {
        Self {
            previous: resource.previous_identities(),
            now: resource.identity(),
            original: resource.original(),
            prefixes: resource.prefixes.clone(),
            suffixes: resource.suffixes.clone(),
        }
    }
}

/// The resource whose field is read.
struct Referrer<'a> {
    place: &'a Candidate,
    /// Namespaces whose accounts it may name besides its own.
    of_accounts: HashSet<String>,
    role: Option<Gvk>,
    /// The namespaces that the files of what it could name say.
    namespaces: OnceCell<HashSet<&'a str>>,
}

/// Everything that is known when a field is read.
struct Lookup<'a> {
    candidates: &'a [Candidate],
    by_name: &'a HashMap<&'a str, Vec<usize>>,
    referrer: &'a Referrer<'a>,
    target: Gvk,
    is_role: bool,
}

/// Writes the present names into all fields that hold former ones.
pub(crate) fn follow(resources: &mut Resources, table: &[NameReference]) -> Result<(), Fault> {
    let candidates: Vec<Candidate> = resources.0.iter().map(Candidate::of).collect();
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let names: HashSet<&str> = candidate.previous.iter().map(|it| it.name.as_str()).collect();
        for name in names {
            by_name.entry(name).or_default().push(index);
        }
    }
    if by_name.is_empty() {
        return Ok(());
    }
    for (resource, place) in resources.0.iter_mut().zip(&candidates) {
        let referrer = Referrer {
            place,
            of_accounts: account_namespaces(&resource.value),
            role: role_of(&resource.value),
            namespaces: OnceCell::new(),
        };
        for reference in table {
            let fields = reference.fields.iter();
            for field in fields.filter(|it| place.original.gvk.is_selected(&it.gvk())) {
                let lookup = Lookup {
                    candidates: &candidates,
                    by_name: &by_name,
                    referrer: &referrer,
                    target: reference.gvk(),
                    is_role: field.path.ends_with("roleRef/name"),
                };
                follow_field(resource, field, &lookup)?;
            }
        }
    }
    Ok(())
}

fn follow_field(
    resource: &mut Resource,
    field: &FieldSpec,
    lookup: &Lookup<'_>,
) -> Result<(), Fault> {
    // The kind of today counts from here on: a patch may have changed it.
    let any = FieldSpec::any(&field.path, false);
    let changed =
        change_field(&mut resource.value, &any, Missing::Skip, &mut |value| match value {
            Value::Array(items) => items.iter_mut().try_for_each(|item| set(item, lookup)),
            value => set(value, lookup),
        });
    changed.map_err(|fault| Fault {
        what: format!("{}: {}", lookup.referrer.place.now, fault.what),
        ..fault
    })
}

fn set(value: &mut Value, lookup: &Lookup<'_>) -> Result<(), Fault> {
    match value {
        Value::Null => Ok(()),
        Value::Object(map) => set_in_map(map, lookup),
        Value::Array(_) => Err(Fault::new("a list of lists is no name", "correct the resource")),
        scalar => {
            let old = scalar_text(scalar).unwrap_or_default();
            let Some(found) = lookup.select(&old, None)? else { return Ok(()) };
            if found.now.name != old {
                *scalar = Value::String(found.now.name.clone());
            }
            Ok(())
        }
    }
}

/// A map with `name` and perhaps `namespace`, such as a subject of a RoleBinding.
fn set_in_map(map: &mut Map<String, Value>, lookup: &Lookup<'_>) -> Result<(), Fault> {
    let Some(old) = map.get("name").and_then(scalar_text) else {
        return Err(Fault::new("a map without `name` is no reference", "add `name`"));
    };
    let namespace = map
        .get("namespace")
        .filter(|it| !it.is_null())
        .map(|it| scalar_text(it).unwrap_or_default());
    let Some(found) = lookup.select(&old, Some(namespace.as_deref()))? else { return Ok(()) };
    let now = &found.now;
    if now.name == old && now.namespace.is_empty() {
        return Ok(());
    }
    map.insert("name".to_owned(), Value::String(now.name.clone()));
    if !now.namespace.is_empty() {
        map.insert("namespace".to_owned(), Value::String(now.namespace.clone()));
    }
    Ok(())
}

impl<'a> Lookup<'a> {
    /// The resource that a name means. `in_map` is the namespace beside it, if it stands in a map.
    fn select(
        &self,
        name: &str,
        in_map: Option<Option<&str>>,
    ) -> Result<Option<&'a Candidate>, Fault> {
        let Some(named) = self.by_name.get(name) else { return Ok(None) };
        let reachable =
            named.iter().map(|index| &self.candidates[*index]).filter(|it| self.is_reachable(it));
        let reachable: Vec<&Candidate> = reachable.collect();
        let mut found: Vec<&Candidate> = match in_map.flatten() {
            None => reachable,
            Some(namespace) => self.in_namespace(reachable, namespace),
        };
        found.retain(|it| self.is_meant(it));
        if let [only] = found.as_slice() {
            return Ok(Some(*only));
        }
        found.retain(|it| self.is_alike(it, true));
        if found.len() > 1 {
            found.retain(|it| self.is_alike(it, false));
        }
        let [first, others @ ..] = found.as_slice() else { return Ok(None) };
        let is_same = |it: &&Candidate| {
            it.now.name == first.now.name
                && (in_map.is_none() || it.now.namespace == first.now.namespace)
        };
        if others.iter().all(is_same) {
            return Ok(Some(*first));
        }
        let all: Vec<String> = found.iter().map(|it| it.now.to_string()).collect();
        let what = format!("{name:?} may mean {}", all.join(" or "));
        Err(Fault::new(what, "give the resources different names"))
    }

    /// Those of a namespace, by the namespaces of the files, else by those of today.
    fn in_namespace(&self, found: Vec<&'a Candidate>, namespace: &str) -> Vec<&'a Candidate> {
        let of_files = self.referrer.namespaces.get_or_init(|| {
            let reachable = self.candidates.iter().filter(|it| self.is_reachable(it));
            let originals = reachable.map(|it| &it.original).filter(|it| !it.has_no_namespace());
            originals.map(Identity::effective_namespace).collect()
        });
        let by_file = of_files.contains(namespace);
        let part = |it: &Candidate| if by_file { &it.original } else { &it.now }.clone();
        let is_of = |identity: Identity| {
            !identity.has_no_namespace() && identity.effective_namespace() == namespace
        };
        found.into_iter().filter(|it| is_of(part(it))).collect()
    }

    /// Whether the referrer could name it at all.
    fn is_reachable(&self, candidate: &Candidate) -> bool {
        let (referrer, now) = (&self.referrer.place.now, &candidate.now);
        referrer.is_cluster_scoped
            || now.is_cluster_scoped
            || now.effective_namespace() == referrer.effective_namespace()
            || self.referrer.of_accounts.contains(&now.namespace)
    }

    fn is_meant(&self, candidate: &Candidate) -> bool {
        let was = |gvk: &Gvk| candidate.previous.iter().any(|it| it.gvk.is_selected(gvk));
        let role = self.referrer.role.as_ref().filter(|_| self.is_role);
        let (referrer, now) = (&self.referrer.place.now, &candidate.now);
        let is_near = referrer.is_cluster_scoped
            || now.is_cluster_scoped
            || now.gvk.kind == "ServiceAccount"
            || now.effective_namespace() == referrer.effective_namespace();
        was(&self.target) && role.is_none_or(was) && is_near
    }

    /// Whether both were given the same prefixes and suffixes; `may_lack` if one may have none.
    fn is_alike(&self, candidate: &Candidate, may_lack: bool) -> bool {
        let place = self.referrer.place;
        let alike = |one: &[String], other: &[String]| {
            let is_lacking = one.is_empty() || other.is_empty();
            (may_lack && is_lacking) || has_same_end(one, other)
        };
        alike(&candidate.prefixes, &place.prefixes) && alike(&candidate.suffixes, &place.suffixes)
    }
}

/// Whether the shorter list is the end of the longer one; an empty one is only that of another.
fn has_same_end(one: &[String], other: &[String]) -> bool {
    let length = one.len().min(other.len());
    if length == 0 {
        return one.len() == other.len();
    }
    one[one.len() - length..] == other[other.len() - length..]
}

/// The namespaces of the accounts that a RoleBinding names.
fn account_namespaces(resource: &Value) -> HashSet<String> {
    if text_at(resource, &["kind"]).as_deref() != Some("RoleBinding") {
        return HashSet::new();
    }
    let subjects = resource.get("subjects").and_then(Value::as_array).into_iter().flatten();
    subjects
        .filter(|it| text_at(it, &["kind"]).as_deref() == Some("ServiceAccount"))
        .filter_map(|it| text_at(it, &["namespace"]))
        .collect()
}

/// The kind of role that a binding names.
fn role_of(resource: &Value) -> Option<Gvk> {
    let group = text_at(resource, &["roleRef", "apiGroup"])?;
    let kind = text_at(resource, &["roleRef", "kind"])?;
    Some(Gvk { group, version: String::new(), kind })
}
