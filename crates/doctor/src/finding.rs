//! What was found for a use, and what follows from it.

use std::fmt;

/// Whether a use works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no fourth answer")]
pub enum Verdict {
    /// Everything that it needs is there.
    Works,
    /// Something that it needs is not there.
    DoesNotWork,
    /// No file says whether something that it needs is there.
    Unknown,
}

/// What a finding means for its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers show each in its own way")]
pub enum Kind {
    /// It holds.
    Good,
    /// The use works, within a limit.
    Limit,
    /// It is unknown whether it holds.
    Unknown,
    /// It prevents the use.
    Bad,
}

/// One thing that a use needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What it means.
    pub kind: Kind,
    /// What was found.
    pub reason: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// One use of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Use {
    /// A name for programs.
    pub key: &'static str,
    /// A name for people.
    pub title: &'static str,
    /// What was looked at.
    pub findings: Vec<Finding>,
}

impl Use {
    /// The use does not work if one finding is bad. Otherwise one unknown makes it unknown.
    pub fn verdict(&self) -> Verdict {
        let any = |kind| self.findings.iter().any(|finding| finding.kind == kind);
        match (any(Kind::Bad), any(Kind::Unknown)) {
            (true, _) => Verdict::DoesNotWork,
            (false, true) => Verdict::Unknown,
            (false, false) => Verdict::Works,
        }
    }
}

impl Kind {
    /// A word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Limit => "but",
            Self::Unknown => "unknown",
            Self::Bad => "no",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Works => "works",
            Self::DoesNotWork => "does not work",
            Self::Unknown => "unknown",
        })
    }
}

pub(crate) fn good(reason: impl Into<String>) -> Finding {
    Finding { kind: Kind::Good, reason: reason.into(), remedy: None }
}

pub(crate) fn limit(reason: impl Into<String>, remedy: &str) -> Finding {
    with_remedy(Kind::Limit, reason.into(), remedy)
}

pub(crate) fn unknown(reason: impl Into<String>, remedy: &str) -> Finding {
    with_remedy(Kind::Unknown, reason.into(), remedy)
}

pub(crate) fn bad(reason: impl Into<String>, remedy: &str) -> Finding {
    with_remedy(Kind::Bad, reason.into(), remedy)
}

fn with_remedy(kind: Kind, reason: String, remedy: &str) -> Finding {
    Finding { kind, reason, remedy: Some(remedy.to_owned()) }
}
