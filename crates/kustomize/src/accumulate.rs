//! One kustomization after another: reads what it includes, then runs its steps in the order of
//! kustomize.
//!
//! A base is built on its own and then added. A component works on what was collected before it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::disk::{Root, Spent};
use crate::error::{Fault, KustomizeError, way_out};
use crate::fields::{FieldTable, defaults};
use crate::generate::{GenerateError, MapKind, MapSource, generate};
use crate::images::{Image, set_images};
use crate::kustomization::{Kustomization, ReplacementEntry};
use crate::labels::{add_entries, fields_of};
use crate::names::{Affix, affix};
use crate::namespace::{NamespaceOptions, set_namespace};
use crate::order::SortOptions;
use crate::patch::{Patch, PatchEntry};
use crate::replacements::Replacement;
use crate::replicas::set_replicas;
use crate::resource::{Resource, Resources};
use crate::transformer::{Step, run};
use crate::variables::{Variable, mark};
use crate::{patch, replacements, yaml};

/// What was collected so far.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// The resources.
    pub(crate) resources: Resources,
    /// The fields that steps change, those of bases included.
    pub(crate) table: FieldTable,
    /// The variables, those of bases included.
    pub(crate) variables: Vec<Variable>,
}

/// One build.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    /// The directory that was asked for.
    pub(crate) asked: &'a Path,
    /// What the user should know.
    pub(crate) warnings: RefCell<Vec<String>>,
    /// How the result is sorted.
    pub(crate) sort_options: RefCell<Option<SortOptions>>,
    /// What was read so far.
    pub(crate) spent: &'a Spent,
}

/// How a kustomization is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Included {
    /// It is the one that was asked for: either kind.
    Asked,
    Base,
    Component,
}

/// One kustomization that is being followed.
struct Site<'a, 'b> {
    builder: &'b Builder<'a>,
    root: &'b Root<'a>,
}

impl<'a> Builder<'a> {
    /// Collects everything below the directory that was asked for.
    pub(crate) fn collect(&self) -> Result<Collected, KustomizeError> {
        let root = Root::first(self.asked, self.spent)?;
        self.accumulate(&root, Collected::default(), Included::Asked)
    }

    fn accumulate(
        &self,
        root: &Root<'a>,
        collected: Collected,
        included: Included,
    ) -> Result<Collected, KustomizeError> {
        let site = Site { builder: self, root };
        let mut kustomization = site.read(included)?;
        if root.is_first() {
            self.sort_options.replace(kustomization.sort_options.take());
        }
        let mut collected = collected;
        for (field, paths) in
            [("resources", &kustomization.resources), ("bases", &kustomization.bases)]
        {
            for path in paths.iter().flatten() {
                site.include(&mut collected, path, field)?;
            }
        }
        site.merge_table(&mut collected, &kustomization)?;
        site.generate(&mut collected.resources, &kustomization)?;
        for path in kustomization.components.iter().flatten() {
            let component = site.root_of(path, "components")?;
            collected = self.accumulate(&component, collected, Included::Component)?;
        }
        site.transform(&mut collected, &mut kustomization)?;
        let variables = kustomization.vars.unwrap_or_default();
        mark(&mut collected.resources, &variables).map_err(|it| site.fault(it, "vars"))?;
        site.add_variables(&mut collected.variables, variables)?;
        Ok(collected)
    }
}

