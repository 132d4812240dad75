//! Third-party programs and suites that tests build: `interop/sources.toml` names each with its
//! public repository and commit, or with the URL of an archive and its version.
//!
//! `NAME.tar.xz` is taken from the directory that `PEERDMA_SOURCES` names, if there is one;
//! otherwise the commit is fetched from the repository, or the archive from its URL. An archive
//! must have the SHA-256 of the list; a commit's name is a checksum of its contents. Either is
//! unpacked under `target/sources`, once.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::sh::{Outcome, check, read, root, target_dir, tool};

const FILE: &str = "interop/sources.toml";
/// A directory of archives, for machines that reach only package registries.
const FOLDER: &str = "PEERDMA_SOURCES";
/// What fetches from Debian as its packages come.
const FETCH: &str = "/usr/lib/apt/apt-helper";

/// One source.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// `OWNER/NAME` on GitHub, or the URL of an archive.
    pub(crate) repository: String,
    /// A commit, or the version of the archive's contents.
    commit: String,
    /// The date of the commit or version.
    pub(crate) date: String,
    /// The SHA-256 of the archive.
    sha256: String,
}

impl Source {
    /// The source of that name.
    pub(crate) fn named(name: &str) -> Outcome<Self> {
        let text = fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
        Self::parse(&text, name)
    }

    fn parse(text: &str, name: &str) -> Outcome<Self> {
        let table: Table = text.parse().map_err(|err| format!("{FILE}: {err}"))?;
        let entry = table.get(name).ok_or_else(|| format!("{FILE} lists no {name:?}"))?;
        let value = |key: &str| {
            let value = entry.get(key).and_then(Value::as_str).map(str::to_owned);
            value.ok_or_else(|| format!("{FILE}: {name} has no {key}"))
        };
        let [place, version] = match entry.get("archive") {
            Some(_) => ["archive", "version"],
            None => ["repository", "commit"],
        };
        Ok(Self {
            name: name.to_owned(),
            repository: value(place)?,
            commit: value(version)?,
            date: value("date")?,
            sha256: value("sha256")?,
        })
    }

    /// The abbreviated commit, or the version.
    pub(crate) fn commit(&self) -> &str {
        self.commit.get(..12).unwrap_or(&self.commit)
    }

    fn is_archive(&self) -> bool {
        self.repository.starts_with("https://")
    }

    /// The directory that holds it; its name changes with the commit, so builds do not become
    /// stale.
    pub(crate) fn unpacked(&self) -> Outcome<PathBuf> {
        let all = target_dir().join("sources");
        let dir = all.join(format!("{}-{}", self.name, self.commit()));
        if dir.exists() {
            return Ok(dir);
        }
        // Made elsewhere and renamed at the end, so that a partial one is not taken for complete.
        let new = all.join(format!("{}-{}.new", self.name, std::process::id()));
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new).map_err(|err| format!("{}: {err}", new.display()))?;
        let got = match archive(&self.name) {
            Some(archive) => self.unpack(&archive, &new),
            None if self.is_archive() => self.download(&new),
            None => self.fetch(&new),
        };
        let done = got.and_then(|()| {
            fs::rename(&new, &dir).map_err(|err| format!("{}: {err}", dir.display()))
        });
        if let Err(why) = done {
            let _ = fs::remove_dir_all(&new);
            return Err(format!("no source of {}: {why}", self.name));
        }
        Ok(dir)
    }

    fn unpack(&self, archive: &Path, to: &Path) -> Outcome {
        let sum = read(tool("sha256sum").arg(archive))?;
        if sum.split_whitespace().next() != Some(&self.sha256) {
            return Err(format!("{} is not the archive of {FILE}", archive.display()));
        }
        check(tool("tar").arg("xf").arg(archive).arg("--strip-components=1").arg("-C").arg(to))
    }

    fn download(&self, to: &Path) -> Outcome {
        let archive = to.with_extension("tar.xz");
        let got = check(tool(FETCH).arg("download-file").arg(&self.repository).arg(&archive))
            .and_then(|()| self.unpack(&archive, to));
        let _ = fs::remove_file(&archive);
        got
    }

    fn fetch(&self, to: &Path) -> Outcome {
        let url = format!("https://github.com/{}.git", self.repository);
        let git = || {
            let mut git = tool("git");
            git.arg("-C").arg(to).args(["-c", "advice.detachedHead=false"]);
            git
        };
        check(git().args(["init", "--quiet"]))?;
        check(git().args(["fetch", "--quiet", "--depth=1", &url, &self.commit]))?;
        check(git().args(["checkout", "--quiet", "FETCH_HEAD"]))?;
        let got = read(git().args(["rev-parse", "HEAD"]))?;
        if got.trim() != self.commit {
            return Err(format!("{url} gave {} for {}", got.trim(), self.commit));
        }
        // A build there must not take the directory for a checkout.
        fs::remove_dir_all(to.join(".git")).map_err(|err| format!("{}: {err}", to.display()))
    }
}

fn archive(name: &str) -> Option<PathBuf> {
    let folder = root().join(std::env::var_os(FOLDER)?);
    let archive = folder.join(format!("{name}.tar.xz"));
    archive.is_file().then_some(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_named_by_its_whole_commit() {
        let text = fs::read_to_string(root().join(FILE)).unwrap();
        let table: Table = text.parse().unwrap();
        for name in table.keys() {
            let source = Source::parse(&text, name).unwrap();
            assert!(source.is_archive() || source.commit.len() == 40, "{name}");
            assert_eq!(source.sha256.len(), 64, "{name}");
        }
        assert!(Source::parse(&text, "no such thing").unwrap_err().contains("no such thing"));
        assert!(Source::parse("[a]\ncommit = \"1\"", "a").unwrap_err().contains("repository"));
    }

    #[test]
    fn an_archive_of_other_bytes_is_refused() {
        let dir = std::env::temp_dir().join(format!("peerdma-source-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let archive = dir.join("a.tar.xz");
        fs::write(&archive, "not what was listed").unwrap();
        let text = |key| format!("{key} = \"0\"\n");
        let text: String = ["repository", "commit", "date", "sha256"].map(text).concat();
        let source = Source::parse(&format!("[a]\n{text}"), "a").unwrap();
        let refused = source.unpack(&archive, &dir).unwrap_err();
        fs::remove_dir_all(&dir).unwrap();
        assert!(refused.contains("is not the archive"), "{refused}");
    }
}
