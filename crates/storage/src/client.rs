//! The storage controller, as a device on the bus.

use std::sync::Arc;

use dmabuf::DmaBuf;
use umem::HostBuf;

use crate::engine::{ClientConfig, Inner, Stats};
use crate::queue::Queue;
use crate::{Buffer, Result};

/// Reads files into buffers and writes buffers to files. A clone is the same client.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Starts a client. With io_uring it has a thread, which ends with the client.
    ///
    /// # Errors
    ///
    /// [`Error::NoRing`](crate::Error::NoRing), if io_uring was required and there is none.
    pub fn new(config: &ClientConfig) -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner::new(config)?) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Whether io_uring moves the bytes.
    pub fn has_ring(&self) -> bool {
        self.inner.ring().is_some()
    }

    /// Attaches to a dma-buf, by the rules for a dynamic importer.
    ///
    /// # Errors
    ///
    /// [`Error::Attach`](crate::Error::Attach) with the exporter's reason, and
    /// [`Error::Gone`](crate::Error::Gone).
    #[doc(alias = "dma_buf_dynamic_attach")]
    pub fn attach(&self, buffer: &DmaBuf) -> Result<Buffer> {
        Buffer::import(&self.inner, buffer)
    }

    /// Makes a buffer of ordinary memory.
    pub fn attach_host(&self, memory: &HostBuf) -> Buffer {
        Buffer::host(&self.inner, memory)
    }

    /// A queue for requests and their completions.
    pub fn queue(&self) -> Queue {
        Queue::new(&self.inner)
    }

    /// What the client has done.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
