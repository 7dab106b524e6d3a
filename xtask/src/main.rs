//! The chores of the project: `cargo xtask ci` is CI, `cargo xtask tidy` holds the house style.

fn main() {}
