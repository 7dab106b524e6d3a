//! `ambit lab-handshake`: knocks at a workload's HBONE port with given credentials.
//!
//! The demonstration runs it in a pod outside the mesh, with certificates made to be refused, and
//! one that must be let in as the control. It reads [`Knock`]s as JSON from its standard input and
//! prints an [`Answer`] for each. It sends no request: whether the server speaks is the answer.

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::identity::Identity;
use ambit_tls::probe::connect_without_certificate;
use ambit_tls::{ClientStream, Connector, HandshakeError, RevocationList, WorkloadCertificate};
use ambit_words::error_chain;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// How long a knock may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One attempt to be let in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Knock {
    /// What is tried, for the reader.
    pub name: String,
    /// The HBONE address of a workload.
    pub target: SocketAddr,
    /// The mesh's roots.
    pub roots_pem: String,
    /// A certificate and key as the tls crate hands them over; empty for none.
    pub credentials: Vec<u8>,
    /// The identity the server must prove, as a SPIFFE ID.
    pub expected: String,
}

/// What came of a knock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What was tried.
    pub name: String,
    /// Whether the server spoke HTTP/2 to the client.
    pub let_in: bool,
    /// Why not.
    pub reason: String,
}

/// Runs the hidden subcommand.
pub(crate) fn run(_words: &[OsString]) -> Result<ExitCode> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("read the knocks")?;
    let knocks: Vec<Knock> = serde_json::from_str(&text).context("read the knocks")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(async {
        let mut answers = Vec::new();
        for knock in &knocks {
            let outcome = tokio::time::timeout(PATIENCE, attempt(knock)).await;
            let outcome = outcome.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let reason = outcome.as_ref().err().cloned().unwrap_or_default();
            answers.push(Answer { name: knock.name.clone(), let_in: outcome.is_ok(), reason });
        }
        answers
    });
    println!("{}", serde_json::to_string(&answers)?);
    Ok(ExitCode::SUCCESS)
}

async fn attempt(knock: &Knock) -> Result<(), String> {
    let tcp =
        TcpStream::connect(knock.target).await.map_err(|error| format!("connect: {error}"))?;
    let mut stream = secure(knock, tcp).await?;
    // TLS 1.3: the server judges the client after the client is done, so the first read tells.
    let mut first = [0; 1];
    match stream.read(&mut first).await {
        Ok(1) => Ok(()),
        Ok(_) => Err("closed by the server".to_owned()),
        Err(error) => Err(match HandshakeError::from_io(&error) {
            Some(refusal) => refusal.to_string(),
            None => error.to_string(),
        }),
    }
}

async fn secure(knock: &Knock, tcp: TcpStream) -> Result<ClientStream<TcpStream>, String> {
    if knock.credentials.is_empty() {
        let stream = connect_without_certificate(&knock.roots_pem, tcp).await;
        return stream.map_err(|error| error_chain(&error));
    }
    let certificate =
        WorkloadCertificate::from_bytes(&knock.credentials).map_err(|error| error_chain(&error))?;
    let expected: Identity = knock.expected.parse().map_err(|error| error_chain(&error))?;
    let connector = Connector::new(certificate, Arc::new(RevocationList::none()));
    let connected = connector.connect(tcp, &[expected]).await;
    connected.map(|(stream, _)| stream).map_err(|error| error_chain(&error))
}
