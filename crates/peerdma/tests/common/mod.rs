//! What the tests of the library share: the library itself, its two names, and C programs.
#![allow(dead_code, reason = "each test program uses a part")]

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, freshly built: Cargo does not build a cdylib for tests, so this asks it to.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let beside = Path::new(env!("CARGO_BIN_EXE_peerdma"));
        let directory = beside.parent().expect("a program lies in a directory");
        let profile = match directory.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "peerdma", "--lib", "--profile", profile]);
        cargo.arg("--target-dir").arg(directory.parent().expect("a profile has a directory above"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().expect("cargo runs this test").success(), "the library builds");
        directory.join("libpeerdma.so")
    })
}

/// This test program once more but for one test, in a process whose devices are those of the
/// library: a variable of this process would choose for all of its tests. Returns what it printed.
#[track_caller]
pub(crate) fn again_with_the_library(except: &str) -> String {
    let mut again = Command::new(env::current_exe().expect("this program"));
    again.args(["--skip", except]).env("PEERDMA_PROVIDER", library());
    let output = again.output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A directory that is removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new one, named for the test.
    pub(crate) fn new(test: &str) -> Self {
        let path = env::temp_dir().join(format!("peerdma-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Links both names of the library in it, as an installation does.
    pub(crate) fn install(&self) {
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            symlink(library(), self.0.join(name)).expect("the directory is new");
        }
    }

    /// Compiles a C program of `tests/c` into it. `None` if there is no C compiler.
    pub(crate) fn compile(&self, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        self.compile_file(&source, flags)
    }

    /// Compiles any C program into it. `None` if there is no C compiler.
    pub(crate) fn compile_file(&self, source: &Path, flags: &[&str]) -> Option<PathBuf> {
        let program = self.0.join(source.file_stem().expect("a source has a name"));
        let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.arg("-Wall").arg("-Werror").arg("-o").arg(&program);
        cc.arg(source).args(flags);
        let built = cc.status().ok()?.success();
        assert!(built, "{} compiles", source.display());
        Some(program)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Reports that a test cannot run, and fails it if `PEERDMA_REQUIRE` is set: a skip is not a pass.
pub(crate) fn cannot_run(why: &str) {
    assert!(env::var_os("PEERDMA_REQUIRE").is_none(), "cannot run: {why}");
    eprintln!("SKIPPED: {why}");
}

/// The output of a program that succeeded.
#[track_caller]
pub(crate) fn stdout(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program exists");
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("it prints text")
}

/// The names a library defines, as `name@node` or `name@@node` for the default version. `None` if
/// there is no readelf.
pub(crate) fn defined_symbols(library: &Path) -> Option<Vec<String>> {
    let mut readelf = Command::new("readelf");
    let output = readelf.args(["--dyn-syms", "--wide"]).arg(library).output().ok()?;
    let text = String::from_utf8(output.stdout).expect("readelf prints text");
    let mut symbols: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.len() == 8 && columns[4] == "GLOBAL")
        // The nodes themselves are absolute symbols.
        .filter(|columns| !["UND", "ABS", "Ndx"].contains(&columns[6]))
        .map(|columns| columns[7].to_owned())
        .collect();
    symbols.sort();
    Some(symbols)
}
