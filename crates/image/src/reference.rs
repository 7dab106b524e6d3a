//! Names of images, as registries and Kubernetes write them: `nginx`, `ghcr.io/a:1`, `a@sha256:1`.
//!
//! A short name is completed as everywhere: `nginx` is `docker.io/library/nginx:latest`. Two texts
//! name the same image only if they are equal once they are complete.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// Where images without a registry come from.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Other names of it.
const DEFAULT_REGISTRY_ALIASES: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
/// Who the images without an owner belong to, at the default registry.
const DEFAULT_OWNER: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// Bytes of registry and repository together.
const NAME_MAX_BYTES: usize = 255;
const TAG_MAX_BYTES: usize = 128;

/// The complete name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    repository: String,
    version: Version,
}

/// Which of the images of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    /// The one that has this tag now.
    Tag(String),
    /// This one, whatever its tag.
    Digest(Digest),
}

/// A text that names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name an image: {reason}")]
pub struct ReferenceError {
    /// As written.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Reference {
    /// The registry's host, with its port if it has one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path within the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, unless the image is named by digest.
    pub fn tag(&self) -> Option<&str> {
        match &self.version {
            Version::Tag(tag) => Some(tag),
            Version::Digest(_) => None,
        }
    }

    /// The digest of the manifest or index, if the image is named by it.
    pub fn digest(&self) -> Option<Digest> {
        match &self.version {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(*digest),
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text).map_err(|reason| ReferenceError { text: text.to_owned(), reason })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        match &self.version {
            Version::Tag(tag) => write!(formatter, ":{tag}"),
            Version::Digest(digest) => write!(formatter, "@{digest}"),
        }
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest.parse().map_err(|_| "its digest is not sha256: and 64 digits")?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    // A colon before a slash is a registry's port.
    let colon = rest.rfind(':').filter(|colon| !rest[*colon..].contains('/'));
    let (name, tag) = match colon {
        Some(colon) => (&rest[..colon], Some(&rest[colon + 1..])),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag has other characters than letters, digits, '_', '.' and '-'");
    }
    let (registry, repository) = split(name);
    if !is_registry(registry) {
        return Err("its registry is not a host name");
    }
    if !repository.split('/').all(is_path_component) {
        return Err("a part of its path is not lower-case letters and digits joined by . _ or -");
    }
    if digest.is_none() && registry == DEFAULT_REGISTRY && Digest::from_hex(name).is_some() {
        return Err("it is a digest; write sha256: before it");
    }
    let is_short = registry == DEFAULT_REGISTRY && !repository.contains('/');
    let repository =
        if is_short { format!("{DEFAULT_OWNER}/{repository}") } else { repository.to_owned() };
    if registry.len() + 1 + repository.len() > NAME_MAX_BYTES {
        return Err("it has more than 255 characters");
    }
    // A tag beside a digest says nothing: the digest decides.
    let version =
        digest.map_or_else(|| Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()), Version::Digest);
    Ok(Reference { registry: registry.to_owned(), repository, version })
}

/// Registry and path. The first part is a registry only if it cannot be anything else.
fn split(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            let is_default = DEFAULT_REGISTRY_ALIASES.contains(&first);
            (if is_default { DEFAULT_REGISTRY } else { first }, rest)
        }
        _ => (DEFAULT_REGISTRY, name),
    }
}

fn is_registry(registry: &str) -> bool {
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (registry, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() && !port.starts_with('+');
    let is_label = |label: &str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        !label.is_empty() && label.chars().all(is_letter) && !label.starts_with('-')
    };
    let is_ipv6 = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    port.is_none_or(is_port) && (is_ipv6 || host.split('.').all(is_label))
}

/// Letters and digits, with `.`, `_`, `__` or dashes between them.
fn is_path_component(component: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let starts_and_ends = component.starts_with(is_word) && component.ends_with(is_word);
    let separators = component.split(is_word);
    let is_separator = |part: &str| {
        matches!(part, "" | "." | "_" | "__") || part.chars().all(|letter| letter == '-')
    };
    starts_and_ends && separators.into_iter().all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    tag.len() <= TAG_MAX_BYTES
        && tag.starts_with(is_word)
        && tag.chars().all(|letter| is_word(letter) || matches!(letter, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let parsed = text.parse::<Reference>().map(|reference| reference.to_string());
        assert_eq!(parsed.as_deref().ok(), expected, "{text}: {parsed:?}");
    }

    #[test]
    fn short_names_are_completed() {
        check("nginx", Some("docker.io/library/nginx:latest"));
        check("nginx:1.27", Some("docker.io/library/nginx:1.27"));
        check("library/nginx", Some("docker.io/library/nginx:latest"));
        check("docker.io/nginx", Some("docker.io/library/nginx:latest"));
        check("index.docker.io/istio/pilot:1", Some("docker.io/istio/pilot:1"));
        check("curlimages/curl", Some("docker.io/curlimages/curl:latest"));
        check("ghcr.io/a/b/c:v1", Some("ghcr.io/a/b/c:v1"));
        check("localhost/x", Some("localhost/x:latest"));
        check("localhost:5000/x", Some("localhost:5000/x:latest"));
        check("[::1]:5000/x:1", Some("[::1]:5000/x:1"));
        check("a__b/c-.d", None);
        check("a__b/c--d", Some("docker.io/a__b/c--d:latest"));
    }

    #[test]
    fn a_digest_decides() {
        let digest = Digest::of(b"").to_string();
        let expected = format!("docker.io/library/nginx@{digest}");
        check(&format!("nginx@{digest}"), Some(&expected));
        check(&format!("nginx:1@{digest}"), Some(&expected));
        check(&digest[7..], None);
        check("nginx@sha256:12", None);
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in [
            "",
            "/",
            "a/",
            "/a",
            "A",
            "a:",
            "a:-1",
            "a:b:c",
            "a b",
            "a//b",
            "../a",
            "a/../b",
            "-a.b/c",
            "a.b:x/c",
            "a.b:99999/c",
            ".a",
            "a.",
            "a:b@",
            "ä",
            "a\n",
        ] {
            check(text, None);
        }
        check(&"a".repeat(256), None);
        check(&format!("a:{}", "b".repeat(129)), None);
    }
}
