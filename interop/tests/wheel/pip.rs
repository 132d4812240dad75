//! The wheel of Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use interop::arm64::Programs;
use interop::need::Need;
use interop::{Scratch, needs, wheel_of, workspace};

use crate::root::Root;
use crate::{LINKER, NEEDS, NOBODY};

/// Tests with pytest, as a user of the wheel has them.
const SUITE: &str = "interop/py/test_wheel.py";

/// The wheel for this machine.
pub(crate) fn wheel() -> &'static Path {
    static MADE: LazyLock<PathBuf> = LazyLock::new(|| wheel_of(std::env::consts::ARCH));
    &MADE
}

/// A script for a user without rights, in a new home. It has no single quotes.
pub(crate) fn as_user(script: &str) -> String {
    format!(
        "rm -rf /home/me && mkdir /home/me && chown {NOBODY} /home/me && cd /home/me && \
         exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env HOME=/home/me \
         sh -ec '{script}'"
    )
}

#[test]
fn pip_installs_a_wheel_with_the_program_the_module_and_fixtures() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2], LINKER);
    let scratch = Scratch::new();
    let root = Root::new(&scratch);
    let wheel = root.give(wheel());
    let suite = root.give(&workspace().join(SUITE));
    // Debian's pytest and pyverbs.
    let script = format!(
        "python3 -m venv --system-site-packages venv; . venv/bin/activate; \
         pip install --no-index {wheel}; \
         python -c \"import peerdma; print(*peerdma.env())\"; \
         peerdma demo; \
         peerdma run -- python -m pytest -v -p no:cacheprovider {suite}; \
         pip uninstall --yes peerdma; \
         if python -c \"import peerdma.hosts\"; then exit 1; fi"
    );
    root.run(&as_user(&script))
        .success()
        .says("LD_LIBRARY_PATH")
        .says("test_two_hosts_are_apart PASSED");
    // Root needs no user namespace.
    let system = format!(
        "python3 -m venv --system-site-packages /opt/venv; . /opt/venv/bin/activate; \
         pip install --no-index {wheel}; \
         peerdma run -- python -m pytest -v -p no:cacheprovider {suite}"
    );
    root.run(&system).success().says("test_two_hosts_are_apart PASSED");
}

/// The wheel for arm64, in an emulated machine of that kind with Debian's kernel and Python.
#[test]
fn pip_installs_the_wheel_for_arm64() {
    needs!(Need::Arm64, LINKER);
    let scratch = Scratch::new();
    let wheel = wheel_of("aarch64");
    let suite = workspace().join(SUITE);
    for file in [&wheel, &suite] {
        let name = file.file_name().expect("a file has a name");
        fs::copy(file, scratch.file(name.to_str().expect("ASCII"))).expect("it can be copied");
    }
    let script = "set -e; python3 -m venv --system-site-packages /tmp/venv; \
                  . /tmp/venv/bin/activate; pip install --no-index /files/*.whl; \
                  python -c 'import peerdma; print(*peerdma.env())'; peerdma demo --rounds 2; \
                  peerdma run -- python -m pytest -v -p no:cacheprovider /files/test_wheel.py";
    fs::write(scratch.file("install"), script).expect("a directory of our own");
    let out = Programs::default().run("wheel", "sh /files/install").boot(scratch.path());
    out.section("wheel")
        .says("LD_LIBRARY_PATH")
        .says("every byte was checked")
        .says("test_two_hosts_are_apart PASSED");
}
