//! Unmodified third-party programs that move GPU memory, over the software GPU. `cargo xtask
//! cuda-rdma` builds them, and writes docs/CUDA_PROGRAMS.md from the rows of these tests.

mod gdrcopy;
mod mooncake;
mod mpi;
mod nixl;
mod perftest;
mod rocm;
mod storm;
mod ucx;
mod ze;

use std::path::{Path, PathBuf};

use interop::need::{self, Need};
use interop::{Program, Scratch, Veth};

/// A machine, by name and as a configuration: the NIC, and how the GPU differs from the preset
/// `nvidia`.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    nic: &'static str,
    gpu: &'static str,
    /// Whether its NIC takes dma-bufs.
    dma_buf: bool,
    peermem: bool,
}

/// Without a configuration there are two GPUs and two NICs, `mlx5` with peermem.
const DEFAULT: Way = Way { name: "default", nic: "", gpu: "", dma_buf: true, peermem: true };

/// NICs of each class, with peermem and without, and little memory.
const WAYS: [Way; 10] = [
    DEFAULT,
    Way { name: "mlx5", nic: "preset = 'mlx5'", gpu: "name = 'g0'", dma_buf: true, peermem: false },
    Way {
        name: "irdma",
        nic: "preset = 'irdma'",
        gpu: "name = 'g1'",
        dma_buf: true,
        peermem: false,
    },
    Way {
        name: "irdma with peermem",
        nic: "preset = 'irdma'\npeermem = true",
        gpu: "name = 'g2'",
        dma_buf: true,
        peermem: true,
    },
    Way { name: "efa", nic: "preset = 'efa'", gpu: "name = 'g3'", dma_buf: true, peermem: false },
    // A NIC that cannot release memory is served by the client that revokes none (`nv_mem_nc`).
    Way {
        name: "efa with peermem",
        nic: "preset = 'efa'\npeermem = true",
        gpu: "name = 'g4'",
        dma_buf: true,
        peermem: true,
    },
    Way { name: "rxe", nic: "preset = 'rxe'", gpu: "name = 'g5'", dma_buf: false, peermem: false },
    Way {
        name: "mlx5 with peermem, no dma-bufs of the GPU",
        nic: "preset = 'mlx5'\npeermem = true",
        gpu: "name = 'g6'\ndma_buf = false",
        dma_buf: false,
        peermem: true,
    },
    Way {
        name: "irdma with peermem, no dma-bufs of the GPU",
        nic: "preset = 'irdma'\npeermem = true",
        gpu: "name = 'g7'\ndma_buf = false",
        dma_buf: false,
        peermem: true,
    },
    Way {
        name: "mlx5 with peermem, 16 MiB of VRAM",
        nic: "preset = 'mlx5'\npeermem = true",
        gpu: "name = 'g8'\nvram = '16M'",
        dma_buf: true,
        peermem: true,
    },
];

impl Way {
    /// The program on that machine. `report` then tells what its NIC did with GPU memory.
    fn on(&self, program: Program, scratch: &Scratch, report: &Path) -> Program {
        let program = program.gpu("nvidia").env("PEERDMA_REPORT", report);
        if self.gpu.is_empty() {
            return program;
        }
        program.env("PEERDMA_CONFIG", machine(scratch, self.nic, self.gpu))
    }

    /// Its name in a row.
    fn place(&self, veth: Option<&Veth>) -> String {
        format!("{}{}", self.name, if veth.is_some() { ", two hosts" } else { "" })
    }
}

/// The configuration of a machine with one NIC and one GPU, which is `nvidia` unless `gpu` has
/// another preset.
fn machine(scratch: &Scratch, nic: &str, gpu: &str) -> PathBuf {
    let preset = if gpu.contains("preset") { "" } else { "preset = 'nvidia'\n" };
    let text = format!("[[nic]]\nname = 'peerdma0'\n{nic}\n[[gpu]]\n{preset}{gpu}\n");
    let file = scratch.file("peerdma.toml");
    std::fs::write(&file, text).expect("a scratch directory is writable");
    file
}

/// The requirements of two hosts.
const TWO_HOSTS: [Need; 5] = [
    Need::Root,
    Need::Namespaces,
    Need::Program("ip"),
    Need::Program("nsenter"),
    Need::Program("setpriv"),
];

/// Whether a requirement is not met: then the test is recorded as skipped.
#[track_caller]
fn lacks(needs: impl IntoIterator<Item = Need>) -> bool {
    let missing = needs.into_iter().try_for_each(need::check);
    missing.inspect_err(|why| need::skip(why)).is_err()
}