impl<'a> Site<'a, '_> {
    fn fault(&self, fault: Fault, field: &str) -> KustomizeError {
        fault.at(&self.root.file, field, self.builder.asked)
    }

    /// Reads and checks the kustomization.
    fn read(&self, included: Included) -> Result<Kustomization, KustomizeError> {
        let text = self.root.kustomization()?;
        let file = &self.root.file;
        let value = one_value(&text, file)?.unwrap_or_default();
        let is_content = |key: &String| !["apiVersion", "kind"].contains(&key.as_str());
        if !value.as_object().is_some_and(|it| it.keys().any(is_content)) {
            let fault = Fault::new("the kustomization is empty", "add `resources`");
            return Err(self.fault(fault, "resources"));
        }
        let kustomization: Kustomization = self.decode(value, file)?;
        if let Err((field, fault)) = kustomization.check() {
            return Err(self.fault(fault, field));
        }
        if let Some((field, what)) = kustomization.unsupported() {
            return Err(self.fault(Fault::unsupported(what), field));
        }
        let wrong = match (included, kustomization.is_component()) {
            (Included::Component, false) => Some(("it is no component", "resources")),
            (Included::Base, true) => Some(("it is a component", "components")),
            _ => None,
        };
        if let Some((what, field)) = wrong {
            let fault = Fault::new(what, format!("include it under `{field}`"));
            return Err(self.fault(fault, "kind"));
        }
        for (old, new) in kustomization.deprecated() {
            let warning = format!("{}: `{old}` is deprecated; use `{new}`", file.display());
            self.builder.warnings.borrow_mut().push(warning);
        }
        Ok(kustomization)
    }

    /// Decodes a value of a file; a field without a value counts as one that is not there.
    fn decode<T: DeserializeOwned>(&self, value: Value, file: &Path) -> Result<T, KustomizeError> {
        serde_path_to_error::deserialize(without_nulls(value)).map_err(|error| {
            let path = error.path().to_string();
            let what = error.into_inner().to_string();
            // The list of all fields that there are helps nobody.
            let what = what.split(", expected one of").next().unwrap_or_default();
            if what.starts_with("unknown field") {
                let way_out = way_out(self.builder.asked);
                let remedy = format!("correct its spelling; if it is new in kustomize: {way_out}");
                return Fault::new(what, remedy).at(file, &path, self.builder.asked);
            }
            Fault::new(what, "correct the field").at(file, &path, self.builder.asked)
        })
    }

    /// Adds the resources of a file or of a base.
    fn include(
        &self,
        collected: &mut Collected,
        path: &str,
        field: &str,
    ) -> Result<(), KustomizeError> {
        if !self.root.is_directory(path) {
            if !self.root.exists(path) && is_remote(path) {
                return Err(self.fault(remote(path), field));
            }
            let resources = self.resources_of(path)?;
            let appended = collected.resources.append(resources);
            return appended.map_err(|it| self.fault(it, field));
        }
        let base = self.root_of(path, field)?;
        let more = self.builder.accumulate(&base, Collected::default(), Included::Base)?;
        collected.resources.append(more.resources.0).map_err(|it| self.fault(it, field))?;
        if collected.table == FieldTable::default() {
            collected.table = more.table;
        } else {
            collected.table.merge(&more.table).map_err(|it| self.fault(it, field))?;
        }
        self.add_variables(&mut collected.variables, more.variables)
    }

    fn root_of(&self, path: &str, field: &str) -> Result<Root<'a>, KustomizeError> {
        if !self.root.exists(path) && is_remote(path) {
            return Err(self.fault(remote(path), field));
        }
        self.root.include(path)
    }

    fn resources_of(&self, path: &str) -> Result<Vec<Resource>, KustomizeError> {
        let shown = self.root.show(path);
        let documents = documents(&self.root.text(path)?, &shown)?;
        let objects =
            patch::objects(documents).map_err(|it| it.at(&shown, "kind", self.builder.asked))?;
        Ok(objects.into_iter().map(|value| Resource::new(value, &shown)).collect())
    }

    fn merge_table(
        &self,
        collected: &mut Collected,
        kustomization: &Kustomization,
    ) -> Result<(), KustomizeError> {
        let known = &mut collected.table;
        if *known == FieldTable::default() {
            *known = defaults();
        }
        let mut table = defaults();
        for path in kustomization.configurations.iter().flatten() {
            let shown = self.root.show(path);
            if let Some(value) = one_value(&self.root.text(path)?, &shown)? {
                let more: FieldTable = self.decode(value, &shown)?;
                table.merge(&more).map_err(|it| self.fault(it, "configurations"))?;
            }
        }
        // What bases added is there already, and it holds the defaults.
        if table == defaults() {
            return Ok(());
        }
        collected.table.merge(&table).map_err(|it| self.fault(it, "configurations"))
    }

    fn add_variables(
        &self,
        known: &mut Vec<Variable>,
        more: Vec<Variable>,
    ) -> Result<(), KustomizeError> {
        for variable in more {
            if known.iter().any(|it| it.name == variable.name) {
                let what = format!("the variable {:?} is defined twice", variable.name);
                return Err(self.fault(Fault::new(what, "remove one of the two"), "vars"));
            }
            known.push(variable);
        }
        Ok(())
    }

    fn generate(
        &self,
        resources: &mut Resources,
        kustomization: &Kustomization,
    ) -> Result<(), KustomizeError> {
        let options = kustomization.generator_options.as_ref();
        let all: [(_, _, &Option<Vec<MapSource>>); 2] = [
            (MapKind::ConfigMap, "configMapGenerator", &kustomization.config_map_generator),
            (MapKind::Secret, "secretGenerator", &kustomization.secret_generator),
        ];
        for (kind, field, sources) in all {
            for source in sources.iter().flatten() {
                let read = |path: &str| self.content(path, field);
                let made = generate(kind, source, options, &self.root.file, read);
                let made = made.map_err(|error| match error {
                    GenerateError::Entry(fault) => self.fault(fault, field),
                    GenerateError::File(error) => error,
                })?;
                resources.absorb(made).map_err(|it| self.fault(it, field))?;
            }
        }
        Ok(())
    }

    fn content(&self, path: &str, field: &str) -> Result<Vec<u8>, KustomizeError> {
        if !self.root.exists(path) && is_remote(path) {
            return Err(self.fault(remote(path), field));
        }
        self.root.bytes(path)
    }

    /// Runs the steps in kustomize's order.
    fn transform(
        &self,
        collected: &mut Collected,
        kustomization: &mut Kustomization,
    ) -> Result<(), KustomizeError> {
        let Collected { resources, table, .. } = collected;
        self.patch(resources, kustomization)?;
        let namespace = kustomization.namespace.as_deref().unwrap_or_default();
        let options = NamespaceOptions::default();
        set_namespace(resources, namespace, &table.namespace, options)
            .map_err(|it| self.fault(it, "namespace"))?;
        let prefix = kustomization.name_prefix.as_deref().unwrap_or_default();
        affix(resources, Affix::Prefix, prefix, &table.name_prefix)
            .map_err(|it| self.fault(it, "namePrefix"))?;
        let suffix = kustomization.name_suffix.as_deref().unwrap_or_default();
        affix(resources, Affix::Suffix, suffix, &table.name_suffix)
            .map_err(|it| self.fault(it, "nameSuffix"))?;
        self.label(resources, table, kustomization)?;
        for entry in kustomization.patches_json_6902.take().into_iter().flatten() {
            self.patch_json_6902(resources, &entry)?;
        }
        for replica in kustomization.replicas.iter().flatten() {
            set_replicas(resources, replica, &table.replicas)
                .map_err(|it| self.fault(it, "replicas"))?;
        }
        let images: [&Option<Vec<Image>>; 2] = [&kustomization.images, &kustomization.image_tags];
        for image in images.into_iter().flatten().flatten() {
            set_images(resources, image, &table.images).map_err(|it| self.fault(it, "images"))?;
        }
        let replacements = kustomization.replacements.take().unwrap_or_default();
        self.replace(resources, replacements)?;
        for entry in kustomization.transformers.iter().flatten() {
            self.transform_by_hand(resources, entry)?;
        }
        Ok(())
    }

    fn patch(
        &self,
        resources: &mut Resources,
        kustomization: &mut Kustomization,
    ) -> Result<(), KustomizeError> {
        let field = "patchesStrategicMerge";
        for entry in kustomization.patches_strategic_merge.iter().flatten() {
            // An entry is a patch, or the path of one.
            let inline = yaml::documents(entry).ok().and_then(|it| patch::objects(it).ok());
            let patches = match inline {
                Some(patches) => patches,
                None => {
                    let shown = self.root.show(entry);
                    let documents = documents(&self.root.text(entry)?, &shown)?;
                    patch::objects(documents)
                        .map_err(|it| it.at(&shown, "kind", self.builder.asked))?
                }
            };
            for patch in patches {
                patch::merge_old(resources, patch).map_err(|it| self.fault(it, field))?;
            }
        }
        for entry in kustomization.patches.take().into_iter().flatten() {
            self.patch_by(resources, &entry)?;
        }
        Ok(())
    }

    fn patch_by(
        &self,
        resources: &mut Resources,
        entry: &PatchEntry,
    ) -> Result<(), KustomizeError> {
        let (patch, field) = self.read_patch(entry, "patches")?;
        let options = entry.options.unwrap_or_default();
        patch::apply(resources, patch, entry.target.as_ref(), options)
            .map_err(|it| self.fault(it, &field))
    }

    fn patch_json_6902(
        &self,
        resources: &mut Resources,
        entry: &PatchEntry,
    ) -> Result<(), KustomizeError> {
        let (patch, field) = self.read_patch(entry, "patchesJson6902")?;
        let target = entry.target.as_ref().filter(|it| !it.name.is_empty());
        let (Patch::Operations(operations), Some(target)) = (patch, target) else {
            let what = "an entry is no list of operations, or has no target with a name";
            return Err(self.fault(Fault::new(what, "correct `patch` and `target`"), &field));
        };
        patch::apply_operations(resources, &operations, target, false)
            .map_err(|it| self.fault(it, &field))
    }

    /// The patch of an entry, and what messages call the entry.
    fn read_patch(
        &self,
        entry: &PatchEntry,
        field: &str,
    ) -> Result<(Patch, String), KustomizeError> {
        let (shown, text, field): (PathBuf, String, String) =
            match (entry.path.as_str(), entry.patch.trim()) {
                ("", "") | (_, "") if entry.path.is_empty() => {
                    let fault = Fault::new("an entry has neither `patch` nor `path`", "add one");
                    return Err(self.fault(fault, field));
                }
                ("", patch) => (self.root.file.clone(), patch.to_owned(), field.to_owned()),
                (path, "") if is_remote(path) && !self.root.exists(path) => {
                    return Err(self.fault(remote(path), field));
                }
                (path, "") => {
                    (self.root.show(path), self.root.text(path)?, format!("{field}: {path}"))
                }
                _ => {
                    let fault = Fault::new("an entry has both `patch` and `path`", "keep one");
                    return Err(self.fault(fault, field));
                }
            };
        let documents = yaml::documents(&text).map_err(|error| KustomizeError::Syntax {
            file: shown.clone(),
            line: if entry.path.is_empty() { 0 } else { error.line },
            what: format!("{field}: {}", error.what),
        })?;
        let patch = patch::read(documents).map_err(|it| self.fault(it, &field))?;
        Ok((patch, field))
    }

    fn label(
        &self,
        resources: &mut Resources,
        table: &FieldTable,
        kustomization: &Kustomization,
    ) -> Result<(), KustomizeError> {
        for entry in kustomization.labels.iter().flatten() {
            fields_of(entry, table)
                .and_then(|fields| add_entries(resources, &entry.pairs, &fields))
                .map_err(|it| self.fault(it, "labels"))?;
        }
        let none = BTreeMap::new();
        let labels = kustomization.common_labels.as_ref().unwrap_or(&none);
        add_entries(resources, labels, &table.common_labels)
            .map_err(|it| self.fault(it, "commonLabels"))?;
        let annotations = kustomization.common_annotations.as_ref().unwrap_or(&none);
        add_entries(resources, annotations, &table.common_annotations)
            .map_err(|it| self.fault(it, "commonAnnotations"))
    }

    fn replace(
        &self,
        resources: &mut Resources,
        entries: Vec<ReplacementEntry>,
    ) -> Result<(), KustomizeError> {
        for entry in entries {
            let all: Vec<Replacement> = if entry.path.is_empty() {
                vec![entry.into_inline()]
            } else {
                let shown = self.root.show(&entry.path);
                match one_value(&self.root.text(&entry.path)?, &shown)? {
                    Some(list @ Value::Array(_)) => self.decode(list, &shown)?,
                    Some(one) => vec![self.decode(one, &shown)?],
                    None => Vec::new(),
                }
            };
            for replacement in &all {
                replacement
                    .check()
                    .and_then(|()| replacements::replace(resources, replacement))
                    .map_err(|it| self.fault(it, "replacements"))?;
            }
        }
        Ok(())
    }

    fn transform_by_hand(
        &self,
        resources: &mut Resources,
        entry: &str,
    ) -> Result<(), KustomizeError> {
        let field = "transformers";
        let inline = yaml::documents(entry).ok().and_then(|it| patch::objects(it).ok());
        let configs: Vec<Value> = match inline {
            Some(configs) => configs,
            None => {
                let mut included = Collected::default();
                self.include(&mut included, entry, field)?;
                included.resources.0.into_iter().map(|it| it.value).collect()
            }
        };
        for config in configs {
            let step =
                run(resources, &without_nulls(config)).map_err(|it| self.fault(it, field))?;
            match step {
                Step::Done => {}
                Step::Patch(entry) => self.patch_by(resources, &entry)?,
                Step::Replacements(entries) => self.replace(resources, entries)?,
            }
        }
        Ok(())
    }
}

fn documents(text: &str, file: &Path) -> Result<Vec<Value>, KustomizeError> {
    yaml::documents(text).map_err(|error| KustomizeError::Syntax {
        file: file.to_owned(),
        line: error.line,
        what: error.what,
    })
}

fn one_value(text: &str, file: &Path) -> Result<Option<Value>, KustomizeError> {
    yaml::one(text).map_err(|error| KustomizeError::Syntax {
        file: file.to_owned(),
        line: error.line,
        what: error.what,
    })
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Whether a path names something on another machine.
fn is_remote(path: &str) -> bool {
    path.contains("//")
        || path.contains("?ref=")
        || ["git@", "git::", "github.com", "gitlab.com", "bitbucket.org"]
            .iter()
            .any(|it| path.starts_with(it))
}

fn remote(path: &str) -> Fault {
    Fault::unsupported(format!("{path} is on another machine, and nothing is fetched"))
}
