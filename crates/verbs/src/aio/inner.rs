//! A queue pair and its requests, as what is in flight holds it.

use std::sync::{Arc, OnceLock};

use iba::{Access, QpCap, QpState, QpType, SendFlags, Srqn};

use super::handle::{Handle, Room};
use super::members::Member;
use super::receives::{Home, Receives};
use super::request::Work;
use super::shared::{Shared, Srq};
use super::table::{Entry, OfQp, State, wr_id};
use crate::owned::{Buffer, Pool};
use crate::post::Posting;
use crate::{Kind, Pd, PostError, QpSpec, Refusal, SendRequest};

/// What a new QP is like.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct QpOptions {
    /// The service: RC, UC, UD or the sending half of XRC.
    pub qp_type: QpType,
    /// How many requests can be in flight; the next waits.
    pub sends: u32,
    /// How many messages can arrive before one is taken. None: the peer cannot send, only write.
    pub receives: u32,
    /// The longest message that can arrive.
    pub receive_length: usize,
    /// The shared queue that it receives from, of the same completion queue, in place of the two
    /// above.
    pub srq: Option<Srq>,
    /// The longest message or WRITE whose bytes are copied into the request when it is posted, so
    /// that the NIC need not read them from memory. What a part of a region holds is not copied:
    /// it may be memory of another device.
    #[doc(alias("max_inline_data", "IBV_SEND_INLINE"))]
    pub inline: u32,
    /// What the peer may do. What it may do to which memory says the memory.
    pub access: Access,
}

impl Default for QpOptions {
    /// A reliable connection, 64 requests and 64 messages of 4 KiB, nothing inline.
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            sends: 64,
            receives: 64,
            receive_length: 4096,
            srq: None,
            inline: 0,
            access: Access::LOCAL_WRITE | Access::REMOTE,
        }
    }
}

impl QpOptions {
    /// The same for datagrams.
    pub fn datagrams() -> Self {
        Self { qp_type: QpType::Ud, access: Access::empty(), ..Self::default() }
    }

    /// The sending half of an extended reliable connection, whose requests name a shared queue of
    /// the peer ([`Qp::to_srq`](super::Qp::to_srq)). It receives nothing:
    /// [`Xrcd::create_recv_qp`](crate::Xrcd::create_recv_qp) makes the other half, and
    /// [`Cq::create_xrc_srq`](super::Cq::create_xrc_srq) the queue.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_send() -> Self {
        let (qp_type, access) = (QpType::XrcSend, Access::empty());
        Self { qp_type, access, receives: 0, ..Self::default() }
    }
}

/// The QP, kept by what is in flight.
#[derive(Debug)]
pub(super) struct Inner {
    qp: crate::Qp,
    /// Its number in the table of its queue.
    key: usize,
    options: QpOptions,
    /// Behind the QP, which may have receives of it.
    receiving: Receiving,
    /// Room for what atomics return, made at the first.
    words: OnceLock<Pool>,
    /// Behind the QP, whose completions it has room for.
    _room: Room,
    cq: Handle,
}

/// Where the messages of a QP go.
#[derive(Debug)]
enum Receiving {
    Own(Receives),
    Shared(Arc<Shared>),
    Nothing,
}

