//! `cargo xtask dist`: the files of a release.
//!
//! One archive with the binary, its licence, completions, manual pages and bill of materials; the
//! chart as Helm reads it; the container image; and the checksums of all. The same commit, built at
//! the same place with the same toolchain, gives the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::image::{self, Entry, Profile};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHART: &str = "deploy/chart";
/// Shells, and what a file with their completions is called.
const SHELLS: [(&str, &str); 3] =
    [("bash", "ambit.bash"), ("zsh", "_ambit"), ("fish", "ambit.fish")];
const CHECKSUMS: &str = "SHA256SUMS";
const USAGE: &str = "\
cargo xtask dist [--output DIR]
    archive of the binary, chart, image and checksums [default: target/release-page]";

/// Makes all of it.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let output = match words {
        [] => PathBuf::from("target/release-page"),
        ["--output", directory] => PathBuf::from(directory),
        _ => bail!("{}: not understood\n{USAGE}", words.join(" ")),
    };
    std::fs::create_dir_all(&output).with_context(|| format!("make {}", output.display()))?;
    let binary = image::build(Profile::Dist)?;
    let time = image::commit_time()?;
    let triple = image::host_triple()?;
    let name = format!("ambit-{VERSION}-{triple}");
    let files = [
        (format!("{name}.tar.gz"), image::packed(time, &program(&binary, &name, &triple)?)?),
        (format!("ambit-chart-{VERSION}.tgz"), image::packed(time, &chart(Path::new(CHART))?)?),
    ];
    for (name, content) in &files {
        let path = output.join(name);
        std::fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    let archive = format!("ambit-image-{VERSION}.tar");
    let tag = format!("ambit:{VERSION}");
    image::write(&binary, Profile::Dist, &tag, &output.join(&archive))?;
    let bill = Path::new(&archive).with_extension("cdx.json");
    let written = files.iter().map(|(name, _)| PathBuf::from(name));
    let written: Vec<PathBuf> = written.chain([PathBuf::from(&archive), bill]).collect();
    let sums = checksums(&output, &written)?;
    std::fs::write(output.join(CHECKSUMS), &sums).context("write the checksums")?;
    print!("{}:\n{sums}", output.display());
    Ok(())
}

/// The archive of the binary and what goes with it.
fn program(binary: &Path, name: &str, triple: &str) -> Result<Vec<Entry>> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let at = |path: &str| format!("{name}/{path}");
    let program = std::fs::read(binary).context("read the binary")?;
    let mut entries = vec![
        Entry::program(&at("ambit"), program),
        Entry::text(&at("LICENSE"), &read("LICENSE")?),
        Entry::text(&at("README.md"), &read("README.md")?),
        Entry::text(&at("CHANGELOG.md"), &read("CHANGELOG.md")?),
        Entry::text(&at("sbom.cdx.json"), &image::bill(triple)?),
    ];
    for (shell, file) in SHELLS {
        let text = said(binary, &["completions", shell])?;
        entries.push(Entry::text(&at(&format!("completions/{file}")), &text));
    }
    let manual = Path::new("target/man");
    if manual.exists() {
        std::fs::remove_dir_all(manual).context("remove the last manual pages")?;
    }
    std::fs::create_dir_all(manual).context("make a directory for manual pages")?;
    said(binary, &["man", "target/man"])?;
    for path in files_below(manual)? {
        let page = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).context("read a manual page")?;
        entries.push(Entry::text(&at(&format!("man/{page}")), &text));
    }
    Ok(entries)
}

/// The chart, as `helm package` would make it.
fn chart(root: &Path) -> Result<Vec<Entry>> {
    files_below(root)?
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("read {}", path.display()))?;
            let below = path.strip_prefix(root).context("a file of the chart")?;
            Ok(Entry::text(&format!("ambit/{}", below.display()), &text))
        })
        .collect()
}

/// Every file below a directory, in the order of their paths.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory);
        for entry in entries.with_context(|| format!("list {}", directory.display()))? {
            let path = entry.context("list a directory")?.path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

fn said(program: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("start {}", program.display()))?;
    ensure!(output.status.success(), "ambit {} failed", words.join(" "));
    String::from_utf8(output.stdout).context("ambit writes UTF-8")
}

/// Lines that `sha256sum --check` reads.
fn checksums(directory: &Path, files: &[PathBuf]) -> Result<String> {
    let mut lines = String::new();
    for file in files {
        let content = std::fs::read(directory.join(file));
        let content = content.with_context(|| format!("read {}", file.display()))?;
        let sum = Sha256::digest(&content);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push_str(&format!("{sum}  {}\n", file.display()));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_is_packed_below_its_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(CHART);
        let entries = chart(&root).expect("it is read");
        let names: Vec<&str> = entries.iter().map(Entry::path).collect();
        assert!(names.contains(&"ambit/Chart.yaml"), "{names:?}");
        assert!(names.contains(&"ambit/values.yaml"), "{names:?}");
    }
}
