//! Every bound on what an image may be. Images are the work of strangers: whatever is read of them
//! ends at one of these.
//!
//! The constants are what a store uses. A caller may set others in [`Limits`], never none.

/// Bytes of an archive of images, after decompression.
const ARCHIVE_MAX_BYTES: u64 = 64 << 30;
/// Members of an archive of images: documents, layers and directories.
const ARCHIVE_MEMBERS_MAX: u64 = 10_000;
/// Bytes of one index, manifest or configuration.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// Images that an index may list, and manifests that one archive may describe.
const INDEX_ENTRIES_MAX: u64 = 1_000;
/// An index may name an index so many times in a row.
const INDEX_DEPTH_MAX: u64 = 4;
/// Layers of one image; Docker makes at most 127.
const LAYERS_MAX: u64 = 256;
/// Bytes of one layer as it is stored, mostly compressed.
const BLOB_MAX_BYTES: u64 = 16 << 30;
/// Bytes of all layers of one image after decompression, with what their headers take.
const UNPACKED_MAX_BYTES: u64 = 64 << 30;
/// Bytes of one file.
const FILE_MAX_BYTES: u64 = 16 << 30;
/// Entries of all layers of one image, and directories that are made for them.
const ENTRIES_MAX: u64 = 1_000_000;
/// Bytes of all names that one layer makes the importer remember.
const NAMES_MAX_BYTES: u64 = 256 << 20;
/// Bytes of a path or of a link's target: the kernel's own bound.
const PATH_MAX_BYTES: u64 = 4095;
/// Bytes of one part of a path: the kernel's own bound.
const NAME_MAX_BYTES: u64 = 255;
/// Directories above a file, after symbolic links: each costs an open descriptor.
const DEPTH_MAX: u64 = 128;
/// Symbolic links on the way to one file: the kernel's own bound.
const LINKS_FOLLOWED_MAX: u64 = 40;
/// Names on the way to one file, with those of links: else a few links make each entry cost much.
const STEPS_MAX: u64 = 1_000;
/// Bytes of one extended header (PAX, GNU long name); Go's reader has the same bound.
const EXTENSION_MAX_BYTES: u64 = 1 << 20;
/// Extended headers before one entry.
const EXTENSIONS_MAX: u64 = 8;
/// How many times larger decompression may make data, past [`RATIO_FREE_BYTES`]. gzip reaches 1032,
/// and only with data that says nothing.
const RATIO_MAX: u64 = 200;
/// So much may come out of a stream whatever went in: a small layer may have a file of zeros.
const RATIO_FREE_BYTES: u64 = 1 << 30;
/// Bytes of the image's list of users, or of groups.
const USER_FILE_MAX_BYTES: u64 = 1 << 20;
/// Groups that one user may be a member of; the kernel takes 65,536.
const GROUPS_MAX: u64 = 1_024;

/// Bytes that stay free in the file system of the store, unless the share of it is less.
const KEPT_BYTES: u64 = 2 << 30;
/// The share: one part of so many.
const KEPT_DIVISOR: u64 = 4;
/// Files that can still be made in the file system of the store, if a quarter of all is not less.
const KEPT_FILES: u64 = 100_000;

/// What an image may be at most.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of an archive of images, after decompression.
    pub archive_bytes: u64,
    /// Members of an archive of images.
    pub archive_members: u64,
    /// Bytes of one index, manifest or configuration.
    pub document_bytes: u64,
    /// Entries of one index.
    pub index_entries: u64,
    /// Indexes below one another.
    pub index_depth: u64,
    /// Layers of one image.
    pub layers: u64,
    /// Bytes of one layer as it is stored.
    pub blob_bytes: u64,
    /// Bytes of all layers after decompression.
    pub unpacked_bytes: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Entries of all layers.
    pub entries: u64,
    /// Bytes of the names that one layer makes the importer remember.
    pub names_bytes: u64,
    /// Bytes of a path or of a link's target.
    pub path_bytes: u64,
    /// Bytes of one part of a path.
    pub name_bytes: u64,
    /// Directories above a file.
    pub depth: u64,
    /// Symbolic links on the way to a file.
    pub links_followed: u64,
    /// Names on the way to a file.
    pub steps: u64,
    /// Bytes of one extended header.
    pub extension_bytes: u64,
    /// Extended headers before one entry.
    pub extensions: u64,
    /// How many times larger decompression may make data.
    pub ratio: u64,
    /// Decompressed bytes to which the ratio does not apply.
    pub ratio_free_bytes: u64,
    /// Bytes of `/etc/passwd` or `/etc/group`.
    pub user_file_bytes: u64,
    /// Groups of one user.
    pub groups: u64,
    /// Bytes that stay free in the file system of the store, unless the share of it is less.
    pub kept_bytes: u64,
    /// The share: one part of so many.
    pub kept_divisor: u64,
    /// Files that can still be made there, if a quarter of all is not less.
    pub kept_files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            archive_bytes: ARCHIVE_MAX_BYTES,
            archive_members: ARCHIVE_MEMBERS_MAX,
            document_bytes: DOCUMENT_MAX_BYTES,
            index_entries: INDEX_ENTRIES_MAX,
            index_depth: INDEX_DEPTH_MAX,
            layers: LAYERS_MAX,
            blob_bytes: BLOB_MAX_BYTES,
            unpacked_bytes: UNPACKED_MAX_BYTES,
            file_bytes: FILE_MAX_BYTES,
            entries: ENTRIES_MAX,
            names_bytes: NAMES_MAX_BYTES,
            path_bytes: PATH_MAX_BYTES,
            name_bytes: NAME_MAX_BYTES,
            depth: DEPTH_MAX,
            links_followed: LINKS_FOLLOWED_MAX,
            steps: STEPS_MAX,
            extension_bytes: EXTENSION_MAX_BYTES,
            extensions: EXTENSIONS_MAX,
            ratio: RATIO_MAX,
            ratio_free_bytes: RATIO_FREE_BYTES,
            user_file_bytes: USER_FILE_MAX_BYTES,
            groups: GROUPS_MAX,
            kept_bytes: KEPT_BYTES,
            kept_divisor: KEPT_DIVISOR,
            kept_files: KEPT_FILES,
        }
    }
}

/// Something is larger than its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} {what}")]
pub struct Exceeded {
    /// What there is too much of.
    pub what: &'static str,
    /// The bound.
    pub limit: u64,
}

/// Whether a number is within its bound.
pub(crate) fn within(number: u64, limit: u64, what: &'static str) -> Result<(), Exceeded> {
    if number > limit { Err(Exceeded { what, limit }) } else { Ok(()) }
}

/// What is left of a bound that many things share.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    limit: u64,
    what: &'static str,
}

impl Budget {
    pub(crate) fn new(limit: u64, what: &'static str) -> Self {
        Self { left: limit, limit, what }
    }

    pub(crate) fn take(&mut self, number: u64) -> Result<(), Exceeded> {
        let exceeded = Exceeded { what: self.what, limit: self.limit };
        self.left = self.left.checked_sub(number).ok_or(exceeded)?;
        Ok(())
    }

    pub(crate) fn used(&self) -> u64 {
        self.limit - self.left
    }
}
