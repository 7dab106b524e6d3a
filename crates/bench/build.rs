//! Records the profile of this build, for `ambit --version` and every report of `bench`: only
//! `dist` has the figures of the shipped binary.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo names the version");
    // target/TRIPLE/PROFILE/build/PACKAGE/out; cargo names a custom profile nowhere else.
    let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a directory"));
    let profile = output.ancestors().nth(3).and_then(|path| path.file_name()).unwrap_or_default();
    let version = match profile.to_string_lossy().as_ref() {
        "dist" => version,
        profile => format!("{version}, {profile} build"),
    };
    println!("cargo::rustc-env=AMBIT_VERSION={version}");
}
