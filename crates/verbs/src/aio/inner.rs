//! A queue pair and its requests, as what is in flight holds it.

use std::sync::{Arc, OnceLock};

use iba::{Access, QpCap, QpType};
use smallvec::SmallVec;

use super::error::Error;
use super::handle::Handle;
use super::inbox::Inbox;
use super::op::Op;
use super::request::Request;
use super::table::{Entry, Memory, Receiver, Sending, Waiter};
use super::wakers::Wakers;
use crate::owned::{Buffer, Held, Pool};
use crate::slots::{Permit, Slots};
use crate::{Kind, Pd, PostError, QpSpec, Refusal, Slice, Wc};

/// What a new QP is like.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct QpOptions {
    /// The service: RC, UC or UD.
    pub qp_type: QpType,
    /// How many requests can be in flight; the next waits.
    pub sends: u32,
    /// How many messages can arrive before one is taken. None: the peer cannot send, only write.
    pub receives: u32,
    /// The longest message that can arrive.
    pub receive_length: usize,
    /// What the peer may do. What it may do to which memory says the memory.
    pub access: Access,
}

impl Default for QpOptions {
    /// A reliable connection, 64 requests and 64 messages of 4 KiB.
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            sends: 64,
            receives: 64,
            receive_length: 4096,
            access: Access::LOCAL_WRITE | Access::REMOTE,
        }
    }
}

impl QpOptions {
    /// The same for datagrams.
    pub fn datagrams() -> Self {
        Self { qp_type: QpType::Ud, access: Access::empty(), ..Self::default() }
    }
}

/// The QP, kept by what is in flight.
#[derive(Debug)]
pub(super) struct Inner {
    qp: crate::Qp,
    inbox: Inbox,
    sends: Arc<Slots>,
    options: QpOptions,
    /// The buffers of its receives.
    pool: Option<Pool>,
    /// Room for what atomics return, made at the first.
    words: OnceLock<Pool>,
    /// Behind the QP, whose completions it has room for.
    _room: Room,
    cq: Handle,
}

/// Room in a completion queue.
#[derive(Debug)]
struct Room(Handle, u32);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

impl Inner {
    pub(super) fn new(cq: &Handle, pd: &Pd, options: &QpOptions) -> crate::Result<Arc<Self>> {
        let QpOptions { sends, receives, .. } = *options;
        if sends == 0 {
            let what = "create_qp: a QP without requests can do nothing";
            return Err(Refusal::new(Kind::Invalid, what));
        }
        let count = sends.checked_add(receives).ok_or_else(|| {
            Refusal::new(Kind::Invalid, "create_qp: more requests than can be counted")
        })?;
        cq.reserve(count)?;
        let room = Room(cq.clone(), count);
        let spec = QpSpec {
            qp_type: options.qp_type,
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            access: options.access,
            ..QpSpec::rc(cq.cq())
        };
        let length = options.receive_length.saturating_add(header(options.qp_type));
        let pool = (receives > 0).then(|| Pool::new(pd, length, receives)).transpose()?;
        let inner = Arc::new(Self {
            qp: pd.create_qp(&spec)?,
            inbox: Inbox::default(),
            sends: Slots::new(sends),
            options: options.clone(),
            pool,
            words: OnceLock::new(),
            _room: room,
            cq: cq.clone(),
        });
        Ok(inner)
    }

