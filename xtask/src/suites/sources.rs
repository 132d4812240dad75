//! Third-party programs and suites that tests build: `interop/sources.toml` names each with its
//! public repository and commit, or with the URL of an archive and its version.
//!
//! `NAME.tar.xz` is taken from the directory that `PEERDMA_SOURCES` names, if there is one;
//! otherwise, or if it is no use, the commit is fetched from the repository, or the archive from
//! its URL. An archive must have the SHA-256 of the list; a commit's name is a checksum of its
//! contents. Either is unpacked under `target/sources`, once.

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
        let elsewhere = |into: &Path| match self.is_archive() {
            true => self.download(into),
            false => self.fetch(into),
        };
        empty(&new)?;
        let got = match archive(&self.name) {
            Some(archive) => self.unpack(&archive, &new).or_else(|why| {
                println!("{why}");
                empty(&new)?;
                elsewhere(&new).map_err(|also| format!("{why}; {also}"))
            }),
            None => elsewhere(&new),
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
        let mut tar = tool("tar");
        tar.arg("xf").arg(archive).arg("--strip-components=1").arg("-C").arg(to);
        let out = tar.env("LC_ALL", "C").output().map_err(|err| format!("tar: {err}"))?;
        if out.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&out.stderr);
        // tar's words for the archive, and xz's for what is around it.
        let is_cut_off = ["Unexpected EOF", "Unexpected end of input"];
        match is_cut_off.iter().any(|words| said.contains(words)) {
            true => Err(format!("{} is cut off: it ends within a file", archive.display())),
            false => Err(format!("{}: {}", archive.display(), said.trim())),
        }
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

/// Makes the directory, with nothing in it.
fn empty(dir: &Path) -> Outcome {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).map_err(|err| format!("{}: {err}", dir.display()))
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

    /// A directory for an archive, which goes with it, and a source that names no sum.
    struct Fixture(PathBuf, Source);

    impl Fixture {
        fn new(name: &str) -> Self {
            let name = format!("peerdma-source-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(dir.join("unpacked")).unwrap();
            let text = |key| format!("{key} = \"0\"\n");
            let text: String = ["repository", "commit", "date", "sha256"].map(text).concat();
            Self(dir, Source::parse(&format!("[a]\n{text}"), "a").unwrap())
        }

        /// Why an archive with these contents is refused.
        fn refused(&self, bytes: &[u8]) -> String {
            let archive = self.0.join("a.tar.xz");
            fs::write(&archive, bytes).unwrap();
            self.1.unpack(&archive, &self.0.join("unpacked")).unwrap_err()
        }

        /// The same, where the list has the archive's own sum.
        fn refused_by_contents(&mut self, bytes: &[u8]) -> String {
            let archive = self.0.join("a.tar.xz");
            fs::write(&archive, bytes).unwrap();
            let sum = read(tool("sha256sum").arg(&archive)).unwrap();
            self.1.sha256 = sum.split_whitespace().next().unwrap().to_owned();
            self.refused(bytes)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_archive_of_other_bytes_is_refused() {
        let refused = Fixture::new("bytes").refused(b"not what was listed");
        assert!(refused.contains("is not the archive"), "{refused}");
    }

    /// Its sum may be right all the same: whoever made the list summed what was there.
    #[test]
    fn an_archive_that_is_cut_off_is_told_in_words() {
        let mut fixture = Fixture::new("cut");
        let (file, tar) = (fixture.0.join("file"), fixture.0.join("whole.tar"));
        fs::write(&file, [7; 100_000]).unwrap();
        let dir = fixture.0.clone();
        check(tool("tar").arg("cf").arg(&tar).arg("-C").arg(&dir).arg("./file")).unwrap();
        let whole = fs::read(&tar).unwrap();
        // The tar within ends early, or the compression around it.
        for (cut, compress) in [(50_000, false), (0, true)] {
            let tar = fixture.0.join("cut.tar");
            fs::write(&tar, &whole[..whole.len() - cut]).unwrap();
            check(tool("xz").arg("--force").arg(&tar)).unwrap();
            let mut bytes = fs::read(tar.with_extension("tar.xz")).unwrap();
            if compress {
                bytes.truncate(bytes.len() / 2);
            }
            let refused = fixture.refused_by_contents(&bytes);
            assert!(refused.contains("is cut off: it ends within a file"), "{refused}");
        }
        let refused = fixture.refused_by_contents(b"no archive at all");
        assert!(!refused.contains("cut off"), "{refused}");
    }
}
