//! What of a registry crosses a link: files, by names that cannot lead elsewhere.
//!
//! The names come from another computer. [`Place::path`] is the only way to a path, and gives none
//! for a name that Kubernetes would not take.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ambit_manifest::names::dns_subdomain;
use ambit_words::names::{POD_TOKEN, REVOCATION_LIST, ROOT_CERTIFICATE, ROOTS, TOKENS};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::objects::Kind;

/// A node's token.
const NODE_TOKEN: &str = "token";

/// A file with its content.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) content: String,
}

/// Contents may be secrets, and are shown to nobody.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entry").field(&self.place).finish()
    }
}

/// Which file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Place {
    /// An object.
    Object {
        /// The plural of its kind.
        plural: String,
        /// Its namespace, if it has one.
        namespace: Option<String>,
        /// Its name.
        name: String,
    },
    /// What a node says of a pod.
    Status {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// That a pod is captured.
    Captured {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// Why a pod is not captured.
    Uncaptured {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// What the node's proxy, or the pod of a waypoint, proves itself with, and believes others by.
    Credential {
        /// The uid of the waypoint's pod; none for the proxy.
        pod: Option<String>,
        /// Which.
        file: Credential,
    },
}

/// A file of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Credential {
    /// The root certificates.
    Roots,
    /// Which certificates are revoked.
    Revocations,
    /// The token. The last: who waits for it has the others then.
    Token,
}

impl Credential {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Roots, Self::Revocations, Self::Token];

    fn below(self, directory: &Path, is_of_pod: bool) -> PathBuf {
        let (of, name) = match self {
            Self::Roots => (ROOTS, ROOT_CERTIFICATE),
            Self::Revocations => (ROOTS, REVOCATION_LIST),
            Self::Token if is_of_pod => (TOKENS, POD_TOKEN),
            Self::Token => (TOKENS, NODE_TOKEN),
        };
        if is_of_pod { directory.join(of).join(name) } else { directory.join(name) }
    }
}

impl Place {
    /// The file on the machine of this layout; `None` for names that are none. Credentials are
    /// those of `node`.
    pub(super) fn path(&self, layout: &Layout, node: &str) -> Option<PathBuf> {
        let is_name = |text: &String| dns_subdomain(text).is_none();
        match self {
            Self::Object { plural, namespace, name } => {
                let kind = Kind::from_plural(plural)?;
                let are_names = is_name(name) && namespace.as_ref().is_none_or(is_name);
                are_names.then(|| layout.object(kind.plural(), namespace.as_deref(), name))
            }
            Self::Status { namespace, name }
            | Self::Captured { namespace, name }
            | Self::Uncaptured { namespace, name } => {
                if !is_name(namespace) || !is_name(name) {
                    return None;
                }
                Some(match self {
                    Self::Status { .. } => layout.pod_status(namespace, name),
                    Self::Captured { .. } => layout.captured(namespace, name),
                    _ => layout.uncaptured(namespace, name),
                })
            }
            Self::Credential { pod: None, file } => Some(file.below(&layout.node(node), false)),
            Self::Credential { pod: Some(uid), file } => {
                is_name(uid).then(|| file.below(&layout.waypoint_credentials(node, uid), true))
            }
        }
    }
}

/// Replaces a file as a whole. Objects and credentials may be secrets: it is the user's alone.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().expect("files lie in directories");
    fs::create_dir_all(directory)?;
    // Watchers pass over names that begin with a dot. It is no longer than any name may be, and
    // only one thread of one process writes here.
    let aside = directory.join(".link");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    file.write_all(content)?;
    fs::rename(&aside, path)
}

/// Removes a file. One that is gone is fine.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_where_the_machine_has_them() {
        let layout = Layout::new("/s");
        let check = |place: Place, path: Option<&str>| {
            assert_eq!(place.path(&layout, "node-3").as_deref(), path.map(Path::new), "{place:?}");
        };
        let object = |plural: &str, namespace: Option<&str>, name: &str| Place::Object {
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        let pod = Some("0a-1".to_owned());
        check(object("pods", Some("shop"), "web"), Some("/s/registry/objects/pods/shop/web.json"));
        check(object("namespaces", None, "a.b"), Some("/s/registry/objects/namespaces/_/a.b.json"));
        check(
            Place::Status { namespace: namespace.clone(), name: name.clone() },
            Some("/s/registry/status/pods/shop/web.json"),
        );
        check(
            Place::Captured { namespace: namespace.clone(), name: name.clone() },
            Some("/s/registry/captured/shop/web"),
        );
        check(Place::Uncaptured { namespace, name }, Some("/s/registry/uncaptured/shop/web"));
        let credential = |pod, file| Place::Credential { pod, file };
        check(credential(None, Credential::Token), Some("/s/nodes/node-3/token"));
        check(credential(None, Credential::Roots), Some("/s/nodes/node-3/root-cert.pem"));
        check(
            credential(pod.clone(), Credential::Token),
            Some("/s/nodes/node-3/waypoints/0a-1/tokens/istio-token"),
        );
        check(
            credential(pod, Credential::Revocations),
            Some("/s/nodes/node-3/waypoints/0a-1/istio/ca-crl.pem"),
        );
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let layout = Layout::new("/s");
        for bad in ["", ".", "..", "../x", "a/b", "/etc", "A", "a\0b", ".a", "-a", &"a".repeat(300)]
        {
            let (bad, good) = (bad.to_owned(), "web".to_owned());
            for place in [
                Place::Object { plural: bad.clone(), namespace: None, name: good.clone() },
                Place::Object { plural: "pods".to_owned(), namespace: None, name: bad.clone() },
                Place::Object {
                    plural: "pods".to_owned(),
                    namespace: Some(bad.clone()),
                    name: good.clone(),
                },
                Place::Status { namespace: bad.clone(), name: good.clone() },
                Place::Captured { namespace: good.clone(), name: bad.clone() },
                Place::Uncaptured { namespace: good, name: bad.clone() },
                Place::Credential { pod: Some(bad), file: Credential::Token },
            ] {
                assert_eq!(place.path(&layout, "node-3"), None, "{place:?}");
            }
        }
    }

    #[test]
    fn what_is_written_is_the_users_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b");
        for content in ["one", "two"] {
            write(&path, content.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        for _ in 0..2 {
            remove(&path).expect("gone");
        }
        assert!(!path.exists());
    }
}
