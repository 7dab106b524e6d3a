//! What others measured and published, as data, to show it beside a run's own figures.
//!
//! All of it comes from other machines, networks and load generators than a run's own: a ratio
//! between two modes of one source can be compared with a run's ratio, a figure in milliseconds
//! cannot. Nothing here is rounded further than in its source.

use std::collections::BTreeMap;

/// The published figures of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Who measured where, and which mesh.
    pub source: &'static str,
    /// Milliseconds: mode, then `avg`, `p50`, `p75`, `p90`, `p95` or `p99`.
    pub figures: BTreeMap<String, BTreeMap<String, f64>>,
}

/// The figures of a case of an experiment, if anybody published any.
///
/// | experiment | cases |
/// |---|---|
/// | `tiered` | `50`: namespaces, 450 requests per second in each |
/// | `details-old`, `details-close`, `details-new` | any: only one was measured |
/// | `bookinfo` | `old-1000`, `new-1000`, `new-4000`: release, requests per second |
/// | `ratings` | `kube-cni`; Cilium's result is with its source |
pub fn published(experiment: &str, case: &str) -> Option<Published> {
    let is_meant = |table: &&Table| {
        table.experiment == experiment && (table.case == case || table.case == ANY)
    };
    let table = TABLES.iter().find(is_meant)?;
    let row = |(mode, values): &(&str, &[f64])| {
        let named = table.columns.iter().zip(*values);
        let named = named.map(|(column, value)| ((*column).to_owned(), *value));
        ((*mode).to_owned(), named.collect())
    };
    Some(Published { source: table.source, figures: table.rows.iter().map(row).collect() })
}

/// The name of an experiment's only case.
const ANY: &str = "";

/// One published table: a row per mode.
struct Table {
    experiment: &'static str,
    case: &'static str,
    source: &'static str,
    columns: &'static [&'static str],
    rows: &'static [(&'static str, &'static [f64])],
}

const TIERED: &str = "Solo.io, \"Doing more for less\" (2024): 50 namespaces, 450 rps into each; \
    GKE, n2-standard-8, load generators on nodes of their own; Istio 1.22.0, Linkerd \
    stable-2.14.10; means of several runs of 10 min";
const FORTIO: &str = "L. Sun, Solo.io (2024): 3 nodes of 32 cores and 256 GB, Fortio; Istio \
    1.22.3 and its bookinfo; the first of three runs";
const FORTIO_ONCE: &str = "L. Sun, Solo.io (2024): 3 nodes of 32 cores and 256 GB, Fortio; Istio \
    1.22.3 and its bookinfo; one run";
const FORTIO_NEW: &str = "L. Sun, Solo.io (2024): 3 nodes of 32 cores and 256 GB, Fortio; the \
    bookinfo of Istio 1.23; the first of three runs";
const FORTIO_NEW_ONCE: &str = "L. Sun, Solo.io (2024): 3 nodes of 32 cores and 256 GB, Fortio; \
    the bookinfo of Istio 1.23; one run";
const RATINGS: &str = "D. Panda, IMESH (2024): AKS, 3 nodes of 2 vCPU and 7 GB, kube CNI, Fortio \
    with 1000 rps on 10 connections for 30 s; Istio, version not told; median of runs. The same \
    with Cilium: 4.5 ms without a mesh, 6.8 ms in ambient mode, 8.8 ms with sidecars";

const TIERED_COLUMNS: &[&str] = &["p50", "p90", "p95", "p99"];
const FORTIO_COLUMNS: &[&str] = &["avg", "p50", "p75", "p90", "p99"];

