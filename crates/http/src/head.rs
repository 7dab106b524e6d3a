//! The heads of requests and responses.
//!
//! Fields are private where a wrong value could stand in them: a method has the form of target that
//! belongs to it, HTTP/1.1 has a host, a status has three digits, a reason no line end. The host is
//! in one place, the target; a Host field that came is taken out of the fields, so that router,
//! policy and upstream cannot read two of them.

use crate::authority::Authority;
use crate::fields::Fields;
use crate::grammar;
use crate::path::Path;
use crate::refused::Refused;

/// A version of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunks, a connection closes unless both ends keep it.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In plain text.
    Http,
    /// In TLS.
    Https,
}

impl Scheme {
    /// As in a URI.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A request's method; its case matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Registered(&'static str),
    Other(Box<str>),
}

/// The methods of RFC 9110 and RFC 5789, most frequent first.
const REGISTERED: [&str; 9] =
    ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"];

impl Method {
    /// The method that this is. Any token is one.
    pub(crate) fn parse(text: &str) -> Result<Self, Refused> {
        if let Some(registered) = REGISTERED.iter().find(|method| **method == text) {
            return Ok(Self(Kind::Registered(registered)));
        }
        if !grammar::is_token(text.as_bytes()) {
            return Err(Refused::Method);
        }
        Ok(Self(Kind::Other(text.into())))
    }

    /// As it is sent.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Kind::Registered(method) => method,
            Kind::Other(method) => method,
        }
    }

    /// Whether a tunnel is asked for.
    pub(crate) fn is_connect(&self) -> bool {
        self.as_str() == "CONNECT"
    }

    /// Whether the response has no body.
    pub(crate) fn is_head(&self) -> bool {
        self.as_str() == "HEAD"
    }
}

/// What a request is for, in one of the four forms of RFC 9112, 3.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path; the host is what the Host field says, or unknown in HTTP/1.0.
    Origin {
        /// Path and query.
        path: Path,
        /// From the Host field.
        host: Option<Authority>,
    },
    /// A whole URI, as a client sends it to a proxy. A Host field that says otherwise was replaced.
    Absolute {
        /// Path and query.
        path: Path,
        /// From the URI.
        authority: Authority,
    },
    /// CONNECT: where the tunnel leads, always with a port.
    Authority(Authority),
    /// OPTIONS: the server as a whole.
    Asterisk {
        /// From the Host field.
        host: Option<Authority>,
    },
}

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    method: Method,
    scheme: Scheme,
    target: Target,
    version: Version,
    /// The header fields, but for Host.
    pub fields: Fields,
}

impl RequestHead {
    /// A head whose parts fit one another. The scheme is the target's if it has one, else the
    /// connection's.
    pub(crate) fn new(
        method: Method,
        scheme: Scheme,
        target: Target,
        version: Version,
        fields: Fields,
    ) -> Result<Self, Refused> {
        let host = match (&target, method.as_str()) {
            (Target::Authority(to), "CONNECT") if to.port().is_some() => Some(to),
            (_, "CONNECT") | (Target::Authority(_), _) => return Err(Refused::TargetForm),
            (Target::Asterisk { host }, "OPTIONS") => host.as_ref(),
            (Target::Asterisk { .. }, _) => return Err(Refused::TargetForm),
            (Target::Origin { host, .. }, _) => host.as_ref(),
            (Target::Absolute { authority, .. }, _) => Some(authority),
        };
        if host.is_none() && version == Version::Http11 {
            return Err(Refused::HostMissing);
        }
        Ok(Self { method, scheme, target, version, fields })
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The target's scheme, or the connection's.
    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The target, in the form in which it came.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The version that the client speaks.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The host that is asked, with its port if one is written: the target's, or the Host field's.
    pub fn authority(&self) -> Option<&Authority> {
        match &self.target {
            Target::Origin { host, .. } | Target::Asterisk { host } => host.as_ref(),
            Target::Absolute { authority, .. } | Target::Authority(authority) => Some(authority),
        }
    }

    /// Path and query, which CONNECT and `OPTIONS *` do not have.
    pub fn path(&self) -> Option<&Path> {
        match &self.target {
            Target::Origin { path, .. } | Target::Absolute { path, .. } => Some(path),
            Target::Authority(_) | Target::Asterisk { .. } => None,
        }
    }

    /// Path and query, to normalise or replace them.
    pub fn path_mut(&mut self) -> Option<&mut Path> {
        match &mut self.target {
            Target::Origin { path, .. } | Target::Absolute { path, .. } => Some(path),
            Target::Authority(_) | Target::Asterisk { .. } => None,
        }
    }
}

/// A response's status: three digits, the first not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// Whether `code` is a status.
    pub(crate) fn new(code: u16) -> Result<Self, Refused> {
        if (100..=999).contains(&code) { Ok(Self(code)) } else { Err(Refused::StatusLine) }
    }

