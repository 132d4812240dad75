//! Numbers, spans of numbers, and times in a plan.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// Numbers from the first to the last, both included. In a file: `3`, `"3-5"`, `"3-"`,
/// `"0x10-0x1f"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two ends")]
pub struct Span {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl Span {
    /// Whether it is one of them.
    pub const fn contains(self, number: u64) -> bool {
        self.first <= number && number <= self.last
    }

    fn parse(text: &str) -> Option<Self> {
        let Some((first, last)) = text.split_once('-') else {
            let only = number(text)?;
            return Some(Self { first: only, last: only });
        };
        let first = number(first)?;
        let last = if last.trim().is_empty() { u64::MAX } else { number(last)? };
        (first <= last).then_some(Self { first, last })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last: u64::MAX } => write!(f, "{first}-"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Spans;
        impl Visitor<'_> for Spans {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a span such as \"3-5\" or \"3-\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Span, E> {
                let only =
                    u64::try_from(value).map_err(|_| E::custom(format!("{value} is below 0")))?;
                Ok(Span { first: only, last: only })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).ok_or_else(|| {
                    E::custom(format!(
                        "{text:?} is neither a number nor a span such as \"3-5\" or \"3-\""
                    ))
                })
            }
        }
        deserializer.deserialize_any(Spans)
    }
}

/// How often: every Nth, or once in a period. In a file a number, or a time as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "by number or by time")]
pub enum Every {
    /// Every Nth.
    Nth(u64),
    /// Once in this time.
    Time(Duration),
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Often;
        impl Visitor<'_> for Often {
            type Value = Every;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a time such as \"10ms\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Every, E> {
                let nth =
                    u64::try_from(value).map_err(|_| E::custom(format!("{value} is below 0")))?;
                Ok(Every::Nth(nth))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Every, E> {
                time(text).map(Every::Time)
            }
        }
        deserializer.deserialize_any(Often)
    }
}

/// Bytes per second, as in `"500M"`, `"1G"`, `0`.
pub(crate) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Rate;
    impl Visitor<'_> for Rate {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes per second, such as \"1G\"")
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::custom(format!("{value} is below 0")))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            let why = || E::custom(format!("{text:?} is not a rate such as \"500M\" or \"1G\""));
            parse_rate(text).ok_or_else(why)
        }
    }
    deserializer.deserialize_any(Rate).map(Some)
}

fn parse_rate(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A time as in `"10us"`, `"1.5ms"`, `"3s"`, `"2m"`.
pub(crate) fn duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    time(&String::deserialize(deserializer)?).map(Some)
}

fn time<E: Error>(text: &str) -> Result<Duration, E> {
    let why = || {
        E::custom(format!("{text:?} is not a time such as \"10us\", \"1.5ms\", \"3s\" or \"2m\""))
    };
    parse_duration(text).ok_or_else(why)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (value, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(value.trim().parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_every_form() {
        let span = |first, last| Some(Span { first, last });
        assert_eq!(Span::parse("4"), span(4, 4));
        assert_eq!(Span::parse("4-9"), span(4, 9));
        assert_eq!(Span::parse("4-"), span(4, u64::MAX));
        assert_eq!(Span::parse("0x10 - 0x1f"), span(16, 31));
        for wrong in ["", "-", "-4", "9-4", "four", "1-2-3"] {
            assert_eq!(Span::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn times_are_read_in_every_unit() {
        assert_eq!(parse_duration("10us"), Some(Duration::from_micros(10)));
        assert_eq!(parse_duration("1.5 ms"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_duration("3s"), Some(Duration::from_secs(3)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "3", "s", "-1s", "3 parsecs", "1e999s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong:?}");
        }
    }
}
