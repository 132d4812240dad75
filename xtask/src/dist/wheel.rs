//! The wheel of Python: program, libraries and the module of `python/`.
//!
//! It runs wherever pip says that it does, which is what the tag `manylinux_2_28` names: a C
//! library of that version or newer. So it is linked by zig, whose libraries can be as old; zig and
//! what gives it to cargo are wheels themselves (`interop/wheels/cross.txt`).

use std::path::{Path, PathBuf};

use super::elf::{self, Glibc};
use super::{LIBRARIES, VERSION, directory, vanish};
use crate::sh::{Outcome, check, read, root, target_dir, tool};
use crate::suites::{PYTHON, wheels};

/// The C library of the tag.
const GLIBC: Glibc = Glibc(2, 28);

/// What the tag permits to need (PEP 600 and the policy of its version), of which we need no more.
/// The last is the loader, by the start of its name.
const PERMITTED: [&str; 7] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-",
];

/// A user downloads it for each run of their CI.
const MOST_BYTES: u64 = 15_000_000;

/// An architecture for which a wheel is made.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Arch {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// That of this machine.
    pub(super) fn here() -> Outcome<Self> {
        let name = std::env::consts::ARCH;
        <Self as clap::ValueEnum>::from_str(name, false)
            .map_err(|_| format!("no wheel is made for {name}"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }
}

/// Builds what the wheel has, and makes it. `profile` is cargo's.
pub(super) fn make(out: &Path, arch: Arch, profile: &str) -> Outcome<PathBuf> {
    let built = build(arch, profile)?;
    let stage = out.join(format!("wheel-{}", arch.name()));
    vanish(&stage)?;
    directory(&stage)?;
    for (from, to) in LIBRARIES.into_iter().chain([("peerdma", "peerdma")]) {
        let to = stage.join(to);
        strip(&built.join(from), &to)?;
        permitted(&to)?;
    }
    let tag = format!("py3-none-manylinux_{}_{}_{}", GLIBC.0, GLIBC.1, arch.name());
    let mut script = tool(PYTHON);
    script.arg(root().join("python/wheel.py")).args(["--version", VERSION, "--tag", &tag]);
    let wheel = read(script.arg("--built").arg(&stage).arg("--out").arg(out))?;
    let wheel = PathBuf::from(wheel.trim());
    vanish(&stage)?;
    let bytes = wheel.metadata().map_err(|err| format!("{}: {err}", wheel.display()))?.len();
    if bytes >= MOST_BYTES {
        return Err(format!("{}: {bytes} bytes, more than {MOST_BYTES}", wheel.display()));
    }
    Ok(wheel)
}

/// The program and the libraries, linked with the C library of the tag.
fn build(arch: Arch, profile: &str) -> Outcome<PathBuf> {
    let target = arch.target();
    if arch.name() != std::env::consts::ARCH {
        check(tool("rustup").args(["target", "add", &target]))?;
    }
    let tools = wheels("cross")?;
    let mut cargo = tool(tools.join("bin/cargo-zigbuild"));
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", tools.join("ziglang/zig"));
    let all = target_dir().join("cross");
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        cargo.env(cache, all.join("zig"));
    }
    // Build scripts are linked by zig too: the outputs of another linker would be rebuilt, and
    // again by whoever builds for this machine next.
    cargo.env("CARGO_TARGET_DIR", &all);
    cargo.args(["zigbuild", "--locked", "--profile", profile]);
    check(cargo.args(["--target", &format!("{target}.{GLIBC}")]))?;
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(all.join(target).join(directory))
}

/// Leaves out what only a debugger reads. Of binutils, strip knows the machine's own architecture
/// only; rustc brings one that knows all.
fn strip(from: &Path, to: &Path) -> Outcome {
    let libraries = read(tool("rustc").args(["--print", "target-libdir"]))?;
    let libraries = Path::new(libraries.trim());
    let objcopy = libraries.parent().unwrap_or(libraries).join("bin/rust-objcopy");
    check(tool(objcopy).arg("--strip-unneeded").arg(from).arg(to))
}

/// Refuses a file that the tag promises too much for.
fn permitted(file: &Path) -> Outcome {
    let newest = elf::glibc(file)?;
    if newest > GLIBC {
        return Err(format!("{}: needs glibc {newest}, and the tag is {GLIBC}", file.display()));
    }
    for library in elf::needed(file)? {
        if !PERMITTED.iter().any(|name| library.starts_with(name)) {
            return Err(format!("{}: needs {library}, which not everyone has", file.display()));
        }
    }
    Ok(())
}
