//! How a command reads its arguments, and how it writes to a terminal that may be gone.

use std::ffi::OsString;
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

/// Standard output is a file on a full disk, most likely.
const UNPRINTABLE: &str =
    "the result cannot be printed; make room where it goes to, or name a file with --save";

/// Prints a result. A reader that closes the pipe, as `head` does, is not an error.
pub fn print(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context(UNPRINTABLE),
    }
}

/// Prints a line for the user. A failed write is no reason to stop half way: the terminal or the
/// reader of a pipe may be gone, and `eprintln` would panic before started work is ended.
pub fn tell(line: fmt::Arguments<'_>) {
    let _unheard = writeln!(std::io::stderr(), "{line}");
}

/// The words of a hidden command; the exit status when they are wrong or ask for help.
pub fn arguments<A: Parser>(name: &str, words: &[OsString]) -> Result<Result<A, ExitCode>> {
    let name = OsString::from(name);
    match A::try_parse_from(std::iter::once(&name).chain(words)) {
        Ok(arguments) => Ok(Ok(arguments)),
        Err(error) => {
            error.print().context("print the usage")?;
            Ok(Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for a child of its own.
    const CHILD: &str = "AMBIT_TEST_TELLS";

    #[test]
    fn telling_nobody_is_no_end() {
        if std::env::var_os(CHILD).is_some() {
            tell(format_args!("nobody reads this"));
            return;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let own = std::env::current_exe().unwrap();
        let words = ["terminal::tests::telling_nobody_is_no_end", "--exact", "--nocapture"];
        let child = Command::new(own)
            .args(words)
            .env(CHILD, "")
            .stderr(writer)
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
}
