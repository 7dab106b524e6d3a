//! The order of kinds: what a build puts first, and what it puts last.
//!
//! kustomize's default order is the one it calls `legacy`: what others depend on comes first.

use serde::Deserialize;

use crate::error::Fault;
use crate::identity::{Gvk, Identity};
use crate::kinds::{FIRST, LAST, gvk_text, place};
use crate::resource::Resources;

/// The field `sortOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct SortOptions {
    order: String,
    legacy_sort_options: Option<KindOrder>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct KindOrder {
    order_first: Vec<String>,
    order_last: Vec<String>,
}

/// Sorts the resources of a build.
pub(crate) fn sort(resources: &mut Resources, options: Option<&SortOptions>) -> Result<(), Fault> {
    let own = KindOrder {
        order_first: FIRST.iter().map(|kind| (*kind).to_owned()).collect(),
        order_last: LAST.iter().map(|kind| (*kind).to_owned()).collect(),
    };
    let kinds = match options.map(|it| (it.order.as_str(), &it.legacy_sort_options)) {
        None | Some(("legacy", None)) => &own,
        Some(("legacy", Some(kinds))) => kinds,
        Some(("fifo", None)) => return Ok(()),
        Some(("fifo", Some(_))) => {
            let what = "`legacySortOptions` with the order `fifo`";
            return Err(Fault::new(what, "set `order: legacy`, or remove `legacySortOptions`"));
        }
        Some((order, _)) => {
            let what = format!("the order {order:?} is unknown");
            return Err(Fault::new(what, "set `order` to `legacy` or `fifo`"));
        }
    };
    resources.0.sort_by_cached_key(|it| sort_key(&it.identity(), kinds));
    Ok(())
}

/// Place of the kind, then group, version and kind, then the whole identity, as kustomize spells
/// them.
fn sort_key(identity: &Identity, kinds: &KindOrder) -> (isize, GvkText, String) {
    let gvk = &identity.gvk;
    let text = |text: &str, none: &str| if text.is_empty() { none } else { text }.to_owned();
    let whole = format!(
        "{}.{}.{}|{}|{}",
        text(&gvk.kind, "[noKind]"),
        text(&gvk.version, "[noVer]"),
        text(&gvk.group, "[noGrp]"),
        text(&identity.namespace, "~X"),
        text(&identity.name, "~N")
    );
    let first: Vec<&str> = kinds.order_first.iter().map(String::as_str).collect();
    let last: Vec<&str> = kinds.order_last.iter().map(String::as_str).collect();
    (place(&gvk.kind, &first, &last), GvkText::of(gvk), whole)
}

/// Group, version and kind as one text. Of two kinds `Namespace`, the core's comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GvkText(bool, String);

impl GvkText {
    fn of(gvk: &Gvk) -> Self {
        Self(gvk.kind == "Namespace" && !gvk.group.is_empty(), gvk_text(gvk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;
    use serde_json::json;
    use std::path::Path;

    fn check(options: Option<&SortOptions>, kinds: &[&str], expected: &[&str]) {
        let resource = |kind: &&str| {
            let value = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}});
            Resource::new(value, Path::new("x.yaml"))
        };
        let mut resources = Resources(kinds.iter().map(resource).collect());
        sort(&mut resources, options).expect("options that are right");
        let sorted: Vec<String> = resources.0.iter().map(|it| it.identity().gvk.kind).collect();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn what_others_depend_on_comes_first() {
        let kinds = ["ValidatingWebhookConfiguration", "Pod", "Deployment", "Namespace", "Apple"];
        let expected =
            ["Namespace", "Deployment", "Apple", "Pod", "ValidatingWebhookConfiguration"];
        check(None, &kinds, &expected);
        let fifo = SortOptions { order: "fifo".to_owned(), legacy_sort_options: None };
        check(Some(&fifo), &kinds, &kinds);
    }
}
