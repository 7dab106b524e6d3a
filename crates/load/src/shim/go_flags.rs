//! Command lines as Go's `flag` package reads them: `-name value`, `--name=value`, `-name` for
//! booleans; the first argument that is not a flag ends them.

use anyhow::{Context, Result, bail};

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// A value.
    Value,
    /// Nothing, or `=true` or `=false`.
    Switch,
}

/// A command line that was read.
#[derive(Debug)]
pub(super) struct Flags<'a> {
    given: Vec<(&'static str, &'a str)>,
    /// The arguments that are not flags.
    pub(super) rest: Vec<&'a str>,
}

impl<'a> Flags<'a> {
    /// Reads the words of a program that knows these flags.
    pub(super) fn read(known: &[(&'static str, Takes)], words: &[&'a str]) -> Result<Self> {
        let mut given = Vec::new();
        let mut words = words.iter().copied();
        let mut rest = Vec::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let Some(flag) = name.filter(|_| word != "-") else {
                rest.push(word);
                break;
            };
            if flag.is_empty() {
                break;
            }
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let found = known.iter().find(|(known, _)| *known == name);
            let Some((name, takes)) = found else {
                let offered = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", -");
                bail!("the flag -{name} is not offered; these are: -{offered}");
            };
            let value = match (takes, value) {
                (_, Some(value)) => value,
                (Takes::Switch, None) => "true",
                (Takes::Value, None) => {
                    words.next().with_context(|| format!("the flag -{name} needs a value"))?
                }
            };
            given.push((*name, value));
        }
        rest.extend(words);
        Ok(Self { given, rest })
    }

    /// The values of a flag that may be repeated.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.given.iter().filter(move |(given, _)| *given == name).map(|(_, value)| *value)
    }

    /// The value of a flag; the last one counts.
    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        self.all(name).last()
    }

    /// The value of a flag, read.
    pub(super) fn parsed<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        match self.value(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| anyhow::anyhow!("-{name} {text:?} is not what this flag takes")),
        }
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str, default: bool) -> Result<bool> {
        match self.value(name) {
            None => Ok(default),
            Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
            Some(text) => bail!("-{name}={text}: write -{name}=true or -{name}=false"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [(&str, Takes); 3] =
        [("rate", Takes::Value), ("keepalive", Takes::Switch), ("H", Takes::Value)];

    #[test]
    fn flags_are_read_as_go_does() {
        let words = ["-rate", "5/1s", "--keepalive=false", "-H", "A: b", "-H=C: d", "url", "-rate"];
        let flags = Flags::read(&KNOWN, &words).unwrap();
        assert_eq!(flags.value("rate"), Some("5/1s"));
        assert!(!flags.is_on("keepalive", true).unwrap());
        assert_eq!(flags.all("H").collect::<Vec<_>>(), ["A: b", "C: d"]);
        assert_eq!(flags.rest, ["url", "-rate"]);
        assert!(Flags::read(&KNOWN, &["-keepalive"]).unwrap().is_on("keepalive", false).unwrap());
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        for (words, part) in [
            (&["-lazy"][..], "the flag -lazy is not offered; these are: -rate, -keepalive, -H"),
            (&["-rate"], "needs a value"),
        ] {
            let error = Flags::read(&KNOWN, words).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let flags = Flags::read(&KNOWN, &["-keepalive=maybe", "-rate", "x"]).unwrap();
        assert!(flags.is_on("keepalive", true).is_err() && flags.parsed("rate", 1u8).is_err());
    }
}
