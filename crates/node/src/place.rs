//! Where a pod's network namespace is found, and how it is opened.
//!
//! It never opens the namespace that the agent itself runs in, whatever a path leads to.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use ambit_net::namespace::NetNs;

/// A pod's network namespace.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A path to it; the pod may get another namespace at the same path.
    At(PathBuf),
    /// The namespace itself. It stays what it is while the processes by which it was found end.
    Open(Arc<NetNs>),
}

impl Place {
    /// The kernel's number of the namespace that is there now. `None` while it is being taken down.
    pub(crate) fn inode(&self) -> Option<u64> {
        match self {
            Self::At(path) => std::fs::metadata(path).ok().map(|found| found.ino()),
            Self::Open(netns) => Some(netns.inode()),
        }
    }

    /// The namespace, which must not be the node's own.
    pub(crate) fn open(&self) -> Result<Arc<NetNs>, String> {
        let open = || {
            let netns = match self {
                Self::At(path) => Arc::new(NetNs::open(path)?),
                Self::Open(netns) => netns.clone(),
            };
            Ok((netns, NetNs::current()?))
        };
        let opened: io::Result<(Arc<NetNs>, NetNs)> = open();
        let (netns, own) = opened.map_err(|error| format!("{self}: {error}"))?;
        if netns.inode() == own.inode() {
            return Err(format!("{self} is the node's own network namespace"));
        }
        Ok(netns)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::At(this), Self::At(that)) => this == that,
            // Both are held open, so neither number can have been reused.
            (Self::Open(this), Self::Open(that)) => this.inode() == that.inode(),
            _ => false,
        }
    }
}

impl Eq for Place {}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(path) => write!(f, "network namespace {}", path.display()),
            Self::Open(netns) => write!(f, "network namespace {}", netns.inode()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_own_namespace_is_never_a_pods() {
        let node = NetNs::create().expect("make a namespace (these tests need root)");
        let own = Place::At("/proc/thread-self/ns/net".into());
        let problem = node.run(|| own.open()).expect("enter").expect_err("refused");
        assert!(problem.contains("the node's own network namespace"), "{problem}");
        let problem = Place::At("/proc/version".into()).open().expect_err("refused");
        assert!(problem.contains("not a network namespace"), "{problem}");
    }

    #[test]
    fn an_open_namespace_equals_itself_only() {
        let [one, other] = [(), ()].map(|()| Arc::new(NetNs::create().expect("needs root")));
        let again = Arc::new(one.try_clone().expect("a descriptor"));
        assert_eq!(Place::Open(one.clone()), Place::Open(again));
        assert_ne!(Place::Open(one.clone()), Place::Open(other));
        assert_ne!(Place::Open(one), Place::At("/proc/self/ns/net".into()));
    }
}
