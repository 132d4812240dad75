//! An archive and a Debian package, on a clean root: a Debian that has nothing of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use interop::need::Need;
use interop::{Artefacts, Output, Program, Scratch, needs};

const NEEDS: [Need; 3] = [Need::Root, Need::Namespaces, Need::Program("debootstrap")];

/// A user without rights.
const NOBODY: &str = "65534";

/// Two programs that a shell with our variables starts. `wait` has the status of the first; the
/// second tries until the first listens.
const PINGPONG: &str = "eval \"$(peerdma env)\"
    ibv_rc_pingpong -g 0 -n 100 -c &
    for i in $(seq 100); do ibv_rc_pingpong -g 0 -n 100 -c 127.0.0.1 && break; sleep 0.1; done
    wait $!";

/// What was built, as it is installed.
struct Built {
    archive: PathBuf,
    package: PathBuf,
}

impl Built {
    /// Made by the chore that makes them for users.
    fn new(scratch: &Scratch) -> Self {
        let artefacts = Artefacts::find();
        let release = artefacts.peerdma().parent().expect("a file has a directory").to_owned();
        let out = scratch.file("dist");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("interop lies in it");
        let made = Command::new(cargo)
            .current_dir(workspace)
            .args(["xtask", "dist", "--built"])
            .arg(&release)
            .arg("--out")
            .arg(&out)
            .output()
            .expect("cargo starts");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "cargo xtask dist: {said}");
        let found = |ending: &str| {
            let files = out.read_dir().expect("the chore made it");
            let mut paths = files.map(|entry| entry.expect("it can be read").path());
            let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
            paths.find(is_it).unwrap_or_else(|| panic!("no {ending} in {}", out.display()))
        };
        Self { archive: found(".tar.gz"), package: found(".deb") }
    }
}

/// An unpacked Debian with `ibverbs-utils`.
struct Root {
    path: PathBuf,
}

impl Root {
    fn new(scratch: &Scratch) -> Self {
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
    fn give(&self, file: &Path) -> String {
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        fs::copy(file, self.path.join(&name)).expect("the root is ours");
        format!("/{name}")
    }

    /// Runs a script of sh there, in mount and pid namespaces of its own.
    fn run(&self, script: &str) -> Output {
        let enter = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && \
                     exec chroot \"$0\" /usr/bin/env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin \
                     /bin/sh -ec \"$1\"";
        Program::new("unshare")
            .mode(interop::Mode::Plain)
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", enter])
            .args([self.path.as_os_str()])
            .args([script])
            .output()
    }
}

/// The archive of a clean root, which is kept beside what is built. It comes from the archive of
/// packages that this machine uses.
fn kept() -> PathBuf {
    let release = Artefacts::find().peerdma();
    let target = release.ancestors().nth(2).expect("target/release/peerdma");
    let kept = target.join("clean-root.tar");
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
        .args(["--variant=minbase", "--include=ibverbs-utils", suite])
        .arg(&root)
        .arg(address)
        .output()
        .expect("debootstrap starts");
    let said = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success(), "debootstrap: {said}{}", String::from_utf8_lossy(&made.stderr));
    let new = kept.with_extension(format!("tar.{}", std::process::id()));
    let tar = Command::new("tar").arg("-cf").arg(&new).arg("-C").arg(&root).arg(".").status();
    assert!(tar.is_ok_and(|status| status.success()), "tar");
    fs::rename(&new, &kept).expect("one directory");
    kept
}

#[test]
fn a_debian_package_is_all_that_a_clean_machine_needs() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2]);
    let scratch = Scratch::new();
    let root = Root::new(&scratch);
    let package = root.give(&Built::new(&scratch).package);
    root.run(&format!("dpkg -i {package}")).success();
    // A user who may write nothing beside the libraries.
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let demo = root.run(&format!("{nobody} peerdma demo"));
    demo.success().says("bytes");
    root.run(&format!("{nobody} peerdma run -- ibv_devinfo")).success().says("PORT_ACTIVE");
    root.run(PINGPONG).success().says("100 iters");
    // No program that was not started by it is told of our library.
    root.run("ibv_devices || true").success().never_says("peerdma");
    let pages = "ls /usr/share/man/man1/peerdma-run.1* /usr/share/doc/peerdma/copyright \
                 /usr/share/bash-completion/completions/peerdma";
    root.run(pages).success();
    root.run("dpkg -r peerdma && ! ls -d /usr/lib/peerdma /usr/bin/peerdma").success();
}

#[test]
fn an_archive_runs_wherever_it_is_unpacked() {
    needs!(NEEDS[0], NEEDS[1], NEEDS[2]);
    let scratch = Scratch::new();
    let root = Root::new(&scratch);
    let archive = root.give(&Built::new(&scratch).archive);
    let script = format!(
        "mkdir /home/me && chown {NOBODY} /home/me && cd /home/me && \
         setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -ec '\
           tar -xzf {archive} --strip-components=1; \
           bin/peerdma demo; \
           bin/peerdma run -- ibv_devinfo; \
           bin/peerdma run --gpu=nvidia -- ls /dev/null'"
    );
    root.run(&script).success().says("PORT_ACTIVE");
}
