//! What `peerdma run` and `peerdma env` are asked for, and the variables by which a program's
//! libraries learn it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use environment::NamedFile;

use crate::library::{self, Library};
use crate::sysfs::{Drivers, GpuFacts, NicFacts, Tree};
use crate::{Outcome, gpus};

/// Names the NICs that a program sees, separated by commas. If it is not set, the program sees all
/// NICs of the configuration.
const NICS: &str = "PEERDMA_NIC";

/// Names the file in which packets are recorded.
const PCAP: &str = "PEERDMA_PCAP";
const PCAP_BYTES: &str = "PEERDMA_PCAP_BYTES";

/// Names the file of the trace.
const TRACE: &str = "PEERDMA_TRACE";

/// Names the plan of faults, and the file of its report.
const FAULT: &str = "PEERDMA_FAULT";
const FAULT_REPORT: &str = "PEERDMA_FAULT_REPORT";

/// Names the file of the report on dma-bufs.
const REPORT: &str = "PEERDMA_REPORT";

/// By which UCX allocates what programs leave to it: first of all by malloc, which is the shared
/// heap's.
const UCX_ALLOCATES: [(&str, &str); 2] = [("UCX_ALLOC_PRIO", "heap"), ("UCX_ALLOC", "heap")];

/// What a program is given.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Show the program only this NIC of the configuration; may be given more than once
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) nic: Vec<String>,
    /// Give the program the software GPUs of the configuration as nodes of their driver; a PRESET
    /// (amdgpu, i915, xe, habanalabs or vfio) chooses their driver (docs/DRM.md,
    /// docs/EXPORTERS.md). With i915 or xe, also give it Level Zero (docs/LEVEL_ZERO.md), with
    /// amdgpu HSA (docs/HSA.md); with nvidia, CUDA and NVML instead (docs/CUDA.md)
    #[arg(
        long,
        value_name = "PRESET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) gpu: Option<String>,
    /// Make the program's TCP and UDP sockets rsockets, which its peers must be as well (see
    /// docs/RSOCKETS.md)
    #[arg(long)]
    pub(crate) rsockets: bool,
    /// Let the program's larger blocks of memory (malloc of 4 KiB and more) lie in a file, which
    /// processes of the same host map: they write to it without a system call. A child of a fork
    /// gets a copy, for which the fork waits (docs/MEMORY.md)
    #[arg(long)]
    pub(crate) shared_heap: bool,
    /// Record every packet of every carrier in this file, for Wireshark and tshark (pcapng; see
    /// docs/PCAP.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Record no more than this many bytes of each packet, from its IP header on: 128 hold every
    /// header
    #[arg(long, value_name = "BYTES", requires = "pcap")]
    pub(crate) pcap_bytes: Option<NonZeroU32>,
    /// Write the life of each work request to this file, as a trace for ui.perfetto.dev and
    /// trace_processor: posts, packets, completions; page faults, moves of GPU memory, faults of a
    /// plan (docs/TRACE.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// When a process of the program ends, report how its dma-bufs were reached: bytes by path,
    /// page faults, moves and stale accesses of GPU memory. On standard error, or added to FILE
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    pub(crate) report: Option<PathBuf>,
    /// Inject the faults of this plan (docs/FAULT_PLANS.md); a report of what fired follows on
    /// standard error
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<PathBuf>,
    /// Add the report of what fired to this file instead
    #[arg(long, value_name = "FILE", requires = "fault")]
    pub(crate) fault_report: Option<PathBuf>,
}

/// What was prepared for a program, beside its variables.
pub(crate) struct Prepared {
    /// The NICs that it sees.
    nics: Vec<NicFacts>,
    /// The machine that `/sys` shows on PCI, and the drivers of its GPUs.
    machine: Option<(gpu::Machine, Drivers)>,
    /// The preload library, if it exists.
    pub(crate) preload: Option<PathBuf>,
}

/// What `/sys` shows a program.
pub(crate) struct Shown {
    pub(crate) tree: Tree,
    pub(crate) nics: Vec<NicFacts>,
    pub(crate) gpus: Vec<GpuFacts>,
}

