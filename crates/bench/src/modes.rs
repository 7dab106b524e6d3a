//! What carries the traffic: one table. A new mode is one more entry.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::peer::SidecarKind;

/// A way to carry the traffic of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) carrier: Carrier,
    /// The experiment's layer-4 policies are applied.
    pub(super) has_policies: bool,
    /// Its requests go through a waypoint, which holds the experiment's policies on requests.
    pub(super) has_waypoint: bool,
    /// Measured unless modes are named.
    pub(super) is_usual: bool,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Nothing but the kernel.
    Nobody,
    /// Ambit's control plane, agents and proxies.
    Ambit,
    /// A program in place of Ambit's proxies, under Ambit's control plane and agents.
    NodeProxy(Peer),
    /// A program in each pod, without a mesh on the nodes.
    Sidecar(Peer),
    /// A program in place of Ambit's waypoints, between Ambit's proxies.
    Waypoint(Peer),
}

/// Another mesh's program, which is given by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Ztunnel,
    Envoy,
    Linkerd,
}

/// All of them; the first is what the others are compared with.
pub(super) const MODES: [Mode; 9] = [
    Mode {
        name: "none",
        title: "no mesh",
        carrier: Carrier::Nobody,
        has_policies: false,
        has_waypoint: false,
        is_usual: true,
    },
    Mode {
        name: "ambient",
        title: "Ambit, mutual TLS",
        carrier: Carrier::Ambit,
        has_policies: false,
        has_waypoint: false,
        is_usual: true,
    },
    Mode {
        name: "ambient+l4policy",
        title: "Ambit, mutual TLS and layer-4 policies",
        carrier: Carrier::Ambit,
        has_policies: true,
        has_waypoint: false,
        is_usual: true,
    },
    Mode {
        name: "ambient+waypoint",
        title: "Ambit, mutual TLS and a waypoint in each namespace, with policies on requests",
        carrier: Carrier::Ambit,
        has_policies: false,
        has_waypoint: true,
        is_usual: true,
    },
    Mode {
        name: "ztunnel",
        title: "ztunnel, mutual TLS",
        carrier: Carrier::NodeProxy(Peer::Ztunnel),
        has_policies: false,
        has_waypoint: false,
        is_usual: true,
    },
    Mode {
        name: "ztunnel+l4policy",
        title: "ztunnel, mutual TLS and layer-4 policies",
        carrier: Carrier::NodeProxy(Peer::Ztunnel),
        has_policies: true,
        has_waypoint: false,
        is_usual: false,
    },
    Mode {
        name: "envoy",
        title: "Envoy in each pod, as Istio configures it: mutual TLS, HTTP, RBAC",
        carrier: Carrier::Sidecar(Peer::Envoy),
        has_policies: false,
        has_waypoint: false,
        is_usual: true,
    },
    Mode {
        name: "envoy-waypoint",
        title: "Envoy as the waypoint between Ambit's proxies, as Istio configures it",
        carrier: Carrier::Waypoint(Peer::Envoy),
        has_policies: false,
        has_waypoint: true,
        is_usual: true,
    },
    Mode {
        name: "linkerd",
        title: "Linkerd's proxy in each pod: mutual TLS, HTTP",
        carrier: Carrier::Sidecar(Peer::Linkerd),
        has_policies: false,
        has_waypoint: false,
        is_usual: true,
    },
];

impl Mode {
    /// Whose program has to be named by its path.
    pub(super) fn peer(&self) -> Option<Peer> {
        match self.carrier {
            Carrier::Nobody | Carrier::Ambit => None,
            Carrier::NodeProxy(peer) | Carrier::Sidecar(peer) | Carrier::Waypoint(peer) => {
                Some(peer)
            }
        }
    }

    /// It has Ambit's control plane and agents.
    pub(super) fn has_mesh(&self) -> bool {
        matches!(self.carrier, Carrier::Ambit | Carrier::NodeProxy(_) | Carrier::Waypoint(_))
    }
}

impl Peer {
    /// The sidecar that it puts into a pod, if any.
    pub(super) fn sidecar(self) -> Option<SidecarKind> {
        match self {
            Self::Ztunnel => None,
            Self::Envoy => Some(SidecarKind::Envoy),
            Self::Linkerd => Some(SidecarKind::Linkerd),
        }
    }

    const ALL: [Self; 3] = [Self::Ztunnel, Self::Envoy, Self::Linkerd];

