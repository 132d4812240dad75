//! A clean root, and what is installed there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use interop::{Output, Program, Scratch, target_dir};

use crate::PACKAGES;

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
    let target = target_dir();
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
