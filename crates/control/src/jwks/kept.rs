//! The keys that were fetched, on disk: an issuer may be away when control starts.
//!
//! They are public. A file that cannot be read is as good as none.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ambit_manifest::policy::KeySource;
use ambit_tls::key_set::KeySet;
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError, PRIVATE};
use crate::registry::IssuerKeys;

/// How old keys may be that are used because their issuer is away.
pub(super) const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    keys: String,
    /// Seconds since 1970.
    fetched: u64,
}

/// Reads what is good still.
pub(super) fn read(path: &Path, now: u64) -> BTreeMap<KeySource, IssuerKeys> {
    let Ok(Some(json)) = durable::read(path) else { return BTreeMap::new() };
    let Ok(entries) = serde_json::from_slice::<Vec<Entry>>(&json) else {
        tracing::warn!(?path, "the kept keys of token issuers cannot be read; fetching them again");
        return BTreeMap::new();
    };
    let read = entries.into_iter().filter_map(|entry| {
        let source = match (entry.uri, entry.issuer) {
            (Some(uri), None) => KeySource::Uri(uri.as_str().into()),
            (None, Some(issuer)) => KeySource::Issuer(issuer.as_str().into()),
            _ => return None,
        };
        let is_young = now.saturating_sub(entry.fetched) <= AGE_MAX.as_secs();
        (is_young && KeySet::from_json(&entry.keys).is_ok()).then(|| {
            let keys = Some(entry.keys.as_str().into());
            (source, IssuerKeys { keys, fetched: Some(entry.fetched), problem: None })
        })
    });
    read.collect()
}

/// Writes what is known.
pub(super) fn write(path: &Path, known: &BTreeMap<KeySource, IssuerKeys>) -> Result<(), FileError> {
    let entry = |(source, state): (&KeySource, &IssuerKeys)| {
        let (uri, issuer) = match source {
            KeySource::Uri(uri) => (Some(uri.to_string()), None),
            KeySource::Issuer(issuer) => (None, Some(issuer.to_string())),
        };
        let keys = state.keys.as_ref()?.to_string();
        Some(Entry { uri, issuer, keys, fetched: state.fetched? })
    };
    let entries: Vec<Entry> = known.iter().filter_map(entry).collect();
    let json = serde_json::to_vec(&entries).expect("texts and numbers are JSON");
    durable::replace(path, &json, PRIVATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_a_start_for_a_week() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.json");
        assert!(read(&path, 0).is_empty(), "there is no file");
        let keys = r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
            "x":"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo"}]}"#;
        let state = |keys: Option<&str>| IssuerKeys {
            keys: keys.map(Into::into),
            fetched: keys.map(|_| 1000),
            problem: None,
        };
        let known = BTreeMap::from([
            (KeySource::Uri("https://a/keys".into()), state(Some(keys))),
            (KeySource::Issuer("https://b".into()), state(Some(keys))),
            (KeySource::Issuer("https://c".into()), state(None)),
            (KeySource::Issuer("https://d".into()), state(Some("no keys"))),
        ]);
        write(&path, &known).expect("it is written");
        let week = AGE_MAX.as_secs();
        let read_then: Vec<_> = read(&path, 1000 + week).into_keys().collect();
        assert_eq!(
            read_then,
            [KeySource::Uri("https://a/keys".into()), KeySource::Issuer("https://b".into())]
        );
        assert!(read(&path, 1001 + week).is_empty());
        std::fs::write(&path, "{").expect("it is written");
        assert!(read(&path, 1000).is_empty());
    }
}
