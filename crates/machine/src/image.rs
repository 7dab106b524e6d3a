//! What a container image means on a machine, which fetches none by itself.
//!
//! An image becomes a root with an entry point if it is in the machine's store, or else an entry
//! point alone: a program of the host's file tree, or a part of the shipped binary. An unknown
//! image is refused when it is applied, and the error lists the ways to give it a meaning; it never
//! silently becomes something else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ambit_image::{Digest, ImageConfig};
use serde::{Deserialize, Serialize};

/// The first word of a command that means the shipped binary, wherever that lies.
pub(crate) const SHIPPED_BINARY: &str = "ambit";
/// The image of waypoints.
pub(crate) const WAYPOINT_IMAGE: &str = "ambit/waypoint";
/// Where a pod finds the shipped binary under every name that it answers to: below `/run`, which is
/// the pod's own.
pub const PROGRAMS: &str = "/run/ambit-programs";
/// These names.
pub(crate) const PROGRAM_NAMES: [&str; 3] = [SHIPPED_BINARY, "vegeta", "fortio"];

/// An image and what `--image` says it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageMap(BTreeMap<String, Meaning>);

/// What an image means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Meaning {
    /// A command in the host's file tree.
    Command(Vec<String>),
    /// A root of its own.
    Stored(Box<StoredImage>),
}

/// An image in the machine's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StoredImage {
    /// Of its configuration.
    pub(crate) digest: Digest,
    /// Its tree, which nobody changes.
    pub(crate) root: PathBuf,
    /// How it is run.
    pub(crate) config: ImageConfig,
    /// The number of the user that it runs as.
    pub(crate) uid: u32,
    /// That of the user's group.
    pub(crate) gid: u32,
}

/// An image, or an `--image` argument, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No entry point is known.
    #[error("image {image:?} means nothing on this machine: {}", ways(image, name))]
    Unknown {
        /// As written.
        image: String,
        /// Without registry and tag.
        name: String,
    },
    /// The image of the samples needs the name of a sample.
    #[error("image {image:?} needs args: the name of a sample, such as [\"echo\"]")]
    SampleWithoutName {
        /// As written.
        image: String,
    },
    /// An image of the store without entry point and command.
    #[error("image {image:?} does not say what it runs; give the container a `command`")]
    NoCommand {
        /// As written.
        image: String,
    },
    /// An image of the store that runs as another user where there is only one.
    #[error(
        "image {image:?} runs as user {uid} with group {gid}, but without root a machine has one \
         user only; run `ambit up` as root or set runAsUser in securityContext to 0"
    )]
    User {
        /// As written.
        image: String,
        /// Its user.
        uid: u32,
        /// That one's group.
        gid: u32,
    },
    /// An `--image` argument is not of the right form.
    #[error(
        "--image {argument:?} is neither NAME=COMMAND nor NAME= with one of oci:PATH, \
         oci-archive:FILE, docker-archive:FILE, docker-daemon:REFERENCE, containerd:REFERENCE and \
         registry:REFERENCE"
    )]
    Argument {
        /// As written.
        argument: String,
    },
    /// A quote in an `--image` argument is not closed.
    #[error("--image {argument:?} has a quote that is not closed")]
    Quote {
        /// As written.
        argument: String,
    },
}

/// The ways to give an image a meaning.
pub(crate) fn ways(image: &str, name: &str) -> String {
    format!(
        "import it with --image {name}= and one of oci:PATH, docker-archive:FILE, \
         docker-daemon:{image}, containerd:{image} and registry:{image}; or run a program of this \
         computer, by a `command` or with --image {name}=COMMAND; images that need none of it are \
         busybox, alpine, curlimages/curl and those of the samples (`ambit sample --help`)"
    )
}

/// The program of this computer that a container runs because its image means nothing, and only its
/// `command` says what it is.
pub(crate) fn host_program<'c>(
    image: &str,
    command: &'c [String],
    images: &ImageMap,
) -> Option<&'c str> {
    let program = command.first().filter(|it| !PROGRAM_NAMES.contains(&it.as_str()))?;
    // Whether the image has a meaning does not depend on what it is told.
    let alone = command_line(image, &[], &["sh".to_owned()], images);
    matches!(alone, Err(ImageError::Unknown { .. })).then_some(program)
}

