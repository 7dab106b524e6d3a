//! What a demonstration found, as data and as text for a person.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use ambit_load::Report;
use serde::Serialize;

use crate::handshake::Answer;

/// Everything that was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DemoReport {
    /// Nodes, pods and identities.
    pub inventory: Inventory,
    /// With the mesh off.
    pub off: Mode,
    /// With the mesh on.
    pub on: Mode,
    /// From the label to the last captured pod.
    pub enrolled_ms: u64,
    /// Certificates that were tried.
    pub certificates: Vec<CertificateProof>,
    /// Policies that were tried.
    pub policies: Vec<PolicyProof>,
    /// The same pod with two service accounts.
    pub flip: Flip,
    /// A client outside the mesh.
    pub strict: Strict,
    /// What is left of the machine; empty if nothing.
    pub left_behind: Vec<String>,
    /// Where captures and logs are.
    pub keep: PathBuf,
    /// How long everything took.
    pub seconds: f64,
}

/// What was there.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Inventory {
    pub nodes: Vec<String>,
    pub pods: Vec<Pod>,
    pub identities: Vec<String>,
}

/// One pod.
#[derive(Clone, Debug, Serialize)]
pub struct Pod {
    pub name: String,
    pub node: String,
    pub address: String,
    pub captured: bool,
}

/// Load and wire in one mode.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Mode {
    pub load: Report,
    /// An application that writes head and body of its answer separately.
    pub two_writes: Report,
    pub wire: Wire,
}

/// What a listener between the nodes saw.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Wire {
    pub file: PathBuf,
    pub frames: u64,
    /// Frames that are not in the file; evidence needs 0.
    pub frames_missing: u64,
    pub marker_seen: usize,
    pub bytes_between_pods_by_port: BTreeMap<u16, u64>,
    pub tls_bytes: u64,
    pub other_bytes_on_tls_port: u64,
    pub alpn: Vec<String>,
    /// What the application received, which is less than what crossed the wire.
    pub application_bytes: u64,
}

/// One certificate that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateProof {
    pub answer: Answer,
    pub holds: bool,
}

/// One connection that was tried.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Attempt {
    pub from: String,
    pub identity: String,
    pub to: String,
    pub connected: bool,
    /// What the client saw when not.
    pub seen: String,
    /// The policy that allows it.
    pub decided_by: String,
    /// As `ambit why` says it.
    pub reason: String,
}

/// One policy that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyProof {
    pub policy: String,
    pub allowed: Attempt,
    pub denied: Attempt,
    pub holds: bool,
}

/// The same pod with two service accounts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Flip {
    pub with_vegeta: Attempt,
    pub with_other: Attempt,
    pub holds: bool,
}

/// A client outside the mesh.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Strict {
    pub before: Attempt,
    pub under_strict: Attempt,
    /// A client of the mesh, at the same time.
    pub meshed: Attempt,
    pub holds: bool,
}

impl DemoReport {
    /// Every claim by name, and whether it holds.
    pub fn claims(&self) -> Vec<(&'static str, bool)> {
        let (off, on) = (&self.off.wire, &self.on.wire);
        let ports: Vec<u16> = on.bytes_between_pods_by_port.keys().copied().collect();
        vec![
            (
                "no frame is missing from either capture",
                off.frames_missing + on.frames_missing == 0,
            ),
            ("with the mesh off the marker is on the wire", off.marker_seen > 0),
            ("with the mesh on the marker never occurs", on.marker_seen == 0),
            ("between pods there is port 15008 alone", ports == [ambit_words::ports::HBONE]),
            (
                "every byte there is TLS, and at least as many as the application received",
                on.other_bytes_on_tls_port == 0 && on.tls_bytes >= on.application_bytes,
            ),
            ("the ALPN protocol is h2 alone", on.alpn == ["h2"]),
            ("no request failed, off and on", self.off.load.failed + self.on.load.failed == 0),
            ("requests were made", self.off.load.requests > 0 && self.on.load.requests > 0),
            ("certificates are judged rightly", all(&self.certificates, |proof| proof.holds)),
            ("each policy allows and denies", all(&self.policies, |proof| proof.holds)),
            ("the service account alone flips the verdict", self.flip.holds),
            ("STRICT refuses who is not in the mesh", self.strict.holds),
            ("nothing is left behind", self.left_behind.is_empty()),
        ]
    }

    /// Whether every claim holds.
    pub fn holds(&self) -> bool {
        self.claims().iter().all(|(_, holds)| *holds)
    }
}

