//! The same table from another process: a C program, `by_c.c`, which the system's compiler builds.
//! It gets each exporter's buffers through its driver's interface under `peerdma run`, and
//! registers them with libibverbs.
//!
//! This process adds what the program cannot know: where the memory is, as `peerdma gpu` shows it;
//! which step was refused, by the sentence in its log; and the column of static importers, which
//! import the program's buffers from this process, since no verbs device is one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dmabuf::{DeviceAddr, DmaBuf};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::exporters::Exporter;
use super::importers::{Class, errno_name, import_statically, static_importer};
use super::table::{Cell, Row, Table};
use crate::cli::outcome::Outcome;

const SOURCE: &str = include_str!("by_c.c");

/// The classes that a NIC has, in the order of the table's columns.
const CLASSES: [&str; 3] = ["dynamic", "revocable", "pinned"];

/// A directory for what is built, which is removed on drop.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, which is killed on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every cell; and for an exporter that the machine does not have, the reason.
pub(super) fn measure() -> Outcome<(Table, Vec<String>)> {
    let room = Room(std::env::temp_dir().join(format!("peerdma-matrix-{}", std::process::id())));
    fs::create_dir_all(&room.0)?;
    let program = compile(&room.0)?;
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    let all = Exporter::rows();
    for (row, _) in all.iter().filter(|(row, _)| row.reaches != Some(false)) {
        if row.exporter == "memory" && !Path::new("/dev/udmabuf").exists() {
            missing
                .push("memory: without /dev/udmabuf a C program cannot export memory".to_owned());
            continue;
        }
        let of_exporter = all.iter().filter(|(other, _)| other.exporter == row.exporter);
        let mut of_exporter: Vec<Row> = of_exporter.map(|(row, _)| row.clone()).collect();
        fill(&mut of_exporter, &room.0, &program)
            .map_err(|error| format!("{} by a C program: {error}", row.exporter))?;
        rows.append(&mut of_exporter);
    }
    Ok((Table { rows }, missing))
}

fn compile(room: &Path) -> Outcome<PathBuf> {
    let (source, program) = (room.join("by_c.c"), room.join("by_c"));
    fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg("-o").arg(&program).arg(&source).args(["-libverbs", "-ldl"]);
    let out = cc.output().map_err(|error| format!("no C compiler `cc`: {error}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(
            format!("the headers of libibverbs are missing (libibverbs-dev):\n{said}").into()
        );
    }
    Ok(program)
}

/// The machine: six NICs, one whose memory is exported, and the exporter.
fn machine(preset: &str, gpu: &str) -> String {
    let mut text = format!(
        "[[gpu]]\nname = \"{gpu}\"\npreset = \"{preset}\"\nvram = \"16M\"\ngtt = \"16M\"\n\
         [[pci.host_bridge]]\nname = \"here\"\n[[pci.host_bridge]]\nname = \"elsewhere\"\n\
         [[pci.switch]]\nname = \"switch\"\nunder = \"here\"\n\
         [[nic]]\nname = \"memory\"\n"
    );
    let mut device = |name: &str, under: &str| {
        text += &format!("[[pci.device]]\nname = \"{name}\"\nunder = \"{under}\"\n");
    };
    device("memory", "switch");
    device(gpu, "switch");
    device("near", "switch");
    device("far", "elsewhere");
    for (place, under) in [("near", "switch"), ("far", "elsewhere")] {
        for class in CLASSES {
            device(&format!("{place}-{class}"), under);
        }
    }
    for place in ["near", "far"] {
        for class in CLASSES {
            text += &format!("[[nic]]\nname = \"{place}-{class}\"\nimporter = \"{class}\"\n");
        }
    }
    text
}