    /// The number.
    pub fn code(self) -> u16 {
        self.0
    }

    /// Whether the final response is still to come, or the protocol is switched.
    pub(crate) fn is_informational(self) -> bool {
        self.0 < 200
    }

    /// 2xx.
    pub(crate) fn is_success(self) -> bool {
        (200..300).contains(&self.0)
    }
}

/// The words behind a status. Nobody may rely on them; they are kept as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason(Box<[u8]>);

impl Reason {
    /// Whether these bytes can stand behind a status.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, Refused> {
        let is_allowed = bytes.iter().all(|byte| grammar::is_value_byte(*byte));
        if is_allowed { Ok(Self(bytes.into())) } else { Err(Refused::StatusLine) }
    }

    /// As it is sent.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A response without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status.
    pub status: Status,
    /// The words behind it.
    pub reason: Reason,
    /// The version that the server speaks.
    pub(crate) version: Version,
    /// The header fields.
    pub fields: Fields,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::FieldLimits;

    fn check(method: &str, target: &str, version: Version, expected: Result<(), Refused>) {
        let authority = |text: &str| Authority::parse(text.as_bytes()).expect("an authority");
        let path = || Path::parse(b"/a").expect("a path");
        let target_read = match target {
            "origin" => Target::Origin { path: path(), host: None },
            "origin with host" => Target::Origin { path: path(), host: Some(authority("h")) },
            "absolute" => Target::Absolute { path: path(), authority: authority("h") },
            "authority" => Target::Authority(authority("h:1")),
            "authority without port" => Target::Authority(authority("h")),
            "asterisk" => Target::Asterisk { host: Some(authority("h")) },
            _ => unreachable!("a form that the table does not have"),
        };
        let method_read = Method::parse(method).expect("a method");
        let fields = Fields::new(FieldLimits::default());
        let head = RequestHead::new(method_read, Scheme::Http, target_read, version, fields);
        assert_eq!(head.map(|_| ()), expected, "{method} {target}");
    }

    #[test]
    fn parts_fit_one_another() {
        let (old, new) = (Version::Http10, Version::Http11);
        check("GET", "origin with host", new, Ok(()));
        check("GET", "origin", old, Ok(()));
        check("GET", "origin", new, Err(Refused::HostMissing));
        check("GET", "absolute", new, Ok(()));
        check("CONNECT", "authority", new, Ok(()));
        check("CONNECT", "authority without port", new, Err(Refused::TargetForm));
        check("CONNECT", "origin with host", new, Err(Refused::TargetForm));
        check("CONNECT", "absolute", new, Err(Refused::TargetForm));
        check("GET", "authority", new, Err(Refused::TargetForm));
        check("OPTIONS", "asterisk", new, Ok(()));
        check("GET", "asterisk", new, Err(Refused::TargetForm));
    }

    #[test]
    fn methods_statuses_and_reasons() {
        assert_eq!(Method::parse("GET").map(|it| it.as_str().to_owned()), Ok("GET".to_owned()));
        assert_ne!(Method::parse("get"), Method::parse("GET"));
        for method in ["", "G ET", "GET\r", "G\u{c9}T", "GET:"] {
            assert_eq!(Method::parse(method), Err(Refused::Method), "{method:?}");
        }
        assert!(Status::new(99).is_err() && Status::new(1000).is_err());
        assert!(Reason::new(b"Not Found").is_ok() && Reason::new(b"caf\xe9").is_ok());
        assert!(Reason::new(b"OK\r\nset-cookie: a").is_err());
    }
}