    pub(super) fn cq(&self) -> &Handle {
        &self.cq
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(super) fn qp(&self) -> &crate::Qp {
        &self.qp
    }

    /// How many bytes stand before each message.
    pub(super) fn header(&self) -> usize {
        header(self.options.qp_type)
    }

    pub(super) fn sends(&self) -> &Arc<Slots> {
        &self.sends
    }

    /// How many requests it takes at once.
    pub(super) fn capacity(&self) -> u32 {
        self.options.sends
    }

    pub(super) fn check_receives(&self) -> crate::Result<()> {
        if self.pool.is_some() {
            return Ok(());
        }
        Err(Refusal::new(Kind::Invalid, "recv: the QP was created without receives"))
    }

    /// Posts a receive into each buffer that nobody has.
    pub(super) fn fill_receives(self: &Arc<Self>) {
        let Some(pool) = &self.pool else { return };
        while !self.inbox.has_ended()
            && let Some(buffer) = pool.try_take()
        {
            if self.post_receive(buffer).is_err() {
                // In RESET; or the device is gone, which its completion queue says.
                return;
            }
        }
    }

    fn post_receive(self: &Arc<Self>, mut buffer: Buffer) -> Result<(), PostError> {
        buffer.set_len(buffer.capacity());
        let slice = buffer.slice();
        let key = self.cq.table().insert(Entry::Receive(buffer, Arc::clone(self) as _));
        self.qp.post_recv(key as u64, &[slice]).inspect_err(|_| {
            let _not_posted = self.cq.table().remove(key);
        })
    }

    /// Posts requests that complete as one. The memory comes back if none was posted.
    pub(super) fn start(
        self: &Arc<Self>,
        requests: &[Request],
        memory: Memory,
        permit: Permit,
    ) -> Result<Op, (Error, Memory)> {
        debug_assert_eq!(requests.len(), memory.len(), "each has its memory");
        let checked = requests.iter().zip(&memory);
        if let Err(refusal) = { checked }.try_for_each(|(request, held)| self.check(request, held))
        {
            return Err((refusal.into(), memory));
        }
        let slices: SmallVec<[Option<Slice>; 1]> = memory.iter().map(Held::slice).collect();
        let key = self.cq.table().insert(Entry::Send(Sending {
            memory,
            left: requests.len(),
            result: None,
            waiter: Waiter::Nobody,
            permit: Some(permit),
            qp: Some(Arc::clone(self) as _),
        }));
        for (done, (request, slice)) in requests.iter().zip(&slices).enumerate() {
            let request = request.build(key as u64, slice.as_slice()).signaled();
            if let Err(error) = self.qp.post_send(&request) {
                return self.started_in_part(key, done, requests.len(), error);
            }
        }
        Ok(Op::new(self.cq.clone(), key))
    }

    /// `done` requests are in flight, and the next was refused.
    fn started_in_part(
        &self,
        key: usize,
        done: usize,
        count: usize,
        error: PostError,
    ) -> Result<Op, (Error, Memory)> {
        let table = self.cq.table();
        if done == 0 {
            let Entry::Send(sending) = table.remove(key) else { unreachable!("inserted above") };
            return Err((error.into(), sending.memory));
        }
        let finished = {
            let mut entries = table.lock();
            let Some(Entry::Send(sending)) = entries.get_mut(key) else {
                unreachable!("its future is not made yet")
            };
            sending.left -= count - done;
            sending.note(Err(error.into()));
            // Nobody else will do it, if all that were posted have completed.
            (sending.left == 0).then(|| (sending.permit.take(), sending.qp.take()))
        };
        drop(finished);
        Ok(Op::new(self.cq.clone(), key))
    }

    fn check(&self, request: &Request, held: &Held) -> crate::Result<()> {
        if let Some(pd) = held.pd() {
            self.qp.pd().context().check_same(pd.context(), "post_send", "memory")?;
        }
        let Some((what, room)) = request.room() else { return Ok(()) };
        if held.len() > room {
            let len = held.len();
            let what = format!("{what} of {len} bytes: the remote slice has {room}");
            return Err(Refusal::new(Kind::Invalid, what));
        }
        Ok(())
    }

    /// Room for what an atomic returns.
    pub(super) async fn word(&self) -> crate::Result<Buffer> {
        if self.words.get().is_none() {
            let _ = self.words.set(Pool::new(self.qp.pd(), 8, self.options.sends)?);
        }
        Ok(self.words.get().expect("set above").take().await)
    }
}

impl Receiver for Inner {
    fn arrive(&self, wc: Wc, why: Option<String>, buffer: Buffer) -> Option<Buffer> {
        self.inbox.arrive(wc, why, buffer)
    }

    fn wakers(&self) -> Wakers {
        self.inbox.wakers()
    }
}

/// How many bytes stand before each message: the GRH of a datagram (IBA 11.4.1.2).
fn header(qp_type: QpType) -> usize {
    if qp_type == QpType::Ud { 40 } else { 0 }
}