impl Options {
    /// Sets the variables by which a program, and all that it starts, finds what it is given.
    pub(crate) fn prepare(self, command: &mut Command) -> Outcome<Prepared> {
        let library = library::find()?;
        let names = library.names()?;
        command.env("LD_LIBRARY_PATH", prepend(names.as_os_str(), "LD_LIBRARY_PATH", ":"));
        let verbs = names.join(library::VERBS);
        let mut ours = verbs.as_os_str().to_owned();
        // With the preload library, a dma-buf of ours is a dma-buf in every process of the program,
        // whichever process sent it.
        let preload = library.preload();
        if let Some(preload) = &preload {
            ours = join(preload.as_os_str(), &ours);
        }
        let machine = match &self.gpu {
            Some(preset) => Some(give_gpus(preset, &library, &names, command, &mut ours)?),
            // Without GPUs the bus is shown if the configuration describes it.
            None => {
                let machine = gpu::Machine::load().map_err(|error| error.what)?;
                machine.describes_bus().then_some((machine, Drivers::None))
            }
        };
        if self.rsockets {
            let rsockets = library
                .rsockets()
                .ok_or("--rsockets needs librspreload.so.1 next to the library")?;
            ours = join(rsockets.as_os_str(), &ours);
        }
        if self.shared_heap {
            let heap = library
                .heap()
                .ok_or("--shared-heap needs libpeerdma-heap.so next to the library")?;
            ours = join(heap.as_os_str(), &ours);
            for (name, value) in UCX_ALLOCATES {
                if environment::var_os(name).is_none() {
                    command.env(name, value);
                }
            }
        }
        let given = environment::var_os("LD_PRELOAD").unwrap_or_default();
        command.env("LD_PRELOAD", behind(&given, &ours));
        command.env(ASAN_OPTIONS, asan_options(environment::var_os(ASAN_OPTIONS)));
        self.name_files(command)?;
        let nics = nics(self.nic)?;
        command.env(NICS, nics.iter().map(|nic| &*nic.name).collect::<Vec<_>>().join(","));
        Ok(Prepared { nics, machine, preload })
    }

    /// The files that the program's libraries read and write. Each is made or read here, once, and
    /// what is wrong with it is reported here, and not by every process of the program.
    fn name_files(&self, command: &mut Command) -> Outcome<()> {
        if let Some(path) = &self.pcap {
            let failed = |error| format!("--pcap {}: {error}", path.display());
            pcap::Capture::create(path).map_err(failed)?;
            command.env(PCAP, path.canonicalize().map_err(failed)?);
            if let Some(bytes) = self.pcap_bytes {
                command.env(PCAP_BYTES, bytes.to_string());
            }
        }
        if let Some(path) = &self.trace {
            let failed = |error| format!("--trace {}: {error}", path.display());
            perfetto::Trace::create(path).map_err(failed)?;
            command.env(TRACE, path.canonicalize().map_err(failed)?);
        }
        if let Some(path) = &self.report {
            if path == Path::new("-") {
                command.env(REPORT, path);
            } else {
                name_report(command, REPORT, "--report", path)?;
            }
        }
        if let Some(path) = &self.fault {
            let failed = |error| format!("--fault {}: {error}", path.display());
            let plan = NamedFile::read(path).map_err(failed)?;
            fault::Plan::parse(plan.text())
                .map_err(|error| format!("--fault {}", plan.blame(&error)))?;
            command.env(FAULT, std::path::absolute(path)?);
        }
        if let Some(path) = &self.fault_report {
            name_report(command, FAULT_REPORT, "--fault-report", path)?;
        }
        Ok(())
    }
}

impl Prepared {
    /// What `/sys` is to show.
    pub(crate) fn shown(&mut self) -> Shown {
        let mut nics = std::mem::take(&mut self.nics);
        let machine = self.machine.as_ref();
        let (gpus, bus) = machine.map_or_else(Default::default, |(machine, drivers)| {
            NicFacts::place(machine, *drivers, &mut nics)
        });
        let mut tree = Tree::new(&nics);
        tree.add_functions(&gpus, &bus, &nics);
        Shown { tree, nics, gpus }
    }
}

/// Gives the program the software GPUs of the configuration. Returns the machine that `/sys`
/// shows.
fn give_gpus(
    preset: &str,
    library: &Library,
    names: &Path,
    command: &mut Command,
    ours: &mut OsString,
) -> Outcome<(gpu::Machine, Drivers)> {
    if preset == gpus::NVIDIA {
        let cuda = library.cuda_names()?;
        let paths = join(cuda.as_os_str(), names.as_os_str());
        command.env("LD_LIBRARY_PATH", prepend(&paths, "LD_LIBRARY_PATH", ":"));
        // Programs from Python wheels ask for a copy of the runtime with a hash in its name; if
        // this one is preloaded, it is found first.
        *ours = join(ours, cuda.join(library::CUDA_RUNTIME).as_os_str());
        tracing::info!(target: "peerdma::cuda", "CUDA's libraries are in {}", cuda.display());
        return Ok((gpus::announce_cuda(command)?, Drivers::All(gpus::NVIDIA)));
    }
    if library.preload().is_none() {
        return Err("--gpu needs libpeerdma-preload.so next to the library".into());
    }
    let machine = gpus::announce(command, preset, library.level_zero().as_deref())?;
    if preset == gpus::AMD {
        let hsa = library.hsa_names()?;
        let paths = join(hsa.as_os_str(), names.as_os_str());
        command.env("LD_LIBRARY_PATH", prepend(&paths, "LD_LIBRARY_PATH", ":"));
        tracing::info!(target: "peerdma::hsa", "HSA's library is in {}", hsa.display());
    }
    Ok(machine)
}

