//! The table.

use std::fmt;

use crate::sample::Sample;

/// The target of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A speed.
    AtLeast(f64),
    /// A speed, in the worst repetition.
    WorstAtLeast(f64),
    /// A time, or a size.
    AtMost(f64),
    /// Printed for orientation.
    None,
}

/// One comparison.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bench: &'static str,
    pub(crate) what: String,
    pub(crate) ours: Sample,
    /// What our figure is compared with.
    pub(crate) beside: String,
    pub(crate) theirs: Sample,
    pub(crate) unit: &'static str,
    pub(crate) target: Target,
}

/// Rows and remarks, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    notes: Vec<(&'static str, String)>,
}

impl Report {
    pub(crate) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// A remark, printed below the rows.
    pub(crate) fn note(&mut self, bench: &'static str, words: String) {
        self.notes.push((bench, words));
    }
}

impl Target {
    /// Says whether these ratios meet it.
    fn words(self, ratios: &Sample) -> String {
        let (sign, bound, is_met) = match self {
            Self::AtLeast(bound) => (">=", bound, ratios.median() >= bound),
            Self::WorstAtLeast(bound) => ("worst >=", bound, ratios.min() >= bound),
            Self::AtMost(bound) => ("<=", bound, ratios.median() <= bound),
            Self::None => return String::new(),
        };
        format!("{sign} {bound:<4} {}", if is_met { "met" } else { "MISSED" })
    }
}

/// The line above the first report. Reports are printed as they come, so the widths of the columns
/// are fixed.
pub(crate) fn head() -> String {
    line(["bench", "what", "ours", "beside", "ratio", "spread", "target"])
}

fn line(cells: [&str; 7]) -> String {
    const WIDTHS: [usize; 7] = [11, 34, 11, 34, 5, 14, 0];
    let cells: Vec<_> =
        cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:width$}")).collect();
    cells.join("  ").trim_end().to_owned()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let ratio = row.ours.over(&row.theirs);
            let cells = [
                row.bench,
                &row.what,
                &quantity(row.ours.median(), row.unit),
                &format!("{} {}", row.beside, quantity(row.theirs.median(), row.unit)),
                &number(ratio.median()),
                &format!("{} to {}", number(ratio.min()), number(ratio.max())),
                &row.target.words(&ratio),
            ];
            writeln!(f, "{}", line(cells))?;
        }
        for (bench, words) in &self.notes {
            writeln!(f, "{bench:11}  ({words})")?;
        }
        Ok(())
    }
}

fn quantity(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value))
}

/// About three digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_shows() {
        let mut report = Report::default();
        report.row(Row {
            bench: "write",
            what: "WRITE".to_owned(),
            ours: [700.0].into_iter().collect(),
            beside: "bare".to_owned(),
            theirs: [1000.0].into_iter().collect(),
            unit: "MiB/s",
            target: Target::AtLeast(0.8),
        });
        let text = report.to_string();
        assert!(text.contains(" 0.70 to 0.70    >= 0.8  MISSED"), "{text}");
    }

    #[test]
    fn a_target_of_the_worst_is_not_met_by_the_median() {
        let ratios: Sample = [0.9, 0.8, 0.7].into_iter().collect();
        assert_eq!(Target::AtLeast(0.75).words(&ratios), ">= 0.75 met");
        assert_eq!(Target::WorstAtLeast(0.75).words(&ratios), "worst >= 0.75 MISSED");
    }
}
