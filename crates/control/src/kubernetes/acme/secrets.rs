//! The Secrets of certificates by ACME: a Gateway's account, and its certificates.
//!
//! Only one that has our label, with the Gateway's name, is written. A private key leaves this file
//! only towards the API server and the conversation with a directory.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::Gateway;
use ambit_manifest::gateway::acme::account_secret;
use ambit_tls::service::ServerCertificate;
use ambit_words::labels::ACME;
use ambit_words::secrets::{ACCOUNT_KEY, ACCOUNT_TYPE, SECRET_CHAIN, SECRET_KEY, SECRET_TYPE};
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client};
use zeroize::Zeroizing;

use super::super::{ApiError, answer};
use crate::acme::good_until;

/// The Secrets of a Gateway.
pub(super) struct Secrets<'a> {
    pub(super) client: &'a Client,
    pub(super) gateway: &'a Gateway,
    pub(super) name: &'a ObjectName,
}

/// What there is of a certificate's Secret.
pub(super) enum Found {
    /// Nothing.
    Absent,
    /// A certificate of somebody else's.
    Foreign,
    /// Something else of somebody else's.
    Unusable,
    /// One that control has written.
    Own {
        /// Its version.
        version: String,
        /// What is in it.
        chain: String,
        /// From when to when that is good for the hosts; nothing if it is not.
        until: Option<(SystemTime, SystemTime)>,
    },
}

impl Secrets<'_> {
    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.name.namespace)
    }

    /// Whether control may write here. It is asked before a directory is: an order that cannot be
    /// kept is lost.
    pub(super) async fn may_write(&self) -> Result<bool, ApiError> {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        for verb in ["create", "update"] {
            let attributes = ResourceAttributes {
                namespace: Some(self.name.namespace.to_string()),
                verb: Some(verb.to_owned()),
                resource: Some("secrets".to_owned()),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let said = answer(reviews.create(&PostParams::default(), &review)).await?;
            if !said.status.is_some_and(|it| it.allowed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What there is of a certificate, and whether it is good for these hosts.
    pub(super) async fn certificate(
        &self,
        secret: &str,
        hosts: &[String],
    ) -> Result<Found, ApiError> {
        let Some(there) = answer(self.api().get_opt(secret)).await? else {
            return Ok(Found::Absent);
        };
        if !self.is_own(&there) {
            let is_certificate = there.type_.as_deref() == Some(SECRET_TYPE);
            return Ok(if is_certificate { Found::Foreign } else { Found::Unusable });
        }
        let chain = text(&there, SECRET_CHAIN).unwrap_or_default();
        let key_pem = Zeroizing::new(text(&there, SECRET_KEY).unwrap_or_default());
        let pair = ServerCertificate { chain_pem: chain.clone(), key_pem };
        let version = there.metadata.resource_version.unwrap_or_default();
        Ok(Found::Own { version, until: good_until(&pair, hosts), chain })
    }

    /// Writes a certificate, over the Secret of this version if there is one.
    pub(super) async fn put_certificate(
        &self,
        secret: &str,
        version: Option<String>,
        pair: &ServerCertificate,
    ) -> Result<(), ApiError> {
        let data = [(SECRET_CHAIN, pair.chain_pem.as_str()), (SECRET_KEY, pair.key_pem.as_str())];
        self.put(secret, version, SECRET_TYPE, &data, None).await
    }

    /// The account that is kept, and the version of its Secret.
    pub(super) async fn account(
        &self,
    ) -> Result<(Option<Zeroizing<String>>, Option<String>), ApiError> {
        let there = answer(self.api().get_opt(&self.account_name())).await?;
        // What somebody else has put there is left alone: to write it then fails, and says so.
        let Some(there) = there.filter(|it| self.is_own(it)) else { return Ok((None, None)) };
        let kept = text(&there, ACCOUNT_KEY).map(Zeroizing::new);
        Ok((kept, there.metadata.resource_version))
    }

    /// Keeps an account. It goes with the Gateway.
    pub(super) async fn put_account(
        &self,
        version: Option<String>,
        kept: &Zeroizing<String>,
    ) -> Result<(), ApiError> {
        let metadata = &self.gateway.metadata;
        let owner = OwnerReference {
            api_version: "gateway.networking.k8s.io/v1".to_owned(),
            kind: "Gateway".to_owned(),
            name: self.name.name.to_string(),
            uid: metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        };
        let data = [(ACCOUNT_KEY, kept.as_str())];
        self.put(&self.account_name(), version, ACCOUNT_TYPE, &data, Some(owner)).await
    }

    /// Whether an account could be kept: before one is made, for the directory counts them.
    pub(super) async fn may_keep_account(&self) -> Result<bool, ApiError> {
        let there = answer(self.api().get_opt(&self.account_name())).await?;
        Ok(there.is_none_or(|it| self.is_own(&it)))
    }

    pub(super) fn account_name(&self) -> String {
        account_secret(&self.name.name)
    }

    async fn put(
        &self,
        name: &str,
        version: Option<String>,
        kind: &str,
        data: &[(&str, &str)],
        owner: Option<OwnerReference>,
    ) -> Result<(), ApiError> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), bytes(text)));
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.name.namespace.to_string()),
                labels: Some(BTreeMap::from([(ACME.to_owned(), self.name.name.to_string())])),
                owner_references: owner.map(|it| vec![it]),
                resource_version: version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(data.collect()),
            type_: Some(kind.to_owned()),
            ..Secret::default()
        };
        let (api, how) = (self.api(), PostParams::default());
        let written = match version {
            Some(_) => answer(api.replace(name, &how, &secret)).await,
            None => answer(api.create(&how, &secret)).await,
        };
        written.map(drop)
    }

    fn is_own(&self, secret: &Secret) -> bool {
        let labels = secret.metadata.labels.as_ref();
        labels.and_then(|it| it.get(ACME)).is_some_and(|it| **it == *self.name.name)
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}
