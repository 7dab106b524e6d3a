//! The fields of a kustomization file.
//!
//! Every field that kustomize has is here. Those that are not followed are read as they are, so
//! that their use is one clear error instead of an unknown field.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Fault;
use crate::fields::FieldSpec;
use crate::generate::{GeneratorOptions, MapSource};
use crate::images::Image;
use crate::order::SortOptions;
use crate::patch::PatchEntry;
use crate::replacements::Replacement;
use crate::replicas::Replica;
use crate::variables::Variable;

/// Labels of one entry of `labels`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct LabelEntry {
    pub(crate) pairs: BTreeMap<String, String>,
    pub(crate) include_selectors: bool,
    pub(crate) include_templates: bool,
    pub(crate) include_volume_claim_templates: bool,
    pub(crate) fields: Vec<FieldSpec>,
}

/// An entry of `replacements`: written here, or in a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ReplacementEntry {
    pub(crate) path: String,
    pub(crate) source: Option<crate::replacements::Source>,
    pub(crate) source_value: Option<String>,
    pub(crate) targets: Option<Vec<crate::replacements::Target>>,
}

impl ReplacementEntry {
    /// The replacement that is written here.
    pub(crate) fn into_inline(self) -> Replacement {
        let Self { source, source_value, targets, .. } = self;
        Replacement { source, source_value, targets }
    }
}

/// A kustomization as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Kustomization {
    pub(crate) api_version: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) metadata: Option<Value>,
    pub(crate) resources: Option<Vec<String>>,
    pub(crate) bases: Option<Vec<String>>,
    pub(crate) components: Option<Vec<String>>,
    pub(crate) namespace: Option<String>,
    pub(crate) name_prefix: Option<String>,
    pub(crate) name_suffix: Option<String>,
    pub(crate) labels: Option<Vec<LabelEntry>>,
    pub(crate) common_labels: Option<BTreeMap<String, String>>,
    pub(crate) common_annotations: Option<BTreeMap<String, String>>,
    pub(crate) patches: Option<Vec<PatchEntry>>,
    pub(crate) patches_strategic_merge: Option<Vec<String>>,
    #[serde(rename = "patchesJson6902")]
    pub(crate) patches_json_6902: Option<Vec<PatchEntry>>,
    pub(crate) images: Option<Vec<Image>>,
    pub(crate) image_tags: Option<Vec<Image>>,
    pub(crate) replicas: Option<Vec<Replica>>,
    pub(crate) config_map_generator: Option<Vec<MapSource>>,
    pub(crate) secret_generator: Option<Vec<MapSource>>,
    pub(crate) generator_options: Option<GeneratorOptions>,
    pub(crate) replacements: Option<Vec<ReplacementEntry>>,
    pub(crate) vars: Option<Vec<Variable>>,
    pub(crate) configurations: Option<Vec<String>>,
    pub(crate) transformers: Option<Vec<String>>,
    pub(crate) sort_options: Option<SortOptions>,
    pub(crate) crds: Option<Value>,
    pub(crate) openapi: Option<Value>,
    pub(crate) generators: Option<Value>,
    pub(crate) validators: Option<Value>,
    pub(crate) helm_globals: Option<Value>,
    pub(crate) helm_charts: Option<Value>,
    pub(crate) helm_chart_inflation_generator: Option<Value>,
    pub(crate) build_metadata: Option<Value>,
}

impl Kustomization {
    /// Whether it is a part that others include with `components`.
    pub(crate) fn is_component(&self) -> bool {
        self.kind.as_deref() == Some("Component")
    }

    /// What is wrong with its kind or version.
    pub(crate) fn check(&self) -> Result<(), (&'static str, Fault)> {
        let version = match self.kind.as_deref() {
            None | Some("" | "Kustomization") => "kustomize.config.k8s.io/v1beta1",
            Some("Component") => "kustomize.config.k8s.io/v1alpha1",
            Some(kind) => {
                let what = format!("the kind {kind:?} is unknown");
                return Err(("kind", Fault::new(what, "write Kustomization or Component")));
            }
        };
        match self.api_version.as_deref() {
            None | Some("") => Ok(()),
            Some(is) if is == version => Ok(()),
            Some(is) => {
                let what = format!("the version {is:?} is unknown");
                Err(("apiVersion", Fault::new(what, format!("write {version}"))))
            }
        }
    }

    /// A field in use that only kustomize itself follows.
    pub(crate) fn unsupported(&self) -> Option<(&'static str, &'static str)> {
        let is_used = |value: &Option<Value>| match value {
            None | Some(Value::Null) => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(_) => true,
        };
        let all = [
            ("crds", &self.crds, "schemas of custom resources are not read"),
            ("openapi", &self.openapi, "schemas are not read"),
            ("generators", &self.generators, "generators that are programs are not run"),
            ("validators", &self.validators, "validators are programs, which are not run"),
            ("helmGlobals", &self.helm_globals, "charts are not rendered"),
            ("helmCharts", &self.helm_charts, "charts are not rendered"),
            (
                "helmChartInflationGenerator",
                &self.helm_chart_inflation_generator,
                "charts are not rendered",
            ),
            ("buildMetadata", &self.build_metadata, "annotations about the build are not written"),
        ];
        let used = all.into_iter().find(|(_, value, _)| is_used(value));
        used.map(|(field, _, what)| (field, what))
    }

    /// The deprecated fields that it uses, and what stands for them today.
    pub(crate) fn deprecated(&self) -> Vec<(&'static str, &'static str)> {
        [
            (self.bases.is_some(), "bases", "resources"),
            (self.common_labels.is_some(), "commonLabels", "labels"),
            (self.image_tags.is_some(), "imageTags", "images"),
            (self.patches_json_6902.is_some(), "patchesJson6902", "patches"),
            (self.patches_strategic_merge.is_some(), "patchesStrategicMerge", "patches"),
            (self.vars.is_some(), "vars", "replacements"),
        ]
        .into_iter()
        .filter(|(is_used, _, _)| *is_used)
        .map(|(_, old, new)| (old, new))
        .collect()
    }
}
