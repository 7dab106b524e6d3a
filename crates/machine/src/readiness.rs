//! Whether a program works: checked from outside, through what it serves.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::timeout;

/// How long a program may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// As much of an answer as its status needs.
const STATUS_SIZE_BYTES: usize = 12;
/// As much of it is quoted.
const BODY_SIZE_MAX_BYTES: u64 = 4096;

/// How to ask.
#[derive(Clone, Debug)]
pub enum Check {
    /// A unix socket takes connections.
    Socket(PathBuf),
    /// A TCP port takes connections.
    Connect(SocketAddr),
    /// An HTTP path answers 200.
    Get {
        /// Where.
        address: SocketAddr,
        /// What.
        path: &'static str,
    },
}

impl Check {
    /// Asks once. The answer, if it is no, is the reason.
    pub async fn ask(&self, netns: &NetNs) -> Result<(), String> {
        match timeout(ANSWER_TIMEOUT, self.attempt(netns)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("{}: {error}", self.what())),
            Err(_elapsed) => Err(format!("{}: no answer", self.what())),
        }
    }

    fn what(&self) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Connect(address) => address.to_string(),
            Self::Get { address, path } => format!("http://{address}{path}"),
        }
    }

    async fn attempt(&self, netns: &NetNs) -> io::Result<()> {
        match self {
            Self::Socket(path) => UnixStream::connect(path).await.map(drop),
            Self::Connect(address) => connect(*address, netns).await.map(drop),
            Self::Get { address, path } => {
                let mut stream = connect(*address, netns).await?;
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await?;
                let mut answer = [0; STATUS_SIZE_BYTES];
                stream.read_exact(&mut answer).await?;
                if answer.ends_with(b" 200") {
                    return Ok(());
                }
                // What it says is the reason.
                let mut rest = Vec::new();
                (&mut stream).take(BODY_SIZE_MAX_BYTES).read_to_end(&mut rest).await?;
                let rest = String::from_utf8_lossy(&rest).into_owned();
                let body = rest.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
                let status = String::from_utf8_lossy(&answer[9..]).into_owned();
                let body = body.replace('\n', "; ");
                Err(io::Error::other(format!("answers {status}: {body}").trim_end_matches(": ")))
            }
        }
    }
}

/// Connects from inside a namespace: a socket belongs to where it was made, not to where it is
/// used.
async fn connect(address: SocketAddr, netns: &NetNs) -> io::Result<TcpStream> {
    let socket = netns.run(TcpSocket::new_v4)??;
    socket.connect(address).await
}
