//! The binary under another name: `vegeta` and `fortio`, with the flags that manifests use.
//!
//! Flags are Go's. An unsupported flag that would change the measurement is refused, never silently
//! ignored.

mod fortio;
mod go_flags;
mod vegeta;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// A program that this binary can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shim {
    /// github.com/tsenart/vegeta
    Vegeta,
    /// fortio.org/fortio
    Fortio,
}

impl Shim {
    /// The program with this name, or at this path.
    pub(crate) fn named(name: &std::ffi::OsStr) -> Option<Self> {
        match Path::new(name).file_name()?.to_str()? {
            "vegeta" => Some(Self::Vegeta),
            "fortio" => Some(Self::Fortio),
            _ => None,
        }
    }

    /// Runs it.
    pub(crate) fn run(self, words: &[OsString]) -> Result<ExitCode> {
        let texts = words.iter().map(|word| word.to_str().context("a word is not UTF-8"));
        let words: Vec<&str> = texts.collect::<Result<_>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match self {
                Self::Vegeta => vegeta::run(&words).await,
                Self::Fortio => fortio::run(&words).await,
            }
        })
    }
}
