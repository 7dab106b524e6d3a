//! The order by which the mesh leaves a cluster, and the agents' answers: the values of the
//! annotation [`crate::annotations::DEPARTURE`]. An order is `open/2026-01-31T12:00:00Z`, and the
//! answer on an agent's pod is `open/2026-01-31T12:00:00Z open`.
//!
//! `ambit uninstall` writes the order and reads the answers, the node agent the other way round.
//! Only the words are here: whether an order is obeyed is the agent's to judge.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest time that open connections may be given to end.
pub const GRACE_MAX: Duration = Duration::from_secs(3600);

const OPEN: &str = "open/";
const LEAVE: &str = "leave/";

/// What is ordered. A moment is written as in RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<Moment> {
    /// To let plain connections in, until that moment.
    Open(Moment),
    /// To leave; what is still open at that moment is cut.
    Leave(Moment),
}

/// The text is no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoOrder;

impl fmt::Display for NoOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither `open/MOMENT` nor `leave/MOMENT`")
    }
}

impl std::error::Error for NoOrder {}

impl<Moment: fmt::Display> fmt::Display for Order<Moment> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(moment) => write!(f, "{OPEN}{moment}"),
            Self::Leave(moment) => write!(f, "{LEAVE}{moment}"),
        }
    }
}

impl<Moment: FromStr> FromStr for Order<Moment> {
    type Err = NoOrder;

    fn from_str(text: &str) -> Result<Self, NoOrder> {
        let order = match (text.strip_prefix(OPEN), text.strip_prefix(LEAVE)) {
            (Some(moment), _) => moment.parse().map(Self::Open),
            (None, Some(moment)) => moment.parse().map(Self::Leave),
            (None, None) => return Err(NoOrder),
        };
        order.map_err(|_| NoOrder)
    }
}

/// What an agent answers to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Its pods let plain connections in.
    Open,
    /// Its pods are leaving; so many of their connections go on.
    Leaving(usize),
    /// Its pods have left; so many of their connections were cut.
    Left(usize),
}

impl Answer {
    /// The answer to this order in that annotation; `None` for any other.
    pub fn read(text: &str, order: &str) -> Option<Self> {
        let mut words = text.strip_prefix(order)?.split_whitespace();
        let (word, count) = (words.next()?, words.next());
        match (word, count.map(str::parse)) {
            ("open", None) => Some(Self::Open),
            ("leaving", Some(Ok(count))) => Some(Self::Leaving(count)),
            ("left", Some(Ok(count))) => Some(Self::Left(count)),
            _ => None,
        }
    }

    /// The annotation by which an agent answers this order.
    pub fn to(self, order: &str) -> String {
        match self {
            Self::Open => format!("{order} open"),
            Self::Leaving(count) => format!("{order} leaving {count}"),
            Self::Left(count) => format!("{order} left {count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_written() {
        for order in [Order::Open(7_u32), Order::Leave(8)] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for wrong in ["", "open", "open/", "open/soon", "leave/", "stay/7", "leave/-1"] {
            assert_eq!(wrong.parse::<Order<u32>>(), Err(NoOrder), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_is_read_as_it_is_written_and_to_its_own_order_only() {
        for answer in [Answer::Open, Answer::Leaving(3), Answer::Left(0)] {
            assert_eq!(Answer::read(&answer.to("leave/7"), "leave/7"), Some(answer));
            assert_eq!(Answer::read(&answer.to("leave/7"), "leave/8"), None);
        }
        for wrong in ["", "leave/7", "leave/7 left", "leave/7 left x", "leave/7 open 1"] {
            assert_eq!(Answer::read(wrong, "leave/7"), None, "{wrong:?}");
        }
    }
}
