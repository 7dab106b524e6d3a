//! Which cluster is meant: the kubeconfig, its context, and the mesh's namespace.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ambit_apiserver::Caller;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::api::ClusterError;

/// What stands for a context's name in a pod of the cluster itself.
const IN_CLUSTER: &str = "in-cluster";

/// What the user said of a cluster.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The context; without one, the kubeconfig's current one.
    pub context: Option<String>,
    /// The kubeconfig; without one, that of `KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Where Ambit's parts run.
    pub mesh_namespace: String,
}

/// A cluster that can be asked.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    context: String,
    mesh_namespace: String,
}

impl Cluster {
    /// Reads the kubeconfig and prepares to connect; nothing is asked yet. In a pod without a
    /// kubeconfig, its own cluster is meant.
    pub async fn connect(choice: &Choice) -> Result<Self, ClusterError> {
        let read = match &choice.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        let (config, context) = match read {
            Ok(kubeconfig) => {
                let context = context(&kubeconfig, choice.context.as_deref())?;
                let options = KubeConfigOptions {
                    context: Some(context.clone()),
                    ..KubeConfigOptions::default()
                };
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                (config.map_err(|source| ClusterError::Kubeconfig(Box::new(source)))?, context)
            }
            Err(source) => match Config::incluster() {
                Ok(config) if choice.kubeconfig.is_none() && choice.context.is_none() => {
                    (config, IN_CLUSTER.to_owned())
                }
                _ => return Err(ClusterError::Kubeconfig(Box::new(source))),
            },
        };
        let client = ambit_apiserver::client(config, Caller::Command)
            .map_err(|source| ClusterError::Client(context.clone(), Box::new(source)))?;
        Ok(Self { client, context, mesh_namespace: choice.mesh_namespace.clone() })
    }

    /// A cluster that a test plays.
    #[cfg(test)]
    pub(crate) fn played(client: Client) -> Self {
        let mesh_namespace = ambit_words::names::DEFAULT_MESH_NAMESPACE.to_owned();
        let context = "test".to_owned();
        Self { client, context, mesh_namespace }
    }

    /// The name of the context.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// `kubectl`, with the words that have it ask this cluster, whatever its current one is.
    pub fn kubectl(&self) -> String {
        match self.context.as_str() {
            IN_CLUSTER => "kubectl".to_owned(),
            context => format!("kubectl --context {}", quoted(context)),
        }
    }

    /// Where Ambit's parts run.
    pub fn mesh_namespace(&self) -> &str {
        &self.mesh_namespace
    }
}

/// A word as a shell takes it: the contexts of EKS are ARNs, and others may hold anything.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte);
    match word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The context that is meant, if it exists.
fn context(kubeconfig: &Kubeconfig, wanted: Option<&str>) -> Result<String, ClusterError> {
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|it| it.name.as_str()).collect();
    let current = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty());
    match wanted.or(current) {
        None => Err(ClusterError::NoContext { known: known.join(", ") }),
        Some(name) if known.contains(&name) => Ok(name.to_owned()),
        Some(name) => {
            Err(ClusterError::UnknownContext { name: name.to_owned(), known: known.join(", ") })
        }
    }
}

/// The kubeconfig that would be used, if one is there: the first file of `KUBECONFIG`'s that
/// exists, or `~/.kube/config`.
pub fn kubeconfig_file(variable: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    let named: Vec<PathBuf> = variable
        .map(|value| std::env::split_paths(value).filter(|it| !it.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    let candidates = match home {
        Some(home) if named.is_empty() => vec![Path::new(home).join(".kube/config")],
        _ => named,
    };
    candidates.into_iter().find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_the_named_or_the_current_one_and_must_exist() {
        let check = |current: &str, wanted: Option<&str>, expected: Result<&str, &str>| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: '{current}'\ncontexts:\n- name: \
                 a\n  context: {{cluster: c, user: u}}\n- name: b\n  context: {{cluster: c, user: \
                 u}}\n"
            );
            let kubeconfig = Kubeconfig::from_yaml(&text).expect("the kubeconfig is read");
            let found = context(&kubeconfig, wanted).map_err(|error| error.to_string());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
                _ => panic!("{found:?} is not {expected:?}"),
            }
        };
        check("a", None, Ok("a"));
        check("a", Some("b"), Ok("b"));
        check("a", Some("c"), Err("there are: a, b"));
        check("", None, Err("--context"));
        check("c", None, Err("`c`"));
    }

    #[test]
    fn a_context_is_one_word_of_a_command() {
        let check = |context: &str, expected: &str| assert_eq!(quoted(context), expected);
        check("arn:aws:eks:eu-west-1:1:cluster/a", "arn:aws:eks:eu-west-1:1:cluster/a");
        check("my cluster", "'my cluster'");
        check("it's", r"'it'\''s'");
    }

    #[test]
    fn a_kubeconfig_is_found_where_kubectl_finds_it() {
        let check = |variable: Option<&str>, home: Option<&str>, expected: Option<&str>| {
            let found = kubeconfig_file(variable.map(OsStr::new), home.map(OsStr::new));
            assert_eq!(found, expected.map(PathBuf::from), "{variable:?} {home:?}");
        };
        // Any file that is certain to exist will do.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        check(Some(file), None, Some(file));
        check(Some(&format!(":/nowhere:{file}")), Some("/nowhere"), Some(file));
        check(Some("/nowhere"), Some("/nowhere"), None);
        check(Some(""), Some("/nowhere"), None);
        check(None, None, None);
    }
}
