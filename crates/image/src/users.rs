//! Who an image's process runs as: names are those of the image's own `/etc/passwd` and
//! `/etc/group`, as for Docker and Kubernetes.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::limits::{Exceeded, Limits, within};
use crate::tree::{PathError, Tree};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// The home of those that the image does not know.
const NO_HOME: &str = "/";

/// A user as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups, in order and once each.
    pub groups: Vec<u32>,
    /// Its home directory.
    pub home: PathBuf,
}

/// A user that the image does not have.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// It is not known.
    #[error("the image has no user {name:?} in its /etc/passwd: give a number")]
    NoUser {
        /// As written.
        name: String,
    },
    /// Its group is not known.
    #[error("the image has no group {name:?} in its /etc/group: give a number")]
    NoGroup {
        /// As written.
        name: String,
    },
    /// The image's list cannot be opened.
    #[error("cannot find the image's {path}")]
    Path {
        /// Which list.
        path: &'static str,
        /// Why.
        source: PathError,
    },
    /// The image's list cannot be read.
    #[error("cannot read the image's {path}")]
    Read {
        /// Which list.
        path: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The image's list is too large.
    #[error("the image's {path} is too large")]
    Bound {
        /// Which list.
        path: &'static str,
        /// The bound.
        source: Exceeded,
    },
}

/// Finds the user that an image or a manifest names: `USER` or `USER:GROUP`, each a name or a
/// number. Nothing is root.
///
/// A user without a group gets its own, and those that list it. One that is only a number and that
/// the image does not know has group 0.
pub fn resolve(root: &Path, user: &str, limits: &Limits) -> Result<User, UserError> {
    let tree = Tree::open(root, limits)
        .map_err(|error| UserError::Read { path: PASSWD, source: error.into() })?;
    let (user, group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let passwd = read(&tree, PASSWD, limits)?;
    let known = lines(&passwd).find_map(|fields| Known::parse(&fields, user));
    let uid = match (&known, number(user)) {
        (Some(known), _) => known.uid,
        (None, Some(uid)) => uid,
        (None, None) => return Err(UserError::NoUser { name: user.to_owned() }),
    };
    let groups = read(&tree, GROUP, limits)?;
    let home = known.as_ref().map_or(NO_HOME, |known| known.home).into();
    if let Some(group) = group {
        let gid = lines(&groups).find_map(|fields| group_of(&fields, group)).or(number(group));
        let gid = gid.ok_or_else(|| UserError::NoGroup { name: group.to_owned() })?;
        return Ok(User { uid, gid, groups: Vec::new(), home });
    }
    let Some(known) = known else { return Ok(User { uid, gid: 0, groups: Vec::new(), home }) };
    let mut listed: Vec<u32> =
        lines(&groups).filter_map(|fields| listing(&fields, known.name)).collect();
    listed.sort_unstable();
    listed.dedup();
    within(listed.len() as u64, limits.groups, "groups of one user")
        .map_err(|source| UserError::Bound { path: GROUP, source })?;
    Ok(User { uid, gid: known.gid, groups: listed, home })
}

/// A line of `/etc/passwd`.
struct Known<'p> {
    name: &'p str,
    uid: u32,
    gid: u32,
    home: &'p str,
}

impl<'p> Known<'p> {
    /// Reads `name:password:uid:gid:comment:home:shell`, if it is the user of this name or number.
    fn parse(fields: &[&'p str], wanted: &str) -> Option<Self> {
        let name = fields.first().copied().filter(|name| !name.is_empty())?;
        let uid = number(fields.get(2)?)?;
        let gid = number(fields.get(3)?)?;
        let home = fields.get(5).copied().filter(|home| !home.is_empty()).unwrap_or(NO_HOME);
        let is_wanted = name == wanted || number(wanted) == Some(uid);
        is_wanted.then_some(Self { name, uid, gid, home })
    }
}

/// The number of a group, if it is the one of this name or number: `name:password:gid:members`.
fn group_of(fields: &[&str], wanted: &str) -> Option<u32> {
    let gid = number(fields.get(2)?)?;
    let is_wanted = fields.first() == Some(&wanted) || number(wanted) == Some(gid);
    is_wanted.then_some(gid)
}

/// The number of a group, if this user is listed in it.
fn listing(fields: &[&str], user: &str) -> Option<u32> {
    let gid = number(fields.get(2)?)?;
    fields.get(3)?.split(',').any(|member| member == user).then_some(gid)
}

fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    // The highest number means "as it is" to the kernel.
    text.parse().ok().filter(|number| is_number && *number != u32::MAX)
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.trim().split(':').collect())
}

/// A list of the image; one that is not there is empty.
fn read(tree: &Tree, path: &'static str, limits: &Limits) -> Result<String, UserError> {
    let file = match tree.open_file(path.as_bytes()) {
        Err(PathError::Missing) => return Ok(String::new()),
        other => other.map_err(|source| UserError::Path { path, source })?,
    };
    let mut bytes = Vec::new();
    file.take(limits.user_file_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| UserError::Read { path, source })?;
    within(bytes.len() as u64, limits.user_file_bytes, "bytes")
        .map_err(|source| UserError::Bound { path, source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
