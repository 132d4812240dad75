//! `cargo xtask dist`: what is installed, as an archive and as a Debian package.
//!
//! Both have the program, its libraries without symbols, the names by which programs look for them,
//! completions, man pages and documentation. The libraries lie in a directory of their own, and the
//! loader is not told of it: a machine with RDMA hardware keeps its libibverbs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::sh::{Outcome, cargo, check, read, root, target_dir, tool};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The options of `cargo xtask dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where the archive and the package go [default: target/dist].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Take the program and its libraries from here instead of building them.
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
}

/// The libraries, as Cargo names them and as they are installed.
const LIBRARIES: [(&str, &str); 6] = [
    ("libpeerdma.so", "libpeerdma.so"),
    ("libpeerdma_preload.so", "libpeerdma-preload.so"),
    ("libpeerdma_cuda.so", "libpeerdma-cuda.so"),
    ("libpeerdma_hsa.so", "libpeerdma-hsa.so"),
    ("libpeerdma_ze.so", "libpeerdma-ze.so"),
    ("librspreload.so", "librspreload.so.1"),
];

/// Completions: the shell, and where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/peerdma"),
    ("zsh", "share/zsh/site-functions/_peerdma"),
    ("fish", "share/fish/vendor_completions.d/peerdma.fish"),
];

/// Makes both.
pub(crate) fn run(options: &Options) -> Outcome {
    let built = match &options.built {
        Some(directory) => directory.clone(),
        None => {
            check(cargo().args(["build", "--release", "--locked"]))?;
            target_dir().join("release")
        }
    };
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("dist"));
    let name = format!("peerdma-{VERSION}-{}-linux", std::env::consts::ARCH);
    let stage = out.join(&name);
    // What an earlier run left could be of another version.
    if stage.exists() {
        fs::remove_dir_all(&stage).map_err(|err| format!("{}: {err}", stage.display()))?;
    }
    fill(&stage, &built)?;
    let archive = out.join(format!("{name}.tar.gz"));
    let mut tar = tool("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "-C"]).arg(&out);
    check(tar.arg("-czf").arg(&archive).arg(&name))?;
    let package = package(&out, &stage)?;
    fs::remove_dir_all(&stage).map_err(|err| format!("{}: {err}", stage.display()))?;
    println!("{}\n{}", archive.display(), package.display());
    Ok(())
}

/// The files below a prefix.
fn fill(prefix: &Path, built: &Path) -> Outcome {
    let library = prefix.join("lib/peerdma");
    let program = prefix.join("bin/peerdma");
    for (from, to) in LIBRARIES {
        strip(&built.join(from), &library.join(to))?;
    }
    strip(&built.join("peerdma"), &program)?;
    // The directories with names are made by whoever needs them first; here is the last place where
    // that may be.
    for gpu in [None, Some("--gpu=nvidia"), Some("--gpu=amdgpu")] {
        read(ours(&program).arg("env").args(gpu))?;
    }
    for (shell, path) in COMPLETIONS {
        write(&prefix.join(path), read(ours(&program).args(["completions", shell]))?)?;
    }
    check(ours(&program).arg("man").arg(prefix.join("share/man/man1")))?;
    let doc = prefix.join("share/doc/peerdma");
    for file in ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root().join(file), &doc.join(file))?;
    }
    copy(&root().join("LICENSE-MIT"), &doc.join("copyright"))?;
    let pages = root().join("docs");
    for entry in pages.read_dir().map_err(|err| format!("{}: {err}", pages.display()))? {
        let path = entry.map_err(|err| format!("{}: {err}", pages.display()))?.path();
        let name = path.file_name().expect("an entry of a directory has a name");
        copy(&path, &doc.join("docs").join(name))?;
    }
    Ok(())
}

/// The program that is to be installed, with nothing of this user's environment.
fn ours(program: &Path) -> Command {
    let mut command = tool(program);
    command.env_clear();
    command
}

/// The Debian package of what lies below a prefix.
fn package(out: &Path, prefix: &Path) -> Outcome<PathBuf> {
    let architecture = read(tool("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let tree = prefix.with_extension("deb");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|err| format!("{}: {err}", tree.display()))?;
    }
    let usr = tree.join("usr");
    directory(&tree)?;
    check(tool("cp").arg("-a").arg(prefix).arg(&usr))?;
    let glibc = glibc(&usr)?;
    let control = format!(
        "Package: peerdma\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: peerdma developers <developers@peerdma.invalid>\n\
         Section: net\n\
         Priority: optional\n\
         Depends: libc6 (>= {glibc}), libgcc-s1\n\
         Description: RDMA to any memory, on any Linux machine\n \
         A software RoCEv2 NIC in user space, with software GPUs: unmodified programs of\n \
         libibverbs and librdmacm run on it without RDMA hardware, kernel module or root.\n \
         Its libraries are used by programs that `peerdma run` starts, and by no others.\n"
    );
    write(&tree.join("DEBIAN/control"), control)?;
    let package = out.join(format!("peerdma_{VERSION}_{architecture}.deb"));
    let mut build = tool("dpkg-deb");
    check(build.args(["--root-owner-group", "--build"]).arg(&tree).arg(&package))?;
    fs::remove_dir_all(&tree).map_err(|err| format!("{}: {err}", tree.display()))?;
    Ok(package)
}

/// The newest version of the C library whose symbols are used.
fn glibc(usr: &Path) -> Outcome<String> {
    let files = LIBRARIES.map(|(_, name)| usr.join("lib/peerdma").join(name));
    let mut newest = (0, 0);
    for file in files.iter().chain([&usr.join("bin/peerdma")]) {
        let needs = read(tool("readelf").args(["--version-info", "--wide"]).arg(file))?;
        for version in needs.split("GLIBC_").skip(1) {
            let mut numbers = version.split(|char: char| !char.is_ascii_digit());
            let mut next = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
            if let (Some(major), Some(minor)) = (next(), next()) {
                newest = newest.max((major, minor));
            }
        }
    }
    match newest {
        (0, _) => Err("readelf shows no version of the C library".to_owned()),
        (major, minor) => Ok(format!("{major}.{minor}")),
    }
}

fn strip(from: &Path, to: &Path) -> Outcome {
    directory(to.parent().expect("a file below the prefix"))?;
    check(tool("strip").arg("--strip-unneeded").arg("-o").arg(to).arg(from))
}

fn copy(from: &Path, to: &Path) -> Outcome {
    directory(to.parent().expect("a file below the prefix"))?;
    fs::copy(from, to).map(drop).map_err(|err| format!("{}: {err}", from.display()))
}

fn write(path: &Path, text: String) -> Outcome {
    directory(path.parent().expect("a file below the prefix"))?;
    fs::write(path, text).map_err(|err| format!("{}: {err}", path.display()))
}

fn directory(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|err| format!("{}: {err}", path.display()))
}
