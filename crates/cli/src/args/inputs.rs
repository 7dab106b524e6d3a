//! The arguments that name manifests.

use std::path::{Path, PathBuf};

use ambit_manifest::{Input, is_kustomization, names};
use clap::{ArgGroup, Args};

use super::Target;

/// The arguments below, for groups of a command that needs one of them.
pub(super) const INPUTS: [&str; 3] = ["paths", "files", "kustomizations"];

/// Where manifests are.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// Manifest files, directories, or - for standard input. A directory that has a
    /// kustomization.yaml is built as `kubectl kustomize` builds it.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The same as PATH, as kubectl takes it; may be repeated.
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// A directory that must have a kustomization.yaml; may be repeated.
    #[arg(short = 'k', long = "kustomize", value_name = "DIR")]
    kustomizations: Vec<PathBuf>,
}

/// Where objects of manifests are.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace of objects that name none [default: default]. One that names another is an
    /// error, as for kubectl.
    #[arg(short, long, value_parser = namespace, requires = "manifests")]
    pub(crate) namespace: Option<String>,
}

impl NamespaceArgs {
    /// The namespace that was asked for.
    pub(crate) fn asked(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// `verb` of kubectl, in this namespace.
    pub(crate) fn kubectl(&self, verb: &str) -> String {
        self.asked().map_or_else(|| verb.to_owned(), |asked| format!("{verb} -n {asked}"))
    }
}

pub(super) fn namespace(word: &str) -> Result<String, String> {
    names::dns_label(word).map_or_else(|| Ok(word.to_owned()), Err)
}

/// For a command that does nothing without manifests.
pub(super) fn needed() -> ArgGroup {
    ArgGroup::new("manifests").args(INPUTS).multiple(true).required(true)
}

/// For a command that takes them, but not beside a cluster.
pub(super) fn of_no_cluster() -> ArgGroup {
    ArgGroup::new("manifests").args(INPUTS).multiple(true).conflicts_with("cluster")
}

impl InputArgs {
    /// The same, as the manifests' reader takes it.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        let paths = self.files().map(input);
        paths.chain(self.kustomizations.iter().cloned().map(Input::Kustomization)).collect()
    }

    /// The commands of kubectl that do `verb` with the same manifests. It takes one kustomization
    /// at a time, and no files beside it.
    pub(crate) fn kubectl(&self, verb: &str) -> String {
        let (built, plain): (Vec<_>, Vec<_>) = self.files().partition(|it| is_kustomization(it));
        let plain: String = plain.iter().map(|it| format!(" -f {}", it.display())).collect();
        let plain = (!plain.is_empty()).then_some(plain);
        let built = built.into_iter().chain(self.kustomizations.iter().map(PathBuf::as_path));
        let built = built.map(|it| format!(" -k {}", it.display()));
        let commands = plain.into_iter().chain(built).map(|it| format!("`kubectl {verb}{it}`"));
        commands.collect::<Vec<_>>().join(" and ")
    }

    /// The objects that are named instead of manifests: as a file or directory, the first word
    /// would have to be there.
    pub(crate) fn targets(&self) -> Option<Result<Vec<Target>, String>> {
        if !self.files.is_empty() || !self.kustomizations.is_empty() {
            return None;
        }
        let words = self.paths.iter().map(|it| it.to_str().map(str::to_owned));
        let words: Vec<String> = words.collect::<Option<_>>()?;
        if words.first().is_none_or(|first| first == "-" || Path::new(first).exists()) {
            return None;
        }
        Target::all(&words)
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().chain(&self.files).map(PathBuf::as_path)
    }
}

/// A path of the command line, as the manifests' reader takes it.
pub(crate) fn input(path: &Path) -> Input {
    if path == Path::new("-") { Input::Stdin } else { Input::Path(path.to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A command with these arguments alone.
    #[derive(Debug, Parser)]
    #[command(group(needed()))]
    struct Words {
        #[command(flatten)]
        inputs: InputArgs,
        #[command(flatten)]
        namespace: NamespaceArgs,
    }

    fn parse(words: &[&str]) -> Result<InputArgs, String> {
        let words = [&["words"], words].concat();
        Words::try_parse_from(words).map(|it| it.inputs).map_err(|error| error.to_string())
    }

    #[test]
    fn manifests_are_named_as_for_kubectl_too() {
        let path = |path: &str| Input::Path(path.into());
        let check = |words: &[&str], expected: &[Input]| {
            assert_eq!(parse(words).map(|it| it.inputs()), Ok(expected.to_vec()), "{words:?}");
        };
        check(&["a", "-"], &[path("a"), Input::Stdin]);
        check(&["-f", "a", "-f-"], &[path("a"), Input::Stdin]);
        check(&["--filename", "b", "a"], &[path("a"), path("b")]);
        check(&["-k", "d", "a"], &[path("a"), Input::Kustomization("d".into())]);
        check(&["--kustomize=-"], &[Input::Kustomization("-".into())]);
        let missing = parse(&[]).expect_err("nothing is named");
        assert!(missing.contains("<PATH|--filename <PATH>|--kustomize <DIR>>"), "{missing}");
    }

    #[test]
    fn a_namespace_is_a_name_and_is_of_manifests() {
        let parse = |words: &[&str]| {
            let words = [&["words"], words].concat();
            let read = Words::try_parse_from(words).map(|it| it.namespace.kubectl("apply"));
            read.map_err(|error| error.to_string())
        };
        assert_eq!(parse(&["-n", "shop", "-f", "-"]), Ok("apply -n shop".to_owned()));
        assert_eq!(parse(&["a", "--namespace=shop"]), Ok("apply -n shop".to_owned()));
        assert_eq!(parse(&["a"]), Ok("apply".to_owned()));
        assert!(parse(&["a", "-n", "Shop"]).is_err());
        assert!(parse(&["-n", "shop"]).is_err());
    }

    #[test]
    fn kubectl_takes_one_kustomization_and_nothing_beside_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let built = directory.path().to_str().expect("text");
        std::fs::write(directory.path().join("kustomization.yaml"), "").expect("a file");
        let check = |words: &[&str], expected: &str| {
            let said = parse(words).expect("it is well formed").kubectl("apply");
            assert_eq!(said.replace(built, "DIR"), expected, "{words:?}");
        };
        check(&["a", "-f", "-"], "`kubectl apply -f a -f -`");
        check(&[built], "`kubectl apply -k DIR`");
        check(
            &["a", "-k", "b", "-k", "c"],
            "`kubectl apply -f a` and `kubectl apply -k b` and `kubectl apply -k c`",
        );
    }
}
