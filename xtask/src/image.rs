//! `cargo xtask image`: the container image, without any container tool.
//!
//! An OCI archive FROM scratch: the static binary, its bill of materials, and the two files that
//! name resolution needs. The same commit, built at the same place with the same toolchain, gives
//! the same digest: nothing in it depends on the time or on the order of a directory.

mod archive;
mod sbom;
mod tar;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use archive::{Compression, Entry, Image, packed};
pub(crate) use sbom::bill;

/// What the image of a release may weigh; measured on the archive.
const MAX_RELEASE_BYTES: u64 = 25_000_000;
/// Where the binary is in the image.
pub(crate) const PROGRAM: &str = "/ambit";

const USAGE: &str = "\
cargo xtask image [--output FILE] [--name NAME:TAG] [--profile dist|release|dev]
    an OCI archive FROM scratch with the static binary, and FILE.cdx.json, what it is made of
    [default: target/ambit-image.tar, ambit:VERSION, dist]";

/// What to make.
struct Wanted {
    output: PathBuf,
    name: String,
    profile: Profile,
}

/// How the binary is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What is shipped.
    Dist,
    /// What everybody builds: the same without optimisation at link time.
    Release,
    /// Quick to make, large, for tests.
    Dev,
}

impl Profile {
    fn directory(self) -> &'static str {
        match self {
            Self::Dist => "dist",
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// Builds the binary and writes the archive and its bill of materials.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let wanted = parse(words)?;
    let binary = build(wanted.profile)?;
    let digest = write(&binary, wanted.profile, &wanted.name, &wanted.output)?;
    println!("{digest}");
    Ok(())
}

/// Writes the archive of `binary`, and beside it the bill of materials; returns the digest of the
/// image's manifest.
pub(crate) fn write(binary: &Path, profile: Profile, name: &str, output: &Path) -> Result<String> {
    let bill = bill(&host_triple()?)?;
    let program = std::fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
    ensure!(is_static(&program), "{} is linked dynamically; is RUSTFLAGS set?", binary.display());
    let image = Image {
        name: name.to_owned(),
        entry_point: PROGRAM.to_owned(),
        created_unix: commit_time()?,
        entries: vec![
            Entry::program(PROGRAM, program),
            Entry::text("/etc/nsswitch.conf", "hosts: files dns\n"),
            Entry::text("/etc/passwd", "root:x:0:0:root:/:/ambit\nambit:x:1337:1337::/:/ambit\n"),
            Entry::text("/sbom.json", &bill),
        ],
        compression: match profile {
            Profile::Dist | Profile::Release => Compression::Zstd,
            Profile::Dev => Compression::None,
        },
    };
    let digest = image.write(output)?;
    let beside = output.with_extension("cdx.json");
    std::fs::write(&beside, &bill).with_context(|| format!("write {}", beside.display()))?;
    let size_bytes = std::fs::metadata(output).context("look at the archive")?.len();
    println!("{}: {name}, {size_bytes} bytes; {}", output.display(), beside.display());
    if profile == Profile::Dist && size_bytes >= MAX_RELEASE_BYTES {
        bail!("the image has {size_bytes} bytes; it must stay below {MAX_RELEASE_BYTES}");
    }
    Ok(digest)
}

/// Builds the binary and says where it is.
pub(crate) fn build(profile: Profile) -> Result<PathBuf> {
    let mut cargo = Command::new(crate::cargo::program());
    cargo.args(["build", "--locked", "--bin", "ambit"]);
    match profile {
        Profile::Dist => cargo.args(["--profile", "dist"]),
        Profile::Release => cargo.arg("--release"),
        // With the features that tests are built with, so that nothing is built twice.
        Profile::Dev => cargo.arg("--workspace"),
    };
    let status = cargo.status().context("start cargo build")?;
    ensure!(status.success(), "cargo build failed");
    binary(profile)
}

/// Where `cargo build` leaves the binary.
pub(crate) fn binary(profile: Profile) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let place = target.join(host_triple()?).join(profile.directory()).join("ambit");
    std::fs::canonicalize(&place).with_context(|| format!("find {}", place.display()))
}

/// The triple that `host-tuple` in `.cargo/config.toml` means.
pub(crate) fn host_triple() -> Result<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc).args(["--print", "host-tuple"]).output();
    let output = output.context("ask rustc for the machine's triple")?;
    let triple = String::from_utf8(output.stdout).context("rustc speaks UTF-8")?;
    ensure!(output.status.success(), "rustc does not say what machine this is");
    Ok(triple.trim().to_owned())
}

/// The time of everything in the image: the commit's, or what `SOURCE_DATE_EPOCH` says.
pub(crate) fn commit_time() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let git = Command::new("git").args(["log", "-1", "--format=%ct"]).output();
            String::from_utf8(git.context("ask git for the commit's time")?.stdout)
                .context("git writes numbers")?
        }
    };
    text.trim().parse().with_context(|| format!("{text:?} is no time; set SOURCE_DATE_EPOCH"))
}

/// Whether an ELF file asks for no dynamic loader (has no `PT_INTERP`).
fn is_static(program: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let word = |at: usize, size: usize| {
        let bytes = program.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    // ELF64, little endian: the place, size and number of the program headers.
    let headers = (word(32, 8), word(54, 2), word(56, 2));
    let (Some(start), Some(size), Some(count)) = headers else { return false };
    program.starts_with(b"\x7fELF\x02\x01")
        && (0..count).all(|index| {
            let place = usize::try_from(start + index * size).ok();
            place.and_then(|place| word(place, 4)).is_some_and(|it| it != u64::from(PT_INTERP))
        })
}

fn parse(words: &[&str]) -> Result<Wanted> {
    let mut wanted = Wanted {
        output: "target/ambit-image.tar".into(),
        name: format!("ambit:{}", env!("CARGO_PKG_VERSION")),
        profile: Profile::Dist,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word}: no value\n{USAGE}"))?;
        match (*word, *value) {
            ("--output", file) => wanted.output = file.into(),
            ("--name", name) => wanted.name = name.to_owned(),
            ("--profile", "dist") => wanted.profile = Profile::Dist,
            ("--profile", "release") => wanted.profile = Profile::Release,
            ("--profile", "dev") => wanted.profile = Profile::Dev,
            _ => bail!("{word} {value}: not understood\n{USAGE}"),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header and one program header of `kind`.
    fn elf(kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, kind);
        bytes
    }

    #[test]
    fn a_dynamic_binary_is_told_from_a_static_one() {
        assert!(is_static(&elf(1)));
        assert!(!is_static(&elf(3)));
        assert!(!is_static(b"#!/bin/sh"));
        assert!(!is_static(&elf(1)[..66]), "a header that is cut off");
    }

    #[test]
    fn wrong_words_are_refused() {
        for (words, part) in [
            (&["--output"][..], "no value"),
            (&["--profile", "fast"], "--profile fast: not understood"),
            (&["--size", "1"], "cargo xtask image"),
        ] {
            let error = parse(words).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{error}");
        }
    }
}
