//! A queue of commands: one connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs::cm::{ConnParam, EventChannel, EventKind, Id};
use verbs::{Access, Context, Cq, HostBuf, Mr, Mw, Pd, Qp, QpSpec, SendRequest, WcOpcode, soft};
use zerocopy::{FromBytes, IntoBytes};

use super::HostError;
use crate::wire::capsule::{COMMAND_LEN, COMPLETION_LEN};
use crate::wire::cm::{Rejection, Reply, Request};
use crate::wire::{Command, Completion, Descriptor};

/// Bytes of data that a command may have.
pub const SLOT: usize = 128 << 10;
/// How long the target may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often to check that the connection is still there.
const TICK: Duration = Duration::from_millis(20);

/// The data of a command.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "what a capsule can say")]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// This many bytes from the target, whose answer invalidates the key if `invalidate` is set.
    In {
        /// How many.
        len: usize,
        /// Whether the answer invalidates the key.
        invalidate: bool,
    },
    /// These bytes, which the target fetches.
    Out {
        /// The bytes.
        bytes: &'a [u8],
        /// As above.
        invalidate: bool,
    },
    /// These bytes, in the capsule.
    Capsule(&'a [u8]),
    /// The command's own descriptor, as it is, with these bytes after the command.
    Raw(&'a [u8]),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The target's completion.
    pub completion: Completion,
    /// Whether it invalidated the key.
    pub invalidated: bool,
}

/// A connection with its memory.
#[derive(Debug)]
pub struct Queue {
    id: Id,
    qp: Qp,
    cq: Cq,
    channel: EventChannel,
    depth: u16,
    capsules: (HostBuf, Mr),
    answers: (HostBuf, Mr),
    data: (HostBuf, Mr),
    windows: Vec<Mw>,
    /// Command identifiers that are free.
    free: Vec<u16>,
    busy: Vec<Option<Busy>>,
    is_over: bool,
}

/// A command that is outstanding.
#[derive(Clone, Copy, Debug)]
struct Busy {
    /// Whether the window is bound, and must be invalidated.
    is_bound: bool,
}

/// Bytes of data in a capsule at most.
pub(super) const CAPSULE_DATA: usize = 16384;
/// Bytes of a capsule at most.
const CAPSULE: usize = COMMAND_LEN + CAPSULE_DATA;

impl Queue {
    /// Connects a queue.
    ///
    /// # Errors
    ///
    /// [`HostError::Rejected`], and what the device refuses.
    pub fn open(context: &Context, to: SocketAddr, request: &Request) -> Result<Self, HostError> {
        Self::open_with(context, to, request.as_bytes(), request.hsqsize.get().saturating_add(1))
    }

    /// The same with any private data, for a queue of `depth` commands.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(
        context: &Context,
        to: SocketAddr,
        private_data: &[u8],
        depth: u16,
    ) -> Result<Self, HostError> {
        let depth = depth.clamp(1, 256);
        let (pd, channel) = (context.alloc_pd()?, EventChannel::new(context)?);
        let cq = context.create_cq(8 * u32::from(depth))?;
        let mut spec = QpSpec::rc(&cq);
        // A bind, a capsule, and an invalidation.
        (spec.cap.max_send_wr, spec.cap.max_recv_wr) = (3 * u32::from(depth) + 3, depth.into());
        spec.cap.max_inline_data = 0;
        let qp = pd.create_qp(&spec)?;
        let plain = Access::LOCAL_WRITE;
        let capsules = register(&pd, usize::from(depth) * CAPSULE, plain)?;
        let answers = register(&pd, usize::from(depth) * COMPLETION_LEN, plain)?;
        let data = register(&pd, usize::from(depth) * SLOT, plain | Access::MW_BIND)?;
        let windows = (0..depth).map(|_| data.1.window()).collect::<Result<_, _>>()?;
        for slot in 0..depth {
            post_receive(&qp, &answers.1, slot)?;
        }
        let id = channel.create_id()?;
        id.resolve(None, to)?;
        id.connect(
            &qp,
            &ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() },
        )?;
        let event = channel.event(PATIENCE)?;
        let event = event.ok_or_else(|| HostError::Lost("nobody answers".to_owned()))?;
        match event.kind {
            EventKind::Established { param } => {
                let Ok((reply, _)) = Reply::read_from_prefix(&param.private_data) else {
                    return Err(HostError::Protocol("no private data".to_owned()));
                };
                if reply.crqsize.get() < depth {
                    return Err(HostError::Protocol(format!("a queue of {}", reply.crqsize)));
                }
            }
            EventKind::Rejected { reason, private_data } => {
                let rejection = Rejection::read_from_prefix(&private_data);
                let sts = rejection.map_or(0, |(rejection, _)| rejection.sts.get());
                return Err(HostError::Rejected { reason, sts });
            }
            other => return Err(HostError::Lost(format!("{other:?}"))),
        }
        let (free, busy) = ((0..depth).rev().collect(), (0..depth).map(|_| None).collect());
        Ok(Self {
            id,
            qp,
            cq,
            channel,
            depth,
            capsules,
            answers,
            data,
            windows,
            free,
            busy,
            is_over: false,
        })
    }

    /// How many commands may be outstanding.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// How many are outstanding.
    pub fn busy(&self) -> usize {
        usize::from(self.depth) - self.free.len()
    }

    /// Sends a command; its answer is one of those that [`wait`](Self::wait) returns. `None` if the
    /// queue is full.
    ///
    /// # Errors
    ///
    /// [`HostError::Post`], [`HostError::Fault`].
    pub fn submit(&mut self, command: &Command, data: Data<'_>) -> Result<Option<u16>, HostError> {
        let Some(cid) = self.free.pop() else { return Ok(None) };
        let (mut command, mut is_bound) = (*command, false);
        command.cid = cid.into();
        let behind: &[u8] = match data {
            Data::None => &[],
            Data::In { len, invalidate } => {
                command.dptr = self.bind(cid, len, Access::REMOTE_WRITE, invalidate)?;
                is_bound = true;
                &[]
            }
            Data::Out { bytes, invalidate } => {
                self.put(cid, bytes)?;
                command.dptr = self.bind(cid, bytes.len(), Access::REMOTE_READ, invalidate)?;
                is_bound = true;
                &[]
            }
            Data::Capsule(bytes) => {
                // CAST: at most a capsule, or the slice below fails.
                let len = bytes.len() as u32;
                command.dptr = Descriptor::InCapsule { offset: 0, len }.to_bytes();
                bytes
            }
            Data::Raw(bytes) => bytes,
        };
        let len = COMMAND_LEN + behind.len();
        if len > CAPSULE {
            return Err(HostError::Fault(format!("a capsule of {len} bytes")));
        }
        let at = usize::from(cid) * CAPSULE;
        self.capsules.0.write(at, command.as_bytes()).map_err(fault)?;
        self.capsules.0.write(at + COMMAND_LEN, behind).map_err(fault)?;
        let slice = self.capsules.1.slice(at as u64, len as u32);
        self.qp.post_send(&SendRequest::send(u64::from(cid), &[slice]).signaled())?;
        self.busy[usize::from(cid)] = Some(Busy { is_bound });
        Ok(Some(cid))
    }

    /// Sends bytes that need not be a capsule.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.capsules.0.write(0, bytes).map_err(fault)?;
        let slice = self.capsules.1.slice(0, bytes.len() as u32);
        Ok(self.qp.post_send(&SendRequest::send(0, &[slice]).signaled())?)
    }

    /// The place of a command's data, for programs that write descriptors themselves, with a key
    /// for `len` bytes.
    ///
    /// # Errors
    ///
    /// [`HostError::Post`].
    pub fn expose(&mut self, cid: u16, len: usize) -> Result<Descriptor, HostError> {
        let bytes = self.bind(cid, len, Access::REMOTE_READ | Access::REMOTE_WRITE, false)?;
        Ok(Descriptor::from_bytes(&bytes).expect("just made"))
    }

    /// The identifier of the next command.
    pub fn next_cid(&self) -> Option<u16> {
        self.free.last().copied()
    }

    fn bind(
        &self,
        cid: u16,
        len: usize,
        access: Access,
        invalidate: bool,
    ) -> Result<[u8; 16], HostError> {
        let (window, at) = (&self.windows[usize::from(cid)], (usize::from(cid) * SLOT) as u64);
        let bind = SendRequest::bind(u64::from(cid), window, at, len as u64, access);
        self.qp.post_send(&bind)?;
        let (addr, key) = (self.data.1.remote(at).addr, window.rkey().0);
        Ok(Descriptor::Keyed { addr, len: len as u32, key, invalidate }.to_bytes())
    }

    /// Puts bytes in the place of a command's data.
    ///
    /// # Errors
    ///
    /// [`HostError::Fault`].
    pub fn put(&self, cid: u16, bytes: &[u8]) -> Result<(), HostError> {
        if bytes.len() > SLOT {
            return Err(HostError::Fault(format!("{} bytes of data", bytes.len())));
        }
        self.data.0.write(usize::from(cid) * SLOT, bytes).map_err(fault)
    }

    /// Copies out the data that a command brought.
    ///
    /// # Errors
    ///
    /// [`HostError::Fault`].
    pub fn take(&self, cid: u16, bytes: &mut [u8]) -> Result<(), HostError> {
        self.data.0.read(usize::from(cid) * SLOT, bytes).map_err(fault)
    }

    /// An answer, and the identifier of its command, which is free from now on.
    ///
    /// # Errors
    ///
    /// [`HostError::Lost`], [`HostError::Protocol`].
    pub fn wait(&mut self) -> Result<(u16, Answer), HostError> {
        let answer = self.wait_timeout(PATIENCE)?;
        answer.ok_or_else(|| HostError::Lost(format!("no answer in {PATIENCE:?}")))
    }

    /// The same; `None` if there is none within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<(u16, Answer)>, HostError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(wc) = self.cq.wait_timeout(left.min(TICK))? else {
                // When the target ends a connection, posted requests are flushed.
                self.is_over(Duration::ZERO)?;
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            };
            if !wc.is_success() {
                let why = soft::explain(&self.cq, &wc);
                return Err(HostError::Lost(why.unwrap_or_else(|| format!("{:?}", wc.status))));
            }
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            // CAST: a place for an answer.
            let (slot, mut bytes) = (wc.wr_id as u16, [0; COMPLETION_LEN]);
            let at = usize::from(slot) * COMPLETION_LEN;
            self.answers.0.read(at, &mut bytes).map_err(fault)?;
            post_receive(&self.qp, &self.answers.1, slot)?;
            let completion = Completion::read_from_bytes(&bytes).expect("as long as one");
            let cid = completion.cid.get();
            let busy = self.busy.get_mut(usize::from(cid)).and_then(Option::take);
            let Some(busy) = busy.filter(|_| wc.byte_len == COMPLETION_LEN as u32) else {
                return Err(HostError::Protocol(format!("an answer to no command: {cid}")));
            };
            let key = self.windows[usize::from(cid)].rkey();
            if busy.is_bound && wc.invalidated.is_none() {
                self.qp.post_send(&SendRequest::local_inv(u64::from(cid), key).signaled())?;
            }
            if wc.invalidated.is_some_and(|taken| taken != key) {
                return Err(HostError::Protocol(
                    "the key of another command was invalidated".to_owned(),
                ));
            }
            self.free.push(cid);
            return Ok(Some((cid, Answer { completion, invalidated: wc.invalidated.is_some() })));
        }
    }

    /// Sends a command, waits for its answer, and copies out the data that it brought. No other
    /// command may be outstanding, except those that the target holds.
    ///
    /// # Errors
    ///
    /// [`HostError`]; [`HostError::Status`] if it failed.
    pub fn run(
        &mut self,
        command: &Command,
        data: Data<'_>,
        into: &mut [u8],
    ) -> Result<Answer, HostError> {
        let asked = self.submit(command, data)?;
        let asked = asked.ok_or_else(|| HostError::Lost("the queue is full".to_owned()))?;
        loop {
            let (cid, answer) = self.wait()?;
            if cid != asked {
                continue;
            }
            let (status, result) = (answer.completion.status(), answer.completion.result.get());
            if status != crate::wire::Status::SUCCESS {
                return Err(HostError::Status { status, result });
            }
            self.take(cid, into)?;
            return Ok(answer);
        }
    }

    /// Whether the target ended the connection, within `timeout`.
    ///
    /// # Errors
    ///
    /// [`HostError::Device`].
    pub fn is_over(&mut self, timeout: Duration) -> Result<bool, HostError> {
        let until = Instant::now() + timeout;
        while !self.is_over {
            let left = until.saturating_duration_since(Instant::now());
            let Some(event) = self.channel.event(left)? else { return Ok(false) };
            if matches!(event.kind, EventKind::Disconnected { .. } | EventKind::DeviceRemoval) {
                self.is_over = true;
                // Confirms it; there is nothing to confirm if this side ended it, too.
                let _ = self.id.disconnect();
            }
        }
        Ok(true)
    }

    /// Ends the connection.
    ///
    /// # Errors
    ///
    /// [`HostError::Device`].
    pub fn close(&self) -> Result<(), HostError> {
        Ok(self.id.disconnect()?)
    }
}

fn register(pd: &Pd, len: usize, access: Access) -> Result<(HostBuf, Mr), HostError> {
    let memory = HostBuf::anonymous(len.next_multiple_of(4096))?;
    let mr = pd.reg_mr(&memory, access)?;
    Ok((memory, mr))
}

fn post_receive(qp: &Qp, answers: &Mr, slot: u16) -> Result<(), HostError> {
    let at = u64::from(slot) * COMPLETION_LEN as u64;
    Ok(qp.post_recv(slot.into(), &[answers.slice(at, COMPLETION_LEN as u32)])?)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn fault(fault: umem::Fault) -> HostError {
    HostError::Fault(fault.to_string())
}
