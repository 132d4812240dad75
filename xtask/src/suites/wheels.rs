//! Third-party programs and libraries that are available as Python wheels: each list in
//! `interop/wheels` names them with their versions and the SHA-256 of the accepted files. pip
//! fetches them from the machine's index into `target/wheels`, once.

use std::fs;
use std::path::PathBuf;

use crate::sh::{Outcome, check, read, root, target_dir, tool};

/// Debian's Python, for which the wheels must be built; another one may come first in PATH.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The directory with the unpacked wheels of a list. Its name changes with the list. An error says
/// why they cannot be obtained.
pub(crate) fn wheels(list: &str) -> Outcome<PathBuf> {
    let file = root().join("interop/wheels").join(format!("{list}.txt"));
    let sum = read(tool("sha256sum").arg(&file))?;
    let all = target_dir().join("wheels");
    let dir = all.join(format!("{list}-{}", sum.get(..12).unwrap_or_default()));
    if dir.exists() {
        return Ok(dir);
    }
    // Made elsewhere and renamed at the end, so that a partial one is not taken for complete.
    let new = all.join(format!("{list}-{}.new", std::process::id()));
    let _ = fs::remove_dir_all(&new);
    let mut pip = tool(PYTHON);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // Only what the list names, and pip runs no code of a package to build it.
    pip.args(["--require-hashes", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]);
    // Give up soon on an index that does not answer.
    pip.args(["--timeout", "30", "--retries", "2"]);
    let got = check(pip.arg("--target").arg(&new).arg("--requirement").arg(&file));
    let done = got
        .and_then(|()| fs::rename(&new, &dir).map_err(|err| format!("{}: {err}", dir.display())));
    if let Err(why) = done {
        let _ = fs::remove_dir_all(&new);
        return Err(format!("no wheels of {list}: {why}"));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version alone does not fix the contents: the index decides what it is.
    #[test]
    fn each_wheel_is_named_by_its_version_and_its_sum() {
        for entry in root().join("interop/wheels").read_dir().unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let all = lines.collect::<Vec<_>>().join("\n").replace("\\\n", "");
            for wheel in all.lines() {
                let (name, sums) = wheel.split_once("--hash=sha256:").expect("a sum");
                assert!(name.contains("=="), "{}: {wheel}", path.display());
                for sum in sums.split("--hash=sha256:") {
                    let sum = sum.trim();
                    assert!(sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit()), "{sum}");
                }
            }
        }
    }
}
