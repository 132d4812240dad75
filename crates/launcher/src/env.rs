//! `peerdma env`: the variables that `peerdma run` sets, for shells, CI and images.
//!
//! A program that is started with these variables runs on peerdma without `peerdma run` as its
//! parent. So nobody answers its reads of `/sys` by system call: `--sysfs` makes a copy of the tree
//! as it is now, which the preload library shows.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::ValueEnum;
use rustix::fs::{Mode, OFlags};

use crate::Outcome;
use crate::door::SYSFS;
use crate::options::Options;

/// `peerdma env`.
#[derive(clap::Args)]
pub struct Args {
    /// How to print them
    #[arg(long, value_enum, default_value_t = Format::Sh)]
    format: Format,
    /// Also make a copy of /sys as a program is to see it in this directory, which must not exist
    /// or be empty. Counters in it stand still
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The reader of the variables.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// eval "$(peerdma env)"
    Sh,
    /// peerdma env --format fish | source
    Fish,
    /// Instructions of a Dockerfile or Containerfile
    Dockerfile,
    /// NAME=VALUE lines: GITHUB_ENV, a dotenv report of GitLab, an --env-file
    EnvFile,
    /// One object
    Json,
}

/// Prints the variables.
pub fn main(args: Args) -> ExitCode {
    match print(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peerdma env: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(args: Args) -> Outcome<()> {
    let mut command = Command::new("");
    let mut prepared = args.options.prepare(&mut command)?;
    if let Some(directory) = &args.sysfs {
        if prepared.preload.is_none() {
            return Err("--sysfs needs libpeerdma-preload.so next to the library".into());
        }
        let failed = |error: io::Error| format!("--sysfs {}: {error}", directory.display());
        let mut tree = prepared.shown().tree;
        tree.add_kernel_names();
        fs::create_dir_all(directory).map_err(failed)?;
        if fs::read_dir(directory).map_err(failed)?.next().is_some() {
            return Err(failed(io::ErrorKind::DirectoryNotEmpty.into()).into());
        }
        let root = rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed(errno.into()))?;
        tree.materialise(root.as_fd()).map_err(failed)?;
        command.env(SYSFS, directory.canonicalize().map_err(failed)?.join("sys"));
    }
    let mut variables = BTreeMap::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            variables.insert(text(name)?, text(value)?);
        }
    }
    io::stdout().write_all(args.format.print(&variables)?.as_bytes())?;
    Ok(())
}

/// Every format is text of lines.
fn text(value: &OsStr) -> Outcome<&str> {
    let text = value.to_str().ok_or_else(|| format!("{}: not UTF-8", value.display()))?;
    if text.contains(['\n', '\r']) {
        return Err(format!("{text:?}: more than one line").into());
    }
    Ok(text)
}

impl Format {
    fn print(self, variables: &BTreeMap<&str, &str>) -> Outcome<String> {
        if matches!(self, Self::Json) {
            return Ok(format!("{}\n", serde_json::to_string_pretty(variables)?));
        }
        let mut out = String::new();
        for (name, value) in variables {
            let _ = match self {
                Self::Sh => writeln!(out, "export {name}={}", sh(value)),
                Self::Fish => writeln!(out, "set -gx {name} {}", fish(value)),
                Self::Dockerfile => writeln!(out, "ENV {name}={}", dockerfile(value)),
                Self::EnvFile | Self::Json => writeln!(out, "{name}={value}"),
            };
        }
        Ok(out)
    }
}

/// In single quotes, where a shell changes nothing.
fn sh(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// In single quotes, where fish takes two escapes.
fn fish(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// In double quotes, where an image's build replaces variables.
fn dockerfile(value: &str) -> String {
    let escape = |char| matches!(char, '\\' | '"' | '$').then_some('\\');
    let inner = value.chars().flat_map(|char| escape(char).into_iter().chain([char]));
    format!("\"{}\"", inner.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_quotes_is_quoted_as_each_reader_expects() {
        assert_eq!(sh("it's $x"), r"'it'\''s $x'");
        assert_eq!(fish(r"it's \x"), r"'it\'s \\x'");
        assert_eq!(dockerfile(r#"a"b$c\d"#), r#""a\"b\$c\\d""#);
    }

    #[test]
    fn a_shell_has_the_value_that_was_printed() {
        let value = r#"/a b:/c'd"e$f\g`h"#;
        let lines = Format::Sh.print(&BTreeMap::from([("X", value)])).unwrap();
        let out = Command::new("sh")
            .args(["-c", "eval \"$1\"; printf %s \"$X\"", "sh", &lines])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), value);
    }

    #[test]
    fn a_value_of_two_lines_is_refused() {
        assert!(text(OsStr::new("a\nb")).is_err());
    }
}