/// Makes the file to which processes add reports, and names it.
fn name_report(command: &mut Command, variable: &str, option: &str, path: &Path) -> Outcome<()> {
    fs::File::create(path).map_err(|error| format!("{option} {}: {error}", path.display()))?;
    command.env(variable, std::path::absolute(path)?);
    Ok(())
}

/// The NICs to show: those named here, otherwise those named by an outer `peerdma run`, otherwise
/// all NICs of the configuration.
fn nics(mut names: Vec<String>) -> Result<Vec<NicFacts>, String> {
    if names.is_empty() {
        let outer = environment::var(NICS).unwrap_or_default();
        names = outer.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect();
    }
    let mut nics = device::nics().map_err(|refusal| refusal.what().to_owned())?;
    let known: Vec<String> = nics.iter().map(|nic| nic.config.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("nic {name:?}: the configuration has {}", known.join(", ")));
    }
    nics.retain(|nic| names.is_empty() || names.contains(&nic.config.name));
    Ok(nics.iter().map(NicFacts::of).collect())
}

/// A list from the environment with one more entry in front; unchanged if the entry is there
/// already.
fn prepend(entry: &OsStr, variable: &str, separators: &str) -> OsString {
    let list = environment::var_os(variable).unwrap_or_default();
    let is_there = list
        .as_encoded_bytes()
        .split(|byte| separators.as_bytes().contains(byte))
        .next()
        .is_some_and(|first| first == entry.as_encoded_bytes());
    if list.is_empty() {
        // An empty entry would be the working directory.
        return entry.to_owned();
    }
    if is_there { list } else { [entry, OsStr::new(":"), &list].into_iter().collect() }
}

/// What is preloaded already, followed by our entries: a sanitizer's runtime, say, must come first.
/// Entries of ours that are there already (nested `peerdma run`) are not repeated.
fn behind(given: &OsStr, ours: &OsStr) -> OsString {
    let entries = |list: &OsStr| -> Vec<OsString> {
        let split = list.as_bytes().split(|byte| b" :".contains(byte));
        split
            .filter(|entry| !entry.is_empty())
            .map(|entry| OsStr::from_bytes(entry).into())
            .collect()
    };
    let ours = entries(ours);
    let mut all = entries(given);
    all.retain(|entry| !ours.contains(entry));
    all.extend(ours);
    all.join(OsStr::new(":"))
}

fn join(first: &OsStr, rest: &OsStr) -> OsString {
    [first, OsStr::new(":"), rest].into_iter().collect()
}

/// The variable that AddressSanitizer reads.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// A program that is linked with the sanitizer's library exits at once if any other library was
/// preloaded, to make sure that the sanitizer's functions are found first. With ours they are: our
/// libraries define none of them, or call the next definition. And we cannot know the libraries of
/// a program that a script starts. So that check is off, unless the user sets it.
fn asan_options(given: Option<OsString>) -> OsString {
    const CHECK: &str = "verify_asan_link_order";
    let given = given.unwrap_or_default();
    if given.to_string_lossy().contains(CHECK) {
        return given;
    }
    let mut options = OsString::from(format!("{CHECK}=0"));
    if !given.is_empty() {
        options.push(":");
        options.push(given);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_not_set_gets_one_entry() {
        assert_eq!(prepend(OsStr::new("/a"), "PEERDMA_NO_SUCH_VARIABLE", ":"), "/a");
    }

    #[test]
    fn earlier_preloads_stay_in_front_and_ours_is_added_once() {
        let list = |given: &str| behind(OsStr::new(given), OsStr::new("/g.so:/v.so"));
        assert_eq!(list(""), "/g.so:/v.so");
        assert_eq!(list("/asan.so /x.so"), "/asan.so:/x.so:/g.so:/v.so");
        assert_eq!(list("/v.so:/x.so"), "/x.so:/g.so:/v.so");
    }

    #[test]
    fn the_options_of_a_user_stay_and_win() {
        let options = |given: &str| asan_options(Some(given.into()));
        assert_eq!(asan_options(None), "verify_asan_link_order=0");
        assert_eq!(options("detect_leaks=0"), "verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(options("verify_asan_link_order=1"), "verify_asan_link_order=1");
    }
}
