//! A machine and its commands in a directory that another user has prepared.

use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::{Lab, pod};

/// What another user prepared is not used: nothing is started, nothing is written.
pub(crate) async fn machines_start_where_nobody_else_writes() {
    const NOBODY: u32 = 65534;
    let base = super::config("prepared", 1);
    let root = base.state.clone();
    let aim = std::path::PathBuf::from(format!("{}-aim", root.display()));
    let prepare = |what: &str| {
        std::fs::create_dir(&root).unwrap();
        match what {
            "writable" => {
                let mode = std::fs::Permissions::from_mode(0o777);
                std::fs::set_permissions(&root, mode).unwrap();
            }
            "foreign" => chown(&root, Some(NOBODY), Some(NOBODY)).unwrap(),
            log => {
                std::fs::create_dir(root.join("logs")).unwrap();
                symlink(&aim, root.join("logs").join(log)).unwrap();
            }
        }
    };
    let cases = [
        ("writable", "mode 0777"),
        ("foreign", "belongs to user 65534"),
        ("lab.log", "is a symbolic link"),
        ("control.log", "is a symbolic link"),
    ];
    for (what, part) in cases {
        prepare(what);
        let error = ambit_machine::up(&base, |_| {}).await.unwrap_err();
        let error = format!("{:#}", anyhow::Error::new(error));
        assert!(error.contains(part), "{what}: {error}");
        let left = std::fs::read_dir(&root).unwrap().count();
        assert_eq!(left, usize::from(part.contains("link")), "{what}: nothing was written");
        assert!(!aim.exists(), "{what}: nothing was written elsewhere");
        std::fs::remove_dir_all(&root).unwrap();
    }
    std::fs::create_dir(&aim).unwrap();
    symlink(&aim, &root).unwrap();
    let error = ambit_machine::up(&base, |_| {}).await.unwrap_err();
    let error = format!("{:#}", anyhow::Error::new(error));
    assert!(error.contains("is a symbolic link"), "{error}");
    assert_eq!(std::fs::read_dir(&aim).unwrap().count(), 0);
    std::fs::remove_file(&root).unwrap();
    std::fs::remove_dir(&aim).unwrap();
}

/// A command is not handed to another user's socket, nor to a machine whose directory others write.
pub(crate) async fn commands_go_to_our_own_machine_alone() {
    let lab = Lab::up("exposed", 1).await;
    lab.apply_ready(vec![pod("a", &["sleep", "infinity"])]).await;
    let root = lab.layout().root().to_owned();
    let mode = |mode| {
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o777);
    let (said, code) = lab.sh("a", "echo secret");
    assert!(code != 0 && said.contains("mode 0777"), "{said}");
    let error = lab.client.status().await.unwrap_err().to_string();
    assert!(error.contains("mode 0777"), "{error}");
    let error = ambit_machine::down(lab.layout()).await.unwrap_err().to_string();
    assert!(error.contains("mode 0777"), "{error}");
    mode(0o700);
    // Another user's socket in the place of ours, as if it had been put there before.
    let impostor = super::Impostor::take_the_place_of(&lab.layout().exec_socket());
    let (said, code) = lab.sh("a", "echo secret");
    assert!(code != 0 && said.contains("user 65534"), "{said}");
    assert_eq!(impostor.heard(), "nothing\n");
    lab.down().await;
}
