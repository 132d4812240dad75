//! A clean root, and what is installed there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use interop::{Artefacts, Output, Program, Scratch};

use crate::PACKAGES;

/// Runs what is made by `cargo xtask dist ARGS`, the chore that makes it for users, and returns the
/// file of this ending.
pub(crate) fn dist(out: &Path, args: &[&str], ending: &str) -> PathBuf {
    let artefacts = Artefacts::find();
    let release = artefacts.peerdma().parent().expect("a file has a directory").to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let made = Command::new(cargo)
        .current_dir(workspace())
        .args(["xtask", "dist"])
        .args(args)
        .arg("--built")
        .arg(&release)
        .arg("--out")
        .arg(out)
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "cargo xtask dist: {said}");
    let files = out.read_dir().expect("the chore made it");
    let mut paths = files.map(|entry| entry.expect("it can be read").path());
    let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    paths.find(is_it).unwrap_or_else(|| panic!("no {ending} in {}", out.display()))
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a test is a program");
    program.ancestors().nth(3).expect("target/debug/deps/install").to_owned()
}

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("interop lies in it")
}

/// An unpacked Debian with [`PACKAGES`].
pub(crate) struct Root {
    path: PathBuf,
}

impl Root {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let path = scratch.file("root");
        fs::create_dir(&path).expect("a scratch directory is writable");
        let kept = kept();
        let status = Command::new("tar").arg("-xf").arg(&kept).arg("-C").arg(&path).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{} cannot be unpacked",
            kept.display()
        );
        Self { path }
    }

    /// Puts a file there.
    pub(crate) fn give(&self, file: &Path) -> String {
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        fs::copy(file, self.path.join(&name)).expect("the root is ours");
        format!("/{name}")
    }

    /// Runs a script of sh there, in mount and pid namespaces of its own.
    pub(crate) fn run(&self, script: &str) -> Output {
        // Not chroot, in which the kernel permits no user namespaces.
        let enter = "mount --bind \"$0\" \"$0\" && cd \"$0\" && mount -t proc proc proc && \
                     mount --rbind /dev dev && pivot_root . mnt && umount -l mnt && \
                     exec /usr/bin/env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin \
                     /bin/sh -ec \"$1\"";
        Program::new("unshare")
            .mode(interop::Mode::Plain)
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", enter])
            .args([self.path.as_os_str()])
            .args([script])
            // Installing is slow on a busy machine.
            .limit(Duration::from_secs(300))
            .output()
    }
}

/// The archive of a clean root, which is kept beside what is built. It comes from the archive of
/// packages that this machine uses.
fn kept() -> PathBuf {
    let target = target();
    let kept = target.join(format!("clean-root-{}.tar", PACKAGES.join("+")));
    if kept.exists() {
        return kept;
    }
    let sources = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"])
        .output()
        .expect("debootstrap needs a Debian");
    let sources = String::from_utf8(sources.stdout).expect("addresses are text");
    let (address, suite) = sources
        .lines()
        .find_map(|line| line.split_once(' '))
        .expect("apt has a list of packages (`apt-get update`)");
    let scratch = Scratch::new();
    let root = scratch.file("debian");
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", &format!("--include={}", PACKAGES.join(",")), suite])
        .arg(&root)
        .arg(address)
        .output()
        .expect("debootstrap starts");
    let said = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success(), "debootstrap: {said}{}", String::from_utf8_lossy(&made.stderr));
    let new = target.join(format!("clean-root.{}", std::process::id()));
    let tar = Command::new("tar").arg("-cf").arg(&new).arg("-C").arg(&root).arg(".").status();
    assert!(tar.is_ok_and(|status| status.success()), "tar");
    fs::rename(&new, &kept).expect("one directory");
    kept
}
