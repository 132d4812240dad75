//! Building pyverbs from Debian's source package of rdma-core.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::suite::{self, Suite};
use crate::setup;
use crate::sh::{Outcome, check, read, root, target_dir, tool};

/// Packages that the build needs besides those that the tests need. Nothing else needs them, so
/// `cargo xtask setup` leaves them out.
const PACKAGES: [(&str, &str); 8] = [
    ("cmake", "configures rdma-core"),
    ("cython3", "compiles pyverbs to C"),
    ("libdrm-dev", "headers of the DRM ioctls, with which pyverbs allocates dma-bufs"),
    ("libudev-dev", "rdma-core asks for it"),
    ("ninja-build", "builds rdma-core"),
    ("pkg-config", "finds libdrm"),
    ("python3-dev", "headers of Python"),
    ("tar", "unpacks the source"),
];

/// A release's sources, signed by Debian. The machine's own lists stay as they are.
const ARCHIVE: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The suite of a release's rdma-core, built if necessary.
pub(crate) fn suite(release: &str) -> Outcome<Suite> {
    setup::install("pyverbs --build", &PACKAGES, false)?;
    let home = target_dir().join("pyverbs").join(release);
    let apt = Apt::new(&home, release)?;
    let version = apt.version()?;
    let source = home.join(format!("rdma-core-{version}"));
    // Built last, so that an interrupted build is repeated.
    let done = source.join("build/built-and-mended");
    if !done.exists() {
        let _ = fs::remove_dir_all(&source);
        apt.unpack(&version, &source)?;
        mend(&source)?;
        build(&source)?;
        fs::write(&done, "").map_err(|err| format!("{}: {err}", done.display()))?;
    }
    let dir = suite::scratch(&format!("{release}-tests"))?;
    suite::copy(&source.join("tests"), &dir)?;
    Ok(Suite {
        what: format!(
            "the tests of rdma-core {version}, with its pyverbs built with DRM from the source \
             package of Debian's {release}"
        ),
        changed: "the tests unmodified, and one line of pyverbs patched (`pyverbs/mr.pyx`: `dmabuf.add_ref(self)` is given \
                  its cast to `DmaBuf`, without which no `DmaBufMR` can be made of a `DmaBuf` on any device)",
        command: "cargo xtask pyverbs --build",
        page: "PYVERBS_DRM.md",
        has_drm: true,
        dir,
        env: vec![
            ("PYTHONPATH", source.join("build/python").into_os_string()),
            ("LD_LIBRARY_PATH", providers(&source)?),
            ("PATH", path()?),
        ],
    })
}

/// Our PATH, with a stand-in for `rdma` in front.
fn path() -> Outcome<OsString> {
    let ours = root().join("interop/pyverbs");
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(ours).chain(std::env::split_paths(&rest));
    std::env::join_paths(all).map_err(|err| format!("PATH: {err}"))
}

/// A directory with the vendors' libraries of this version, which pyverbs links to, and no
/// libibverbs: that is ours.
fn providers(source: &Path) -> Outcome<OsString> {
    let failed = |err: std::io::Error| format!("{}: {err}", source.display());
    let dir = source.join("build/providers-only");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(failed)?;
    for entry in fs::read_dir(source.join("build/lib")).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if text.starts_with("libmlx5.so.") || text.starts_with("libefa.so.") {
            std::os::unix::fs::symlink(entry.path(), dir.join(&name)).map_err(failed)?;
        }
    }
    Ok(dir.into_os_string())
}

/// Since version 44 no `DmaBufMR` can be made from pyverbs' own `DmaBuf`: it calls a C method of an
/// object that it no longer declares to be one (AttributeError, on any device). The tests stay as
/// they are.
fn mend(source: &Path) -> Outcome {
    const WRONG: &str = "            dmabuf.add_ref(self)\n";
    const RIGHT: &str = "            (<DmaBuf>dmabuf).add_ref(self)\n";
    let file = source.join("pyverbs/mr.pyx");
    let failed = |err: std::io::Error| format!("{}: {err}", file.display());
    let text = fs::read_to_string(&file).map_err(failed)?;
    fs::write(&file, text.replace(WRONG, RIGHT)).map_err(failed)
}

