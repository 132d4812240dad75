//! `cargo install --path`.

use std::process::Command;

use interop::{Artefacts, Scratch, needs, target_dir, workspace};

use crate::NEEDS;
use crate::pip::as_user;
use crate::root::Root;

/// Cargo installs programs and no libraries, so `run` says where it looks for them, and works when
/// it is told where they are.
#[test]
fn cargo_installs_the_program_from_its_sources() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2]);
    let scratch = Scratch::new();
    let (root, installed) = (Root::new(&scratch), scratch.file("installed"));
    let profile = if interop::need::full() { "release" } else { "dev" };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let made = Command::new(cargo)
        .current_dir(workspace())
        .args(["install", "--locked", "--offline", "--path=crates/peerdma", "--profile", profile])
        .arg("--target-dir")
        .arg(target_dir())
        .arg("--root")
        .arg(&installed)
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "cargo install: {said}");
    let program = root.give(&installed.join("bin/peerdma"));
    let library = root.give(&Artefacts::find().library());
    let script = format!(
        "mkdir bin lib; cp {program} bin/peerdma; bin/peerdma demo; \
         bin/peerdma doctor --json >/dev/null; \
         if bin/peerdma run -- true 2>said; then exit 1; fi; grep PEERDMA_LIB_DIR said; \
         ln -s {library} lib/libpeerdma.so; \
         PEERDMA_LIB_DIR=/home/me/lib bin/peerdma run -- ibv_devinfo"
    );
    root.run(&as_user(&script)).success().says("bytes").says("PORT_ACTIVE");
}
