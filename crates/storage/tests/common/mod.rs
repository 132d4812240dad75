//! Files, GPUs and clients for the tests.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dmabuf::DeviceAddr;
use gpu::{CopyMode, Gpu, GpuConfig, Preset};
use pci::{PciConfig, PciTree};
use storage::{Client, ClientConfig, Engine, File, OpenOptions};

pub const MB: u64 = 1 << 20;

/// A directory that is removed with the test, on the file system on which the programs are built.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("storage-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with these bytes, open for writing as well.
    pub fn file(&self, name: &str, bytes: &[u8]) -> File {
        std::fs::write(self.path(name), bytes).expect("room on the disk");
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        File::open(self.path(name), &options).expect("just made")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A machine whose disk does or does not reach its GPU.
pub fn machine(reachable: bool) -> Arc<PciTree> {
    let apart = "[[host_bridge]]\nname = \"a\"\nid = \"1234:5678\"\n[[device]]\nname = \"nvme0\"\n[[device]]\nname = \"gpu0\"";
    let config: PciConfig =
        toml::from_str(if reachable { "" } else { apart }).expect("the test's own text");
    Arc::new(config.build(&["nvme0", "gpu0"]).expect("sound"))
}

/// A small GPU of the test's own.
pub fn gpu(preset: Preset, copy_engine: CopyMode, tree: &Arc<PciTree>) -> Gpu {
    let config = GpuConfig {
        preset,
        copy_engine,
        vram: 8 * MB,
        gtt: 64 * MB,
        shared: false,
        ..GpuConfig::default()
    };
    Gpu::open_in(&config, Arc::clone(tree)).expect("a GPU")
}

/// The engines that this process can have: always system calls.
pub fn engines() -> Vec<Engine> {
    let config = ClientConfig { engine: Engine::Uring, ..ClientConfig::default() };
    let mut engines = vec![Engine::Calls];
    match Client::new(&config) {
        Ok(_) => engines.push(Engine::Uring),
        Err(error) => eprintln!("with system calls alone: {error}"),
    }
    engines
}

/// The disk of the machine.
pub fn disk(engine: Engine, tree: &PciTree) -> ClientConfig {
    let addr = tree.by_name("nvme0").map(|bdf| DeviceAddr(bdf.to_bits()));
    ClientConfig { name: "nvme0".to_owned(), addr, engine, ..ClientConfig::default() }
}

/// Bytes that no wrong offset can produce.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
