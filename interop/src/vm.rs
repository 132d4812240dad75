//! A virtual machine with a Debian kernel, under QEMU's emulation, for features that the test
//! machine's kernel lacks or that we may not set there.
//!
//! The scripts in `interop/vm` do the work and can be used by hand. Kernel and QEMU are in
//! `target/vm`, those of an arm64 machine in `target/vm-arm64`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::artefacts::target_dir;
use crate::netns::Tap;
use crate::output::Output;
use crate::program::{Mode, Program};
use crate::scratch::Scratch;

/// How long a boot may take on a loaded machine, beside the test itself.
const BOOT: Duration = Duration::from_secs(60);

/// The directory of the arm64 machine, in that of the build.
const ARM64: &str = "vm-arm64";

/// A machine that boots, runs a script of `interop/vm/guest` as root, and ends.
#[derive(Clone, Debug)]
pub struct Vm {
    script: &'static str,
    dir: &'static str,
    contents: Vec<OsString>,
    variables: Vec<String>,
    hardware: Vec<OsString>,
    netns: Option<String>,
    limit: Duration,
}

/// The output of the script.
#[derive(Debug)]
pub struct VmOutput {
    /// The whole output, and the script's exit status.
    pub all: Output,
    sections: BTreeMap<String, Output>,
}

impl Vm {
    /// A machine for `interop/vm/guest/NAME.sh`.
    pub fn new(script: &'static str) -> Self {
        Self {
            script,
            dir: "vm",
            contents: Vec::new(),
            variables: Vec::new(),
            hardware: Vec::new(),
            netns: None,
            limit: Duration::from_secs(120),
        }
    }

    /// An arm64 machine for such a script. Its Debian is the share `debian`; programs are copied
    /// without libraries, as those here are for another architecture.
    pub fn arm64(script: &'static str) -> Self {
        let debian = arm64_dir().join("debian");
        let vm = Self { dir: ARM64, ..Self::new(script) };
        vm.file(&arm64_dir().join("exit"), "/exit").share("debian", &debian)
    }

    /// Shares a directory with the machine by 9p, which may only read it, as `name`.
    #[must_use]
    pub fn share(self, name: &str, directory: &Path) -> Self {
        let path = directory.display();
        let options = format!("local,path={path},mount_tag={name},security_model=none,readonly=on");
        self.module("9pnet_virtio").module("9p").qemu(["-virtfs", &options])
    }

    /// Copies a program with its libraries to the machine's PATH: a path, or a name in PATH.
    #[must_use]
    pub fn program(mut self, program: impl Into<OsString>) -> Self {
        self.contents.extend(["-p".into(), program.into()]);
        self
    }

    /// Copies a file to the machine as `to`; a program with its libraries.
    #[must_use]
    pub fn file(mut self, from: &Path, to: &str) -> Self {
        self.contents.extend(["-f".into(), format!("{}:{to}", from.display()).into()]);
        self
    }

    /// Loads a module of its kernel.
    #[must_use]
    pub fn module(mut self, name: &str) -> Self {
        self.contents.extend(["-m".into(), name.into()]);
        self
    }

    /// Sets a variable for the script. It is passed on the kernel's command line, so it must not
    /// have blanks.
    #[must_use]
    pub fn variable(mut self, key: &str, value: &str) -> Self {
        self.variables.push(format!("{key}={value}"));
        self
    }

    /// Adds arguments of QEMU, for hardware.
    #[must_use]
    pub fn qemu<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.hardware.extend(args.into_iter().map(Into::into));
        self
    }

    /// Connects its network interface to the other end of a tap.
    #[must_use]
    pub fn wired_to(self, tap: &Tap) -> Self {
        self.wired_by("virtio-net-pci", tap)
    }

    /// The same by this device, whose options say where it is.
    #[must_use]
    pub fn wired_by(mut self, device: &str, tap: &Tap) -> Self {
        self.netns = Some(tap.host.path());
        let netdev = format!("tap,id=wire,ifname={},script=no,downscript=no", Tap::INTERFACE);
        self.module("virtio_pci").module("virtio_net").qemu([
            "-netdev",
            &netdev,
            "-device",
            &format!("{device},netdev=wire"),
        ])
    }

    /// How long the script may take (default: 120 seconds).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Boots it and waits for its end.
    #[track_caller]
    pub fn run(&self) -> VmOutput {
        let scratch = Scratch::new();
        let initrd = scratch.file("initrd");
        let guest = scripts().join("guest").join(self.script).with_extension("sh");
        let dir = target_dir().join(self.dir);
        let mut mkinitrd = script("mkinitrd.sh");
        if self.dir == ARM64 {
            mkinitrd = mkinitrd.env("BUSYBOX", dir.join("debian/bin/busybox"));
        }
        mkinitrd
            .args([dir.join("kernel"), initrd.clone()])
            .args(&self.contents)
            .args(["-f".into(), format!("{}:/test.sh", guest.display())])
            .output()
            .success();
        let seconds = (BOOT + self.limit).as_secs();
        let mut run = script("run.sh");
        if let Some(netns) = &self.netns {
            run = run.in_netns_at(netns);
        }
        let all = run
            .args([dir, initrd])
            .args(["-t", &seconds.to_string(), "-a", &self.variables.join(" "), "--"])
            .args(&self.hardware)
            // run.sh boots again, up to three times in all, if the machine does not start.
            .limit(3 * (BOOT + self.limit) + Duration::from_secs(10))
            .output();
        VmOutput { sections: sections(&all), all }
    }
}

