//! `cargo xtask dist`: what is installed, as an archive, as a Debian package, and as a wheel.
//!
//! The first two have the program, its libraries without symbols, the names by which programs look
//! for them, completions, man pages and documentation. The libraries lie in a directory of their
//! own, and the loader is not told of it: a machine with RDMA hardware keeps its libibverbs. The
//! wheel is for Python (`wheel`).

mod elf;
mod wheel;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};

use crate::sh::{Outcome, cargo, check, read, root, target_dir, tool};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The options of `cargo xtask dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where they go [default: target/dist].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make only these [default: all].
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    only: Vec<Kind>,
    /// Take the program and its libraries for the archive and the package from here instead of
    /// building them.
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// The architectures for which wheels are made [default: this machine's].
    #[arg(long, value_enum, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<wheel::Arch>,
    /// The profile with which wheels are built.
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
}

/// What is made.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Kind {
    Archive,
    Package,
    Wheel,
}

/// The libraries, as Cargo names them and as they are installed.
const LIBRARIES: [(&str, &str); 7] = [
    ("libpeerdma.so", "libpeerdma.so"),
    ("libpeerdma_preload.so", "libpeerdma-preload.so"),
    ("libpeerdma_cuda.so", "libpeerdma-cuda.so"),
    ("libpeerdma_hsa.so", "libpeerdma-hsa.so"),
    ("libpeerdma_ze.so", "libpeerdma-ze.so"),
    ("librspreload.so", "librspreload.so.1"),
    ("libpeerdma_heap.so", "libpeerdma-heap.so"),
];

/// Completions: the shell, and where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/peerdma"),
    ("zsh", "share/zsh/site-functions/_peerdma"),
    ("fish", "share/fish/vendor_completions.d/peerdma.fish"),
];

/// Makes what was asked for, and prints where it is.
pub(crate) fn run(options: &Options) -> Outcome {
    let wants = |kind| options.only.is_empty() || options.only.contains(&kind);
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("dist"));
    directory(&out)?;
    let mut made = Vec::new();
    if wants(Kind::Archive) || wants(Kind::Package) {
        let name = format!("peerdma-{VERSION}-{}-linux", std::env::consts::ARCH);
        let stage = out.join(&name);
        // What an earlier run left could be of another version.
        vanish(&stage)?;
        fill(&stage, &built(options)?)?;
        if wants(Kind::Archive) {
            let archive = out.join(format!("{name}.tar.gz"));
            let mut tar = tool("tar");
            tar.args(["--owner=0", "--group=0", "--sort=name", "-C"]).arg(&out);
            check(tar.arg("-czf").arg(&archive).arg(&name))?;
            made.push(archive);
        }
        if wants(Kind::Package) {
            made.push(package(&out, &stage)?);
        }
        vanish(&stage)?;
    }
    if wants(Kind::Wheel) {
        let here = || wheel::Arch::here().map(|arch| vec![arch]);
        let given = || Ok(options.arch.clone());
        for arch in if options.arch.is_empty() { here() } else { given() }? {
            made.push(wheel::make(&out, arch, &options.profile)?);
        }
    }
    for path in made {
        println!("{}", path.display());
    }
    Ok(())
}

/// The directory of the program and its libraries for this machine.
fn built(options: &Options) -> Outcome<PathBuf> {
    if let Some(directory) = &options.built {
        return Ok(directory.clone());
    }
    check(cargo().args(["build", "--release", "--locked"]))?;
    Ok(target_dir().join("release"))
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
    vanish(&tree)?;
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
    vanish(&tree)?;
    Ok(package)
}

/// The newest version of the C library whose symbols are used.
fn glibc(usr: &Path) -> Outcome<elf::Glibc> {
    let files = LIBRARIES.map(|(_, name)| usr.join("lib/peerdma").join(name));
    let mut newest = elf::glibc(&usr.join("bin/peerdma"))?;
    for file in &files {
        newest = newest.max(elf::glibc(file)?);
    }
    Ok(newest)
}

fn strip(from: &Path, to: &Path) -> Outcome {
    directory(to.parent().expect("a file below the prefix"))?;
    check(tool("strip").arg("--strip-unneeded").arg("-o").arg(to).arg(from))
}

/// Removes a directory, if it is there.
fn vanish(path: &Path) -> Outcome {
    match fs::remove_dir_all(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {err}", path.display()))
        }
        _ => Ok(()),
    }
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
