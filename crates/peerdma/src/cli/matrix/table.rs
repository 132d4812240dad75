//! The table: the rules are a file, and what was measured is compared with them.

use std::fmt::Write as _;

use crate::cli::outcome::Outcome;

/// `ok VRAM`, `ok system`, `ok NIC`, or the step that was refused and its errno.
pub(super) type Cell = String;

/// What the rules say.
const RULES: &str = include_str!("expected.txt");
const HEAD: [&str; 6] = ["exporter", "reaches", "dynamic", "revocable", "pinned", "static"];

/// Rows in the order they were measured, or written.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
}

/// One exporter, and whether the importer reaches its memory, where that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) exporter: String,
    pub(super) reaches: Option<bool>,
    /// In the order of [`Class::ALL`](super::Class::ALL).
    pub(super) cells: [Cell; 4],
}

impl Table {
    /// The table of docs/semantics.md 2.6.
    pub(super) fn of_the_rules() -> Self {
        Self::parse(RULES).expect("the tests read the file")
    }

    /// Reads a table: lines of cells with `|` between them, and lines of words that begin with `#`.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let rows = lines.map(|line| {
            let words: Vec<&str> = line.split('|').map(str::trim).collect();
            let [exporter, reaches, cells @ ..] = words.as_slice() else {
                return Err(format!("not a row of the table: {line:?}"));
            };
            let reaches = match *reaches {
                "yes" => Some(true),
                "no" => Some(false),
                "-" => None,
                other => return Err(format!("expected yes, no or -, not {other:?}: {line:?}")),
            };
            let cells: Vec<Cell> = cells.iter().map(|cell| (*cell).to_owned()).collect();
            let cells = cells.try_into().map_err(|_| format!("not four cells: {line:?}"))?;
            Ok(Row { exporter: (*exporter).to_owned(), reaches, cells })
        });
        Ok(Self { rows: rows.collect::<Result<_, _>>()? })
    }

    /// Every cell that is not as expected, and every row that only one of the two has.
    pub(super) fn deviations(&self, expected: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for row in &self.rows {
            let Some(rule) = expected.row(row) else {
                found.push(format!("{}: no rule for it", row.title()));
                continue;
            };
            for (n, (cell, rule)) in row.cells.iter().zip(&rule.cells).enumerate() {
                if cell != rule {
                    let class = HEAD[n + 2];
                    let title = row.title();
                    found.push(format!("{title}, {class}: {cell}, but the rules say {rule}"));
                }
            }
        }
        let missing = expected.rows.iter().filter(|rule| self.row(rule).is_none());
        found.extend(missing.map(|rule| format!("{}: not measured", rule.title())));
        found
    }

    /// The table as text. A cell that is not as expected has a `!` and the expected value.
    pub(super) fn beside(&self, expected: &Self) -> String {
        let mut lines = vec![HEAD.map(str::to_owned)];
        for row in &self.rows {
            let rule = expected.row(row);
            let cell = |n: usize| match rule {
                Some(rule) if rule.cells[n] != row.cells[n] => {
                    format!("{} ! {}", row.cells[n], rule.cells[n])
                }
                _ => row.cells[n].clone(),
            };
            let [a, b, c, d] = [0, 1, 2, 3].map(cell);
            lines.push([row.exporter.clone(), row.path().to_owned(), a, b, c, d]);
        }
        let widths: [usize; 6] =
            std::array::from_fn(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0));
        let mut text = String::new();
        for line in lines {
            let cells: Vec<_> =
                line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(text, "{}", cells.join("  ").trim_end()).expect("a String takes all");
        }
        text
    }

    fn row(&self, like: &Row) -> Option<&Row> {
        let is_like = |row: &&Row| row.exporter == like.exporter && row.reaches == like.reaches;
        self.rows.iter().find(is_like)
    }
}

impl Row {
    /// Whether the row is measured with a NIC that reaches the exporter, or with one that does not.
    pub(super) fn is_at(&self, reaches: bool) -> bool {
        self.reaches.unwrap_or(true) == reaches
    }

    fn path(&self) -> &'static str {
        match self.reaches {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        }
    }

    fn title(&self) -> String {
        match self.reaches {
            None => self.exporter.clone(),
            Some(true) => format!("{}, reached", self.exporter),
            Some(false) => format!("{}, not reached", self.exporter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_deviates_from_every_table_but_itself() {
        let rules = Table::of_the_rules();
        assert!(rules.deviations(&rules).is_empty());
        let mut other = Table::of_the_rules();
        other.rows[1].cells[3] = "ok VRAM".to_owned();
        let lost = other.rows.pop().expect("rows");
        let told = other.deviations(&rules);
        assert_eq!(told[0], "amdgpu, reached, static: ok VRAM, but the rules say ok system");
        assert_eq!(told[1], format!("{}: not measured", lost.title()));
        assert!(other.beside(&rules).contains("ok VRAM ! ok system"));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let what = |text: &str| Table::parse(text).map(drop).unwrap_err().to_string();
        assert!(what("xe").contains("xe"));
        assert!(what("xe | maybe | a | b | c | d").contains("maybe"));
        assert!(what("xe | yes | a | b").contains("four"));
    }
}
