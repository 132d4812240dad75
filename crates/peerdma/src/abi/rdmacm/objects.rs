//! The verbs' objects for the library's own use. Each goes when its value does, and keeps what it
//! was made from.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use descriptors::Known;
use device::ids::{ChannelId, CqId, CtxId, PdId, QpId};
use device::{DeviceAttr, Engine, Hca, MrInfo, QpSpec, Wc};
use iba::{Access, AttrMask, Av, QpAttr, QpCap, QpType, Qpn};
use transport::wr::{RecvWr, SendWr};
use umem::{Foreign, HostBuf, Umem};

use super::{Answer, Failure};
use crate::abi::waiting::Waiting;
use crate::abi::{lists, mr};

/// A protection domain.
pub(in crate::abi) struct Domain {
    hca: Arc<Hca>,
    context: CtxId,
    id: PdId,
}

impl Domain {
    pub(super) fn alloc(hca: &Arc<Hca>, context: CtxId) -> Answer<Arc<Self>> {
        let id = hca.alive()?.alloc_pd(context)?;
        Ok(Arc::new(Self { hca: Arc::clone(hca), context, id }))
    }

    pub(in crate::abi) fn device_attr(&self) -> DeviceAttr {
        self.hca.lock().device_attr().clone()
    }

    /// The path MTU of the port, in bytes.
    pub(in crate::abi) fn mtu(&self) -> usize {
        self.hca.lock().port_attr().active_mtu.bytes() as usize
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // What is made in it holds it.
        let _ = self.hca.lock().dealloc_pd(self.id);
    }
}

/// A completion queue with its channel.
pub(in crate::abi) struct Queue {
    domain: Arc<Domain>,
    channel: ChannelId,
    id: CqId,
    /// Another descriptor of the channel's file: the engine has its own.
    events: Known,
    waiting: Waiting,
}

impl Queue {
    /// A queue for `size` completions.
    pub(in crate::abi) fn create(domain: &Arc<Domain>, size: u32) -> Answer<Self> {
        let no_descriptor = |error: std::io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
            Failure::new(errno, format!("rsocket: no descriptor for its events: {error}"))
        };
        let mut engine = domain.hca.alive()?;
        let channel = engine.create_channel(domain.context)?;
        let made: Answer<_> = (|| {
            let fd = engine.channel_fd(channel).expect("it was made just now");
            let events: OwnedFd = fd.try_clone_to_owned().map_err(no_descriptor)?;
            Ok((events, engine.create_cq(domain.context, size, Some(channel), 0, 0)?))
        })();
        if made.is_err() {
            let _ = engine.destroy_channel(channel);
        }
        drop(engine);
        let (events, id) = made?;
        Ok(Self {
            domain: Arc::clone(domain),
            channel,
            id,
            events: Known::marked(events),
            waiting: Waiting::default(),
        })
    }

    /// The descriptor that is readable while it has an event, if it still is what it was and not a
    /// file of the program's.
    pub(in crate::abi) fn own_fd(&self) -> Option<RawFd> {
        self.events.is_ours().then(|| self.events.as_raw_fd())
    }

    /// The next completion will be an event.
    pub(in crate::abi) fn arm(&self) -> Answer {
        Ok(self.domain.hca.req_notify_cq(self.id, false)?)
    }

    /// Takes completions, `most` at most, and says how many there were.
    ///
    /// # Errors
    /// EIO if none are left, and no more can come.
    pub(in crate::abi) fn poll(&self, most: usize, mut each: impl FnMut(&Wc)) -> Answer<usize> {
        let mut engine = self.domain.hca.poll(self.id);
        let mut count = 0;
        while count < most && engine.take_wc(self.id, &mut each).is_some() {
            count += 1;
        }
        if count == 0 && engine.cq_is_broken(self.id) {
            return Err(Failure::new(libc::EIO, "rsocket: the completion queue is broken"));
        }
        Ok(count)
    }

    /// Waits for an event, and takes it.
    ///
    /// # Errors
    /// As of read(2): EINTR. EBADF if the program closed the descriptor.
    pub(in crate::abi) fn take_event(&self) -> Answer {
        let failed = |error: rustix::io::Errno| Failure::quiet(error.raw_os_error());
        let hca = &self.domain.hca;
        let take = |engine: &mut Engine| engine.take_cq_event_unread(self.channel).is_some();
        if take(&mut hca.lock()) {
            return Ok(());
        }
        self.events.look().map_err(failed)?;
        let is_found = self.waiting.wait(hca, &self.events, take).map_err(Failure::quiet)?;
        if !is_found {
            rustix::io::read(&self.events, &mut [0; 8]).map_err(failed)?;
            let _ = hca.lock().take_cq_event(self.channel);
        }
        Ok(())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut engine = self.domain.hca.lock();
        // Every QP that completes here holds the queue.
        let _ = engine.destroy_cq(self.id);
        let _ = engine.destroy_channel(self.channel);
    }
}

