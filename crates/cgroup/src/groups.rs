//! The control groups of a process, and their files.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The control groups of a process.
#[derive(Clone, Debug)]
pub struct Groups {
    root: PathBuf,
    /// Controllers with commas, none for version 2, and the path of the group.
    paths: Vec<(String, String)>,
}

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    path: String,
    directory: PathBuf,
}

/// A file of a group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupFile {
    /// Whose it is.
    pub group: Group,
    /// Its contents, without white space around it.
    pub text: String,
}

impl Groups {
    /// The groups of this process, by the files below `root`.
    ///
    /// Lines of `/proc/self/cgroup` are `0::/path` (version 2) or `4:memory:/path` (version 1).
    pub fn of_self(root: &Path) -> Self {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let group = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        };
        Self { root: root.to_owned(), paths: text.lines().filter_map(group).collect() }
    }

    /// The group in which a controller counts the process.
    pub fn own(&self, controller: &str) -> Option<Group> {
        let bases = |(controllers, path): &(String, String)| {
            let group = |base: &String| self.group(base, path.trim_end_matches('/'));
            bases(controllers, controller).iter().map(group).find(|group| group.directory.is_dir())
        };
        self.paths.iter().find_map(bases)
    }

    /// A file of the process's group and of each one above, which limits it, too; the nearest
    /// first.
    pub fn files(&self, controller: &str, name: &str) -> Vec<GroupFile> {
        let mut files = vec![];
        for (controllers, path) in &self.paths {
            let bases = bases(controllers, controller);
            let mut path = path.trim_end_matches('/');
            loop {
                let read = |base: &String| {
                    let group = self.group(base, path);
                    let text = fs::read(group.directory.join(name)).ok()?;
                    let text = String::from_utf8_lossy(&text).trim().to_owned();
                    Some(GroupFile { group, text })
                };
                files.extend(bases.iter().find_map(read));
                match path.rsplit_once('/') {
                    Some((above, _)) => path = above,
                    None => break,
                }
            }
        }
        files
    }

    fn group(&self, base: &str, path: &str) -> Group {
        let directory = self.root.join(format!("{base}{path}"));
        Group { path: if path.is_empty() { "/".to_owned() } else { path.to_owned() }, directory }
    }
}

/// Where groups with a controller may be mounted, below the root directory.
fn bases(controllers: &str, controller: &str) -> Vec<String> {
    match controllers {
        "" => vec!["sys/fs/cgroup".to_owned(), "sys/fs/cgroup/unified".to_owned()],
        several if several.split(',').any(|one| one == controller) => {
            vec![format!("sys/fs/cgroup/{several}"), format!("sys/fs/cgroup/{controller}")]
        }
        _ => vec![],
    }
}

impl Group {
    /// The number by which the kernel knows the group: the inode of its directory. `None` if it is
    /// gone.
    pub fn id(&self) -> Option<u64> {
        Some(fs::metadata(&self.directory).ok()?.ino())
    }

    /// The numbers of the group and of all below it.
    pub fn ids_below(&self) -> BTreeSet<u64> {
        let mut ids = BTreeSet::new();
        let mut left = vec![self.directory.clone()];
        while let Some(directory) = left.pop() {
            let Ok(metadata) = fs::metadata(&directory) else { continue };
            ids.insert(metadata.ino());
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            let is_directory =
                |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            left.extend(entries.filter(is_directory).map(|entry| entry.path()));
        }
        ids
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cgroup {}", self.path)
    }
}
