//! Whether a web page made a request, and not the machine's administrator.
//!
//! A browser on the host of a private port, or on a host to which the port is forwarded, sends any
//! request that a stranger's page wants. It says where the page comes from (`Origin`,
//! `Sec-Fetch-Site`). It does not after DNS rebinding, when the page's own name resolves to this
//! port; but then that name is in `Host`. An address is not a name that anybody else can change.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};

/// Where the page is from that has the browser ask (Fetch Metadata).
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The values for addresses that were typed, and for links on our own pages.
const OWN_SITES: [&str; 2] = ["none", "same-origin"];
/// The only name that means loopback everywhere (RFC 6761, section 6.3).
const LOCAL: &str = "localhost";

/// Whether another site's page sent the request.
pub(super) fn asks(headers: &HeaderMap) -> bool {
    let is_own = |site: &http::HeaderValue| OWN_SITES.iter().any(|own| site == own);
    let is_foreign = headers.get(&SITE).is_some_and(|site| !is_own(site));
    let is_named = headers.get(HOST).is_some_and(|host| !host.to_str().is_ok_and(is_local));
    is_foreign || is_named || headers.contains_key(ORIGIN)
}

/// Whether a `Host` names this machine, with a port or without.
fn is_local(host: &str) -> bool {
    let without_port = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    without_port.eq_ignore_ascii_case(LOCAL)
        || bare.parse::<IpAddr>().is_ok()
        || host.parse::<SocketAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_by_what_its_browser_says() {
        let check = |lines: &[(&'static str, &'static str)], expected: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.insert(*name, value.parse().expect("a value"));
            }
            assert_eq!(asks(&headers), expected, "{lines:?}");
        };
        for host in ["localhost", "localhost:15000", "127.0.0.1:15000", "::1", "[::1]:80", "[::1]"]
        {
            check(&[("host", host)], false);
        }
        for host in ["evil.example.com", "evil.example.com:15000", "localhost.evil.com", "", "x:1"]
        {
            check(&[("host", host)], true);
        }
        check(&[], false);
        check(&[("host", "localhost"), ("origin", "http://evil.example.com")], true);
        check(&[("host", "localhost"), ("origin", "null")], true);
        check(&[("host", "localhost"), ("sec-fetch-site", "cross-site")], true);
        check(&[("host", "localhost"), ("sec-fetch-site", "same-site")], true);
        check(&[("host", "localhost"), ("sec-fetch-site", "none")], false);
        check(&[("host", "localhost"), ("sec-fetch-site", "same-origin")], false);
    }
}
