//! Changes of heads that a route asks for, and the fields that every proxy adds.

use std::net::IpAddr;

use ambit_model::http::rule::{HeaderChanges, Rewrite};

use crate::authority::Authority;
use crate::engine::position::Arrival;
use crate::fields::{Fields, is_alike, is_disguised};
use crate::head::{RequestHead, ResponseHead};
use crate::path::{Normalisation, Path};
use crate::refused::Refused;

/// Fields by which Envoy's clients command Envoy; a client must not command this proxy's peers.
const COMMANDS: [&str; 7] = [
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-alt-stat-name",
];

/// Fields by which proxies tell each other of a client and of its request.
const OF_PROXIES: [&str; 5] = [
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

/// Fields in which Envoy at the edge says where a request is from, which servers believe.
const TOLD_BY_EDGES: [&str; 2] = ["x-envoy-external-address", "x-envoy-internal"];

/// Whether a field of this name is for proxies to write.
pub(crate) fn is_of_proxies(name: &str) -> bool {
    is_command(name.as_bytes()) || OF_PROXIES.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// Makes changes of a request's fields, but of those that are kept. A change of `host` changes the
/// authority.
pub(crate) fn change_request(
    head: &mut RequestHead,
    changes: &HeaderChanges,
    is_kept: impl Fn(&str) -> bool,
) -> Result<(), Refused> {
    let hosts = changes.set.iter().chain(&changes.add);
    let mut hosts = hosts.filter(|(name, _)| is_host(name));
    if let Some((_, host)) = hosts.next() {
        head.set_authority(Authority::parse(host.as_bytes())?)?;
    }
    change(&mut head.fields, changes, is_kept)
}

/// Makes changes of a response's fields.
pub(crate) fn change_response(
    head: &mut ResponseHead,
    changes: &HeaderChanges,
) -> Result<(), Refused> {
    change(&mut head.fields, changes, |_| false)
}

fn is_host(name: &str) -> bool {
    name.eq_ignore_ascii_case("host") || name == ":authority"
}

fn change(
    fields: &mut Fields,
    changes: &HeaderChanges,
    is_kept: impl Fn(&str) -> bool,
) -> Result<(), Refused> {
    let is_changed = |name: &str| !is_host(name) && !is_kept(name);
    for name in changes.remove.iter().filter(|name| !is_kept(name)) {
        fields.remove(&**name);
    }
    for (name, value) in changes.set.iter().filter(|(name, _)| is_changed(name)) {
        fields.set(&**name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)?;
    }
    for (name, value) in changes.add.iter().filter(|(name, _)| is_changed(name)) {
        fields.append(&**name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)?;
    }
    Ok(())
}

/// Makes changes of a request's target.
pub(crate) fn rewrite(
    head: &mut RequestHead,
    rewrite: &Rewrite,
    prefix_len: Option<usize>,
    normalisation: Normalisation,
) -> Result<(), Refused> {
    if let Some(host) = &rewrite.host {
        head.set_authority(Authority::parse(host.as_bytes())?)?;
    }
    if let (Some(change), Some(path)) = (&rewrite.path, head.path_mut()) {
        let mut text = change.apply(path.path(), prefix_len);
        if let Some(query) = path.query() {
            text.push('?');
            text.push_str(query);
        }
        let mut new = Path::parse(text.as_bytes())?;
        // What was behind the prefix must not lead out of the new one.
        if new.path().split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Refused::Target);
        }
        new.normalise(normalisation)?;
        *path = new;
    }
    Ok(())
}

/// The identity of a client, which this proxy alone says.
pub(crate) const CLIENT_CERTIFICATE: &str = "x-forwarded-client-cert";
/// Where a client has been, to which this proxy adds its address.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Removes what a client must not say, and adds who it is: its address to X-Forwarded-For, and its
/// proven identity in X-Forwarded-Client-Cert, which nobody else may set.
pub(crate) fn identify(
    fields: &mut Fields,
    arrival: &Arrival,
    own_name: &str,
    request_id: impl FnOnce() -> String,
) -> Result<(), Refused> {
    fields.retain(|field| {
        !is_command(field.name)
            && !is_alike(field.name, CLIENT_CERTIFICATE)
            && !is_disguised(field.name, FORWARDED_FOR)
    });
    let client = arrival.client.ip().to_string();
    let list = match fields.all(FORWARDED_FOR).next() {
        None => client.into_bytes(),
        Some(_) => {
            let lines = fields.all(FORWARDED_FOR).chain([client.as_bytes()]);
            lines.collect::<Vec<_>>().join(&b", "[..])
        }
    };
    let too_large = |_| Refused::HeadTooLarge;
    fields.set(FORWARDED_FOR, &list).map_err(too_large)?;
    if let Some(identity) = arrival.source.identity() {
        let value = format!("By={own_name};URI={identity}");
        fields.append(CLIENT_CERTIFICATE, value.as_bytes()).map_err(too_large)?;
    }
    if let Some(outside) = &arrival.outside {
        if let Some(certificate) = &outside.certificate {
            let value = format!("By={own_name};{certificate}");
            fields.append(CLIENT_CERTIFICATE, value.as_bytes()).map_err(too_large)?;
        }
        TOLD_BY_EDGES.iter().for_each(|name| fields.remove_alike(name));
        // It may say what it likes, unless a proxy that is believed has said it.
        if outside.trusted_hops == 0 {
            fields.remove("x-forwarded-proto");
        }
    }
    if fields.first("x-forwarded-proto").is_none() {
        let scheme = arrival.scheme.as_str().as_bytes();
        fields.append("x-forwarded-proto", scheme).map_err(too_large)?;
    }
    if fields.first("x-request-id").is_none() {
        fields.append("x-request-id", request_id().as_bytes()).map_err(too_large)?;
    }
    Ok(())
}

/// The address of the client itself: the one that the first of the proxies that are believed has
/// seen, or that of the connection. `fields` have the connection's own already.
pub(crate) fn client_ip(fields: &Fields, arrival: &Arrival) -> IpAddr {
    let own = arrival.source.ip();
    let hops = arrival.outside.as_ref().map_or(0, |it| it.trusted_hops);
    if hops == 0 {
        return own;
    }
    let lines = fields.all(FORWARDED_FOR).filter_map(|it| std::str::from_utf8(it).ok());
    let entries: Vec<&str> = lines.flat_map(|it| it.split(',')).map(str::trim).collect();
    let said = entries.len().checked_sub(1 + hops).and_then(|at| entries[at].parse().ok());
    said.unwrap_or(own)
}

/// Whether a field of this name commands a proxy.
pub(crate) fn is_command(name: &[u8]) -> bool {
    COMMANDS.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
}
