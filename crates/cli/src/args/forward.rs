//! The arguments of `ambit port-forward`.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use clap::Args;

use super::{KubeArgs, StateArgs};

/// `ambit port-forward`.
#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    /// The pod, as NAMESPACE/POD, KIND/NAME of a service or of what makes pods, as kubectl takes
    /// it, or POD with -n.
    pub(crate) pod: String,
    /// Ports as LOCAL:PORT, or PORT for the same one on both sides; as :PORT a free one is chosen.
    #[arg(required = true, value_name = "[LOCAL:]PORT")]
    pub(crate) ports: Vec<Ports>,
    /// The namespace of POD or KIND/NAME [default: default].
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Where this computer listens; may be repeated.
    #[arg(long, value_name = "IP", default_values_t = [IpAddr::V4(Ipv4Addr::LOCALHOST)])]
    pub(crate) address: Vec<IpAddr>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// A port of this computer, and one of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// 0 is any that is free.
    pub(crate) local: u16,
    /// Of the pod.
    pub(crate) remote: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u16>().ok();
        let ports = match written.split_once(':') {
            None => number(written).map(|port| (port, port)),
            Some(("", remote)) => number(remote).map(|remote| (0, remote)),
            Some((local, remote)) => number(local).zip(number(remote)),
        };
        match ports {
            Some((local, remote @ 1..)) => Ok(Self { local, remote }),
            _ => Err("write [LOCAL:]PORT, as in 8080, 8000:8080 or :8080".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_for_kubectl() {
        let check = |written: &str, expected: Option<(u16, u16)>| {
            let expected = expected.map(|(local, remote)| Ports { local, remote });
            assert_eq!(written.parse().ok(), expected, "{written:?}");
        };
        check("8080", Some((8080, 8080)));
        check("8000:80", Some((8000, 80)));
        check(":80", Some((0, 80)));
        check("0:80", Some((0, 80)));
        for wrong in ["", ":", "0", "80:0", "65536", "80:http", "80:80:80", "-1"] {
            check(wrong, None);
        }
    }
}