/// Measures the rows of one exporter.
fn fill(rows: &mut [Row], room: &Path, program: &Path) -> Outcome<()> {
    let exporter = rows.first().ok_or("no row")?.exporter.clone();
    // Memory of a NIC and plain memory need no GPU; the machine has one all the same.
    let preset = match &*exporter {
        "memory" | "uverbs" => "xe",
        "vfio-pci" => "vfio",
        preset => preset,
    };
    let gpu = format!("matrix{}-{preset}", std::process::id());
    let text = machine(preset, &gpu);
    let tree = Arc::clone(::gpu::Machine::parse(&text).map_err(|error| error.what)?.tree());
    let (config, log) = (room.join("peerdma.toml"), room.join("log"));
    fs::write(&config, &text)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").arg(format!("--gpu={preset}")).arg("--").arg(program).arg(&exporter);
    command.env("PEERDMA_CONFIG", &config).env("PEERDMA_LOG", "peerdma::refusal=info");
    command.env_remove("PEERDMA_NIC");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
    let mut running = Program(command.spawn()?);
    let mut answers = running.0.stdin.take().ok_or("no way to answer")?;
    let lines = BufReader::new(running.0.stdout.take().ok_or("nothing to read")?).lines();
    let (mut pid, mut statics, mut seen) = (0, 0, 0);
    for line in lines {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = || place(&exporter, &gpu, pid);
        match *words.as_slice() {
            ["pid", number] => {
                pid = number.parse()?;
                continue;
            }
            ["static", fd] => {
                let near = statics == 0;
                statics += 1;
                let buffer = taken(pid, fd.parse()?)?;
                let at = tree.by_name(if near { "near" } else { "far" });
                let importer = static_importer(at.map(|bdf| DeviceAddr(bdf.to_bits())));
                let cell = import_statically(&importer, &DmaBuf::import(buffer.as_fd())?, place)?;
                set(rows, near, Class::Static as usize, cell);
            }
            [nic, ref outcome @ ..] => {
                let (near, class) = match nic.split_once('-') {
                    Some(("near", class)) => (true, class),
                    Some(("far", class)) => (false, class),
                    _ => return Err(format!("the program printed {line:?}").into()),
                };
                let class = CLASSES.iter().position(|known| *known == class).ok_or("no class")?;
                let cell = match *outcome {
                    ["ok", _] => place()?,
                    ["errno", number] => format!("{} {}", step(&log)?, errno_name(number.parse()?)),
                    _ => return Err(format!("the program printed {line:?}").into()),
                };
                set(rows, near, class, cell);
            }
            [] => continue,
        }
        seen += 1;
        answers.write_all(b"\n")?;
    }
    let status = running.0.wait()?;
    if !status.success() || seen != 2 * CLASSES.len() + 2 {
        let said = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("the program ended with {status}, after {seen} cells:\n{said}").into());
    }
    Ok(())
}

/// A descriptor of the program's. Not by `/proc/PID/fd`, where the kernel opens none of its own
/// dma-bufs (ENXIO).
fn taken(pid: u32, fd: RawFd) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)
}

/// Sets a cell in the row that is measured there, if there is one.
fn set(rows: &mut [Row], near: bool, class: usize, cell: Cell) {
    if let Some(row) = rows.iter_mut().find(|row| row.is_at(near)) {
        row.cells[class] = cell;
    }
}

/// The step that the last sentence of the log says was refused.
fn step(log: &Path) -> Outcome<&'static str> {
    let said = fs::read_to_string(log)?;
    let steps = ["attach", "pin", "map"];
    let last = steps
        .into_iter()
        .filter_map(|step| Some((said.rfind(&format!("refuses to {step}"))?, step)));
    Ok(last.max().ok_or_else(|| format!("refused at no known step:\n{said}"))?.1)
}

/// Where the program's newest buffer is.
fn place(exporter: &str, gpu: &str, pid: u32) -> Outcome<Cell> {
    match exporter {
        "memory" => return Ok("ok system".to_owned()),
        "uverbs" => return Ok("ok NIC".to_owned()),
        _ => {}
    }
    let members = ::gpu::survey();
    let member = members.iter().find(|member| member.gpu == gpu && member.pid == Some(pid));
    let member = member.ok_or("the program's GPU does not answer")?;
    let view = member.view.as_ref().map_err(Clone::clone)?;
    let newest = view.buffers.iter().max_by_key(|buffer| buffer.number);
    Ok(match &*newest.ok_or("the program has no buffer")?.place {
        "VRAM" => "ok VRAM".to_owned(),
        "GTT" => "ok system".to_owned(),
        other => return Err(format!("the buffer is {other}").into()),
    })
}