impl Inner {
    pub(super) fn new(cq: &Handle, pd: &Pd, options: &QpOptions) -> crate::Result<Arc<Self>> {
        let QpOptions { sends, receives, .. } = *options;
        let srq = options.srq.as_ref().map(Srq::shared);
        if srq.is_some_and(|srq| !srq.cq().is_same(cq)) {
            let what = "create_qp: the SRQ is of another completion queue";
            return Err(Refusal::new(Kind::Invalid, what));
        }
        // Those of a shared queue have room there.
        let receives = if srq.is_some() { 0 } else { receives };
        if sends == 0 {
            let what = "create_qp: a QP without requests can do nothing";
            return Err(Refusal::new(Kind::Invalid, what));
        }
        let count = sends.checked_add(receives).ok_or_else(|| {
            Refusal::new(Kind::Invalid, "create_qp: more requests than can be counted")
        })?;
        let room = Room::new(cq, count, "create_qp")?;
        let spec = QpSpec {
            qp_type: options.qp_type,
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: options.inline,
            },
            access: options.access,
            srq: srq.map(|srq| srq.srq().clone()),
            ..QpSpec::rc(cq.cq())
        };
        let length = options.receive_length.saturating_add(header(options.qp_type));
        let receiving = match srq {
            Some(srq) => Receiving::Shared(Arc::clone(srq)),
            None if receives > 0 => Receiving::Own(Receives::new(pd, length, receives)?),
            None => Receiving::Nothing,
        };
        let qp = pd.create_qp(&spec)?;
        let inner = Arc::new(Self {
            qp,
            key: cq.table().lock().qps.insert(OfQp::new(sends)),
            options: options.clone(),
            receiving,
            words: OnceLock::new(),
            _room: room,
            cq: cq.clone(),
        });
        if let Receiving::Shared(shared) = &inner.receiving {
            inner.join(shared);
        }
        Ok(inner)
    }

    /// Receives from a shared queue, until the device says that it took its last receive. Until
    /// then it is in use, as by a request.
    fn join(self: &Arc<Self>, shared: &Shared) {
        let qpn = self.qp.qpn();
        {
            let mut state = self.cq.table().lock();
            state.join(self.key, Member::new(shared.key(), qpn, self.header()));
            state.qps[self.key].enter();
        }
        let own = Arc::downgrade(self);
        self.qp.pd().context().hub().register(qpn, own);
    }

    /// The program has no more use for the QP, which is about to be moved to the error state.
    pub(super) fn leave_shared(&self) {
        let Receiving::Shared(_) = &self.receiving else { return };
        // One that was never ready to receive has taken none, and need not be told so.
        let state = self.qp.query().map(|attr| attr.state);
        if matches!(state, Ok(QpState::Reset | QpState::Init)) {
            let last = self.cq.table().lock().take_last(self.key);
            drop(last);
        }
    }

    pub(super) fn cq(&self) -> &Handle {
        &self.cq
    }

    pub(super) fn key(&self) -> usize {
        self.key
    }

    pub(super) fn qp(&self) -> &crate::Qp {
        &self.qp
    }

    /// How many bytes stand before each message.
    pub(super) fn header(&self) -> usize {
        header(self.options.qp_type)
    }

    /// How many requests it takes at once.
    pub(super) fn capacity(&self) -> u32 {
        self.options.sends
    }

    pub(super) fn check_receives(&self) -> crate::Result<()> {
        if !matches!(self.receiving, Receiving::Nothing) {
            return Ok(());
        }
        Err(Refusal::new(Kind::Invalid, "recv: the QP was created without receives"))
    }

    /// Posts a receive into each buffer that nobody has.
    pub(super) fn fill_receives(&self) {
        match &self.receiving {
            Receiving::Own(receives) => receives.fill(|buffer| self.post_receive(buffer)),
            Receiving::Shared(shared) => shared.fill(),
            Receiving::Nothing => {}
        }
    }

    /// Where the buffers of its messages go back to.
    pub(super) fn home(self: &Arc<Self>) -> Arc<dyn Home> {
        match &self.receiving {
            Receiving::Shared(shared) => Arc::<Shared>::clone(shared),
            Receiving::Own(_) | Receiving::Nothing => Arc::<Self>::clone(self),
        }
    }

    /// The program has it no more. What nobody has taken, nobody can take any more.
    pub(super) fn close(self: &Arc<Self>) {
        let qp = Arc::<Self>::clone(self);
        let messages = self.cq.table().lock().qps[self.key].close(qp);
        if let Receiving::Shared(shared) = &self.receiving {
            for (_, buffer) in messages {
                shared.post(buffer);
            }
        }
    }

    /// Posts a receive. False if the QP takes none: the buffer goes back.
    fn post_receive(&self, mut buffer: Buffer) -> bool {
        buffer.set_len(buffer.capacity());
        let slice = buffer.slice();
        let mut state = self.cq.table().lock();
        let State { entries, qps, .. } = &mut *state;
        let (entry, of_qp) = (entries.vacant_entry(), &mut qps[self.key]);
        let number = wr_id(entry.key(), false);
        // Posted before it is there: nobody looks for it as long as the table is locked. It is
        // refused in RESET, or if the device is gone, which the completion queue says.
        if of_qp.inbox.has_ended() || self.qp.post_recv(number, &[slice]).is_err() {
            drop(state);
            self.lend();
            return false;
        }
        of_qp.enter();
        entry.insert(Entry::Receive(buffer, self.key));
        true
    }

    /// Posts requests as the entry `key` until one is refused: how many, and why no more. Only the
    /// last completes if they complete as one.
    pub(super) fn post_all(
        &self,
        first: &Work,
        more: &[Work],
        srq: Option<Srqn>,
        key: usize,
        is_one: bool,
    ) -> (u32, Option<PostError>) {
        let (mut done, mut next, mut behind) = (0, first, more);
        let mut posting = self.qp.posting();
        loop {
            let is_followed = is_one && !behind.is_empty();
            let number = wr_id(key, is_followed);
            if let Err(error) = self.post(&mut posting, next, srq, number, !is_followed) {
                return (done, Some(error));
            }
            done += 1;
            let Some((work, others)) = behind.split_first() else { return (done, None) };
            (next, behind) = (work, others);
        }
    }

    fn post(
        &self,
        posting: &mut Posting<'_>,
        work: &Work,
        srq: Option<Srqn>,
        wr_id: u64,
        is_signaled: bool,
    ) -> Result<(), PostError> {
        let Work { request, memory } = work;
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let most = self.options.inline as usize;
        let is_inline = |bytes: &&[u8]| bytes.len() <= most && request.sends();
        let inline = if most > 0 { memory.bytes().filter(is_inline) } else { None };
        let slice = memory.slice();
        if let (None, None, Some(slice)) = (inline, srq, slice)
            && let Some(plain) = request.plain(wr_id, flags, slice)
        {
            return posting.plain(plain);
        }
        let mut wr = request.build(wr_id, slice.as_slice());
        if is_signaled {
            wr.signal();
        }
        if let Some(bytes) = inline {
            wr.put_inline(bytes);
        }
        if let Some(number) = srq {
            wr = wr.to_srq(number);
        }
        posting.send(&wr, self.qp.pd())
    }

    /// Whether the last of several requests completes for all: a request of a reliable connection
    /// completes behind those before it (IBA 10.8.6), and none that fails does so in silence. None
    /// may be refused when others are posted, so none is longer than a message can be.
    pub(super) fn completes_as_one(&self, first: &Work, more: &[Work]) -> bool {
        let fits = |work: &Work| work.memory.len() <= MAX_MESSAGE;
        let is_reliable = matches!(self.options.qp_type, QpType::Rc | QpType::XrcSend);
        more.is_empty() || is_reliable && fits(first) && more.iter().all(fits)
    }

    /// Requests are in flight that do not complete if they succeed, and the one that was to
    /// complete for them was refused, for a reason that the library alone knows. Another takes its
    /// place, and is flushed behind them.
    #[cold]
    pub(super) fn complete_what_is_posted(&self, key: usize) {
        self.qp.end("a request in the middle of a batch was refused");
        // A device that refuses this, too, is gone, and what it has is never given back.
        let _ = self.qp.post_send(&SendRequest::send(wr_id(key, false), &[]).signaled());
    }

    /// Checks a request with its memory, and the queue that it names.
    pub(super) fn check(&self, work: &Work, srq: Option<Srqn>) -> crate::Result<()> {
        if self.options.qp_type == QpType::XrcSend && srq.is_none() {
            let what = "post_send: a request of an XRC_SEND QP names a queue (Qp::to_srq)";
            return Err(Refusal::new(Kind::Invalid, what));
        }
        let Work { request, memory } = work;
        if let Some(pd) = memory.pd() {
            self.qp.pd().context().check_same(pd.context(), "post_send", "memory")?;
        }
        let Some((what, room)) = request.room() else { return Ok(()) };
        let len = memory.len();
        if len > room {
            let what = format!("{what} of {len} bytes: the remote slice has {room}");
            return Err(Refusal::new(Kind::Invalid, what));
        }
        Ok(())
    }

    /// Room for what an atomic returns.
    pub(super) fn word(&self) -> crate::Result<Buffer> {
        if self.words.get().is_none() {
            let _ = self.words.set(Pool::new(self.qp.pd(), 8, self.options.sends)?);
        }
        let words = self.words.get().expect("set above");
        // Futures that nobody polls may have all of them: then waiting could last for ever.
        words.try_take().map_or_else(|| self.qp.pd().register(vec![0_u8; 8]), Ok)
    }
}

impl Home for Inner {
    fn lend(&self) {
        if let Receiving::Own(receives) = &self.receiving {
            receives.lend();
        }
    }

    fn take_back(self: Arc<Self>, buffer: Buffer) {
        self.post_receive(buffer);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Receiving::Shared(_) = &self.receiving {
            self.qp.pd().context().hub().forget(self.qp.qpn());
        }
        let mut state = self.cq.table().lock();
        let of_qp = state.qps.remove(self.key);
        if let Some(member) = &of_qp.member {
            state.part(member, self.key);
        }
        // Dropped when the table is not locked.
        drop(state);
        drop(of_qp);
    }
}

/// The longest message (IBA 9.7.1).
const MAX_MESSAGE: u64 = 1 << 31;

/// How many bytes stand before each message: the GRH of a datagram (IBA 11.4.1.2).
fn header(qp_type: QpType) -> usize {
    if qp_type == QpType::Ud { 40 } else { 0 }
}
