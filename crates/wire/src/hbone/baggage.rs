//! `baggage`: how a proxy describes its workload to the other end, for telemetry.
//!
//! The form is W3C's: `key=value` pairs, commas between them, values percent-encoded. Unknown keys
//! are ignored. Never a source of identity: that comes from the certificate.

use std::fmt::{self, Write as _};

use ambit_model::Text;
use ambit_model::printable::is_printable;
use ambit_model::workload::{Workload, WorkloadKind};

use super::{HeaderError, bounded};

/// W3C Baggage, section 3.3.2: what every implementation must carry.
const MAX_BAGGAGE_BYTES: usize = 8192;
const HEADER: &str = "baggage";
/// Longest name of an object of Kubernetes (a DNS subdomain); what is longer is cut. What has no
/// bound of its own, such as a cluster's name, gets this one.
const MAX_NAME_BYTES: usize = 253;
/// Longest name of a namespace (a DNS label) and longest value of a label, such as a version.
const MAX_LABEL_BYTES: usize = 63;

/// A peer's description of its workload. Absent and empty are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baggage {
    /// `k8s.cluster.name`
    pub cluster: Option<Text>,
    /// `k8s.namespace.name`
    pub namespace: Option<Text>,
    /// `k8s.<kind>.name`
    pub workload: Option<(WorkloadKind, Text)>,
    /// `service.name`
    pub service_name: Option<Text>,
    /// `service.version`
    pub service_version: Option<Text>,
    /// `cloud.region`
    pub region: Option<Text>,
    /// `cloud.availability_zone`
    pub zone: Option<Text>,
}

impl Baggage {
    /// The description of a workload.
    pub fn of(workload: &Workload) -> Self {
        let said = |text: &Text| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            cluster: said(&workload.cluster_id),
            namespace: said(&workload.namespace),
            workload: said(&workload.workload_name).map(|name| (workload.kind, name)),
            service_name: said(&workload.canonical_name),
            service_version: said(&workload.canonical_revision),
            region: said(&workload.locality.region),
            zone: said(&workload.locality.zone),
        }
    }

    /// Reads the values of all headers of that name; the last value of a key counts.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, HeaderError> {
        let mut baggage = Self::default();
        let mut length = 0;
        for value in values {
            length += value.len();
            bounded(HEADER, length, MAX_BAGGAGE_BYTES)?;
            let malformed = HeaderError::Malformed { header: HEADER, expected: "ASCII text" };
            let text = std::str::from_utf8(value).ok().filter(|text| text.is_ascii());
            for member in text.ok_or(malformed)?.split(',') {
                // What follows a semicolon are properties of the pair; none is in use.
                let pair = member.split(';').next().unwrap_or_default();
                if let Some((key, value)) = pair.split_once('=') {
                    baggage.put(key.trim(), value.trim())?;
                }
            }
        }
        Ok(baggage)
    }

    /// Keeps the pairs that are known, no longer than Kubernetes lets them be. A value that no
    /// terminal should be shown is refused: no name of anything holds such a character.
    fn put(&mut self, key: &str, value: &str) -> Result<(), HeaderError> {
        let (field, max_bytes) = match key {
            "k8s.cluster.name" => (&mut self.cluster, MAX_NAME_BYTES),
            "k8s.namespace.name" => (&mut self.namespace, MAX_LABEL_BYTES),
            // A label, or else the name of what owns the pod.
            "service.name" => (&mut self.service_name, MAX_NAME_BYTES),
            "service.version" => (&mut self.service_version, MAX_LABEL_BYTES),
            // Labels of a node, but free text of a WorkloadEntry.
            "cloud.region" => (&mut self.region, MAX_NAME_BYTES),
            "cloud.availability_zone" => (&mut self.zone, MAX_NAME_BYTES),
            _ => {
                if let Some((kind, _)) = KINDS.iter().find(|(_, name)| *name == key) {
                    let value = told(value, MAX_NAME_BYTES)?;
                    self.workload = value.map(|value| (*kind, value));
                }
                return Ok(());
            }
        };
        *field = told(value, max_bytes)?;
        Ok(())
    }
}

/// A value as it is kept.
fn told(value: &str, max_bytes: usize) -> Result<Option<Text>, HeaderError> {
    let Some(value) = decode(value) else { return Ok(None) };
    if !value.chars().all(is_printable) {
        let expected = "names without control, invisible or direction characters";
        return Err(HeaderError::Malformed { header: HEADER, expected });
    }
    if value.len() <= max_bytes {
        return Ok(Some(value));
    }
    Ok(Some(value[..value.floor_char_boundary(max_bytes)].into()))
}

/// The key that names a workload shows its kind.
const KINDS: [(WorkloadKind, &str); 4] = [
    (WorkloadKind::Deployment, "k8s.deployment.name"),
    (WorkloadKind::CronJob, "k8s.cronjob.name"),
    (WorkloadKind::Pod, "k8s.pod.name"),
    (WorkloadKind::Job, "k8s.job.name"),
];

fn kind_key(kind: WorkloadKind) -> &'static str {
    match kind {
        WorkloadKind::Deployment => KINDS[0].1,
        WorkloadKind::CronJob => KINDS[1].1,
        WorkloadKind::Pod => KINDS[2].1,
        WorkloadKind::Job => KINDS[3].1,
    }
}

