//! The machine's processor, in the words of images and of Kubernetes.
//!
//! They are Go's names, and so differ from those of the compiler.

/// This machine's architecture, as in `amd64`.
#[must_use]
pub fn host_architecture() -> &'static str {
    in_words(std::env::consts::ARCH)
}

fn in_words(architecture: &'static str) -> &'static str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_the_names_of_images() {
        let words = ["x86_64", "aarch64", "x86", "riscv64"].map(in_words);
        assert_eq!(words, ["amd64", "arm64", "386", "riscv64"]);
    }
}
