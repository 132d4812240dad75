//! The report as text.

use std::fmt;

use crate::fact::Fact;
use crate::finding::Use;

/// The facts of a host, and what follows for each use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What the host is like.
    pub facts: Vec<Fact>,
    /// What can be done with it.
    pub uses: Vec<Use>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
        writeln!(f, "Host:\n")?;
        for Fact { name, value, .. } in &self.facts {
            writeln!(f, "  {name:<width$}  {}", value.as_deref().unwrap_or("unknown"))?;
        }
        for each in &self.uses {
            writeln!(f, "\n{}: {}\n", each.title, each.verdict())?;
            for finding in &each.findings {
                writeln!(f, "  {:<7}  {}", finding.kind.word(), finding.reason)?;
                if let Some(remedy) = &finding.remedy {
                    writeln!(f, "  {:<7}  -> {remedy}", "")?;
                }
            }
        }
        Ok(())
    }
}
