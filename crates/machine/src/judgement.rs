//! What a machine makes of manifests before it takes them: the same for `ambit apply`, and for who
//! writes through the Kubernetes API.
//!
//! It only judges; that nothing which is refused here is stored is the caller's duty.

use ambit_manifest::{Errors, Finding, Manifests, Typed};

use crate::import::ImageArguments;
use crate::objects::refused_fields;
use crate::unknown_images::unknown_images;

/// What manifests mean beside the objects that are there: the surprises, also if there are errors,
/// and the errors. These are references to nothing, fields that a machine refuses, and images that
/// mean nothing.
pub fn judge(
    manifests: &Manifests,
    existing: &[Typed],
    images: &ImageArguments,
) -> (Vec<Finding>, Vec<Finding>) {
    let (surprises, mut errors) = match manifests.check(existing) {
        Ok(surprises) => (surprises, Vec::new()),
        Err(Errors(errors)) => (Vec::new(), errors),
    };
    errors.extend(refused_fields(manifests));
    errors.extend(unknown_images(manifests, Some(&images.commands), &images.sources));
    (surprises, errors)
}
