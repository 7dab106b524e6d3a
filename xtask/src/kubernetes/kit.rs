//! The programs of a cluster: Debian's container runtime, and Kubernetes built from its modules.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::image::{Compression, Entry, Image};

/// Kubernetes as it calls itself; the modules are those of `cluster/go.mod`.
const VERSION: (&str, &str, &str) = ("1", "36", "v1.36.3");
/// The oldest Go that builds it.
const GO_MINOR: u32 = 26;
const SOURCE: &str = "e2e/kubernetes";
/// The directory of ACME that certificates are ordered from.
const PEBBLE: &str = "github.com/letsencrypt/pebble/v2/cmd/pebble";
/// The names by which the one binary is called.
const PROGRAMS: [&str; 10] = [
    "balancer",
    "etcd",
    "helm",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kwok",
];
/// A file of each Debian package that is needed.
const PACKAGES: [(&str, &[&str]); 8] = [
    ("conntrack", &["/usr/sbin/conntrack"]),
    ("containerd", &["/usr/bin/containerd", "/usr/bin/ctr"]),
    ("containernetworking-plugins", &["/usr/lib/cni/bridge"]),
    ("iproute2", &["/sbin/ip", "/usr/sbin/ip", "/bin/ip", "/usr/bin/ip"]),
    ("iptables", &["/usr/sbin/iptables", "/sbin/iptables"]),
    ("openssl", &["/usr/bin/openssl"]),
    ("runc", &["/usr/sbin/runc", "/usr/bin/runc"]),
    ("util-linux", &["/usr/bin/unshare"]),
];
/// Says no to every service that a package would start.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Says why the tests cannot run here, if they cannot.
pub(super) fn possible() -> Result<Result<(), String>> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") {
        missing.push("this is not Linux".to_owned());
    }
    if output("id", &["-u"])?.trim() != "0" {
        missing.push("they need root (namespaces, cgroups, overlay file systems)".to_owned());
    }
    match output("go", &["env", "GOVERSION"]).ok().as_deref().and_then(go_minor) {
        Some(minor) if minor >= GO_MINOR => {}
        Some(minor) => missing.push(format!("Go 1.{minor} is too old; install Go 1.{GO_MINOR}")),
        None => missing.push(format!("Go is missing; install Go 1.{GO_MINOR} or newer")),
    }
    Ok(if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) })
}

/// Installs the packages that are missing.
pub(super) fn install_missing() -> Result<()> {
    let absent = absent();
    if absent.is_empty() {
        return Ok(());
    }
    println!("installing {}", absent.join(", "));
    install(&absent).with_context(|| format!("install {} by hand", absent.join(" ")))
}

fn absent() -> Vec<&'static str> {
    let is_there = |files: &[&str]| files.iter().any(|file| Path::new(file).exists());
    PACKAGES.iter().filter(|(_, files)| !is_there(files)).map(|(name, _)| *name).collect()
}

/// The minor version of `go1.26.8`.
fn go_minor(version: &str) -> Option<u32> {
    version.trim().strip_prefix("go1.")?.split(['.', '-', ' ']).next()?.parse().ok()
}

/// Installs without starting any service.
fn install(packages: &[&str]) -> Result<()> {
    let is_ours = !Path::new(POLICY).exists();
    if is_ours {
        std::fs::write(POLICY, "#!/bin/sh\nexit 101\n").context("forbid services to start")?;
        run(Command::new("chmod").args(["755", POLICY]))?;
    }
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    apt.env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    let installed = run(Command::new("apt-get").arg("update").stdout(Stdio::null()))
        .and_then(|()| run(&mut apt));
    if is_ours {
        std::fs::remove_file(POLICY).context("allow services to start again")?;
    }
    installed?;
    let absent = absent();
    ensure!(absent.is_empty(), "{} are still missing", absent.join(", "));
    Ok(())
}

