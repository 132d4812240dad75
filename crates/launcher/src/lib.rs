//! `peerdma run`: an unmodified verbs program on peerdma.
//!
//! The program finds our library in two ways: by `LD_LIBRARY_PATH`, under the names of libibverbs
//! and librdmacm, and by `LD_PRELOAD`, since a run path in the program takes precedence over the
//! first, and a program with a bundled copy looks for neither name. Its reads of `/sys` pass
//! through the door (`door`).

mod door;
mod gpus;
mod library;
mod sysfs;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use environment::NamedFile;

use crate::door::{Launch, Preload};
use crate::sysfs::{GpuFacts, NicFacts, Tree};

/// Names the NICs that a program sees, separated by commas. If it is not set, the program sees all
/// NICs of the configuration.
const NICS: &str = "PEERDMA_NIC";

/// How `/sys` is shown: `auto` (the default), `preload`, or `off`.
const DOOR: &str = "PEERDMA_DOOR";

/// Names the file in which packets are recorded.
const PCAP: &str = "PEERDMA_PCAP";
const PCAP_BYTES: &str = "PEERDMA_PCAP_BYTES";

/// Names the plan of faults, and the file of its report.
const FAULT: &str = "PEERDMA_FAULT";
const FAULT_REPORT: &str = "PEERDMA_FAULT_REPORT";

/// Names the file of the report on dma-bufs.
const REPORT: &str = "PEERDMA_REPORT";

