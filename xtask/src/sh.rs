//! Starting tools.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A chore either succeeds or says why not.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A tool, run in the root of the workspace.
pub(crate) fn tool(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    tool(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs to the end; a failure names the command line.
pub(crate) fn check(command: &mut Command) -> Outcome {
    let line = line(command);
    println!("$ {line}");
    let status = command.status().map_err(|err| format!("cannot start {line}: {err}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// Runs to the end and returns what it printed.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let line = line(command);
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|err| format!("cannot start {line}: {err}"))?;
    if !out.status.success() {
        return Err(format!("{line}: {}", out.status));
    }
    String::from_utf8(out.stdout).map_err(|_| format!("{line}: its output is not UTF-8"))
}

/// Runs to the end, shows each line as it comes, and also passes it to `seen`. The caller checks
/// the exit status.
pub(crate) fn watch(command: &mut Command, mut seen: impl FnMut(&str)) -> Outcome<bool> {
    let line = line(command);
    println!("$ {line}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|err| format!("cannot start {line}: {err}"))?;
    let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let mut ours = std::io::stdout().lock();
    for text in stdout.lines() {
        let text = text.map_err(|err| format!("{line}: {err}"))?;
        seen(&text);
        // A closed standard output is no reason to stop testing.
        let _ = writeln!(ours, "{text}");
    }
    let status = child.wait().map_err(|err| format!("{line}: {err}"))?;
    Ok(status.success())
}

/// Whether a program of that name is in PATH or where the system keeps its own.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|dir| dir.join(program).is_file())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