impl ImageMap {
    /// Reads `NAME=COMMAND` arguments. The command is split like a shell's words, with quotes,
    /// nothing else.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, ImageError> {
        let mut map = BTreeMap::new();
        for argument in arguments {
            let form = || ImageError::Argument { argument: argument.to_owned() };
            let (name, command) = argument.split_once('=').ok_or_else(form)?;
            let words = words(command)
                .ok_or_else(|| ImageError::Quote { argument: argument.to_owned() })?;
            if name.is_empty() || words.is_empty() {
                return Err(form());
            }
            map.insert(name.to_owned(), Meaning::Command(words));
        }
        Ok(Self(map))
    }

    /// Both; what `other` says of an image comes before.
    pub fn extended(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Lets a name mean an image of the store.
    pub(crate) fn insert(&mut self, name: String, image: StoredImage) {
        self.0.insert(name, Meaning::Stored(Box::new(image)));
    }

    /// The image of the store that a manifest means, if it is one.
    pub(crate) fn stored(&self, image: &str) -> Option<&StoredImage> {
        match self.meaning(image)? {
            Meaning::Stored(stored) => Some(stored),
            Meaning::Command(_) => None,
        }
    }

    fn meaning(&self, image: &str) -> Option<&Meaning> {
        self.0.get(image).or_else(|| self.0.get(repository(image)))
    }
}

/// The command line of a container: image, `command` and `args` as in its manifest.
///
/// As in Kubernetes, `command` replaces the image's entry point and `args` what follows it.
pub fn command_line(
    image: &str,
    command: &[String],
    args: &[String],
    images: &ImageMap,
) -> Result<Vec<String>, ImageError> {
    let mut line: Vec<String> = if let Some(line) = gunicorn(image, command, args, images) {
        return Ok(line);
    } else if !command.is_empty() {
        command.to_vec()
    } else {
        match images.meaning(image) {
            Some(Meaning::Command(entry_point)) => entry_point.clone(),
            Some(Meaning::Stored(stored)) => return own_command_line(image, stored, args),
            None => built_in_entry_point(image, args)?,
        }
    };
    line.extend_from_slice(args);
    Ok(line)
}

/// Whether a container without a root of its own runs what this machine's user has said with
/// `--image`, or a part of the shipped binary, and not a program that its manifest chooses.
pub(crate) fn is_users_choice(
    image: &str,
    command: &[String],
    args: &[String],
    images: &ImageMap,
) -> bool {
    let is_own = |line: Vec<String>| {
        let name = line.first().map(String::as_str);
        name.is_some_and(|name| PROGRAM_NAMES.contains(&name))
    };
    if !command.is_empty() {
        return gunicorn(image, command, args, images).is_some();
    }
    images.meaning(image).is_some() || built_in_entry_point(image, args).is_ok_and(is_own)
}

/// The command line of a container whose manifest has no `command`: `args` replace the image's own.
fn own_command_line(
    image: &str,
    stored: &StoredImage,
    args: &[String],
) -> Result<Vec<String>, ImageError> {
    let ImageConfig { entrypoint, cmd, .. } = &stored.config;
    let args = if args.is_empty() { cmd } else { args };
    let line: Vec<String> = entrypoint.iter().chain(args).cloned().collect();
    if line.is_empty() {
        return Err(ImageError::NoCommand { image: image.to_owned() });
    }
    Ok(line)
}

/// What an image of the examples runs here.
fn built_in_entry_point(image: &str, args: &[String]) -> Result<Vec<String>, ImageError> {
    let name = repository(image);
    let built_in = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Ok(match name {
        "nicholasjackson/fake-service" => built_in(&[SHIPPED_BINARY, "sample", "fake-service"]),
        "ambit/sample" if args.is_empty() => {
            return Err(ImageError::SampleWithoutName { image: image.to_owned() });
        }
        "ambit/sample" => built_in(&[SHIPPED_BINARY, "sample"]),
        WAYPOINT_IMAGE => built_in(&[SHIPPED_BINARY, "waypoint"]),
        "ably77/vegeta" | "peterevans/vegeta" => built_in(&["vegeta"]),
        // As the image's own default.
        "fortio/fortio" if args.is_empty() => built_in(&["fortio", "server"]),
        "fortio/fortio" => built_in(&["fortio"]),
        "curlimages/curl" => built_in(&["curl"]),
        "busybox" | "alpine" if args.is_empty() => built_in(&["sh"]),
        "busybox" | "alpine" => Vec::new(),
        PYTHON_HTTPBIN | KONG_HTTPBIN => python_httpbin(":80"),
        "mccutchen/go-httpbin" | "ghcr.io/mccutchen/go-httpbin" => {
            built_in(&[SHIPPED_BINARY, "sample", "httpbin"])
        }
        _ => match istio_sample(name).or_else(|| bookinfo(name, tag(image))) {
            Some(words) => built_in(&words),
            None => {
                let (image, name) = (image.to_owned(), name.to_owned());
                return Err(ImageError::Unknown { image, name });
            }
        },
    })
}

