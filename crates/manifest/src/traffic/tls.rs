//! TLS with endpoints, of a DestinationRule's `tls`.
//!
//! What cannot be honoured refuses requests: they must not travel in another form than is asked
//! for, nor to a server that is verified less.

use ambit_model::Text;
use ambit_model::http::origination::{ClientFiles, Origination, Trust};

use crate::FieldPath;
use crate::destination_rule::ClientTls;
use crate::remarks::Remarks;
use crate::validate::names;

/// The word for the roots of the public web.
const SYSTEM: &str = "system";

/// What becomes of requests.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// How TLS is spoken, if it is.
    pub(super) origination: Option<Origination>,
    /// Why requests are refused.
    pub(super) refusal: Option<Text>,
}

/// What a rule asks for.
pub(super) fn spoken(written: Option<&ClientTls>, at: &FieldPath, remarks: &mut Remarks) -> Spoken {
    let Some(written) = written else { return Spoken::default() };
    let at = at.field("tls");
    let is_mutual = match written.mode.as_deref().unwrap_or("DISABLE") {
        // What is between proxies is the mesh's own in any case.
        "DISABLE" | "ISTIO_MUTUAL" => return Spoken::default(),
        "SIMPLE" => false,
        "MUTUAL" => true,
        other => {
            let what = format!("there is no mode `{other}`: requests are refused");
            let remedy = "use SIMPLE or MUTUAL, or DISABLE: the mesh encrypts anyway";
            remarks.wrong(&at.field("mode"), &what, remedy);
            return refused(&at.field("mode"), &what);
        }
    };
    let before = remarks.0.len();
    let unread = "waypoints read no Secrets: requests are refused";
    let files =
        "mount it, and name its files in `caCertificates`, `clientCertificate`, `privateKey`";
    let has_credential = written.credential_name.is_some();
    remarks.unhonoured(has_credential, &at.field("credentialName"), unread, files);
    let unrevoked = "lists of revoked certificates are not read: requests are refused";
    let has_list = written.ca_crl.is_some();
    remarks.unhonoured(has_list, &at.field("caCrl"), unrevoked, "remove it");
    for (index, name) in written.subject_alt_names.iter().enumerate() {
        if names::dns_subdomain(name).is_some() {
            let what = format!("`{name}` is no host: requests are refused");
            let at = at.field("subjectAltNames").index(index);
            remarks.unhonoured(true, &at, what, "name hosts, without wildcards");
        }
    }
    let trust = trust(written, &at, remarks);
    let client = if is_mutual { client(written, &at, remarks) } else { None };
    if let Some(remark) = remarks.0.get(before) {
        return refused(&remark.at.clone(), &remark.what.clone());
    }
    let origination = Origination {
        server_name: written.sni.as_deref().filter(|it| !it.is_empty()).map(Text::from),
        alternatives: written.subject_alt_names.iter().map(|it| it.as_str().into()).collect(),
        uris: Vec::new(),
        trust,
        client,
    };
    Spoken { origination: Some(origination), refusal: None }
}

fn refused(at: &FieldPath, what: &str) -> Spoken {
    let refusal = Some(format!("{}: {what}", at.as_str()).into());
    Spoken { origination: None, refusal }
}

fn trust(written: &ClientTls, at: &FieldPath, remarks: &mut Remarks) -> Trust {
    if written.insecure_skip_verify == Some(true) {
        return Trust::Nobody;
    }
    match written.ca_certificates.as_deref() {
        None | Some("" | SYSTEM) => Trust::Public,
        Some(path) => Trust::File(file(path, &at.field("caCertificates"), remarks)),
    }
}

fn client(written: &ClientTls, at: &FieldPath, remarks: &mut Remarks) -> Option<ClientFiles> {
    let (Some(chain), Some(key)) = (&written.client_certificate, &written.private_key) else {
        let what = "MUTUAL needs a certificate and its key: requests are refused";
        remarks.unhonoured(true, at, what, "add `clientCertificate` and `privateKey`, files");
        return None;
    };
    let chain = file(chain, &at.field("clientCertificate"), remarks);
    Some(ClientFiles { chain, key: file(key, &at.field("privateKey"), remarks) })
}

/// A file in the waypoint's pod.
fn file(path: &str, at: &FieldPath, remarks: &mut Remarks) -> Text {
    if !path.starts_with('/') {
        let what = format!("`{path}` is no path of a file: requests are refused");
        remarks.wrong(at, what, "write a path that begins with `/`");
    }
    path.into()
}
