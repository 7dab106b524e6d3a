//! Names and passwords as `docker login` writes them, in `~/.docker/config.json`.
//!
//! Programs that keep passwords elsewhere (credential helpers) are never run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

const FILE_MAX_BYTES: u64 = 1 << 20;
/// What `docker login` calls the default registry.
const DEFAULT_REGISTRY: (&str, &str) = ("docker.io", "index.docker.io");

/// Who the caller is to registries; nobody, by default.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Credentials {
    auths: BTreeMap<String, Entry>,
    creds_store: String,
    cred_helpers: BTreeMap<String, String>,
}

/// What is written for one registry.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase", default)]
struct Entry {
    auth: String,
    identitytoken: String,
}

/// A name and its password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not as `docker login` writes it. What is wrong is not shown: it may be a secret.
    #[error("{path} is not as docker login writes it: look at line {line}")]
    Form {
        /// Which one.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// Another program has the password.
    #[error(
        "its password is kept by the credential helper {helper:?}, which is not run: remove the \
         helper from ~/.docker/config.json and use docker login again"
    )]
    Helper {
        /// Which one.
        helper: String,
    },
    /// A form of login that is not supported.
    #[error("its login is an identity token, which is not supported: use a password or a token")]
    IdentityToken,
    /// The password is not readable.
    #[error("its \"auth\" is not NAME:PASSWORD in base64: use docker login again")]
    Auth,
}

impl Credentials {
    /// Reads a file; one that is not there has no credentials.
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let failed = |source| CredentialsError::Read { path: path.to_owned(), source };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(failed)?,
        };
        let mut text = Vec::new();
        file.take(FILE_MAX_BYTES).read_to_end(&mut text).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| {
            let (path, line) = (path.to_owned(), error.line());
            CredentialsError::Form { path, line }
        })
    }

    /// Those for one registry.
    pub(crate) fn of(&self, registry: &str) -> Result<Option<Login>, CredentialsError> {
        let is_meant = |key: &String| {
            let host = host(key);
            let (short, written) = DEFAULT_REGISTRY;
            host == registry || (registry == short && host == written)
        };
        let refused = |helper: &String| Err(CredentialsError::Helper { helper: helper.clone() });
        if let Some((_, helper)) = self.cred_helpers.iter().find(|(key, _)| is_meant(key)) {
            return refused(helper);
        }
        let Some((_, entry)) = self.auths.iter().find(|(key, _)| is_meant(key)) else {
            return Ok(None);
        };
        if !entry.identitytoken.is_empty() {
            return Err(CredentialsError::IdentityToken);
        }
        if entry.auth.is_empty() {
            return if self.creds_store.is_empty() { Ok(None) } else { refused(&self.creds_store) };
        }
        let decoded = STANDARD.decode(&entry.auth).ok();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (name, password) = pair.ok_or(CredentialsError::Auth)?;
        let password = password.trim_end_matches('\0').to_owned();
        Ok(Some(Login { name: name.to_owned(), password }))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.auths.keys()).finish()
    }
}

impl Login {
    /// As a header has it.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.name, self.password)))
    }
}

/// The host, and the port if there is one, of a key: `https://host/v1/` or `host`.
fn host(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, registry: &str, expected: Result<Option<&str>, &str>) {
        let credentials: Credentials = serde_json::from_str(text).unwrap();
        assert!(!format!("{credentials:?}").contains("YTpi"));
        let found = credentials.of(registry);
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let found = found.map(|login| format!("{}:{}", login.name, login.password));
                assert_eq!(found.as_deref(), expected, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, expected) => panic!("{:?}, not {expected:?}", found.is_ok()),
        }
    }

    #[test]
    fn credentials_belong_to_one_registry() {
        let auth = |key: &str| format!(r#"{{"auths": {{"{key}": {{"auth": "YTpi"}}}}}}"#);
        check(&auth("ghcr.io"), "ghcr.io", Ok(Some("a:b")));
        check(&auth("https://ghcr.io/v2/"), "ghcr.io", Ok(Some("a:b")));
        check(&auth("https://index.docker.io/v1/"), "docker.io", Ok(Some("a:b")));
        check(&auth("ghcr.io:444"), "ghcr.io", Ok(None));
        check(&auth("evil-ghcr.io"), "ghcr.io", Ok(None));
        check(&auth("ghcr.io.evil"), "ghcr.io", Ok(None));
        check("{}", "ghcr.io", Ok(None));
    }

    #[test]
    fn helpers_are_not_run() {
        let helper = r#"{"credHelpers": {"gcr.io": "gcloud"}, "auths": {"ghcr.io": {}}}"#;
        check(helper, "gcr.io", Err("\"gcloud\""));
        check(helper, "ghcr.io", Ok(None));
        let store = r#"{"credsStore": "desktop", "auths": {"ghcr.io": {}}}"#;
        check(store, "ghcr.io", Err("\"desktop\""));
        check(store, "quay.io", Ok(None));
        let token = r#"{"auths": {"ghcr.io": {"auth": "YTpi", "identitytoken": "t"}}}"#;
        check(token, "ghcr.io", Err("identity token"));
        for auth in ["!", "YWI="] {
            let text = format!(r#"{{"auths": {{"ghcr.io": {{"auth": "{auth}"}}}}}}"#);
            check(&text, "ghcr.io", Err("not NAME:PASSWORD"));
        }
    }

    #[test]
    fn a_broken_file_does_not_show_its_secrets() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\n\"auths\": \"secret\"}").unwrap();
        let error = Credentials::read(file.path()).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(!format!("{error:?}").contains("secret"));
        assert!(Credentials::read(Path::new("/nowhere")).is_ok());
    }
}