const PYTHON_HTTPBIN: &str = "kennethreitz/httpbin";
/// The same program, as Istio's samples named it from 1.20 on.
const KONG_HTTPBIN: &str = "kong/httpbin";

fn python_httpbin(address: &str) -> Vec<String> {
    let words = [SHIPPED_BINARY, "sample", "httpbin", "--as", "kennethreitz", "--listen", address];
    words.map(str::to_owned).into()
}

/// Istio's manifests and tasks start that program by its server's name, to say where it listens.
fn gunicorn(
    image: &str,
    command: &[String],
    args: &[String],
    images: &ImageMap,
) -> Option<Vec<String>> {
    let is_it = [PYTHON_HTTPBIN, KONG_HTTPBIN].contains(&repository(image));
    if !is_it || images.meaning(image).is_some() || command.first()? != "gunicorn" {
        return None;
    }
    let mut words = command.iter().chain(args);
    let address = words.find(|word| ["-b", "--bind"].contains(&word.as_str()));
    let address = address.and_then(|_| words.next());
    // Where it listens by itself.
    Some(python_httpbin(address.map_or("127.0.0.1:8000", String::as_str)))
}

/// Where Istio's releases ship the images of its samples, now and before.
const OF_ISTIO: [&str; 2] = ["istio/", "registry.istio.io/release/"];

/// The samples of Istio that are one program.
fn istio_sample(name: &str) -> Option<Vec<&'static str>> {
    let sample: &[_] = match OF_ISTIO.iter().find_map(|prefix| name.strip_prefix(prefix))? {
        "tcp-echo-server" => &["tcp-echo-server"],
        "examples-helloworld-v1" => &["helloworld", "--version", "v1"],
        "examples-helloworld-v2" => &["helloworld", "--version", "v2"],
        _ => return None,
    };
    Some([&[SHIPPED_BINARY, "sample"], sample].concat())
}

/// The services of bookinfo, by the names under which Istio's releases ship them.
///
/// Tags up to 1.19 are of the releases up to Istio 1.22, which their manifests name; every other
/// tag, and none, is of the releases since.
fn bookinfo(name: &str, tag: Option<&str>) -> Option<Vec<&'static str>> {
    let is_old = tag.and_then(version).is_some_and(|version| version < (1, 20));
    let service = OF_ISTIO.iter().find_map(|prefix| name.strip_prefix(prefix));
    let service = service.and_then(|name| name.strip_prefix("examples-bookinfo-"))?;
    let (words, old_words, new_words): (&[_], &[_], &[_]) = match service {
        "productpage-v1" => (&["productpage", "--close-upstream"], &["--close"], &[]),
        // The second versions can ask elsewhere, a web service and a database; they need not.
        "details-v1" | "details-v2" => (&["details", "--two-writes"], &[], &["--nodelay"]),
        "reviews-v1" => (&["reviews", "--version", "v1"], &[], &[]),
        "reviews-v2" => (&["reviews", "--version", "v2"], &[], &[]),
        "reviews-v3" => (&["reviews", "--version", "v3"], &[], &[]),
        "ratings-v1" | "ratings-v2" => (&["ratings"], &[], &[]),
        _ => return None,
    };
    let of_release = if is_old { old_words } else { new_words };
    Some([&[SHIPPED_BINARY, "sample"], words, &["--listen", ":9080"], of_release].concat())
}

/// The user of the image in whose place a sample runs here, where that is not root. Nothing of the
/// samples needs it; it is for manifests that insist on not being root.
pub(crate) fn own_user(image: &str, images: &ImageMap) -> Option<u32> {
    let name = repository(image);
    let of_reviews = || name.contains("examples-bookinfo-reviews-");
    let is_bookinfo = images.meaning(image).is_none() && bookinfo(name, tag(image)).is_some();
    is_bookinfo.then(|| if of_reviews() { 1001 } else { 1000 })
}

