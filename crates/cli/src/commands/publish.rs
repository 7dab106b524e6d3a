//! Ports of this computer that lead into a machine: whether those of `--publish` lead anywhere, and
//! those that the types of services ask for.

use ambit_load::tell;
use ambit_machine::{
    Client, Destination, PublishError, Published, Transport, asked_by_service, publish_of_service,
};
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::{Object, Typed};
use anyhow::{Result, bail};

/// Whether each publication leads to a port of a service among the objects, or to a listener of a
/// Gateway, its own or of a ListenerSet.
pub(super) fn check(all: &[Published], objects: &[Object], has_mesh: bool) -> Result<()> {
    for it in all {
        match it.to {
            Destination::Service => service(it, objects)?,
            Destination::Gateway if has_mesh => gateway(it, objects)?,
            Destination::Gateway => {
                let Published { namespace, name, .. } = it;
                bail!("--publish: Gateway {namespace}/{name} needs the mesh; leave --no-mesh out")
            }
        }
    }
    Ok(())
}

/// Whether an object has the name that it leads to.
fn is_named(it: &Published, object: &Object) -> bool {
    *object.key.name == *it.name && *object.key.namespace == *it.namespace
}

fn service(it: &Published, objects: &[Object]) -> Result<()> {
    let Published { transport, namespace, name, port, .. } = it;
    let named = objects.iter().find_map(|object| match &object.typed {
        Typed::Service(service) if is_named(it, object) => Some(service),
        _ => None,
    });
    let Some(found) = named else {
        bail!("--publish: there is no Service {namespace}/{name} among the manifests");
    };
    let mut ports = found.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let is_it = |protocol: Option<&str>| protocol.unwrap_or("TCP") == transport.name();
    if !ports.any(|it| it.port == i32::from(*port) && is_it(it.protocol.as_deref())) {
        let transport = transport.name();
        bail!("--publish: Service {namespace}/{name} has no {transport} port {port}");
    }
    Ok(())
}

fn gateway(it: &Published, objects: &[Object]) -> Result<()> {
    let Published { transport, namespace, name, port, .. } = it;
    let named = objects.iter().find_map(|object| match &object.typed {
        Typed::Gateway(gateway) if is_named(it, object) => Some(gateway),
        _ => None,
    });
    let Some(found) = named else {
        bail!("--publish: there is no Gateway {namespace}/{name} among the manifests");
    };
    let own = found.spec.listeners.iter();
    let added = sets(objects, namespace, name).flat_map(|it| &it.spec.listeners);
    let here = own.chain(added).filter(|listener| listener.port == i32::from(*port));
    let protocols: Vec<&str> = here.map(|listener| listener.protocol.as_str()).collect();
    if protocols.is_empty() {
        bail!("--publish: Gateway {namespace}/{name} has no listener at port {port}");
    }
    let of = |is_udp| protocols.iter().any(|protocol| (*protocol == "UDP") == is_udp);
    match transport {
        Transport::Tcp if !of(false) => bail!(
            "--publish: port {port} of Gateway {namespace}/{name} takes UDP; write /udp after the \
             port of this computer, as in {port}/udp={namespace}/{name}/{port}"
        ),
        Transport::Udp if !of(true) => bail!(
            "--publish: port {port} of Gateway {namespace}/{name} takes no UDP; leave /udp out"
        ),
        Transport::Tcp | Transport::Udp => {}
    }
    Ok(())
}

/// The ListenerSets that name a Gateway.
fn sets<'a>(
    objects: &'a [Object],
    namespace: &'a str,
    gateway: &'a str,
) -> impl Iterator<Item = &'a ListenerSet> {
    let all = objects.iter().filter_map(|object| match &object.typed {
        Typed::ListenerSet(set) => Some(&**set),
        _ => None,
    });
    all.filter(move |set| set.gateway() == Some((namespace, gateway)))
}

/// Opens the ports that the types of services ask for, of those services that are meant, and says
/// which. A port that cannot be had is no reason to stop: there are other ways to the service.
pub(super) async fn open_asked(
    client: &Client,
    is_meant: impl Fn(&str, &str) -> bool,
) -> Result<()> {
    for service in client.objects("services").await? {
        for published in asked_by_service(&service) {
            let Published { transport, namespace, name, port, .. } = &published;
            if !is_meant(namespace, name) {
                continue;
            }
            match publish_of_service(client.layout(), &published).await {
                Ok(true) => tell(format_args!("        {published}")),
                Ok(false) => {}
                Err(PublishError::Listen { address, source, .. }) => {
                    let other = match transport {
                        Transport::Tcp => format!(
                            "`ambit port-forward -n {namespace} service/{name} LOCAL:{port}` \
                             takes another port"
                        ),
                        Transport::Udp => {
                            "change its port, or end who has it, and apply it again".to_owned()
                        }
                    };
                    tell(format_args!(
                        "warning: {address} ({}) does not lead to Service {namespace}/{name}: \
                         {source}; {other}",
                        transport.name(),
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
