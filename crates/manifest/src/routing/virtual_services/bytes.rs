//! The `tls` and `tcp` routes of a VirtualService.
//!
//! Of a route that is wrong the connections are refused, in its place.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::bytes::{BytesBackend, BytesMatch, BytesRule};
use ambit_model::http::rule::{Destination, Origin};

use super::super::bytes::{named, refused, server_name};
use super::{Kind, Reader};
use crate::FieldPath;
use crate::validate::names;
use crate::virtual_service::{self as written, BytesMatch as Written, BytesRoute};

impl Reader<'_> {
    /// Reads one route.
    pub(super) fn connections(&mut self, route: &BytesRoute, kind: Kind, at: &FieldPath) {
        let (before, missing_before) = (self.wrong(), self.missing.0.len());
        if let Some(why) = &route.unread {
            let what = format!("it cannot be read: {why}");
            self.remarks.wrong(at, what, "use what this version knows");
        }
        let mut matches = Vec::new();
        let mut is_elsewhere = !route.matches.is_empty();
        if kind == Kind::Tls && route.matches.is_empty() {
            let what = "it is not said which names it is for";
            self.remarks.wrong(&at.field("match"), what, "add `match` with `sniHosts`");
        }
        for (index, one) in route.matches.iter().enumerate() {
            let at = at.field("match").index(index);
            let (is_here, more) = self.connection_match(one, kind, &at);
            is_elsewhere &= !is_here;
            matches.extend(more.into_iter().filter(|_| is_here));
        }
        let mut backends = match route.unread {
            None => self.connection_backends(route, at),
            Some(_) => Vec::new(),
        };
        if self.wrong() > before {
            let said = self.remarks.0.iter().rfind(|it| it.is_wrong);
            let said = said.map(|it| format!("{}: {}", it.at.as_str(), it.what));
            backends = refused(&said.unwrap_or_default());
        }
        if is_elsewhere {
            // Where it does not hold, nothing is missing for it.
            self.missing.0.truncate(missing_before);
        } else {
            let index = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
            let origin = Origin { index, ..self.origin.clone() };
            self.connections.push(Arc::new(BytesRule { origin, matches, backends }));
        }
    }

    /// Whether a match is for connections of the mesh at this port, and what each of its names
    /// comes to.
    fn connection_match(
        &mut self,
        one: &Written,
        kind: Kind,
        at: &FieldPath,
    ) -> (bool, Vec<BytesMatch>) {
        for (is_there, field) in [
            (!one.source_labels.is_empty(), "sourceLabels"),
            (one.source_subnet.is_some(), "sourceSubnet"),
        ] {
            let what = "clients are not told apart by it: this match never holds";
            self.remarks.unhonoured(is_there, &at.field(field), what, "use `sourceNamespace`");
        }
        let never = !one.source_labels.is_empty() || one.source_subnet.is_some();
        let at_names = at.field("sniHosts");
        for (index, host) in one.sni_hosts.iter().enumerate() {
            if let Some(what) = server_name(host) {
                let remedy = "write `web.example.com`, `*.example.com` or `*`";
                self.remarks.wrong(&at_names.index(index), what, remedy);
            }
        }
        if (kind == Kind::Tls) == one.sni_hosts.is_empty() {
            let (what, remedy) = match kind {
                Kind::Tls => ("it is not said which names it is for", "add `sniHosts`"),
                Kind::Tcp => ("of a TCP connection no name is known", "use `tls` routes"),
            };
            self.remarks.wrong(&at_names, what, remedy);
        }
        let mut destinations = Vec::new();
        for (index, block) in one.destination_subnets.iter().enumerate() {
            match names::address_block(block) {
                Some(block) => destinations.push(block),
                None => {
                    let at = at.field("destinationSubnets").index(index);
                    let what = format!("`{block}` is no block of addresses");
                    self.remarks.wrong(&at, what, "write for example 10.1.0.0/16");
                }
            }
        }
        let client_namespace = one.source_namespace.as_deref().map(Text::from);
        let around = BytesMatch { server_name: None, destinations, client_namespace };
        let mut matches: Vec<BytesMatch> = one
            .sni_hosts
            .iter()
            .map(|host| BytesMatch { server_name: named(host).server_name, ..around.clone() })
            .collect();
        if matches.is_empty() {
            matches.push(around);
        }
        let is_here = self.is_at(one.port);
        (is_here && !never && one.is_of_mesh(), matches)
    }

    fn connection_backends(&mut self, route: &BytesRoute, at: &FieldPath) -> Vec<BytesBackend> {
        let at = at.field("route");
        if route.route.is_empty() {
            self.remarks.wrong(&at, "no destination is named", "add it");
        }
        let is_alone = route.route.len() == 1;
        let backends = route.route.iter().enumerate();
        let backends: Vec<BytesBackend> = backends
            .map(|(index, it)| self.connection_backend(it, is_alone, &at.index(index)))
            .collect();
        if !backends.is_empty() && backends.iter().all(|it| it.weight == 0) {
            self.remarks.wrong(&at, "no destination has a weight", "add weights");
        }
        backends
    }

    fn connection_backend(
        &mut self,
        it: &written::Weighted,
        is_alone: bool,
        at: &FieldPath,
    ) -> BytesBackend {
        if it.headers.is_some() {
            let what = "a connection has no fields";
            self.remarks.wrong(&at.field("headers"), what, "remove `headers`");
        }
        let weight = self.remarks.number(it.weight, &at.field("weight"));
        let at = at.field("destination");
        let destination = match &it.destination {
            Some(destination) => self.destination(destination, &at, "is refused"),
            None => {
                self.remarks.wrong(&at, "no destination is named", "add it");
                Destination::Invalid("no destination is named".into())
            }
        };
        // The weight of a destination without another one has no meaning.
        let weight = if is_alone { 1 } else { weight.unwrap_or_default() };
        BytesBackend { weight, destination }
    }
}
