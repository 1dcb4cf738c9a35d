//! What advice is made of.

/// An answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was asked.
    pub question: String,
    /// The answer.
    pub answer: String,
    /// What it rests on.
    pub ground: String,
    /// Whether it is a threshold beyond noise (ADVICE-1).
    pub is_sure: bool,
}

/// The answer where times are not to be trusted (ADVICE-1).
pub(super) fn under_load(crowded_count: usize) -> String {
    format!(
        "not to be told: {crowded_count} records were measured under load; measure again on a \
         quiet machine"
    )
}