/// Builds the programs into `state/bin` and the images of the cluster's own pods into `state/img`.
pub(super) fn build(state: &Path) -> Result<()> {
    let (programs, images) = (state.join("bin"), state.join("img"));
    for directory in [&programs, &images] {
        std::fs::create_dir_all(directory).context("make the state directory")?;
    }
    let (major, minor, version) = VERSION;
    let base = "k8s.io/component-base/version.git";
    let flags = format!(
        "-s -w -X {base}Version={version} -X {base}Major={major} -X {base}Minor={minor} \
         -X k8s.io/client-go/pkg/version.gitVersion={version}"
    );
    go_build("cluster", ".", &flags, &programs.join("cluster"))?;
    go_build("cluster", "./pause", "-s -w", &programs.join("pause"))?;
    go_build("dns", ".", "-s -w", &programs.join("dns"))?;
    go_build("pebble", PEBBLE, "-s -w", &programs.join("pebble"))?;
    for program in PROGRAMS {
        let link = programs.join(program);
        if !link.is_symlink() {
            std::os::unix::fs::symlink("cluster", &link).context("name a program")?;
        }
    }
    for name in ["pause", "dns", "pebble"] {
        let program = std::fs::read(programs.join(name)).context("read a program")?;
        let image = Image {
            name: format!("registry.local/{name}:1"),
            entry_point: format!("/{name}"),
            created_unix: 0,
            entries: vec![Entry::program(&format!("/{name}"), program)],
            compression: Compression::None,
        };
        image.write(&images.join(format!("{name}.tar")))?;
    }
    Ok(())
}

pub(super) fn go_build(module: &str, package: &str, flags: &str, output: &Path) -> Result<()> {
    go_compile(&["build", "-buildvcs=false"], module, package, flags, output)
}

/// Builds the tests of a module into one program.
pub(super) fn go_build_tests(module: &str, output: &Path) -> Result<()> {
    go_compile(&["test", "-c"], module, ".", "-s -w", output)
}

fn go_compile(
    verb: &[&str],
    module: &str,
    package: &str,
    flags: &str,
    output: &Path,
) -> Result<()> {
    // A build that nobody waits for any more ends.
    let mut go = Command::new("setpriv");
    go.args(["--pdeathsig", "TERM", "go"]).args(verb);
    go.args(["-trimpath", "-ldflags", flags, "-o"]).arg(output).arg(package);
    go.current_dir(Path::new(SOURCE).join(module));
    go.envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local")]);
    run(&mut go).with_context(|| format!("build {SOURCE}/{module}"))
}

/// The directory of the Gateway API's module, whose definitions the suite is made for.
pub(super) fn gateway_api() -> Result<PathBuf> {
    const MODULE: &str = "sigs.k8s.io/gateway-api";
    let go = |words: &[&str]| {
        let mut go = Command::new("go");
        go.args(words).current_dir(Path::new(SOURCE).join("conformance"));
        go.env("GOTOOLCHAIN", "local");
        go
    };
    // A machine on which nothing was built of it does not have it, and is not told so.
    run(&mut go(&["mod", "download", MODULE]))?;
    let said = go(&["list", "-m", "-f", "{{.Dir}}", MODULE]).output().context("start go")?;
    ensure!(said.status.success(), "go list: {}", String::from_utf8_lossy(&said.stderr));
    Ok(PathBuf::from(String::from_utf8(said.stdout).context("a path in UTF-8")?.trim()))
}

/// Runs a program that must succeed.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("start {program}"))?;
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}

/// What a program that must succeed writes.
pub(super) fn output(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("start {program}"))?;
    ensure!(output.status.success(), "{program} {} failed", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::go_minor;

    #[test]
    fn versions_of_go() {
        for (text, expected) in
            [("go1.26.8\n", Some(26)), ("go1.27rc1", None), ("devel", None), ("go1.9", Some(9))]
        {
            assert_eq!(go_minor(text), expected, "{text}");
        }
    }
}
