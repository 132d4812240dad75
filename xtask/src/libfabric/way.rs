//! The ways in which the tests run.

/// The memory that holds the messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Memory {
    Host,
    Cuda,
    Ze,
    Rocr,
}

/// A way of running the tests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Way {
    /// A provider of libfabric, or a pair of them.
    pub(crate) provider: &'static str,
    pub(crate) memory: Memory,
    /// Whether the tests register by a dma-buf themselves (`-R`), rather than leaving that to the
    /// provider.
    pub(crate) by_dmabuf: bool,
    /// Whether the two ends are on two hosts.
    pub(crate) is_wire: bool,
}

const RXM: Way =
    Way { provider: "verbs;ofi_rxm", memory: Memory::Host, by_dmabuf: false, is_wire: false };
const VERBS: Way = Way { provider: "verbs", ..RXM };
/// Its suite chooses the memory of each end itself, of the host's and CUDA's. Without a runtime
/// libfabric refuses to send memory of the host over it (`util_mem_monitor.c:414`).
const SHM: Way = Way { provider: "shm", memory: Memory::Cuda, ..RXM };

/// All of them.
pub(crate) const WAYS: [Way; 15] = [
    RXM,
    Way { is_wire: true, ..RXM },
    Way { memory: Memory::Cuda, ..RXM },
    Way { memory: Memory::Cuda, is_wire: true, ..RXM },
    Way { memory: Memory::Cuda, by_dmabuf: true, ..RXM },
    Way { memory: Memory::Ze, ..RXM },
    Way { memory: Memory::Rocr, ..RXM },
    Way { memory: Memory::Rocr, by_dmabuf: true, ..RXM },
    VERBS,
    Way { memory: Memory::Cuda, ..VERBS },
    Way { memory: Memory::Cuda, by_dmabuf: true, ..VERBS },
    Way { memory: Memory::Ze, ..VERBS },
    Way { memory: Memory::Rocr, ..VERBS },
    Way { memory: Memory::Rocr, by_dmabuf: true, ..VERBS },
    SHM,
];

impl Way {
    /// Its name in words, as in the file of expectations.
    pub(crate) fn words(&self) -> String {
        let memory = match self.memory {
            Memory::Host => "host",
            Memory::Cuda => "cuda",
            Memory::Ze => "ze",
            Memory::Rocr => "rocr",
        };
        let by = if self.by_dmabuf { " dmabuf" } else { "" };
        let hosts = if self.is_wire { "wire" } else { "local" };
        format!("{} {memory}{by} {hosts}", self.provider)
    }

    /// The arguments of `peerdma run`.
    pub(crate) fn gpu(&self) -> Option<&'static str> {
        match self.memory {
            Memory::Host => None,
            Memory::Cuda => Some("--gpu=nvidia"),
            Memory::Ze => Some("--gpu=xe"),
            Memory::Rocr => Some("--gpu=amdgpu"),
        }
    }

    /// The arguments of each test program.
    pub(crate) fn args(&self) -> Option<String> {
        if self.provider == SHM.provider {
            return None;
        }
        let memory = match self.memory {
            Memory::Host => return None,
            Memory::Cuda => "-D cuda",
            Memory::Ze => "-D ze",
            Memory::Rocr => "-D rocr",
        };
        let by = if self.by_dmabuf { " -R" } else { "" };
        // The sides meet on TCP: otherwise they meet by an empty message, which rxm sends by
        // rendezvous, as it does with all of Level Zero's memory (rxm_msg.c:525), and never
        // completes, since it has no bytes to move (rxm_cq.c:658).
        let is_rxm = self.provider.ends_with("ofi_rxm");
        let meet = if is_rxm && self.memory == Memory::Ze { " -b" } else { "" };
        Some(format!("{memory}{by}{meet}"))
    }
}
