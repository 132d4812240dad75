//! Programs of this workspace for the arm64 machine ([`Vm::arm64`](crate::Vm::arm64)), which a
//! compiler of this machine builds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::artefacts::target_dir;
use crate::built::built;
use crate::need::{self, Need};
use crate::output::Output;
use crate::vm::{self, Vm, VmOutput};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// How long one program may take: an emulated processor is slow, and the machine may be loaded.
const PATIENCE: u64 = 240;

/// Checks that all is there. The error tells what is missing.
pub(crate) fn check() -> Result<(), String> {
    let libraries = rustc(&["--print", "target-libdir", "--target", TARGET])?;
    if !Path::new(&libraries).is_dir() {
        return Err(format!("no standard library for {TARGET}: `rustup target add {TARGET}`"));
    }
    let linker = linker()?;
    if !linker.is_dir() {
        return Err(format!("no lld of rustc in {}", linker.display()));
    }
    need::check(Need::Program("aarch64-linux-gnu-gcc"))?;
    vm::fetch_arm64()
}

/// The directory in which gcc finds rustc's lld, which knows all architectures.
fn linker() -> Result<PathBuf, String> {
    let host = rustc(&["--print", "host-tuple"])?;
    let root = rustc(&["--print", "sysroot"])?;
    Ok(Path::new(&root).join("lib/rustlib").join(host).join("bin/gcc-ld"))
}

fn rustc(args: &[&str]) -> Result<String, String> {
    let out = Command::new("rustc").args(args).output().map_err(|err| format!("rustc: {err}"))?;
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if out.status.success() { Ok(words(&out.stdout)) } else { Err(words(&out.stderr)) }
}

/// Runs `cargo ARGS` for arm64 and returns the programs, as [`built`](fn@built).
#[track_caller]
pub fn cross_built<'a>(args: impl IntoIterator<Item = &'a str>) -> Vec<PathBuf> {
    let linker = linker().expect("the test asked for it with needs!");
    let target = format!("target.{TARGET}");
    let config = [
        format!("{target}.linker=\"aarch64-linux-gnu-gcc\""),
        // libpeerdma needs lld (crates/peerdma/build.rs).
        format!(
            "{target}.rustflags=['-Clink-arg=-fuse-ld=lld','-Clink-arg=-B{}']",
            linker.display()
        ),
    ];
    let mut words: Vec<&str> = args.into_iter().collect();
    words.extend(["--target", TARGET, "--config", &config[0], "--config", &config[1]]);
    built(words)
}

/// Builds what the machine finds in `/built`, once.
#[track_caller]
pub fn build() {
    static BUILT: LazyLock<()> = LazyLock::new(|| drop(cross_built(["build"])));
    LazyLock::force(&BUILT);
}

/// Where cargo puts them.
pub fn directory() -> PathBuf {
    target_dir().join(TARGET).join("debug")
}

/// Debian's programs and libraries for the machine, which finds them in `/debian`.
pub fn root() -> PathBuf {
    vm::arm64_dir().join("debian")
}

/// Programs for one boot of the machine, in order.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    lines: String,
}

impl Programs {
    /// A program alone.
    #[must_use]
    pub fn run(mut self, name: &str, command: &str) -> Self {
        self.lines += &format!("run {name}|{command}\n");
        self
    }

    /// A server and its client. Begin each with `ours` for peerdma, with `kernels` for rdma_rxe.
    #[must_use]
    pub fn pair(mut self, name: &str, server: &str, client: &str) -> Self {
        self.lines += &format!("pair {name}|{server}|{client}\n");
        self
    }

    /// Boots the machine and runs all, of which each must succeed. `files` is what the programs
    /// find in `/files`.
    #[track_caller]
    pub fn boot(&self, files: &Path) -> VmOutput {
        let list = files.join("part");
        std::fs::write(&list, &self.lines).expect("a directory of our own");
        let mut vm = Vm::arm64("aarch64");
        if self.lines.contains("kernels") {
            for module in ["rdma_rxe", "ib_uverbs", "rdma_ucm"] {
                vm = vm.module(module);
            }
        }
        let out = vm
            .module("veth")
            .module("bridge")
            .share("built", &directory())
            .share("files", files)
            .file(&list, "/part")
            .variable("patience", &PATIENCE.to_string())
            .limit(std::time::Duration::from_secs(2 * PATIENCE))
            .run();
        out.all.success();
        out
    }
}

/// The output of both sides of a pair.
#[track_caller]
pub fn sides<'a>(out: &'a VmOutput, name: &str) -> [&'a Output; 2] {
    ["server", "client"].map(|side| out.section(&format!("{name} {side}")))
}
