//! A file that the user named.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A text file that a variable, another such file or an option names.
#[derive(Clone, Debug)]
pub struct NamedFile {
    path: PathBuf,
    text: String,
    owner: u32,
}

impl NamedFile {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// The system's error, without the path.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let owner = file.metadata()?.uid();
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(Self { path: path.to_owned(), text, owner })
    }

    /// Text that is part of this library, under the name by which the user asked for it.
    pub(crate) fn built_in(name: &str, text: &str) -> Self {
        let owner = rustix::process::getuid().as_raw();
        Self { path: PathBuf::from(name), text: text.to_owned(), owner }
    }

    /// What it says.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is wrong with it, in words: `what` comes from reading its text and may quote it, so it
    /// is shown for the user's own files only. A user that makes a program print it may not be
    /// allowed to read the file.
    pub fn blame(&self, what: &dyn std::fmt::Display) -> String {
        let path = self.path.display();
        let user = rustix::process::getuid().as_raw();
        if self.owner == user {
            format!("{path}: {what}")
        } else {
            format!(
                "{path}: something is wrong in it; nothing is quoted, as it belongs to uid {} and not \
                 to the user (uid {user})",
                self.owner
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ones_own_file_is_quoted() {
        let path = std::env::temp_dir().join(format!("peerdma-file-{}", std::process::id()));
        std::fs::write(&path, "secret").expect("a temporary file");
        let mut file = NamedFile::read(&path).expect("written above");
        std::fs::remove_file(&path).expect("written above");
        assert_eq!(file.text(), "secret");
        assert!(file.blame(&"line 1: secret").ends_with(": line 1: secret"));
        file.owner ^= 1;
        let said = file.blame(&"line 1: secret");
        assert!(!said.contains("secret") && said.contains("belongs to uid"), "{said}");
    }
}
