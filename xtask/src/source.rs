//! Reading the tree's own source files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sh::Outcome;

/// Every `.rs` file below `dir`, in a stable order.
pub(crate) fn rust_files(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry.map_err(|err| format!("{}: {err}", dir.display()))?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The file without comments and without the contents of literals: a word in the rest is a word of
/// the language.
pub(crate) fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"//") {
            at += length_until(rest, b"\n");
        } else if rest.starts_with(b"/*") {
            at += block_comment(rest);
        } else if let Some(len) = raw_string(rest) {
            at += len;
        } else if rest[0] == b'"' {
            at += string(rest);
        } else if rest[0] == b'\'' && (rest.get(1) == Some(&b'\\') || rest.get(2) == Some(&b'\'')) {
            // A character, not a lifetime.
            let from = if rest.get(1) == Some(&b'\\') { 3 } else { 2 };
            at += from + length_until(rest.get(from..).unwrap_or_default(), b"'") + 1;
        } else {
            out.push(char::from(rest[0]));
            at += 1;
        }
    }
    out
}

fn length_until(bytes: &[u8], end: &[u8]) -> usize {
    bytes.windows(end.len()).position(|w| w == end).unwrap_or(bytes.len())
}

/// Block comments nest.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string(bytes: &[u8]) -> Option<usize> {
    let after = bytes.strip_prefix(b"br").or_else(|| bytes.strip_prefix(b"r"))?;
    let hashes = after.iter().take_while(|b| **b == b'#').count();
    after.get(hashes).filter(|b| **b == b'"')?;
    let open = bytes.len() - after.len() + hashes + 1;
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some(open + length_until(&bytes[open..], &close) + close.len())
}

/// How often `word` occurs as a whole word in `code`.
pub(crate) fn count_word(code: &str, word: &str) -> usize {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| *w == word).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_counts() {
        let text = r###"
            // unsafe
            /* unsafe /* unsafe */ unsafe */
            let quoted = "unsafe \" unsafe"; let raw = r#"unsafe " unsafe"#; let c = '"';
            #![deny(unsafe_code)] fn f<'a>() { unsafe { g() } }
        "###;
        assert_eq!(count_word(&code(text), "unsafe"), 1);
    }
}
