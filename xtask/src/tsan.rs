//! `cargo xtask tsan`: eight threads at one device (`crates/peerdma/tests/c/threads.c`) under
//! ThreadSanitizer.
//!
//! The library is built with the sanitizer, and so is the standard library, whose locks and
//! counters the sanitizer has to see. That needs the standard library's sources
//! (`rustup component add rust-src`) and options that a stable compiler accepts only with
//! `RUSTC_BOOTSTRAP`. The C program links the runtime that comes with the compiler. Before it runs,
//! a program with a race must be caught, to show that the sanitizer works.
//!
//! The sanitizer cannot see copies of user memory, which are made by assembly (`umem::guard`), nor
//! what other processes do to shared memory. Both have models of their own (`cargo xtask loom`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fuzz::host;
use crate::sh::{Outcome, cargo, check, exists, read, root, target_dir, tool};

const FLAGS: &str = "-Zsanitizer=thread -Cdebuginfo=1";
/// A function that an instrumented library calls.
const SEEN: &[u8] = b"__tsan_write8";
/// The exit status of a program in which a race was seen.
const RACE: i32 = 66;

const RACING: &str = "#include <pthread.h>
static int both;
static void *count(void *none) { for (int i = 0; i < 1000; i++) both++; return none; }
int main(void)
{
	pthread_t other;
	pthread_create(&other, 0, count, 0);
	count(0);
	return pthread_join(other, 0);
}
";

/// Runs the check, or returns why this machine cannot.
pub(crate) fn run() -> Outcome<Option<String>> {
    if !exists("cc") || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Ok(Some("no C compiler, or no <infiniband/verbs.h>".to_owned()));
    }
    // Fetches them once; a no-op when they are there.
    if let Err(why) = check(tool("rustup").args(["component", "add", "rust-src"])) {
        return Ok(Some(format!("no sources of the standard library: {why}")));
    }
    let host = host()?;
    let Some(runtime) = runtime(&host)? else {
        return Ok(Some(format!("the compiler brings no ThreadSanitizer for {host}")));
    };
    // The standard library has dependencies of its own.
    let mut fetch = cargo();
    fetch.env("RUSTC_BOOTSTRAP", "1");
    fetch.args(["fetch", "-Zbuild-std", "--target", &host, "--locked"]);
    if let Err(why) = check(&mut fetch) {
        return Ok(Some(format!("no crates for the standard library: {why}")));
    }
    let dir = target_dir().join("tsan");
    let mut build = cargo();
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &dir);
    build.args(["build", "-Zbuild-std", "--target", &host, "--locked", "-p", "peerdma", "--lib"]);
    check(&mut build)?;

    let here = dir.join("programs");
    let _ = fs::remove_dir_all(&here);
    fs::create_dir_all(&here).map_err(|err| format!("{}: {err}", here.display()))?;
    let racing = here.join("racing.c");
    fs::write(&racing, RACING).map_err(|err| format!("{}: {err}", racing.display()))?;
    let status = start(&compile(&racing, &here, &runtime, &[])?, &here).status();
    if status.as_ref().ok().and_then(|status| status.code()) != Some(RACE) {
        return Err(format!("a race was not seen: {status:?}"));
    }

    let library = dir.join(&host).join("debug/libpeerdma.so");
    let bytes = fs::read(&library).map_err(|err| format!("{}: {err}", library.display()))?;
    if !bytes.windows(SEEN.len()).any(|word| word == SEEN) {
        return Err(format!("{} does not tell the sanitizer what it writes", library.display()));
    }
    let name = "libibverbs.so.1";
    symlink(&library, here.join(name)).map_err(|err| format!("{name}: {err}"))?;
    let link = [format!("-L{}", here.display()), format!("-l:{name}")];
    let source = root().join("crates/peerdma/tests/c/threads.c");
    let said = read(&mut start(&compile(&source, &here, &runtime, &link)?, &here))?;
    if said != "every check passed\n" {
        return Err(format!("threads.c said {said:?}"));
    }
    println!("tsan: eight threads, and no race");
    Ok(None)
}

/// The sanitizer's runtime of the compiler that builds.
fn runtime(host: &str) -> Outcome<Option<PathBuf>> {
    let sysroot = read(tool("rustc").args(["--print", "sysroot"]))?;
    let dir = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("lib");
    let entries = fs::read_dir(&dir).map_err(|err| format!("{}: {err}", dir.display()))?;
    let is_it = |path: &PathBuf| path.to_string_lossy().ends_with("_rt.tsan.a");
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_it))
}

/// A C program with the sanitizer, which exports the runtime to the library.
fn compile(source: &Path, here: &Path, runtime: &Path, link: &[String]) -> Outcome<PathBuf> {
    let program = here.join(source.file_stem().expect("a source has a name"));
    let object = program.with_extension("o");
    check(
        tool("cc")
            .args(["-g", "-O1", "-fsanitize=thread", "-c"])
            .arg(source)
            .arg("-o")
            .arg(&object),
    )?;
    let mut cc = tool("cc");
    cc.arg("-rdynamic").arg(&object).args(link);
    cc.arg("-Wl,--whole-archive").arg(runtime).arg("-Wl,--no-whole-archive");
    check(cc.args(["-lpthread", "-ldl", "-lm", "-lrt", "-lgcc_s", "-o"]).arg(&program))?;
    Ok(program)
}

fn start(program: &Path, here: &Path) -> Command {
    let mut command = tool(program);
    command.env("LD_LIBRARY_PATH", here);
    command.env("TSAN_OPTIONS", format!("exitcode={RACE} history_size=5"));
    command
}
