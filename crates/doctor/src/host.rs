//! The facts of a host, each from the file that has it.

mod kernel;
mod limits;
mod process;
mod rdma;
mod sockets;
mod tree;

use crate::fact::Fact;
use crate::files::Files;

pub(crate) use self::kernel::{Kernel, Setting};
pub(crate) use self::limits::{Limits, Memlock};
pub(crate) use self::process::{Capability, Process};
pub(crate) use self::rdma::{Rdma, RdmaDevice};
pub(crate) use self::sockets::Sockets;
pub(crate) use self::tree::{Gpu, Pool, Tree};

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) kernel: Kernel,
    pub(crate) process: Process,
    pub(crate) limits: Limits,
    pub(crate) rdma: Rdma,
    pub(crate) tree: Tree,
    pub(crate) sockets: Sockets,
}

impl Host {
    pub(crate) fn read(files: &Files) -> Self {
        Self {
            kernel: Kernel::read(files),
            process: Process::read(files),
            limits: Limits::read(files),
            rdma: Rdma::read(files),
            tree: Tree::read(files),
            sockets: Sockets::read(files),
        }
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        let parts = [
            self.kernel.facts(),
            self.process.facts(),
            self.limits.facts(),
            self.rdma.facts(),
            self.tree.facts(),
            self.sockets.facts(),
        ];
        parts.concat()
    }
}
