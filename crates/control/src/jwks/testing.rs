//! An issuer on loopback for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::ca::CertificateAuthority;

/// An authority in a directory of its own.
pub(super) fn authority(directory: &Path) -> Arc<CertificateAuthority> {
    let now = std::time::SystemTime::now();
    let opened = CertificateAuthority::open(directory, None, "cluster.local", now);
    Arc::new(opened.expect("an authority"))
}

/// A key set that can be read.
pub(super) const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x5c":["left out"],
    "x":"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo"}]}"#;
/// Its canonical form.
pub(super) const CANONICAL: &str = "{\"keys\":[{\"crv\":\"Ed25519\",\"kid\":\"1\",\
    \"kty\":\"OKP\",\"x\":\"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo\"}]}";

/// Answers by path with whole responses, which a test may change; anything else is 404.
pub(super) struct Issuer {
    pub(super) address: SocketAddr,
    pub(super) answers: Arc<Mutex<BTreeMap<String, String>>>,
    pub(super) asked: Arc<Mutex<Vec<String>>>,
}

impl Issuer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answers: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (known, heard) = (answers.clone(), asked.clone());
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let (known, heard) = (known.clone(), heard.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            // A TLS handshake, which is not spoken here.
                            Ok(0x16) | Err(_) => return,
                            Ok(byte) => head.push(byte),
                        }
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    heard.lock().expect("no test panics with it").push(head);
                    let answer = known.lock().expect("no test panics with it").get(&path).cloned();
                    let answer = answer.unwrap_or_else(|| response("404 Not Found", ""));
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { address, answers, asked }
    }

    pub(super) fn answer(&self, path: &str, answer: String) {
        self.answers.lock().expect("no test panics with it").insert(path.to_owned(), answer);
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// A whole response.
pub(super) fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}