impl VmOutput {
    /// What the script printed between the line `=== NAME` and the next such line.
    #[track_caller]
    pub fn section(&self, name: &str) -> &Output {
        self.sections
            .get(name)
            .unwrap_or_else(|| panic!("there had to be a section {name:?} in:\n{}", self.all))
    }

    /// The names of all sections.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }
}

/// Makes sure that kernel and QEMU are present. The error tells why they cannot be.
pub(crate) fn fetch() -> Result<(), String> {
    fetch_with(&[target_dir().join("vm")])
}

/// The same for an arm64 machine, and its Debian.
pub(crate) fn fetch_arm64() -> Result<(), String> {
    fetch_with(&[arm64_dir(), "arm64".into()])
}

fn fetch_with(words: &[PathBuf]) -> Result<(), String> {
    for tool in ["busybox", "cpio", "strip", "modprobe", "qemu-system-x86_64", "xz", "zstd"] {
        crate::need::check(crate::need::Need::Program(tool))?;
    }
    let out = Command::new(scripts().join("fetch.sh"))
        .args(words)
        .output()
        .map_err(|err| format!("fetch.sh does not start: {err}"))?;
    if out.status.success() { Ok(()) } else { Err(cause("fetch.sh", &out.stderr)) }
}

/// Makes sure that modules can be built for the machine's kernel. The error tells why they cannot
/// be.
pub(crate) fn fetch_headers() -> Result<(), String> {
    fetch()?;
    let out = Command::new(scripts().join("module.sh"))
        .arg(target_dir().join("vm"))
        .output()
        .map_err(|err| format!("module.sh does not start: {err}"))?;
    if out.status.success() { Ok(()) } else { Err(cause("module.sh", &out.stderr)) }
}

/// Builds a module for the machine's kernel, from files of `interop/vm/guest`, or of the kernel's
/// own source if they begin with `linux:`. Needs [`Need::Modules`](crate::need::Need::Modules). The
/// error tells why the kernel's source cannot be had.
///
/// # Errors
///
/// What the script says.
pub fn module(scratch: &Scratch, files: &[&str]) -> Result<PathBuf, String> {
    let first = Path::new(files[0].trim_start_matches("linux:")).with_extension("ko");
    let module = scratch.file(&first.file_name().expect("a file").to_string_lossy());
    let file = |name: &&str| match name.starts_with("linux:") {
        true => PathBuf::from(name),
        false => scripts().join("guest").join(name),
    };
    let out = script("module.sh")
        .args([target_dir().join("vm"), module.clone()])
        .args(files.iter().map(file))
        .limit(Duration::from_secs(300))
        .output();
    if out.status.success() { Ok(module) } else { Err(cause("module.sh", out.stderr.as_bytes())) }
}

/// What a script complains of.
fn cause(script: &str, stderr: &[u8]) -> String {
    let words = String::from_utf8_lossy(stderr);
    // This is how errors of apt begin; the first is the cause.
    let cause = words.lines().find(|line| line.starts_with("E: ")).or(words.lines().last());
    format!("{script} failed: {}", cause.unwrap_or("it does not say why"))
}

/// Where the kernel, QEMU and Debian of the arm64 machine are.
pub(crate) fn arm64_dir() -> PathBuf {
    target_dir().join(ARM64)
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vm")
}

fn script(name: &str) -> Program {
    Program::new(scripts().join(name)).mode(Mode::Plain)
}

fn sections(all: &Output) -> BTreeMap<String, Output> {
    let mut sections = BTreeMap::new();
    for part in format!("\n{}", all.stdout).split("\n=== ").skip(1) {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        let output = Output {
            command: format!("{name}, in the machine"),
            stdout: text.to_owned(),
            stderr: String::new(),
            ..all.clone()
        };
        sections.insert(name.to_owned(), output);
    }
    sections
}
