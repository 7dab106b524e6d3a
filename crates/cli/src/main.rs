//! The `ambit` command: parses the words of the user and calls the crates that do the work.

fn main() {}