/// A queue pair that sends and receives by one completion queue.
pub(in crate::abi) struct Pair {
    domain: Arc<Domain>,
    queue: Arc<Queue>,
    id: QpId,
    qpn: Qpn,
}

impl Pair {
    /// A QP of which every request completes.
    pub(in crate::abi) fn create(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        qp_type: QpType,
        cap: QpCap,
    ) -> Answer<Self> {
        let (id, qpn) = domain.hca.alive()?.create_qp(&QpSpec {
            pd: domain.id,
            qp_type,
            send_cq: queue.id,
            recv_cq: queue.id,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
            cookie: 0,
        })?;
        Ok(Self { domain: Arc::clone(domain), queue: Arc::clone(queue), id, qpn })
    }

    pub(in crate::abi) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(in crate::abi) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Answer {
        Ok(self.domain.hca.modify_qp(self.id, attr, mask)?)
    }

    /// Moves it to the error state: what is posted is flushed.
    pub(in crate::abi) fn to_error(&self) {
        super::qp_state::to_error(&|attr, mask| self.modify(attr, mask));
    }

    pub(in crate::abi) fn post_send(&self, wr: SendWr) -> Answer {
        let posted = self.domain.hca.lock_to_post().post_send(self.id, wr);
        posted.map_err(|error| Failure(lists::refused("send", &error)))
    }

    pub(in crate::abi) fn post_recv(&self, wr: RecvWr) -> Answer {
        let posted = self.domain.hca.lock_to_post().post_recv(self.id, wr);
        posted.map_err(|error| Failure(lists::refused("recv", &error)))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Fails only for a QP that does not exist.
        let _ = self.domain.hca.destroy_qp(self.id);
    }
}

/// A memory region.
pub(in crate::abi) struct Region {
    domain: Arc<Domain>,
    info: MrInfo,
}

impl Region {
    /// Registers memory of the program.
    ///
    /// # Errors
    /// EFAULT if it is not all there, as of `ibv_reg_mr(3)`.
    ///
    /// # Safety
    ///
    /// The program lends it until the result is gone.
    pub(in crate::abi) unsafe fn of_program(
        domain: &Arc<Domain>,
        addr: *mut std::ffi::c_void,
        length: usize,
        access: Access,
    ) -> Answer<Self> {
        let iova = addr.addr() as u64;
        // SAFETY: the caller's promise.
        let info = unsafe { mr::register(&domain.hca, domain.id, addr, length, iova, access) }?;
        Ok(Self { domain: Arc::clone(domain), info })
    }

    /// The key by which this side uses it.
    pub(in crate::abi) fn lkey(&self) -> u32 {
        self.info.lkey
    }

    /// The key by which a peer reaches it.
    pub(in crate::abi) fn rkey(&self) -> u32 {
        self.info.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Fails only for a region that does not exist.
        let _ = self.domain.hca.dereg_mr(self.info.id);
    }
}

/// A registered buffer of the library's own.
pub(in crate::abi) struct Memory {
    /// It goes before the buffer does.
    region: Region,
    buffer: HostBuf,
}

impl Memory {
    /// `length` bytes of zeros, registered with `access`.
    pub(in crate::abi) fn register(
        domain: &Arc<Domain>,
        length: usize,
        access: Access,
    ) -> Answer<Self> {
        let buffer = HostBuf::anonymous(length.max(1)).map_err(|error| {
            Failure::new(libc::ENOMEM, format!("rsocket: a buffer of {length} bytes: {error}"))
        })?;
        let iova = buffer.as_ptr().addr() as u64;
        let mut engine = domain.hca.alive()?;
        let info = engine.reg_mr(domain.id, Umem::host(&buffer), iova, access)?;
        drop(engine);
        Ok(Self { region: Region { domain: Arc::clone(domain), info }, buffer })
    }

    /// `length` bytes at `at`, which lie inside, and which a peer may write at any moment.
    pub(in crate::abi) fn part(&self, at: u32, length: u32) -> Foreign<'_> {
        self.buffer
            .foreign()
            .slice(at as usize, length as usize)
            .expect("its owner knows how large it is")
    }

    /// Where it begins.
    pub(in crate::abi) fn addr(&self) -> u64 {
        self.buffer.as_ptr().addr() as u64
    }

    /// The key by which this side uses it.
    pub(in crate::abi) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// The key by which a peer writes it.
    pub(in crate::abi) fn rkey(&self) -> u32 {
        self.region.rkey()
    }
}

/// An address handle: where datagrams go.
pub(in crate::abi) struct Address {
    domain: Arc<Domain>,
    pub(in crate::abi) av: Av,
}

impl Address {
    pub(in crate::abi) fn create(domain: &Arc<Domain>, av: Av) -> Answer<Self> {
        domain.hca.create_ah(domain.id, &av)?;
        Ok(Self { domain: Arc::clone(domain), av })
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // The domain is held, so it exists.
        let _ = self.domain.hca.lock().count_ah(self.domain.id, false);
    }
}
