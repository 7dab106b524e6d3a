//! The API server, asked in JSON.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Method;
use kube::Client;
use serde_json::Value;

/// How often a request that could not be answered is repeated, and after what pause.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// The way to the API server.
#[derive(Clone)]
pub(super) struct Api(Client);

impl Api {
    /// By the file at `kubeconfig`.
    pub(super) async fn open(kubeconfig: &Path) -> Result<Self> {
        Ok(Self(ambit_apiserver::connect(Some(kubeconfig)).await?))
    }

    /// Makes an object, or leaves one of its name as it is. What it needs may still be on its way
    /// (a namespace's service account), so a refusal is asked again for a while.
    pub(super) async fn make(&self, path: &str, object: &Value) -> Result<()> {
        for attempt in 1.. {
            match self.send(Method::POST, path, "application/json", object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
                Ok(_) => return Ok(()),
                Err(error) if attempt == ATTEMPTS => return Err(error).context(path.to_owned()),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        bail!("{path}: never tried")
    }

    /// Makes an object that is answered with something, such as a token.
    pub(super) async fn ask(&self, path: &str, object: &Value) -> Result<Value> {
        let answer = self.send(Method::POST, path, "application/json", object).await;
        answer.with_context(|| path.to_owned())
    }

    /// An object.
    pub(super) async fn read(&self, path: &str) -> Result<Value> {
        let answer = self.send(Method::GET, path, "application/json", &Value::Null).await;
        answer.with_context(|| path.to_owned())
    }

    /// Changes an object, trying again when the connection is closed under the request.
    pub(super) async fn change(&self, path: &str, patch: &Value) -> Result<()> {
        let kind = "application/strategic-merge-patch+json";
        for attempt in 1.. {
            match self.send(Method::PATCH, path, kind, patch).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) => bail!("{path}: {status}"),
                Err(error) if attempt == ATTEMPTS => return Err(error).context(path.to_owned()),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        bail!("{path}: never tried")
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header(http::header::CONTENT_TYPE, content_type).body(body);
        self.0.request(request.map_err(kube::Error::HttpError)?).await
    }
}
