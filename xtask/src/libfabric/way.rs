//! The ways in which the tests run.

/// Memory that the messages are in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Memory {
    Host,
    Cuda,
    Ze,
    Rocr,
}

/// One way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Way {
    /// A provider of libfabric, or a pair of them.
    pub(crate) provider: &'static str,
    pub(crate) memory: Memory,
    /// Whether the tests themselves register by a dma-buf (`-R`), and do not leave that to the
    /// provider.
    pub(crate) by_dmabuf: bool,
    /// Whether the two ends are on two hosts.
    pub(crate) is_wire: bool,
}

const RXM: Way =
    Way { provider: "verbs;ofi_rxm", memory: Memory::Host, by_dmabuf: false, is_wire: false };
const VERBS: Way = Way { provider: "verbs", ..RXM };

/// All of them.
pub(crate) const WAYS: [Way; 14] = [
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
];

impl Way {
    /// In words, by which the file of expectations has it.
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

    /// What `peerdma run` is told.
    pub(crate) fn gpu(&self) -> Option<&'static str> {
        match self.memory {
            Memory::Host => None,
            Memory::Cuda => Some("--gpu=nvidia"),
            Memory::Ze => Some("--gpu=xe"),
            Memory::Rocr => Some("--gpu=amdgpu"),
        }
    }

    /// What each program of the tests is told.
    pub(crate) fn args(&self) -> Option<String> {
        let memory = match self.memory {
            Memory::Host => return None,
            Memory::Cuda => "-D cuda",
            Memory::Ze => "-D ze",
            Memory::Rocr => "-D rocr",
        };
        let by = if self.by_dmabuf { " -R" } else { "" };
        // The sides meet on TCP: otherwise they do by an empty message, which rxm sends by
        // rendezvous as all of Level Zero's memory (rxm_msg.c:525), and of whose no bytes it moves
        // none and completes nothing (rxm_cq.c:658).
        let is_rxm = self.provider.ends_with("ofi_rxm");
        let meet = if is_rxm && self.memory == Memory::Ze { " -b" } else { "" };
        Some(format!("{memory}{by}{meet}"))
    }
}
