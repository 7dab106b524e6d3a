//! The exceptions to the bounds on functions and files, each with its reason.

/// `path` or `path::function`, and why it may be long.
pub(super) const LONG: &[(&str, &str)] = &[];

/// Whether `key` is listed; remembers that the exception was needed.
pub(super) fn allows(key: &str, used: &mut Vec<&'static str>) -> bool {
    let listed = LONG.iter().find(|(name, _)| *name == key);
    used.extend(listed.map(|(name, _)| *name));
    listed.is_some()
}

/// A module and its parts: it defines what they work on, and puts them together. Nobody outside is
/// in the circle.
const PARTS: &str = "the module defines what its parts work on, and puts them together";

/// A circle of files that use one another: the first of them, how many there are, and why it stays.
/// One that grows or shrinks must be reviewed.
pub(super) const CIRCLES: &[(&str, usize, &str)] = &[
    ("crates/bench/src/bed.rs", 3, PARTS),
    ("crates/bench/src/chart.rs", 4, PARTS),
    ("crates/bench/src/demo.rs", 5, PARTS),
    ("crates/bench/src/html.rs", 2, "a run's page holds its JSON, and both are kept"),
    ("crates/bench/src/peer.rs", 11, PARTS),
    ("crates/bench/src/scale.rs", 6, PARTS),
    ("crates/cli/src/args.rs", 4, PARTS),
    ("crates/cli/src/commands.rs", 30, PARTS),
    (
        "crates/cluster/src/api.rs",
        2,
        "calls are methods of the context, which opens with their errors",
    ),
    ("crates/cluster/src/findings.rs", 8, PARTS),
    ("crates/control/src/admin.rs", 2, PARTS),
    (
        "crates/control/src/registry.rs",
        6,
        "what is watched is reduced to what the view builder's records read",
    ),
    ("crates/control/src/role.rs", 3, PARTS),
    ("crates/control/src/view_builder.rs", 20, PARTS),
    ("crates/dataplane/src/metrics.rs", 2, PARTS),
    ("crates/machine/src/logs.rs", 2, PARTS),
    ("crates/machine/src/node.rs", 3, PARTS),
    ("crates/machine/src/pod.rs", 3, PARTS),
    ("crates/machine/src/publish.rs", 2, PARTS),
    ("crates/manifest/src/check.rs", 2, PARTS),
    ("crates/manifest/src/lib.rs", 3, "the crate's root defines what its files read"),
    ("crates/manifest/src/policy.rs", 2, PARTS),
    ("crates/manifest/src/validate.rs", 11, PARTS),
    ("crates/model/src/choice.rs", 2, "the choice of an endpoint is a step of the plan"),
    ("crates/net/src/copy.rs", 3, PARTS),
    ("crates/net/src/netlink.rs", 3, PARTS),
    ("crates/net/src/nftables.rs", 2, PARTS),
    (
        "crates/net/src/nftables/code.rs",
        5,
        "rules, sets and chains name one another in the kernel's encoding",
    ),
    ("crates/node/src/departure.rs", 2, "the role's error is also that of its end"),
    ("crates/proxy/src/admin.rs", 2, PARTS),
    ("crates/proxy/src/config.rs", 3, PARTS),
    (
        "crates/tls/src/handshake.rs",
        4,
        "a handshake checks its peer against the list, which names peers",
    ),
    ("crates/wire/src/convert.rs", 3, PARTS),
];

/// Values, as they are written, that several crates define and that mean different things.
pub(super) const COINCIDENCES: &[(&str, &str)] = &[
    ("\"-1\"", "no answer in Fortio's output; the first of repeated pods in a plan"),
    ("\"ambient\"", "the value of a label; a mode of the experiments"),
    ("\"ambit\"", "the project's name, for tables, tokens, images and managed fields"),
    ("\"control\"", "a machine's namespace; a role of the experiments"),
    ("\"default\"", "the service account of pods; Envoy's name of its own certificate"),
    ("\"none\"", "the value of labels; a mode of the experiments"),
    ("\"pods\"", "a set of the node's rules; a bridge of a machine"),
];