/// Whether there are some and all of them pass.
fn all<T>(items: &[T], passes: impl Fn(&T) -> bool) -> bool {
    !items.is_empty() && items.iter().all(passes)
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inventory { nodes, pods, identities } = &self.inventory;
        let captured = pods.iter().filter(|pod| pod.captured).count();
        writeln!(f, "nodes        {}", nodes.join(", "))?;
        writeln!(f, "pods         {}, {captured} captured in {} ms", pods.len(), self.enrolled_ms)?;
        for pod in pods {
            let mesh = if pod.captured { "in the mesh" } else { "outside" };
            writeln!(f, "  {:<44} {:<8} {:<15} {mesh}", pod.name, pod.node, pod.address)?;
        }
        writeln!(f, "identities   {}", identities.len())?;
        for identity in identities {
            writeln!(f, "  {identity}")?;
        }
        self.write_load(f)?;
        self.write_wire(f)?;
        self.write_certificates(f)?;
        self.write_policies(f)?;
        writeln!(f, "\nclaims")?;
        for (claim, holds) in self.claims() {
            writeln!(f, "  {}  {claim}", if holds { "holds" } else { "FAILS" })?;
        }
        for left in &self.left_behind {
            writeln!(f, "  left behind: {left}")?;
        }
        writeln!(f, "\n{:.1} s; captures and logs: {}", self.seconds, self.keep.display())
    }
}

impl DemoReport {
    fn write_load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nlatency      requests  failed  p50 ms  p90 ms  p99 ms")?;
        for (name, mode) in [("mesh off", &self.off), ("mesh on", &self.on)] {
            let (load, latency) = (&mode.load, &mode.load.latency);
            let ms = |us: f64| us / 1e3;
            let (p50, p90, p99) = (ms(latency.p50_us), ms(latency.p90_us), ms(latency.p99_us));
            write!(f, "  {name:<10} {:>8}  {:>6}  ", load.requests, load.failed)?;
            writeln!(f, "{p50:>6.2}  {p90:>6.2}  {p99:>6.2}")?;
        }
        writeln!(
            f,
            "reads per response of an application that writes head and body separately: \
             {:.2} off, {:.2} on",
            self.off.two_writes.reads_per_response, self.on.two_writes.reads_per_response
        )
    }

    fn write_wire(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, mode) in [("mesh off", &self.off), ("mesh on", &self.on)] {
            let wire = &mode.wire;
            writeln!(f, "\nwire, {name}: {} frames in {}", wire.frames, wire.file.display())?;
            writeln!(f, "  marker seen {} times", wire.marker_seen)?;
            for (port, bytes) in &wire.bytes_between_pods_by_port {
                writeln!(f, "  {bytes:>10} bytes between pods on port {port}")?;
            }
            writeln!(
                f,
                "  {:>10} bytes of them TLS, {} not, ALPN {:?}; the application received {}",
                wire.tls_bytes, wire.other_bytes_on_tls_port, wire.alpn, wire.application_bytes
            )?;
        }
        Ok(())
    }

    fn write_certificates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ncertificates shown to a pod of the mesh")?;
        for CertificateProof { answer, .. } in &self.certificates {
            let verdict = if answer.let_in { "let in" } else { "refused" };
            writeln!(f, "  {verdict:<8} {}", answer.name)?;
            if !answer.let_in {
                writeln!(f, "           {}", answer.reason)?;
            }
        }
        Ok(())
    }

    fn write_policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\npolicies")?;
        for proof in &self.policies {
            writeln!(f, "  {}", proof.policy)?;
            for attempt in [&proof.allowed, &proof.denied] {
                write_attempt(f, attempt)?;
            }
        }
        writeln!(f, "  the same pod, another service account")?;
        write_attempt(f, &self.flip.with_vegeta)?;
        write_attempt(f, &self.flip.with_other)?;
        writeln!(f, "  a client outside the mesh, before STRICT and under it")?;
        write_attempt(f, &self.strict.before)?;
        write_attempt(f, &self.strict.under_strict)
    }
}

fn write_attempt(f: &mut fmt::Formatter<'_>, attempt: &Attempt) -> fmt::Result {
    let verdict = if attempt.connected { "allowed" } else { "denied" };
    writeln!(f, "    {verdict:<8} {} -> {}", attempt.from, attempt.to)?;
    writeln!(f, "             {}: {}", attempt.identity, attempt.reason)
}