const TABLES: &[Table] = &[
    Table {
        experiment: "tiered",
        case: "50",
        source: TIERED,
        columns: TIERED_COLUMNS,
        rows: &[
            ("none", &[1.57, 1.74, 1.82, 2.09]),
            ("ambient", &[2.36, 2.56, 2.67, 2.96]),
            ("ambient+l4policy", &[2.54, 2.77, 2.89, 3.23]),
            ("ambient+waypoint", &[5.57, 6.33, 6.65, 7.72]),
            ("linkerd", &[4.48, 4.98, 5.19, 5.88]),
            ("linkerd+l4policy", &[4.19, 4.65, 4.85, 5.51]),
            ("sidecar", &[6.38, 7.11, 7.54, 9.27]),
        ],
    },
    Table {
        experiment: "details-old",
        case: ANY,
        source: FORTIO,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[0.89, 0.64, 0.74, 0.85, 2.67]),
            ("ambient", &[0.80, 0.60, 0.71, 0.81, 1.40]),
        ],
    },
    Table {
        experiment: "details-close",
        case: ANY,
        source: FORTIO_ONCE,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[1.90, 1.72, 2.28, 2.77, 3.98]),
            ("ambient", &[2.06, 2.15, 2.65, 2.94, 4.00]),
        ],
    },
    Table {
        experiment: "details-new",
        case: ANY,
        source: FORTIO_NEW,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[0.76, 0.58, 0.69, 0.81, 1.56]),
            ("ambient", &[0.72, 0.57, 0.66, 0.76, 1.24]),
        ],
    },
    Table {
        experiment: "bookinfo",
        case: "new-1000",
        source: FORTIO_NEW_ONCE,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[1.39, 1.32, 1.42, 1.67, 2.19]),
            ("ambient", &[1.40, 1.34, 1.48, 1.68, 2.94]),
        ],
    },
    Table {
        experiment: "bookinfo",
        case: "old-1000",
        source: FORTIO_ONCE,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[6.35, 4.68, 7.44, 11.4, 36.63]),
            ("ambient", &[6.74, 4.90, 7.79, 12.12, 41.14]),
        ],
    },
    Table {
        experiment: "bookinfo",
        case: "new-4000",
        source: FORTIO_NEW_ONCE,
        columns: FORTIO_COLUMNS,
        rows: &[
            ("none", &[1.54, 1.33, 1.54, 2.25, 3.98]),
            ("ambient", &[1.58, 1.37, 1.57, 2.33, 4.90]),
        ],
    },
    Table {
        experiment: "ratings",
        case: "kube-cni",
        source: RATINGS,
        columns: &["p99"],
        rows: &[("none", &[1.12]), ("sidecar", &[4.72]), ("ambient", &[3.6])],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(experiment: &str, case: &str, mode: &str, percentile: &str, expected: Option<f64>) {
        let figures = published(experiment, case).map(|published| published.figures);
        let found = figures.and_then(|it| it.get(mode)?.get(percentile).copied());
        assert_eq!(found, expected, "{experiment} {case} {mode} {percentile}");
    }

    #[test]
    fn figures_are_found_by_experiment_and_case() {
        check("tiered", "50", "none", "p50", Some(1.57));
        check("tiered", "50", "sidecar", "p99", Some(9.27));
        check("tiered", "50", "none", "avg", None);
        check("tiered", "20", "none", "p50", None);
        check("details-old", "100 rps", "ambient", "p99", Some(1.4));
        check("details-close", "", "none", "p90", Some(2.77));
        check("details-new", "", "ambient", "avg", Some(0.72));
        check("bookinfo", "old-1000", "none", "p75", Some(7.44));
        check("bookinfo", "new-4000", "ambient", "p99", Some(4.9));
        check("bookinfo", "old-4000", "none", "p50", None);
        check("ratings", "kube-cni", "ambient", "p99", Some(3.6));
        check("path", "", "none", "p50", None);
        let tiered = published("tiered", "50").unwrap();
        assert!(tiered.source.contains("50 namespaces, 450 rps into each"));
    }

    #[test]
    fn every_row_has_a_figure_for_every_column() {
        for table in TABLES {
            for (mode, values) in table.rows {
                assert_eq!(values.len(), table.columns.len(), "{} {mode}", table.experiment);
                let percentiles = values.iter().skip(usize::from(table.columns[0] == "avg"));
                assert!(percentiles.is_sorted(), "{} {mode}", table.experiment);
            }
        }
    }
}
