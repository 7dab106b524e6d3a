//! What a client asks of itself: which reviews there are, and where.

/// What a client asks of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// Whether it may do one thing.
    Access,
    /// All that it may do.
    Rules,
    /// Who it is.
    Identity,
}

impl Review {
    pub(crate) const ALL: [Self; 3] = [Self::Access, Self::Rules, Self::Identity];

    /// The review whose path has these parts.
    pub(crate) fn at(parts: &[&str]) -> Option<Self> {
        let ["apis", group, "v1", plural] = *parts else { return None };
        Self::ALL.into_iter().find(|it| it.group() == group && it.plural() == plural)
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Access | Self::Rules => "authorization.k8s.io",
            Self::Identity => "authentication.k8s.io",
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Access => "selfsubjectaccessreviews",
            Self::Rules => "selfsubjectrulesreviews",
            Self::Identity => "selfsubjectreviews",
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Access => "SelfSubjectAccessReview",
            Self::Rules => "SelfSubjectRulesReview",
            Self::Identity => "SelfSubjectReview",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_has_a_path() {
        let check = |path: &str, expected: Option<Review>| {
            let parts: Vec<&str> = path.split('/').collect();
            assert_eq!(Review::at(&parts), expected, "{path}");
        };
        check("apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Some(Review::Access));
        check("apis/authorization.k8s.io/v1/selfsubjectrulesreviews", Some(Review::Rules));
        check("apis/authentication.k8s.io/v1/selfsubjectreviews", Some(Review::Identity));
        check("apis/authentication.k8s.io/v1/selfsubjectaccessreviews", None);
        check("apis/authorization.k8s.io/v1beta1/selfsubjectaccessreviews", None);
        check("apis/authorization.k8s.io/v1", None);
    }
}
