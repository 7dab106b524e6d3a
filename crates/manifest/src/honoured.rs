//! The condition of a VirtualService or DestinationRule.

use crate::policy::StatusCondition;
use crate::remarks::Remark;

/// The type of the condition of a VirtualService or DestinationRule that says whether all of it
/// is in force.
pub const HONOURED: &str = "ambit.io/Honoured";

/// The condition of an object with these remarks.
pub fn condition(remarks: &[Remark]) -> StatusCondition {
    let said = |is_wrong: bool| {
        let of = remarks.iter().filter(|it| it.is_wrong == is_wrong);
        let mut said: Vec<String> =
            of.map(|it| format!("{}: {}", it.at.as_str(), it.what)).collect();
        said.dedup();
        said.join("; ")
    };
    let (status, reason, message) = match (said(true), said(false)) {
        (wrong, other) if wrong.is_empty() && other.is_empty() => {
            ("True", "Honoured", "all of it is in force".to_owned())
        }
        (wrong, other) if wrong.is_empty() => ("False", "NotHonoured", other),
        (wrong, _) => ("False", "Invalid", wrong),
    };
    StatusCondition { kind: HONOURED, status, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldPath;
    use crate::remarks::Remarks;

    #[test]
    fn a_condition_says_what_is_wrong_before_what_is_not_honoured() {
        let at = FieldPath::at("spec.host");
        let mut remarks = Remarks::default();
        let told = |remarks: &Remarks| {
            let told = condition(&remarks.0);
            format!("{} {} {}", told.status, told.reason, told.message)
        };
        assert_eq!(told(&remarks), "True Honoured all of it is in force");
        remarks.unhonoured(true, &at, "no effect", "remove it");
        remarks.unhonoured(false, &at, "is not there", "remove it");
        assert_eq!(told(&remarks), "False NotHonoured spec.host: no effect");
        assert_eq!(remarks.duration(Some("5 apples"), &at), None);
        assert_eq!(told(&remarks), "False Invalid spec.host: `5 apples` is not a duration");
    }
}