/// Only pyverbs and what it links to. Without a run path, so that `peerdma run` decides which
/// libibverbs it gets.
fn build(source: &Path) -> Outcome {
    let build = source.join("build");
    fs::create_dir_all(&build).map_err(|err| format!("{}: {err}", build.display()))?;
    let options = [
        "-GNinja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_SKIP_RPATH=1",
        "-DENABLE_RESOLVE_NEIGH=0",
        "-DENABLE_VALGRIND=0",
        "-DNO_MAN_PAGES=1",
        "-DPYTHON_EXECUTABLE=/usr/bin/python3",
    ];
    check(tool("cmake").current_dir(&build).args(options).arg(source))?;
    let cache = fs::read_to_string(build.join("CMakeCache.txt")).unwrap_or_default();
    if !cache.lines().any(|line| line.starts_with("DRM_INCLUDE_DIRS") && line.contains("drm")) {
        return Err("rdma-core did not find libdrm: the dma-buf tests would skip".to_owned());
    }
    check(tool("nice").current_dir(&build).args(["ninja", "pyverbs/all"]))
}

/// apt-get with sources and lists of its own.
struct Apt {
    home: PathBuf,
}

impl Apt {
    fn new(home: &Path, release: &str) -> Outcome<Self> {
        let apt = Self { home: home.to_owned() };
        let list = format!("deb-src [signed-by={KEYRING}] {ARCHIVE} {release} main\n");
        let failed = |err: std::io::Error| format!("{}: {err}", home.display());
        fs::create_dir_all(home.join("lists")).map_err(failed)?;
        if fs::read_to_string(home.join("sources.list")).is_ok_and(|there| there == list) {
            return Ok(apt);
        }
        fs::write(home.join("sources.list.new"), &list).map_err(failed)?;
        fs::rename(home.join("sources.list.new"), home.join("sources.list")).map_err(failed)?;
        if let Err(why) = check(apt.command("apt-get").arg("update")) {
            let _ = fs::remove_file(home.join("sources.list"));
            return Err(why);
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = tool(program);
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        command.current_dir(&self.home).arg("--quiet");
        command.args(["-o", &option("Dir::Etc::sourcelist", &self.home.join("sources.list"))]);
        command.args(["-o", "Dir::Etc::sourceparts=-"]);
        command.args(["-o", &option("Dir::State::lists", &self.home.join("lists"))]);
        command.args(["-o", &option("Dir::Cache", &self.home.join("cache"))]);
        // The user that apt downloads as may not write here.
        command.args(["-o", "APT::Sandbox::User="]);
        command
    }

    /// The upstream version of the source package, such as `65.0`.
    fn version(&self) -> Outcome<String> {
        let shown = read(self.command("apt-cache").args(["showsrc", "rdma-core"]))?;
        let version = shown.lines().find_map(|line| line.strip_prefix("Version: "));
        let version = version.ok_or("the release has no source package rdma-core")?;
        let upstream = version.rsplit_once('-').map_or(version, |(upstream, _)| upstream);
        Ok(upstream.to_owned())
    }

    /// Fetches the upstream archive of the source package, which apt checks against the signed
    /// list, and unpacks it. Debian's changes concern packaging, and are left out.
    fn unpack(&self, version: &str, to: &Path) -> Outcome {
        let source = ["source", "--download-only", "--tar-only", "rdma-core"];
        check(self.command("apt-get").args(source))?;
        fs::create_dir_all(to).map_err(|err| format!("{}: {err}", to.display()))?;
        let archive = self.home.join(format!("rdma-core_{version}.orig.tar.gz"));
        check(tool("tar").arg("xf").arg(archive).arg("--strip-components=1").arg("-C").arg(to))
    }
}