    fn name(self) -> &'static str {
        match self {
            Self::Ztunnel => "ztunnel",
            Self::Envoy => "envoy",
            Self::Linkerd => "linkerd",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The peers' programs.
pub(super) type Programs = BTreeMap<Peer, PathBuf>;

/// Reads `NAME=PATH` for each peer.
pub(super) fn programs(words: &[String]) -> Result<Programs> {
    let mut programs = Programs::new();
    for word in words {
        let peer = word.split_once('=').and_then(|(name, path)| {
            let peer = Peer::ALL.into_iter().find(|peer| peer.name() == name)?;
            Some((peer, path))
        });
        let (peer, path) = peer.with_context(|| {
            format!("--peer {word}: write ztunnel=PATH, envoy=PATH or linkerd=PATH")
        })?;
        let found = program(path).with_context(|| format!("--peer {word}"))?;
        if programs.insert(peer, found).is_some() {
            bail!("--peer {word}: {peer} is named twice; leave one out");
        }
    }
    Ok(programs)
}

/// A file that can be executed.
fn program(path: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;

    let found = std::fs::canonicalize(path).with_context(|| {
        format!("there is no program {path:?}; name the file that the peer was built to")
    })?;
    let about = found.metadata().with_context(|| format!("look at {path:?}"))?;
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
        bail!("{path:?} is not a program; name an executable file");
    }
    Ok(found)
}

/// The modes of these names, in the table's order; without names the usual ones whose programs are
/// there.
pub(super) fn select(names: &[String], programs: &Programs) -> Result<Vec<Mode>> {
    let all = || MODES.iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ");
    for name in names {
        let Some(mode) = MODES.iter().find(|mode| mode.name == name) else {
            bail!("--modes {name}: there is no such mode; there are {}", all());
        };
        if let Some(peer) = mode.peer().filter(|peer| !programs.contains_key(peer)) {
            bail!("--modes {name} needs the program: --peer {peer}=PATH");
        }
    }
    let is_there = |mode: &Mode| mode.peer().is_none_or(|peer| programs.contains_key(&peer));
    let is_wanted = |mode: &&Mode| match names {
        [] => mode.is_usual && is_there(mode),
        _ => names.iter().any(|name| mode.name == name),
    };
    Ok(MODES.iter().filter(is_wanted).copied().collect())
}

/// The modes of these names on a cluster, where no other program can take the mesh's place; without
/// names all that there are.
pub(super) fn on_cluster(names: &[String]) -> Result<Vec<Mode>> {
    let own = || MODES.iter().filter(|mode| mode.peer().is_none() && !mode.has_waypoint);
    if let Some(name) = names.iter().find(|name| !own().any(|mode| mode.name == **name)) {
        let all = own().map(|mode| mode.name).collect::<Vec<_>>().join(", ");
        bail!("--modes {name}: on a cluster there are {all}");
    }
    let mut modes = select(names, &Programs::new())?;
    modes.retain(|mode| !mode.has_waypoint);
    Ok(modes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(modes: &[Mode]) -> Vec<&'static str> {
        modes.iter().map(|mode| mode.name).collect()
    }

    #[test]
    fn modes_come_in_the_tables_order_and_with_their_programs() {
        let usual = select(&[], &Programs::new()).unwrap();
        assert_eq!(names(&usual), ["none", "ambient", "ambient+l4policy", "ambient+waypoint"]);
        let shell = programs(&["envoy=/bin/sh".to_owned()]).unwrap();
        let with_envoy = select(&[], &shell).unwrap();
        assert_eq!(names(&with_envoy), [&names(&usual)[..], &["envoy", "envoy-waypoint"]].concat());
        let named = select(&["envoy".to_owned(), "none".to_owned()], &shell).unwrap();
        assert_eq!(names(&named), ["none", "envoy"]);
        let on_cluster = on_cluster(&[]).unwrap();
        assert_eq!(names(&on_cluster), ["none", "ambient", "ambient+l4policy"]);
    }

    #[test]
    fn wrong_words_are_refused_with_a_remedy() {
        let error = |names: &str| {
            let names: Vec<String> = names.split(',').map(Into::into).collect();
            select(&names, &Programs::new()).unwrap_err().to_string()
        };
        assert!(error("none,fast").contains("there are none, ambient"));
        let error_on_cluster = on_cluster(&["ztunnel".to_owned()]).unwrap_err().to_string();
        assert!(error_on_cluster.ends_with("there are none, ambient, ambient+l4policy"));
        assert!(error("linkerd").contains("--peer linkerd=PATH"));
        let peer = |word: &str| format!("{:#}", programs(&[word.to_owned()]).unwrap_err());
        assert!(peer("nginx=/bin/sh").contains("write ztunnel=PATH"));
        assert!(peer("envoy").contains("write ztunnel=PATH"));
        assert!(peer("envoy=/no/such").contains("there is no program"));
        assert!(peer("envoy=/etc/passwd").contains("is not a program"));
        assert!(peer("envoy=/etc").contains("is not a program"));
    }
}
