//! What stands in a table: a value that can be sorted by, and how it is written.

use std::cmp::Ordering;

/// A value of a line.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Text.
    Text(String),
    /// A number of things, if it is known.
    Count(Option<u64>),
    /// A number in hexadecimal, if there is one.
    Hex(Option<u32>),
    /// A number of bytes, if it is known.
    Bytes(Option<u64>),
    /// Things in a second, if that was measured.
    Rate(Option<f64>),
    /// Bytes in a second, if that was measured.
    BytesRate(Option<f64>),
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// As people read it.
    pub(super) fn write(&self) -> String {
        let unknown = || "?".to_owned();
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.map_or_else(unknown, |count| count.to_string()),
            Self::Hex(number) => number.map_or_else(String::new, |number| format!("{number:#x}")),
            // CAST: it is rounded to three digits.
            Self::Bytes(bytes) => bytes.map_or_else(unknown, |bytes| scaled(bytes as f64, BINARY)),
            Self::Rate(rate) => rate.map_or_else(unknown, |rate| scaled(rate, DECIMAL)),
            Self::BytesRate(rate) => rate.map_or_else(unknown, |rate| scaled(rate, BINARY)),
        }
    }

    /// Whether larger ones are of more interest: a list that is sorted by them begins there.
    pub(super) fn is_amount(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Hex(_))
    }

    /// Which of two values of a column is larger. What is not known is smaller than anything.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => self.number().total_cmp(&other.number()),
        }
    }

    fn number(&self) -> f64 {
        // CAST: an order of amounts that differ by less than a part in 2^53 is of no interest.
        match self {
            Self::Text(_) => None,
            Self::Count(count) | Self::Bytes(count) => count.map(|count| count as f64),
            Self::Hex(number) => number.map(f64::from),
            Self::Rate(rate) | Self::BytesRate(rate) => *rate,
        }
        .unwrap_or(-1.0)
    }
}

/// The steps of a unit, and their names.
type Units = (f64, [&'static str; 6]);
const DECIMAL: Units = (1000.0, ["", "k", "M", "G", "T", "P"]);
const BINARY: Units = (1024.0, ["", "Ki", "Mi", "Gi", "Ti", "Pi"]);

/// A number with at most four digits.
fn scaled(value: f64, (step, names): Units) -> String {
    let mut value = value;
    let mut unit = 0;
    // What would be written as 1000 or 1024 is one of the next unit.
    while value.round() >= step && unit + 1 < names.len() {
        value /= step;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 9.95);
    format!("{value:.decimals$}{}", names[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        let rate = |value| Cell::Rate(Some(value)).write();
        assert_eq!(
            (rate(0.4), rate(999.0), rate(999.6)),
            ("0".into(), "999".into(), "1.0k".into())
        );
        assert_eq!((rate(9960.0), rate(1.5e6)), ("10k".into(), "1.5M".into()));
        let bytes = |value| Cell::Bytes(Some(value)).write();
        assert_eq!((bytes(1023), bytes(1024)), ("1023".into(), "1.0Ki".into()));
        assert_eq!((bytes(16 << 30), bytes(u64::MAX)), ("16Gi".into(), "16384Pi".into()));
        assert_eq!(Cell::Rate(None).write(), "?");
        assert_eq!(Cell::Hex(None).write(), "");
    }

    #[test]
    fn what_is_not_known_is_smallest() {
        let less = |one: Cell, other: Cell| assert_eq!(one.compare(&other), Ordering::Less);
        less(Cell::Rate(None), Cell::Rate(Some(0.0)));
        less(Cell::Count(Some(9)), Cell::Count(Some(10)));
        less(Cell::text("INIT"), Cell::text("RTS"));
    }
}
