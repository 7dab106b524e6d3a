//! What a user carries from one machine to the other: where home is, what proves it, and a secret.
//!
//! One line of base64url, so that no shell and no mail changes it. Who has it can join once, until
//! it ends: it is shown by the command that makes it and by nothing else.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::addresses::NodeNetwork;

/// The version of the form.
const VERSION: u32 = 1;
/// Longest text that is read as a token.
const SIZE_MAX_BYTES: usize = 16 << 10;

/// A token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinToken {
    version: u32,
    /// The node that the joined machine will be.
    pub node: String,
    /// Whether home carries the mesh.
    pub mesh: bool,
    /// Where home listens.
    pub address: SocketAddr,
    /// The certificate of the authority that vouches for home, in PEM.
    pub(crate) root: String,
    /// What proves the joined machine, once.
    pub(crate) secret: String,
}

/// A text that is no token.
#[derive(Debug, thiserror::Error)]
#[error("the token {what}; copy the whole line that `ambit token create` printed")]
pub struct JoinTokenError {
    what: &'static str,
}

impl JoinTokenError {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what }
    }
}

impl JoinToken {
    pub(crate) fn new(
        node: NodeNetwork,
        mesh: bool,
        address: SocketAddr,
        root: String,
        secret: String,
    ) -> Self {
        Self { version: VERSION, node: node.name(), mesh, address, root, secret }
    }

    /// The line for the user. It holds the secret.
    pub fn to_line(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token can be written as JSON"))
    }

    /// The networks of the node.
    pub(crate) fn network(&self) -> NodeNetwork {
        NodeNetwork::of_name(&self.node).expect("it was looked at when the token was read")
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, address, .. } = self;
        f.debug_struct("JoinToken")
            .field("node", node)
            .field("address", address)
            .finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    fn from_str(line: &str) -> Result<Self, JoinTokenError> {
        let wrong = JoinTokenError::new;
        let line = line.trim();
        if line.len() > SIZE_MAX_BYTES {
            return Err(wrong("is too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(line).map_err(|_| wrong("is not base64url"))?;
        let version = |value: &serde_json::Value| value["version"].as_u64();
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|_| wrong("is cut off or changed"))?;
        if version(&value) != Some(u64::from(VERSION)) {
            return Err(wrong("is of another version of ambit"));
        }
        let token: Self =
            serde_json::from_value(value).map_err(|_| wrong("lacks something or has too much"))?;
        if NodeNetwork::of_name(&token.node).is_none() {
            return Err(wrong("names no node"));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        let address = "192.0.2.1:7443".parse().expect("an address");
        JoinToken::new(NodeNetwork::new(3), true, address, "root".to_owned(), "secret".to_owned())
    }

    #[test]
    fn a_token_is_one_line() {
        let line = token().to_line();
        assert!(line.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_".contains(&it)));
        assert_eq!(line.parse::<JoinToken>().expect("it is one"), token());
        assert_eq!(format!(" {line}\n").parse::<JoinToken>().expect("it is one"), token());
        let shown = format!("{:?}", token());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let check = |line: &str, part: &str| {
            let error = line.parse::<JoinToken>().expect_err(line).to_string();
            assert!(error.contains(part) && error.contains("ambit token create"), "{error}");
        };
        let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let line = token().to_line();
        check("", "is cut off");
        check(&line[..line.len() / 8 * 4], "is cut off");
        check("a token", "is not base64url");
        check(&"A".repeat(SIZE_MAX_BYTES + 1), "is too long");
        check(&encoded(r#"{"version":2}"#), "of another version");
        check(&encoded(r#"{"version":1}"#), "lacks something");
        let value = serde_json::to_string(&token()).expect("JSON");
        check(&encoded(&value.replace("node-3", "node-0")), "names no node");
        check(&encoded(&value.replace("node-3", "../x")), "names no node");
        check(&encoded(&value.replace("\"node\"", "\"other\"")), "lacks something");
    }
}
