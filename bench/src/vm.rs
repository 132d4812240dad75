//! A machine with its own Debian kernel, under QEMU's emulation. The scripts of `interop/vm` make
//! and boot it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::child::peerdma;

/// The name of the kernel's device in libibverbs.
const DRIVER: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver"];
/// No program of `vm/guest.sh` takes longer: it ends it.
const SECONDS_EACH: usize = 130;

/// What a machine is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    /// The script that it runs, in `vm`.
    pub(crate) script: &'static str,
    /// Modules of its kernel.
    pub(crate) modules: &'static [&'static str],
    /// Programs of this machine.
    pub(crate) programs: &'static [&'static str],
    /// Whether its clock counts instructions, one a nanosecond. Then it has one processor.
    pub(crate) counts: bool,
}

/// Two pairs of hosts, one of the kernel's device and one of ours.
const PAIRS: Guest = Guest {
    script: "guest.sh",
    modules: &["virtio_pci", "veth", "bridge", "sch_netem", "rdma_rxe", "ib_uverbs", "rdma_ucm"],
    programs: &[
        "ethtool",
        "ip",
        "rdma",
        "tc",
        "ib_read_bw",
        "ib_send_bw",
        "ib_send_lat",
        "ib_write_bw",
        "ib_write_lat",
    ],
    counts: false,
};

/// Kernel and QEMU.
#[derive(Debug)]
pub(crate) struct Vm {
    dir: PathBuf,
}

/// What `vm/guest.sh` printed.
#[derive(Debug)]
pub(crate) struct Said {
    sections: BTreeMap<String, String>,
}

impl Vm {
    /// Fetches them from Debian, if they are not there yet.
    pub(crate) fn fetch() -> Outcome<Self> {
        let release = peerdma()?;
        let target = release.ancestors().nth(2).ok_or("no target directory")?;
        let vm = Self { dir: target.join("vm") };
        script("fetch.sh", [&vm.dir])?;
        Ok(vm)
    }

    /// What libibverbs has for the kernel's device, for [`boot`](Self::boot).
    pub(crate) fn driver() -> [String; 2] {
        DRIVER.map(|file| format!("{file}:{file}"))
    }

    /// Boots a machine in which both devices run the cases.
    pub(crate) fn run(&self, link: &str, mtu: u32, cases: &str, reps: u32) -> Outcome<Said> {
        let library = peerdma()?.with_file_name("libpeerdma.so");
        let list = self.dir.join(format!("bench-{}.cases", std::process::id()));
        std::fs::write(&list, cases)?;
        let mut files = vec![
            format!("{}:/opt/peerdma/libibverbs.so.1", library.display()),
            format!("{}:/cases", list.display()),
        ];
        files.extend(Self::driver());
        let programs = cases.lines().count() * reps as usize * 2;
        let variables = format!("link={link} mtu={mtu} reps={reps}");
        let said = self.boot(&PAIRS, &files, &variables, 60 + programs * SECONDS_EACH);
        let _ = std::fs::remove_file(&list);
        said
    }

    /// Boots a machine that has these files (`FROM:TO`) and variables, and runs its script for at
    /// most so many seconds.
    pub(crate) fn boot(
        &self,
        guest: &Guest,
        files: &[String],
        variables: &str,
        limit: usize,
    ) -> Outcome<Said> {
        let initrd = self.dir.join(format!("bench-{}.cpio", std::process::id()));
        let made = self.make(guest, &initrd, files);
        let words = [&self.dir, &initrd].map(|path| path.clone().into_os_string());
        let options = ["-t", &limit.to_string(), "-a", variables].map(Into::into);
        let counts = guest.counts.then(|| "-i".into());
        let words = words.into_iter().chain(options).chain(counts);
        let said = made.and_then(|()| script("run.sh", words));
        let _ = std::fs::remove_file(&initrd);
        Ok(Said::new(&said?))
    }

    fn make(&self, guest: &Guest, initrd: &Path, files: &[String]) -> Outcome<()> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm").join(guest.script);
        let mut words = vec![self.dir.join("kernel").into_os_string(), initrd.into()];
        let mut take = |option: &str, what: &str| words.extend([option.into(), what.into()]);
        guest.modules.iter().for_each(|module| take("-m", module));
        guest.programs.iter().for_each(|program| take("-p", program));
        take("-f", &format!("{}:/test.sh", own.display()));
        files.iter().for_each(|file| take("-f", file));
        script("mkinitrd.sh", words)?;
        Ok(())
    }
}

impl Said {
    fn new(all: &str) -> Self {
        let parts = all.split("=== ").skip(1);
        let sections = parts.map(|part| part.split_once('\n').unwrap_or((part, "")));
        Self { sections: sections.map(|(name, text)| (name.to_owned(), text.to_owned())).collect() }
    }

    /// What was printed under the line `=== NAME`; nothing if there was none.
    pub(crate) fn section(&self, name: &str) -> &str {
        self.sections.get(name).map_or("", String::as_str)
    }

    /// The machine in a line.
    pub(crate) fn machine(&self) -> String {
        self.section("machine").trim().to_owned()
    }
}

/// Runs a script of `interop/vm` and returns its output.
fn script<S: AsRef<std::ffi::OsStr>>(
    name: &str,
    words: impl IntoIterator<Item = S>,
) -> Outcome<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/vm").join(name);
    let out = Command::new(path).args(words).output()?;
    let (text, errors) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !out.status.success() {
        let lines: Vec<_> = text.lines().chain(errors.lines()).collect();
        let last = lines[lines.len().saturating_sub(4)..].join("; ");
        return Err(format!("{name}: {}: {last}", out.status).into());
    }
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_section() {
        let said = Said::new("boot\n=== machine\nLinux\n=== 0 1 rxe\n#bytes\n--- exit 0\n");
        assert_eq!(said.section("0 1 rxe"), "#bytes\n--- exit 0\n");
        assert_eq!((said.section("0 2 rxe"), said.machine().as_str()), ("", "Linux"));
    }
}
