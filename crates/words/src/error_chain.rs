//! An error with all that caused it, in one line.
//!
//! An error of the workspace never repeats its source. To show one, show its sources too.

use std::error::Error;

/// Writes `error: cause: cause`.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_named_once() {
        let check = |error: &dyn Error, expected: &str| assert_eq!(error_chain(error), expected);
        check(&std::fmt::Error, &std::fmt::Error.to_string());
        check(
            &Outer(std::io::Error::other(Outer(std::io::Error::other("inner")))),
            "outer: outer: inner",
        );
    }

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.get_ref().map(|it| it as &(dyn Error + 'static))
        }
    }
}