/// `peerdma run`.
#[derive(clap::Args)]
pub struct Args {
    /// Show the program only this NIC of the configuration; may be given more than once
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    nic: Vec<String>,
    /// Leave /sys as it is
    #[arg(long)]
    no_door: bool,
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
    gpu: Option<String>,
    /// Make the program's TCP and UDP sockets rsockets, which its peers must be as well (see
    /// docs/RSOCKETS.md)
    #[arg(long)]
    rsockets: bool,
    /// Record every packet of every carrier in this file, for Wireshark and tshark (pcapng; see
    /// docs/PCAP.md)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record no more than this many bytes of each packet, from its IP header on: 128 hold every
    /// header
    #[arg(long, value_name = "BYTES", requires = "pcap")]
    pcap_bytes: Option<NonZeroU32>,
    /// When a process of the program ends, report how its dma-bufs were reached: bytes by path,
    /// page faults, moves and stale accesses of GPU memory. On standard error, or added to FILE
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    report: Option<PathBuf>,
    /// Inject the faults of this plan (docs/FAULT_PLANS.md); a report of what fired follows on
    /// standard error
    #[arg(long, value_name = "PLAN")]
    fault: Option<PathBuf>,
    /// Add the report of what fired to this file instead
    #[arg(long, value_name = "FILE", requires = "fault")]
    fault_report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Runs the program and returns its exit status.
pub fn main(args: Args) -> ExitCode {
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("peerdma run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let library = library::find()?;
    let names = library.names()?;
    let (program, rest) = args.program.split_first().expect("clap requires a program");
    let mut command = Command::new(program);
    command.args(rest);
    command.env("LD_LIBRARY_PATH", prepend(names.as_os_str(), "LD_LIBRARY_PATH", ":"));
    let verbs = names.join(library::VERBS);
    let mut ours = verbs.as_os_str().to_owned();
    let mut machine = None;
    // With the preload library, a dma-buf of ours is a dma-buf in every process of the program,
    // whichever process sent it.
    let preload = library.preload();
    if let Some(preload) = &preload {
        ours = join(preload.as_os_str(), &ours);
    }
    if args.gpu.as_deref() == Some(gpus::NVIDIA) {
        let cuda = library.cuda_names()?;
        let paths = join(cuda.as_os_str(), names.as_os_str());
        command.env("LD_LIBRARY_PATH", prepend(&paths, "LD_LIBRARY_PATH", ":"));
        // Programs from Python wheels ask for a copy of the runtime with a hash in its name; if
        // this one is preloaded, it is found first.
        ours = join(&ours, cuda.join(library::CUDA_RUNTIME).as_os_str());
        machine = Some((gpus::announce_cuda(&mut command)?, gpus::NVIDIA));
        tracing::info!(target: "peerdma::cuda", "CUDA's libraries are in {}", cuda.display());
    } else if let Some(preset) = &args.gpu {
        if preload.is_none() {
            return Err("--gpu needs libpeerdma-preload.so next to the library".into());
        }
        machine = gpus::announce(&mut command, preset, library.level_zero().as_deref())?;
        if preset == gpus::AMD {
            let hsa = library.hsa_names()?;
            let paths = join(hsa.as_os_str(), names.as_os_str());
            command.env("LD_LIBRARY_PATH", prepend(&paths, "LD_LIBRARY_PATH", ":"));
            tracing::info!(target: "peerdma::hsa", "HSA's library is in {}", hsa.display());
        }
    }
    if args.rsockets {
        let rsockets =
            library.rsockets().ok_or("--rsockets needs librspreload.so.1 next to the library")?;
        ours = join(rsockets.as_os_str(), &ours);
    }
    let given = environment::var_os("LD_PRELOAD").unwrap_or_default();
    command.env("LD_PRELOAD", behind(&given, &ours));
    command.env(ASAN_OPTIONS, asan_options(environment::var_os(ASAN_OPTIONS)));
    if let Some(path) = &args.pcap {
        let failed = |error| format!("--pcap {}: {error}", path.display());
        pcap::Capture::create(path).map_err(failed)?;
        command.env(PCAP, path.canonicalize().map_err(failed)?);
        if let Some(bytes) = args.pcap_bytes {
            command.env(PCAP_BYTES, bytes.to_string());
        }
    }
    if let Some(path) = &args.report {
        if path == Path::new("-") {
            command.env(REPORT, path);
        } else {
            let failed = |error| format!("--report {}: {error}", path.display());
            fs::File::create(path).map_err(failed)?;
            command.env(REPORT, std::path::absolute(path)?);
        }
    }
    if let Some(path) = &args.fault {
        // Reported here, once, and not by every process of the program.
        let failed = |error| format!("--fault {}: {error}", path.display());
        let plan = NamedFile::read(path).map_err(failed)?;
        fault::Plan::parse(plan.text())
            .map_err(|error| format!("--fault {}", plan.blame(&error)))?;
        command.env(FAULT, std::path::absolute(path)?);
    }
    if let Some(path) = &args.fault_report {
        let failed = |error| format!("--fault-report {}: {error}", path.display());
        fs::File::create(path).map_err(failed)?;
        command.env(FAULT_REPORT, std::path::absolute(path)?);
    }
    let mut nics = nics(args.nic)?;
    command.env(NICS, nics.iter().map(|nic| &*nic.name).collect::<Vec<_>>().join(","));

    let way = environment::var(DOOR).unwrap_or_default();
    if args.no_door || way == "off" {
        door::exec(&mut command)
    }
    let shown = machine
        .map_or_else(Vec::new, |(machine, driver)| NicFacts::place(&machine, driver, &mut nics));
    let mut tree = Tree::new(&nics);
    tree.add_gpus(&shown, &nics);
    let seccomp = way != "preload";
    if seccomp && is_shown_already(&tree, &nics, &shown) {
        tracing::info!("door: an outer peerdma run shows the same tree");
        door::exec(&mut command)
    }
    tree.add_kernel_names();
    let preload = preload.map(|library| Preload { library, ld_preload: behind(&given, &ours) });
    Ok(door::run(Launch { command, tree, seccomp, preload })?)
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

/// Whether `/sys` already shows this tree: we are inside another `peerdma run`, on the same netdev.
/// (A `peerdma run` in another network namespace has other GIDs.)
fn is_shown_already(tree: &Tree, nics: &[NicFacts], gpus: &[GpuFacts]) -> bool {
    let shown = fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    let same = |path: &str| {
        tree.text(path)
            .is_some_and(|text| fs::read_to_string(path).is_ok_and(|shown| shown == text))
    };
    shown == nics.len()
        && nics.iter().all(|nic| {
            let hca = format!("{}/infiniband/{}", nic.directory(), nic.name);
            ["board_id", "node_guid", "ports/1/gids/0", "ports/1/gids/1", "ports/1/state"]
                .iter()
                .all(|name| same(&format!("{hca}/{name}")))
        })
        && gpus.iter().all(|gpu| same(&format!("{}/uevent", gpu.function.path)))
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
