//! Why a pod is not captured, as its agent writes it and everybody else reads it.
//!
//! One line in the pod's annotation on Kubernetes, in a file of the registry on one machine:
//! `PortTaken 15006 nginx`. Whoever may write the object may write the line, so that what is read
//! is shown and never acted upon.

use std::fmt;
use std::str::FromStr;

use ambit_model::printable::is_printable;

/// Longest name of a process that is kept; the kernel's own names have 15 bytes.
const PROCESS_CHARS_MAX: usize = 64;
/// Longest reason of a proxy or of the kernel that is kept; one of a node proxy has 1 KiB at most.
const REASON_CHARS_MAX: usize = 1024;

/// Why a pod is not captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// A program in the pod has a port that the node proxy needs there.
    PortTaken {
        /// The port.
        port: u16,
        /// The program's name, where it was found.
        process: Option<String>,
    },
    /// The node proxy refuses the pod for another reason, in its words.
    Refused(String),
    /// The agent could not bring capture into place, in its words.
    Failed(String),
}

impl Obstacle {
    /// The obstacle as one line; what is long is cut, what is not printable is left out.
    pub fn line(&self) -> String {
        match self {
            Self::PortTaken { port, process: None } => format!("PortTaken {port}"),
            Self::PortTaken { port, process: Some(process) } => {
                format!("PortTaken {port} {}", kept(process, PROCESS_CHARS_MAX))
            }
            Self::Refused(reason) => format!("Refused {}", kept(reason, REASON_CHARS_MAX)),
            Self::Failed(reason) => format!("Failed {}", kept(reason, REASON_CHARS_MAX)),
        }
    }

    /// The kind, as the line and `ambit status -o json` call it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PortTaken { .. } => "PortTaken",
            Self::Refused(_) => "Refused",
            Self::Failed(_) => "Failed",
        }
    }

    /// What its operator can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::PortTaken { .. } => {
                "stop that program or have it listen on another port; the pod is then captured \
                 within 15 s"
            }
            Self::Refused(_) => "see the log of the node's proxy; the pod is offered to it again",
            Self::Failed(_) => "see the log of the node's agent; it tries again",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortTaken { port, process: Some(process) } => write!(
                f,
                "{process:?} in the pod has port {port}, which the node proxy needs there"
            ),
            Self::PortTaken { port, process: None } => {
                write!(f, "a program in the pod has port {port}, which the node proxy needs there")
            }
            Self::Refused(reason) => write!(f, "the node proxy refused it: {reason}"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// A line that names no obstacle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not `PortTaken PORT [PROCESS]`, `Refused REASON` or `Failed REASON`")]
pub struct UnknownObstacle;

impl FromStr for Obstacle {
    type Err = UnknownObstacle;

    fn from_str(line: &str) -> Result<Self, UnknownObstacle> {
        let (kind, rest) = line.trim().split_once(' ').ok_or(UnknownObstacle)?;
        match kind {
            "PortTaken" => {
                let (port, process) = match rest.split_once(' ') {
                    Some((port, process)) => (port, Some(kept(process, PROCESS_CHARS_MAX))),
                    None => (rest, None),
                };
                let port = port.parse().map_err(|_| UnknownObstacle)?;
                Ok(Self::PortTaken { port, process })
            }
            "Refused" => Ok(Self::Refused(kept(rest, REASON_CHARS_MAX))),
            "Failed" => Ok(Self::Failed(kept(rest, REASON_CHARS_MAX))),
            _ => Err(UnknownObstacle),
        }
    }
}

/// The beginning of a text, without what a terminal or a line would take for something else.
fn kept(text: &str, chars_max: usize) -> String {
    text.chars().filter(|it| is_printable(*it)).take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_is_read_as_it_was_written() {
        let taken = |process: Option<&str>| Obstacle::PortTaken {
            port: 15006,
            process: process.map(str::to_owned),
        };
        let table = [
            (taken(None), "PortTaken 15006"),
            (taken(Some("nginx")), "PortTaken 15006 nginx"),
            (taken(Some("a b")), "PortTaken 15006 a b"),
            (Obstacle::Refused("no room".to_owned()), "Refused no room"),
            (Obstacle::Failed("enter: no".to_owned()), "Failed enter: no"),
        ];
        for (obstacle, line) in table {
            assert_eq!(obstacle.line(), line);
            assert_eq!(line.parse(), Ok(obstacle));
        }
    }

    #[test]
    fn what_a_pod_calls_itself_stays_one_short_line() {
        let process = Some(format!("a\n\u{1b}[2J\u{202e}{}", "b".repeat(100)));
        let line = Obstacle::PortTaken { port: 15001, process }.line();
        assert_eq!(line, format!("PortTaken 15001 a[2J{}", "b".repeat(60)));
    }

    #[test]
    fn other_lines_are_no_obstacle() {
        for line in ["", "PortTaken", "PortTaken x", "PortTaken 65536", "Taken 1", "enabled"] {
            assert_eq!(line.parse::<Obstacle>(), Err(UnknownObstacle), "{line}");
        }
    }
}
