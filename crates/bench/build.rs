//! Which profile compiles this: `ambit --version` and every report of `bench` say it, since figures
//! of anything but `dist` are not those of what is shipped.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo names the version");
    // target/TRIPLE/PROFILE/build/PACKAGE/out; cargo tells a custom profile nowhere else.
    let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a directory"));
    let profile = output.ancestors().nth(3).and_then(|path| path.file_name()).unwrap_or_default();
    let version = match profile.to_string_lossy().as_ref() {
        "dist" => version,
        profile => format!("{version}, {profile} build"),
    };
    println!("cargo::rustc-env=AMBIT_VERSION={version}");
}
