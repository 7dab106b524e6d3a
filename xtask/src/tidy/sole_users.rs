//! Names that only some files may write: what they name is right for one purpose alone.

use super::source::SourceFile;

/// A name, the files that may write it, and why no other may.
const SOLE_USERS: &[(&str, &[&str], &str)] = &[(
    "container_probe",
    &[
        "crates/tls/src/container_probe.rs",
        "crates/tls/src/lib.rs",
        "crates/machine/src/node/probe.rs",
    ],
    "it connects without checking who answers, which is right for a container's own probe alone",
)];

pub(super) fn check(files: &[SourceFile], wrong: &mut Vec<String>) {
    for (name, users, why) in SOLE_USERS {
        for user in users.iter().filter(|user| !files.iter().any(|it| it.path == **user)) {
            wrong.push(format!("{user}: listed as a user of {name}, but there is no such file"));
        }
        let others = files.iter().filter(|it| !users.contains(&it.path.as_str()));
        // This file names them all.
        let others = others.filter(|it| !it.path.starts_with("xtask/"));
        for file in others.filter(|it| it.text.contains(name)) {
            wrong.push(format!("{}: {name} is not for this file: {why}", file.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::parsed;

    #[test]
    fn another_user_is_named() {
        let (name, users, why) = SOLE_USERS[0];
        let file = |path: &str| {
            let text = format!("//! It.\nuse ambit_tls::{name};\n");
            parsed(path, text).expect("it is Rust")
        };
        let mut files: Vec<_> = users.iter().map(|path| file(path)).collect();
        let check = |files: &[SourceFile]| {
            let mut wrong = Vec::new();
            super::check(files, &mut wrong);
            wrong
        };
        assert_eq!(check(&files), Vec::<String>::new());
        files.push(file("crates/proxy/src/outbound.rs"));
        let expected = format!("crates/proxy/src/outbound.rs: {name} is not for this file: {why}");
        assert_eq!(check(&files), [expected]);
    }
}
