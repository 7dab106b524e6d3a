//! `ambit token create`: tokens by which other computers join a machine, or a cluster's mesh.
//!
//! A token is printed on standard output and is nowhere else.

mod workload;

use std::process::ExitCode;
use std::time::Duration;

use ambit_cluster::{AccountToken, Cluster, ClusterError};
use ambit_load::tell;
use ambit_machine::{Client, ClusterToken, Workload};
use ambit_wire::admin::{MeshIdentity, Status, control};
use ambit_words::durations::write_duration;
use ambit_words::names::{CONTROL, ROOT_CONFIG_MAP, TOKEN_AUDIENCE};
use anyhow::{Context, Result, bail};

use self::workload::Outside;
use crate::args::{Joiner, TokenArgs, TokenCommand};
use crate::progress;

/// Makes a token and prints it.
pub(super) async fn token(args: TokenArgs) -> Result<ExitCode> {
    let TokenCommand::Create(args) = args.command;
    match args.joiner().map_err(anyhow::Error::msg)? {
        Joiner::Node { node, ttl, address } => {
            let client = Client::new(super::layout(args.machine()));
            let token = client.create_token(node, ttl, address).await?;
            super::print_text(&format!("{}\n", token.to_line()))?;
        }
        Joiner::Workload { namespace, entry, ttl, address } => {
            let address = address.map(|written| workload::written_address(&written)).transpose()?;
            let cluster = Cluster::connect(&args.kube.choice()).await?;
            let (token, shortened) = of_cluster(&cluster, &namespace, &entry, ttl, address).await?;
            if let Some(shortened) = shortened {
                tell(format_args!("{shortened}"));
            }
            let mut line = token.to_line();
            line.push('\n');
            super::print(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A token for the computer of a WorkloadEntry, and a remark if it ends sooner than was asked.
async fn of_cluster(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    ttl: Duration,
    address: Option<String>,
) -> Result<(ClusterToken, Option<String>)> {
    let _shown = progress::shown("asking the cluster");
    let outside = entry(cluster, namespace, name).await?;
    let control = match address {
        Some(address) => address,
        None => way(cluster).await?,
    };
    let root = root(cluster, namespace).await?;
    let (mesh, cluster_domain) = mesh(cluster).await?;
    let workload = Workload {
        control,
        root,
        control_name: format!("{CONTROL}.{}.svc", cluster.mesh_namespace()),
        namespace: namespace.to_owned(),
        entry: name.to_owned(),
        service_account: outside.service_account,
        address: outside.address,
        network: outside.network,
        trust_domain: mesh.trust_domain,
        cluster_domain,
        cluster_id: mesh.cluster_id,
    };
    workload::usable(&workload)?;
    // Last, so that no token is made for nothing.
    let token = account_token(cluster, namespace, &workload.service_account, ttl).await?;
    let shortened = workload::shortened(ttl, &token);
    Ok((ClusterToken::new(workload, token.secret), shortened))
}

async fn entry(cluster: &Cluster, namespace: &str, name: &str) -> Result<Outside> {
    let kubectl = format!("{} -n {namespace}", cluster.kubectl());
    match cluster.workload_entry(namespace, name).await {
        Ok(entry) => workload::judge(entry, name, &kubectl)
            .with_context(|| format!("WorkloadEntry {namespace}/{name}")),
        Err(ClusterError::Absent(_)) => bail!(
            "there is no WorkloadEntry {namespace}/{name}; `{kubectl} get workloadentries` lists \
             those of the namespace, and -n names another namespace"
        ),
        Err(error) => Err(error.into()),
    }
}

/// Where computers outside reach control.
async fn way(cluster: &Cluster) -> Result<String> {
    let service = format!("Service {}/{CONTROL}", cluster.mesh_namespace());
    match cluster.way_to_control().await {
        Ok(way) => workload::found_address(&way, &service),
        Err(ClusterError::Absent(_)) => bail!(
            "there is no {service}; name the namespace of Ambit's parts with --mesh-namespace, or \
             write --address HOST[:PORT] of control"
        ),
        Err(error) => Err(error.into()),
    }
}

async fn root(cluster: &Cluster, namespace: &str) -> Result<String> {
    match cluster.root_certificates(namespace).await {
        Err(ClusterError::Absent(_)) => bail!(
            "namespace {namespace} has no root certificate in its ConfigMap {ROOT_CONFIG_MAP}, \
             which control writes; see `ambit check --context {}`",
            cluster.context()
        ),
        read => Ok(read?),
    }
}

/// Which mesh it is, and the domain of its Services, as control itself uses them.
async fn mesh(cluster: &Cluster) -> Result<(MeshIdentity, String)> {
    let status: Status = cluster.ask_control(control::STATUS).await?;
    let mut mesh = status.mesh;
    let domain = mesh.cluster_domain.take().context(
        "control does not say its cluster's domain, because it is of an older release, which \
         computers outside cannot join; upgrade it",
    )?;
    Ok((mesh, domain))
}

async fn account_token(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    ttl: Duration,
) -> Result<AccountToken> {
    match cluster.account_token(namespace, account, TOKEN_AUDIENCE, ttl).await {
        Err(ClusterError::Absent(_)) => bail!(
            "namespace {namespace} has no service account {account}, which the WorkloadEntry \
             names; make it with `{} -n {namespace} create serviceaccount {account}`, or change \
             spec.serviceAccount",
            cluster.kubectl()
        ),
        made => made.with_context(|| {
            let ttl = write_duration(ttl);
            format!("make a token of service account {namespace}/{account} for {ttl}")
        }),
    }
}