impl fmt::Display for Baggage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workload = self.workload.as_ref();
        let pairs = [
            ("k8s.cluster.name", self.cluster.as_ref()),
            ("k8s.namespace.name", self.namespace.as_ref()),
            (workload.map_or("", |it| kind_key(it.0)), workload.map(|it| &it.1)),
            ("service.name", self.service_name.as_ref()),
            ("service.version", self.service_version.as_ref()),
            ("cloud.region", self.region.as_ref()),
            ("cloud.availability_zone", self.zone.as_ref()),
        ];
        let mut separator = "";
        for (key, value) in pairs {
            if let Some(value) = value {
                write!(f, "{separator}{key}=")?;
                encode(value, f)?;
                separator = ",";
            }
        }
        Ok(())
    }
}

/// Percent-encodes what is no baggage-octet, and the percent sign itself.
fn encode(value: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in value.bytes() {
        if byte.is_ascii_graphic() && !b"\",;\\%".contains(&byte) {
            f.write_char(char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

/// Undoes percent-encoding; a badly encoded sequence stays unchanged.
fn decode(value: &str) -> Option<Text> {
    if value.is_empty() {
        return None;
    }
    if !value.contains('%') {
        return Some(value.into());
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, left)) = rest.split_first() {
        let hex = |at: usize| left.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hex digits are one byte"));
                rest = &left[2..];
            }
            _ => {
                bytes.push(*first);
                rest = left;
            }
        }
    }
    Some(String::from_utf8_lossy(&bytes).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ambit_model::workload::Locality;

    fn parse(text: &str) -> Baggage {
        Baggage::parse([text.as_bytes()]).unwrap()
    }

    #[test]
    fn a_workload_describes_itself_in_istios_order() {
        let mut workload = Workload::named("Kubernetes//Pod/books/details-1", "books", "details-1");
        workload.cluster_id = "Kubernetes".into();
        workload.workload_name = "details".into();
        workload.kind = WorkloadKind::Deployment;
        workload.canonical_name = "details".into();
        workload.canonical_revision = "v1".into();
        let (region, zone) = ("r".into(), "z".into());
        workload.locality = Locality { region, zone, subzone: "".into() }.into();
        let text = "k8s.cluster.name=Kubernetes,k8s.namespace.name=books,\
            k8s.deployment.name=details,service.name=details,service.version=v1,\
            cloud.region=r,cloud.availability_zone=z";
        let baggage = Baggage::of(&workload);
        assert_eq!(baggage.to_string(), text);
        assert_eq!(parse(text), baggage);
    }

    #[test]
    fn oddities_are_tolerated() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse(text).service_name.as_deref(), expected, "{text}");
        };
        check("service.name=a", Some("a"));
        check("service.name=", None);
        check("unknown=1, service.name = a ;prop=1", Some("a"));
        check("service.name=a,service.name=b", Some("b"));
        check("service.name=a%2Cb", Some("a,b"));
        check("service.name=a%2", Some("a%2"));
        check("service.name=a%%41", Some("a%A"));
        check("service.name", None);
        check(",,=,=a", None);
        let two = Baggage::parse([&b"service.name=a"[..], b"cloud.region=r"]).unwrap();
        assert_eq!((two.service_name.as_deref(), two.region.as_deref()), (Some("a"), Some("r")));
    }

    #[test]
    fn values_are_as_long_as_kubernetes_lets_them_be() {
        let long = "x".repeat(1000);
        let told = parse(&format!(
            "k8s.cluster.name={long},k8s.namespace.name={long},k8s.pod.name={long},\
             service.name={long},service.version={long},cloud.region={long}"
        ));
        let length = |text: &Option<Text>| text.as_ref().map_or(0, |text| text.len());
        let names = [&told.cluster, &told.service_name, &told.region].map(length);
        assert_eq!(names, [MAX_NAME_BYTES; 3]);
        assert_eq!(told.workload.map(|(_, name)| name.len()), Some(MAX_NAME_BYTES));
        assert_eq!([&told.namespace, &told.service_version].map(length), [MAX_LABEL_BYTES; 2]);
        let odd = parse(&format!("service.version={}", "%C3%A9".repeat(63)));
        assert_eq!(odd.service_version, Some("é".repeat(31).into()), "no half character");
    }

    #[test]
    fn characters_that_deceive_a_terminal_are_refused() {
        for character in ["%1B", "%07", "%C2%9B", "%E2%80%AE", "%0A", "%7F"] {
            for key in ["service.name", "k8s.pod.name", "k8s.cluster.name", "cloud.region"] {
                let text = format!("{key}=a{character}b");
                assert!(Baggage::parse([text.as_bytes()]).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn oversize_and_binary_are_refused() {
        let long = "a=b,".repeat(3000);
        let error = Baggage::parse([long.as_bytes()]).unwrap_err();
        let expected = "header baggage has 12000 bytes; at most 8192 are accepted";
        assert_eq!(error.to_string(), expected);
        assert!(Baggage::parse([&b"service.name=\xff"[..]]).is_err());
    }

    proptest! {
        #[test]
        fn any_printable_text_survives(
            name in "\\PC{1,40}".prop_filter("printable", |it| it.chars().all(is_printable)),
            kind in 0..4_usize,
        ) {
            let baggage = Baggage {
                workload: Some((KINDS[kind].0, name.as_str().into())),
                zone: Some(name.into()),
                ..Default::default()
            };
            let text = baggage.to_string();
            prop_assert!(text.is_ascii());
            prop_assert_eq!(parse(&text), baggage);
        }

        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let _ = Baggage::parse([bytes.as_slice()]);
        }
    }
}
