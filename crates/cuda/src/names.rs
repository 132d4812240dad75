//! The names of the driver's functions, and the variant of a function that a program gets.

use std::collections::HashMap;
use std::sync::OnceLock;

/// A variant of a function: the symbol, and the version of CUDA that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) version: u32,
    pub(crate) symbol: &'static str,
}

/// The variants of one name: for the legacy default stream, and for the per-thread stream.
#[derive(Default)]
struct Forms {
    legacy: Vec<Form>,
    per_thread: Vec<Form>,
}

/// The result of a look-up by `cuGetProcAddress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The newest variant that is old enough.
    Form(&'static str),
    /// All variants are newer than the requested version.
    TooNew,
    /// There is no such name.
    None,
}

/// The newest variant of `name` that `version` has.
pub(crate) fn find(name: &str, version: u32, per_thread: bool) -> Found {
    let Some(forms) = table().get(name) else { return Found::None };
    let newest = |forms: &[Form]| {
        let old = forms.iter().filter(|form| form.version <= version);
        old.max_by_key(|form| form.version).map(|form| form.symbol)
    };
    let own = per_thread.then(|| newest(&forms.per_thread)).flatten();
    match own.or_else(|| newest(&forms.legacy)) {
        Some(symbol) => Found::Form(symbol),
        None => Found::TooNew,
    }
}

/// The symbol without the suffix of the variant for the per-thread stream.
pub(crate) fn plain(symbol: &str) -> &str {
    let per_thread = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    per_thread.unwrap_or(symbol)
}

/// Asserts that each name that a library serves is in its headers, and is served once.
#[cfg(test)]
#[track_caller]
pub(crate) fn are_served_once(served: impl Iterator<Item = &'static str>, known: &[&str]) {
    let mut seen = std::collections::HashSet::new();
    for name in served {
        assert!(known.contains(&name), "{name} is in no header");
        assert!(seen.insert(name), "{name} is served twice");
    }
}

fn table() -> &'static HashMap<&'static str, Forms> {
    static TABLE: OnceLock<HashMap<&str, Forms>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = HashMap::<_, Forms>::new();
        let text: &'static str = include_str!("../names/driver.txt");
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split(' ');
            let (Some(symbol), Some(name), Some(version)) =
                (words.next(), words.next(), words.next().and_then(|word| word.parse().ok()))
            else {
                continue;
            };
            let forms = table.entry(name).or_default();
            let is_plain = plain(symbol) == symbol;
            let list = if is_plain { &mut forms.legacy } else { &mut forms.per_thread };
            list.push(Form { version, symbol });
        }
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_form_that_is_old_enough_is_found() {
        assert_eq!(find("cuMemAlloc", 2000, false), Found::Form("cuMemAlloc"));
        assert_eq!(find("cuMemAlloc", 12000, false), Found::Form("cuMemAlloc_v2"));
        assert_eq!(find("cuCtxCreate", 12040, false), Found::Form("cuCtxCreate_v3"));
        assert_eq!(find("cuCtxCreate", 13000, false), Found::Form("cuCtxCreate_v4"));
        assert_eq!(find("cuDeviceGetUuid", 9020, false), Found::Form("cuDeviceGetUuid"));
        assert_eq!(find("cuMemcpyBatchAsync", 12070, false), Found::TooNew);
        assert_eq!(find("cuMemAlloc_v2", 12000, false), Found::None);
        assert_eq!(find("", 12000, false), Found::None);
    }

    #[test]
    fn a_function_without_a_per_thread_form_has_the_plain_one() {
        assert_eq!(find("cuMemcpyAsync", 12000, true), Found::Form("cuMemcpyAsync_ptsz"));
        assert_eq!(find("cuMemAlloc", 12000, true), Found::Form("cuMemAlloc_v2"));
    }

    #[test]
    fn every_line_of_the_list_is_read() {
        let lines = include_str!("../names/driver.txt").lines();
        let count = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        let forms = table().values().map(|forms| forms.legacy.len() + forms.per_thread.len());
        assert_eq!(forms.sum::<usize>(), count);
    }
}
