//! The root of a container that has an image.
//!
//! It is an overlay: the image's tree below, which all containers of the image share and nobody
//! changes, and a layer of the container's own above, in memory and bounded. It is made anew each
//! time that the container starts. All of it is in the container's mount namespace, so that it ends
//! with the container's last process.
//!
//! The image is the work of strangers. Nothing is mounted by a path in it: places are found as
//! descriptors within the tree ([`mount_point`]).

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ambit_image::PathError;
use ambit_image::mount_point::{self, Kind};
use ambit_net::sys::mount::{self, MountOptions};

use serde::{Deserialize, Serialize};

/// Most that a container may write into its root.
pub(crate) const LAYER_SIZE_BYTES: u64 = 1 << 30;

/// Of a container's root: devices work only in its `/dev`.
const CONTAINER: MountOptions =
    MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: false };
/// Of what it must not change.
pub(super) const UNCHANGING: MountOptions = MountOptions { read_only: true, ..CONTAINER };

/// The root of a container that has an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootPlan {
    /// The image's tree.
    pub(crate) image: PathBuf,
    /// Where the container's own layer is made, in its own mount namespace.
    pub(crate) layer: PathBuf,
    /// Files and directories over the image's: where, and the content, which it cannot change.
    pub(crate) shown: Vec<(PathBuf, PathBuf)>,
    /// Nothing in it can be changed.
    pub(crate) is_read_only: bool,
}

/// A root that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// The image is gone.
    #[error("cannot open the image's tree {path}")]
    Image {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The container's own layer cannot be made.
    #[error("cannot make the container's own layer at {path}")]
    Layer {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not mount the image and the layer as one tree.
    #[error(
        "cannot mount overlayfs, which a container with an image needs; load the module `overlay`, \
         and without root use Linux 5.11 or newer"
    )]
    Overlay(#[source] io::Error),
    /// The image has something else at a place.
    #[error("there is no place for {path}, in the image or in a volume around it")]
    Place {
        /// Where in the container.
        path: PathBuf,
        /// Why.
        source: PathError,
    },
    /// A mount in the container.
    #[error("cannot mount {path} in the container")]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The last step.
    #[error("cannot enter the container's root")]
    Enter(#[source] io::Error),
}

/// Something to show in a root: where, and what.
pub(crate) struct Shown {
    /// Where.
    pub(crate) target: PathBuf,
    /// A detached tree of one file or directory.
    pub(crate) tree: OwnedFd,
    /// Which of the two it is.
    pub(crate) kind: Kind,
}

/// Makes the root of a container and enters it, with the pod's own `/dev` and `/proc` and with what
/// else is `shown`. The calling process is alone in its mount namespace, from which it sees the
/// image's tree. Where there is one user only, it `is_rootless`.
pub(crate) fn enter(
    plan: &RootPlan,
    shown: Vec<Shown>,
    working_directory: &Path,
    is_rootless: bool,
) -> Result<(), RootError> {
    let root = overlay(plan, is_rootless)?;
    for file in shown {
        show(&root, file)?;
    }
    // As container runtimes do. One that cannot be made is reported when it is entered.
    let _entered_later = mount_point::mount_point(&root, working_directory, Kind::Directory);
    if plan.is_read_only {
        let source = mount::remount_bind(&root, UNCHANGING);
        source.map_err(|source| RootError::Mount { path: "/".into(), source })?;
    }
    mount::pivot_root(&root).map_err(RootError::Enter)
}

/// Mounts the image and an empty layer as one tree; answers where.
fn overlay(plan: &RootPlan, is_rootless: bool) -> Result<PathBuf, RootError> {
    let image = |source| RootError::Image { path: plan.image.clone(), source };
    let layer = |source| RootError::Layer { path: plan.layer.clone(), source };
    let lower = mount::open_path(&plan.image).map_err(image)?;
    let found = fs::metadata(&plan.image).map_err(image)?;
    mount::tmpfs(&plan.layer, LAYER_SIZE_BYTES, 0o755, CONTAINER).map_err(layer)?;
    let [upper, work, root] = ["upper", "work", "root"].map(|name| plan.layer.join(name));
    for path in [&upper, &work, &root] {
        fs::create_dir(path).map_err(layer)?;
    }
    // The root directory is the upper one.
    fs::set_permissions(&upper, Permissions::from_mode(found.mode() & 0o7777)).map_err(layer)?;
    chown(&upper, Some(found.uid()), Some(found.gid())).map_err(layer)?;
    mount::overlay(&lower, &upper, &work, &root, CONTAINER, is_rootless)
        .map_err(RootError::Overlay)?;
    Ok(root)
}

/// Mounts one file or directory over the place where it is wanted, which is made if need be.
pub(crate) fn show(root: &Path, Shown { target, tree, kind }: Shown) -> Result<(), RootError> {
    let place = mount_point::mount_point(root, &target, kind)
        .map_err(|source| RootError::Place { path: target.clone(), source })?;
    mount::attach(tree, place).map_err(|source| RootError::Mount { path: target, source })
}

/// A file or directory of this mount namespace, to show it elsewhere; it cannot be changed there.
pub(crate) fn unchanging(target: &Path, content: &Path) -> Result<Shown, RootError> {
    let failed = |source| RootError::Mount { path: target.to_owned(), source };
    let is_directory = fs::metadata(content).map_err(failed)?.is_dir();
    let tree = mount::detached(content).map_err(failed)?;
    mount::forbid_detached(&tree, UNCHANGING).map_err(failed)?;
    let kind = if is_directory { Kind::Directory } else { Kind::File };
    Ok(Shown { target: target.to_owned(), tree, kind })
}
