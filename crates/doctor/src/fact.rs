//! Facts as text.

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// A name for programs.
    pub key: &'static str,
    /// A name for people.
    pub name: &'static str,
    /// What it is; `None` if no file says.
    pub value: Option<String>,
}

pub(crate) fn fact(key: &'static str, name: &'static str, value: Option<String>) -> Fact {
    Fact { key, name, value }
}

/// Names with commas between them, or `none`.
pub(crate) fn row<S: AsRef<str>>(names: &[S]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "),
    }
}

/// Bytes, rounded down to a unit that people read.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}