/// The first two numbers of a tag.
fn version(tag: &str) -> Option<(u32, u32)> {
    let mut numbers = tag.split(['.', '-']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// An image's name without the default registry, tag and digest.
pub(crate) fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let image = &image[..colon(image).unwrap_or(image.len())];
    let image = ["docker.io/", "index.docker.io/", "registry-1.docker.io/"]
        .iter()
        .find_map(|registry| image.strip_prefix(registry))
        .unwrap_or(image);
    image.strip_prefix("library/").unwrap_or(image)
}

/// What an image's name says after the colon.
fn tag(image: &str) -> Option<&str> {
    let image = image.split('@').next().unwrap_or(image);
    colon(image).map(|colon| &image[colon + 1..])
}

/// Where the tag begins; a colon before a slash is a registry's port.
fn colon(image: &str) -> Option<usize> {
    image.rfind(':').filter(|colon| !image[*colon..].contains('/'))
}

/// Splits like a shell: blanks separate, quotes hold together. `None` when a quote stays open.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in text.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// Replaces `$(NAME)` by the value of `NAME`, as Kubernetes does in command, args and env.
///
/// `$$(NAME)` is the text `$(NAME)`; an unknown name stays unchanged.
pub(crate) fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(escaped) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
            continue;
        }
        let reference = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match reference.and_then(|(name, after)| Some((value(name)?, after))) {
            Some((value, after)) => {
                expanded.push_str(&value);
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(image: &str, command: &[&str], args: &[&str], expected: Result<&str, &str>) {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let images = ImageMap::parse(["shop/cart=/opt/cart --port '80 80'"]).unwrap();
        let line = command_line(image, &own(command), &own(args), &images);
        let line = line.map(|words| words.join("|")).map_err(|error| error.to_string());
        match expected {
            Ok(expected) => assert_eq!(line.as_deref(), Ok(expected)),
            Err(part) => {
                assert!(line.as_ref().is_err_and(|error| error.contains(part)), "{line:?}")
            }
        }
    }

    #[test]
    fn images_become_command_lines() {
        check("nicholasjackson/fake-service:v0.26.2", &[], &[], Ok("ambit|sample|fake-service"));
        check("docker.io/nicholasjackson/fake-service", &[], &[], Ok("ambit|sample|fake-service"));
        check("ambit/sample:1", &[], &["echo", "--port=7"], Ok("ambit|sample|echo|--port=7"));
        check("ambit/sample", &[], &[], Err("[\"echo\"]"));
        check("ambit/waypoint", &[], &[], Ok("ambit|waypoint"));
        check("curlimages/curl:8.1", &["sleep"], &["infinity"], Ok("sleep|infinity"));
        check("curlimages/curl", &[], &["-v", "http://a"], Ok("curl|-v|http://a"));
        check("fortio/fortio:latest", &[], &["server"], Ok("fortio|server"));
        check("fortio/fortio:latest_release", &[], &[], Ok("fortio|server"));
        check("fortio/fortio", &["fortio"], &["load", "http://a"], Ok("fortio|load|http://a"));
        check("peterevans/vegeta:6.9.1", &["sh"], &["-c", "x"], Ok("sh|-c|x"));
        check("busybox", &[], &[], Ok("sh"));
        check("library/alpine:3", &[], &["id"], Ok("id"));
        check("shop/cart:2", &[], &["-x"], Ok("/opt/cart|--port|80 80|-x"));
        check("localhost:5000/shop/other:2", &["run"], &[], Ok("run"));
        check("localhost:5000/shop/other:2", &[], &[], Err("--image localhost:5000/shop/other="));
        for way in ["oci:", "docker-archive:", "docker-daemon:", "containerd:", "registry:"] {
            check("localhost:5000/shop/other:2", &[], &[], Err(way));
        }
    }

    #[test]
    fn an_unknown_image_with_a_command_is_a_program_of_the_computer() {
        let check = |image: &str, command: &[&str], expected: Option<&str>| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            let images = ImageMap::parse(["shop/cart=/opt/cart"]).expect("a command");
            assert_eq!(host_program(image, &command, &images), expected, "{image}");
        };
        check("shop/other:2", &["nginx", "-g"], Some("nginx"));
        check("python", &["python3"], Some("python3"));
        check("shop/other:2", &[], None);
        check("shop/other:2", &["ambit", "sample", "echo"], None);
        check("shop/cart:2", &["sh"], None);
        check("busybox", &["sh"], None);
        check("ambit/sample:1", &["sh"], None);
        check("kong/httpbin", &["gunicorn"], None);
    }

    #[test]
    fn istios_samples_are_built_in() {
        for (image, args, expected) in [
            ("docker.io/mccutchen/go-httpbin:v2.15.0", &[][..], "httpbin"),
            ("docker.io/kong/httpbin", &[], "httpbin|--as|kennethreitz|--listen|:80"),
            ("kennethreitz/httpbin", &[], "httpbin|--as|kennethreitz|--listen|:80"),
            (
                "docker.io/istio/tcp-echo-server:1.3",
                &["9000,9001", "hello"],
                "tcp-echo-server|9000,9001|hello",
            ),
            (
                "registry.istio.io/release/examples-helloworld-v2:1.0",
                &[],
                "helloworld|--version|v2",
            ),
        ] {
            check(image, &[], args, Ok(&format!("ambit|sample|{expected}")));
        }
        check("istio/examples-other", &[], &[], Err("--image istio/examples-other="));
        let listens = |at: &str| format!("ambit|sample|httpbin|--as|kennethreitz|--listen|{at}");
        let command = ["gunicorn", "-b", "[::]:8080", "httpbin:app", "-k", "gevent"];
        check("docker.io/kong/httpbin", &command, &[], Ok(&listens("[::]:8080")));
        check("kennethreitz/httpbin", &["gunicorn"], &["x"], Ok(&listens("127.0.0.1:8000")));
        check("kennethreitz/httpbin", &["sh"], &[], Ok("sh"));
        check("shop/cart", &["gunicorn"], &[], Ok("gunicorn"));
    }

    #[test]
    fn bookinfo_is_old_or_new_by_its_tag() {
        let check = |image: &str, expected: Result<&str, &str>| {
            let expected = expected.map(|words| format!("ambit|sample|{words}"));
            super::tests::check(image, &[], &[], expected.as_deref().map_err(|part| *part));
        };
        let prefix = "docker.io/istio/examples-bookinfo";
        for (name, expected) in [
            ("details-v1:1.19.1", "details|--two-writes|--listen|:9080"),
            ("details-v1:1.18.0", "details|--two-writes|--listen|:9080"),
            ("details-v1:1.20.1", "details|--two-writes|--listen|:9080|--nodelay"),
            ("details-v1", "details|--two-writes|--listen|:9080|--nodelay"),
            ("details-v1:latest", "details|--two-writes|--listen|:9080|--nodelay"),
            ("details-v1:1.19.1-distroless", "details|--two-writes|--listen|:9080"),
            ("productpage-v1:1.19.1", "productpage|--close-upstream|--listen|:9080|--close"),
            ("productpage-v1:1.20.1", "productpage|--close-upstream|--listen|:9080"),
            ("reviews-v1:1.20.1", "reviews|--version|v1|--listen|:9080"),
            ("reviews-v3:1.19.1", "reviews|--version|v3|--listen|:9080"),
            ("ratings-v1:1.20.1", "ratings|--listen|:9080"),
            ("details-v2:1.20.3", "details|--two-writes|--listen|:9080|--nodelay"),
            ("ratings-v2:1.20.3", "ratings|--listen|:9080"),
        ] {
            check(&format!("{prefix}-{name}"), Ok(expected));
        }
        let moved = "registry.istio.io/release/examples-bookinfo-ratings-v1:1.20.3";
        check(moved, Ok("ratings|--listen|:9080"));
        check(&format!("{prefix}-mongodb:1.20.1"), Err("--image istio/examples-bookinfo-mongodb="));
    }

    #[test]
    fn wrong_image_arguments_are_refused() {
        for (argument, part) in [
            ("cart", "NAME=COMMAND"),
            ("=x", "NAME=COMMAND"),
            ("a=", "NAME=COMMAND"),
            ("a='x", "quote"),
        ] {
            let error = ImageMap::parse([argument]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn references_expand_as_in_kubernetes() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)-$(A)", "1-1"),
            ("$$(A)", "$(A)"),
            ("$(B) $A $ $(", "$(B) $A $ $("),
            ("$$$(A)", "$1"),
            ("plain", "plain"),
        ] {
            assert_eq!(expand(text, value), expected, "{text}");
        }
    }
}
