//! The heads of requests and responses.
//!
//! Fields are private where a wrong value could stand in them: a method has the form of target that
//! belongs to it, a request has a host, a status has three digits, a reason no line end. The host
//! is in one place, the target; a Host field that came is taken out of the fields, so that router,
//! policy and upstream cannot read two of them.

use crate::authority::Authority;
use crate::fields::{Fields, Name};
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

/// How a connection is secured, as a URI says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Not: in plain text.
    Http,
    /// By TLS.
    Https,
}

impl Scheme {
    /// As a URI writes it.
    pub fn as_str(self) -> &'static str {
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

/// What a request is for, in the forms of RFC 9112, 3.2, that a server is sent. A whole URI, as a
/// client sends it to a proxy, is a path and a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path.
    Origin {
        /// Path and query.
        path: Path,
        /// From the URI if that was whole, else from the Host field.
        host: Authority,
    },
    /// CONNECT: where the tunnel leads, always with a port.
    Authority(Authority),
    /// OPTIONS: the server as a whole.
    Asterisk {
        /// From the URI if there was one, else from the Host field.
        host: Authority,
    },
}

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    method: Method,
    target: Target,
    version: Version,
    /// The header fields, but for Host. To look up a name, call [`RequestHead::values`]. To list
    /// all fields, add Host from [`RequestHead::authority`].
    pub fields: Fields,
}

impl RequestHead {
    /// A head whose parts fit one another.
    pub(crate) fn new(
        method: Method,
        target: Target,
        version: Version,
        fields: Fields,
    ) -> Result<Self, Refused> {
        let fits = match (&target, method.as_str()) {
            (Target::Authority(to), "CONNECT") => to.port().is_some(),
            (_, "CONNECT") | (Target::Authority(_), _) => false,
            (Target::Asterisk { .. }, method) => method == "OPTIONS",
            (Target::Origin { .. }, _) => true,
        };
        if fits { Ok(Self { method, target, version, fields }) } else { Err(Refused::TargetForm) }
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The target, in the form in which it is sent.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The version that the client speaks.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The host that is asked, with its port if one is written: the target's, or the Host field's.
    pub fn authority(&self) -> &Authority {
        match &self.target {
            Target::Origin { host, .. } | Target::Asterisk { host } => host,
            Target::Authority(to) => to,
        }
    }

    /// Puts another host in the place of the one that is asked. A tunnel leads where it leads.
    pub(crate) fn set_authority(&mut self, authority: Authority) -> Result<(), Refused> {
        match &mut self.target {
            Target::Origin { host, .. } | Target::Asterisk { host } => *host = authority,
            Target::Authority(_) => return Err(Refused::TargetForm),
        }
        Ok(())
    }

    /// The values of a name, as a route, a policy or a log asks for it.
    ///
    /// `host` and `:authority` are both the authority, which is in no field. It is the only
    /// answer even if a filter has put in a field of that name: the writer leaves that field out.
    pub fn values<'a>(&'a self, name: impl Into<Name<'a>>) -> impl Iterator<Item = &'a [u8]> {
        let name = name.into();
        let host = name.is_host().then(|| self.authority().as_str().as_bytes());
        let fields = host.is_none().then(|| self.fields.all(name));
        host.into_iter().chain(fields.into_iter().flatten())
    }

    /// Path and query, which CONNECT and `OPTIONS *` do not have.
    pub fn path(&self) -> Option<&Path> {
        match &self.target {
            Target::Origin { path, .. } => Some(path),
            Target::Authority(_) | Target::Asterisk { .. } => None,
        }
    }

    /// Path and query, to normalise or replace them.
    pub fn path_mut(&mut self) -> Option<&mut Path> {
        match &mut self.target {
            Target::Origin { path, .. } => Some(path),
            Target::Authority(_) | Target::Asterisk { .. } => None,
        }
    }
}

/// A response's status: three digits, the first not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// 500.
    pub(crate) const INTERNAL_ERROR: Self = Self(500);

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
    use crate::fields::{FieldLimits, known::Known};

    fn check(method: &str, target: &str, expected: Result<(), Refused>) {
        let authority = |text: &str| Authority::parse(text.as_bytes()).expect("an authority");
        let path = || Path::parse(b"/a").expect("a path");
        let target_read = match target {
            "origin" => Target::Origin { path: path(), host: authority("h") },
            "authority" => Target::Authority(authority("h:1")),
            "authority without port" => Target::Authority(authority("h")),
            "asterisk" => Target::Asterisk { host: authority("h") },
            _ => unreachable!("a form that the table does not have"),
        };
        let method_read = Method::parse(method).expect("a method");
        let fields = Fields::new(FieldLimits::default());
        let head = RequestHead::new(method_read, target_read, Version::Http11, fields);
        assert_eq!(head.map(|_| ()), expected, "{method} {target}");
    }

    #[test]
    fn parts_fit_one_another() {
        check("GET", "origin", Ok(()));
        check("OPTIONS", "origin", Ok(()));
        check("CONNECT", "authority", Ok(()));
        check("CONNECT", "authority without port", Err(Refused::TargetForm));
        check("CONNECT", "origin", Err(Refused::TargetForm));
        check("CONNECT", "asterisk", Err(Refused::TargetForm));
        check("GET", "authority", Err(Refused::TargetForm));
        check("OPTIONS", "asterisk", Ok(()));
        check("GET", "asterisk", Err(Refused::TargetForm));
    }

    #[test]
    fn the_host_is_served_from_the_head() {
        let host = Authority::parse(b"h:1").expect("an authority");
        let target = Target::Origin { path: Path::parse(b"/").expect("a path"), host };
        let method = Method::parse("GET").expect("a method");
        let mut fields = Fields::new(FieldLimits::default());
        for (name, value) in [("a", "1"), ("Host", "other"), ("A", "2")] {
            fields.append(name, value.as_bytes()).expect("a field");
        }
        let head = RequestHead::new(method, target, Version::Http11, fields).expect("a head");
        for name in ["host", "Host", ":authority"] {
            assert_eq!(head.values(name).collect::<Vec<_>>(), [b"h:1"], "{name}");
        }
        assert_eq!(head.values(Known::Host).collect::<Vec<_>>(), [b"h:1"]);
        assert_eq!(head.values("a").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(head.values("b").count(), 0);
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
