//! Every bound of a build, in one place.
//!
//! A kustomization is somebody else's input. Nothing it says may use memory, files or stack without
//! a limit that is named here.

/// Deepest chain of kustomizations that include one another.
pub(crate) const BASES_DEPTH_MAX: usize = 32;
/// Most kustomizations one build reads; one that is included twice counts twice.
pub(crate) const KUSTOMIZATIONS_MAX: usize = 1_000;
/// Most files one build reads.
pub(crate) const FILES_MAX: usize = 10_000;
/// Longest file that is read.
pub(crate) const FILE_SIZE_MAX_BYTES: u64 = 16 << 20;
/// Most bytes of all files of a build.
pub(crate) const TOTAL_SIZE_MAX_BYTES: u64 = 256 << 20;
/// Most resources of a build.
pub(crate) const RESOURCES_MAX: usize = 20_000;
/// Most YAML documents of one file.
pub(crate) const DOCUMENTS_MAX: usize = 20_000;
/// Most YAML values (scalars, lists and maps together) of one file.
pub(crate) const FILE_NODES_MAX: usize = 2_000_000;
/// Deepest nesting of a YAML file.
pub(crate) const YAML_DEPTH_MAX: usize = 50;
/// Deepest nesting that patches and replacements may make.
pub(crate) const VALUE_DEPTH_MAX: usize = 200;
/// Most values in what one patch or replacement copies.
pub(crate) const COPIED_NODES_MAX: usize = 200_000;
/// Most bytes of text in what one JSON patch copies.
pub(crate) const COPIED_SIZE_MAX_BYTES: usize = 3 << 20;
/// Longest part of a value that a message shows.
pub(crate) const SHOWN_LEN_MAX: usize = 200;
/// Longest text that a replacement may make.
pub(crate) const TEXT_SIZE_MAX_BYTES: usize = 1 << 20;
/// Most parts of a path to a field.
pub(crate) const PATH_PARTS_MAX: usize = 64;
/// Most operations of one JSON patch.
pub(crate) const OPERATIONS_MAX: usize = 10_000;
/// Most memory of one compiled regular expression.
pub(crate) const REGEX_SIZE_MAX_BYTES: usize = 1 << 20;
/// Longest list that a strategic merge puts together; its work grows with the square.
pub(crate) const MERGED_ELEMENTS_MAX: usize = 2_000;
