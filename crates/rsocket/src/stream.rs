//! The state and flow control of a connected stream.

use std::collections::VecDeque;
use std::ops::Range;

use crate::hello::Hello;
use crate::message::{Control, Message, Sent};
use crate::sge::{Mapping, Order, Sge};
use crate::sizes::{CONTROL, SEND_LOW_WATER, Sizes, TARGETS};

/// A connected stream, or one that is connecting.
#[derive(Debug)]
pub struct Stream {
    sizes: Sizes,
    /// Our target list, which the peer writes to.
    list: Sge,
    /// Our receive buffer.
    data: Sge,
    sending: Sending,
    receiving: Receiving,
    peer: Peer,
    is_writable: bool,
    is_readable: bool,
    end: Option<End>,
}

/// The resources for sending.
#[derive(Debug)]
struct Sending {
    /// Free entries of the send queue for data.
    entries: u32,
    /// Free entries of the send queue for control messages.
    controls: u32,
    /// Bytes of the send buffer that no request uses.
    bytes: u32,
    /// The offset of the next copy in the send buffer.
    head: u32,
    /// The number of the next message.
    #[doc(alias = "sseq_no")]
    number: u16,
    /// The number of the first message for which the peer has no receive request.
    #[doc(alias = "sseq_comp")]
    limit: u16,
    /// The entry of the target list that is being filled.
    target: u32,
    /// Credit messages so far: each has a slot for what it writes.
    credits: u32,
}

/// Received data, and what the peer may still send.
#[derive(Debug)]
struct Receiving {
    /// Data messages that the program has not read completely: the bytes left of each.
    messages: VecDeque<u32>,
    /// Their sum.
    queued: u32,
    /// Their offset in the receive buffer.
    head: u32,
    /// Bytes that were offered and have not arrived.
    offered: u32,
    /// Bytes that were read and not yet offered again.
    #[doc(alias = "rbuf_bytes_avail")]
    free: u32,
    /// The offset of those bytes.
    #[doc(alias = "rbuf_free_offset")]
    free_head: u32,
    /// Messages that were read.
    #[doc(alias = "rseq_no")]
    number: u16,
    /// The number of read messages at which a credit message is due.
    #[doc(alias = "rseq_comp")]
    due: u16,
}

/// The peer's description of its memory.
#[derive(Debug)]
struct Peer {
    order: Order,
    list: Sge,
    /// The entry of its list to write next.
    next: u32,
    mappings: u32,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides disconnected.
    Disconnected,
    /// The peer is unreachable, or violated the protocol.
    Failed,
}

/// The direction that a program shuts down (`shutdown(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Receiving.
    #[doc(alias = "SHUT_RD")]
    Read,
    /// Sending.
    #[doc(alias = "SHUT_WR")]
    Write,
    /// Both directions.
    #[doc(alias = "SHUT_RDWR")]
    Both,
}

/// A violation of the protocol by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It claims to have written more than it was offered.
    #[error("the peer says that it wrote {said} bytes, and was offered {offered}")]
    TooMuch {
        /// Bytes that it claims to have written.
        said: u32,
        /// Bytes that it was offered.
        offered: u32,
    },
    /// It sent more messages than it had credits for.
    #[error("the peer sent more messages than it had credits for")]
    TooMany,
}

/// A WRITE to post. WRITEs must be posted in the order in which they are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Bytes.
    pub length: u32,
    /// The range of the send buffer for the bytes, in one piece or two; `None` if they are posted
    /// inline.
    pub place: Option<[Range<u32>; 2]>,
    /// The remote address.
    #[doc(alias = "remote_addr")]
    pub addr: u64,
    /// The remote key.
    #[doc(alias = "rkey")]
    pub key: u32,
    /// The immediate data, if any.
    pub message: Option<Message>,
    /// The purpose of the request, for its completion.
    pub sent: Sent,
}

/// A credit message to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The message.
    pub message: Message,
    /// An entry to write into the peer's target list: its bytes, its slot among the
    /// [`Credit::SLOTS`] after the send buffer, the remote address, and the key.
    pub offer: Option<([u8; Sge::SIZE], u32, u64, u32)>,
}

impl Credit {
    /// Credit messages that can be outstanding at once.
    pub const SLOTS: u32 = CONTROL;
}

impl Stream {
    /// A stream with its memory: a target list at `list.addr` ([`Stream::list_size`] bytes), a
    /// receive buffer at `data.addr` (`sizes.receive_buffer` bytes). The sizes come from
    /// [`Sizes::for_stream`].
    pub fn new(sizes: Sizes, list: Sge, data: Sge) -> Self {
        let half = sizes.receive_buffer / 2;
        Self {
            sizes,
            list: Sge { length: TARGETS, ..list },
            data: Sge { length: half, ..data },
            sending: Sending {
                entries: sizes.sq_size - CONTROL,
                controls: CONTROL,
                bytes: sizes.send_buffer,
                head: 0,
                number: 0,
                limit: 0,
                target: 0,
                credits: 0,
            },
            receiving: Receiving {
                messages: VecDeque::new(),
                queued: 0,
                head: 0,
                offered: half,
                free: half,
                free_head: half,
                number: 0,
                due: (sizes.rq_size / 2) as u16,
            },
            peer: Peer { order: Order::Same, list: Sge::default(), next: 1, mappings: 0 },
            is_writable: true,
            is_readable: true,
            end: None,
        }
    }

    /// Bytes of a target list followed by the table of mappings.
    pub const fn list_size(mappings: u32) -> u32 {
        TARGETS * Sge::SIZE as u32 + mappings * Mapping::SIZE as u32
    }

    /// The sizes that it was created with.
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The private data for the peer.
    pub fn hello(&self) -> Hello {
        Hello {
            order: Order::Same,
            credits: self.sizes.rq_size as u16,
            mappings: Some(self.sizes.mappings),
            target_list: self.list,
            data: self.data,
        }
    }

    /// Takes the private data of the peer. Returns the first entry of our target list.
    pub fn meet(&mut self, peer: &Hello) -> Sge {
        self.peer = Peer {
            order: peer.order,
            list: peer.target_list,
            next: 1 % peer.target_list.length.max(1),
            mappings: peer.mappings.unwrap_or(0),
        };
        self.sending.limit = peer.credits;
        peer.data
    }

    /// The entry of the target list that is being filled.
    pub const fn target(&self) -> u32 {
        self.sending.target
    }

    /// Whether something can be sent, where `target` is the content of that entry.
    #[doc(alias = "rs_can_send")]
    pub const fn may_send(&self, target: Sge) -> bool {
        let sending = &self.sending;
        sending.entries > 0
            && sending.bytes >= SEND_LOW_WATER
            && sending.number != sending.limit
            && target.length > 0
    }

    /// The next piece of data, of at most `wanted` bytes: the WRITE to post, and the new content of
    /// the entry. [`may_send`](Self::may_send) must hold.
    pub fn send(&mut self, wanted: u32, target: Sge) -> (Write, Sge) {
        let length = wanted.min(self.sending.bytes).min(target.length);
        let place = self.place(length);
        self.sending.number = self.sending.number.wrapping_add(1);
        let left = Sge {
            addr: target.addr.wrapping_add(length.into()),
            length: target.length - length,
            ..target
        };
        if left.length == 0 {
            self.sending.target = (self.sending.target + 1) % TARGETS;
        }
        let message = Some(Message::Data(length));
        let sent = Sent::Data(length);
        (Write { length, place, addr: target.addr, key: target.key, message, sent }, left)
    }

    /// The next piece of data for mapped memory at `addr`, of at most `wanted` bytes.
    /// [`may_send`](Self::may_send) must hold.
    #[doc(alias = "rs_write_direct")]
    pub fn send_direct(&mut self, wanted: u32, addr: u64, key: u32) -> Write {
        let length = wanted.min(self.sending.bytes);
        let place = self.place(length);
        Write { length, place, addr, key, message: None, sent: Sent::Direct(length) }
    }

    /// A mapping for entry `index` of the peer's table, below
    /// [`peer_mappings`](Self::peer_mappings): the bytes, and the WRITE to post.
    /// [`may_send`](Self::may_send) must hold.
    #[doc(alias = "rs_write_iomap")]
    pub fn send_mapping(&mut self, index: u32, mapping: Mapping) -> ([u8; Mapping::SIZE], Write) {
        let length = Mapping::SIZE as u32;
        let place = self.place(length);
        self.sending.number = self.sending.number.wrapping_add(1);
        let list = self.peer.list;
        let at =
            u64::from(list.length) * Sge::SIZE as u64 + u64::from(index) * Mapping::SIZE as u64;
        let write = Write {
            length,
            place,
            addr: list.addr.wrapping_add(at),
            key: list.key,
            message: Some(Message::Mapped(index)),
            sent: Sent::Mapped,
        };
        (mapping.to_bytes(self.peer.order), write)
    }

    /// Takes an entry of the send queue and bytes of the send buffer.
    fn place(&mut self, length: u32) -> Option<[Range<u32>; 2]> {
        let Sending { entries, bytes, head, .. } = &mut self.sending;
        *entries -= 1;
        *bytes -= length;
        if length <= self.sizes.inline {
            return None;
        }
        let begin = *head;
        let first = length.min(self.sizes.send_buffer - begin);
        let second = length - first;
        *head = if second > 0 { second } else { (begin + first) % self.sizes.send_buffer };
        Some([begin..begin + first, 0..second])
    }

    /// Mappings that the peer has room for.
    pub const fn peer_mappings(&self) -> u32 {
        self.peer.mappings
    }

    /// Takes the completion of a send request. A failed one ends the connection.
    pub fn sent(&mut self, sent: Sent, is_ok: bool) {
        match sent {
            Sent::Data(bytes) | Sent::Direct(bytes) => self.give_back(bytes),
            Sent::Mapped => self.give_back(Mapping::SIZE as u32),
            Sent::Credit => self.sending.controls += 1,
            Sent::Control(control) => {
                self.sending.controls += 1;
                if control == Control::Disconnect {
                    self.end.get_or_insert(End::Disconnected);
                }
            }
        }
        if !is_ok {
            self.end.get_or_insert(End::Failed);
        }
    }

    fn give_back(&mut self, bytes: u32) {
        self.sending.entries += 1;
        self.sending.bytes += bytes;
    }

    /// Takes received immediate data.
    ///
    /// # Errors
    ///
    /// [`Violation`], after which the connection has failed.
    pub fn received(&mut self, bits: u32) -> Result<(), Violation> {
        match Message::decode(bits) {
            Message::Data(0) | Message::Mapped(_) => self.read_message(),
            Message::Data(bytes) => return self.received_data(bytes),
            Message::Credit(limit) => self.sending.limit = limit,
            Message::Control(Control::Disconnect) => {
                self.end.get_or_insert(End::Disconnected);
            }
            Message::Control(Control::Shutdown) if self.is_writable => self.is_readable = false,
            Message::Control(Control::Shutdown) => {
                self.end.get_or_insert(End::Disconnected);
            }
            Message::Control(Control::Keepalive | Control::Other(_)) | Message::Reserved(_) => {}
        }
        Ok(())
    }

    fn received_data(&mut self, bytes: u32) -> Result<(), Violation> {
        let receiving = &mut self.receiving;
        let violation = if bytes > receiving.offered {
            Violation::TooMuch { said: bytes, offered: receiving.offered }
        } else if receiving.messages.len() >= self.sizes.rq_size as usize {
            Violation::TooMany
        } else {
            receiving.offered -= bytes;
            receiving.queued += bytes;
            receiving.messages.push_back(bytes);
            return Ok(());
        };
        self.end.get_or_insert(End::Failed);
        Err(violation)
    }

    /// A message has been read, so its receive request is free again.
    fn read_message(&mut self) {
        self.receiving.number = self.receiving.number.wrapping_add(1);
    }

    /// Bytes that the program can read.
    pub const fn available(&self) -> u32 {
        self.receiving.queued
    }

    /// The ranges of the receive buffer with the next bytes, at most `wanted`, in one piece or two.
    pub fn data(&self, wanted: usize) -> [Range<u32>; 2] {
        let Receiving { queued, head, .. } = self.receiving;
        let length = u32::try_from(wanted).unwrap_or(u32::MAX).min(queued);
        let first = length.min(self.sizes.receive_buffer - head);
        [head..head + first, 0..length - first]
    }

    /// Marks bytes as read by the program, at most [`available`](Self::available).
    pub fn consume(&mut self, bytes: u32) {
        let mut left = bytes;
        while let Some(message) = self.receiving.messages.front_mut() {
            if left < *message {
                *message -= left;
                break;
            }
            left -= *message;
            self.receiving.messages.pop_front();
            self.read_message();
            if left == 0 {
                break;
            }
        }
        let receiving = &mut self.receiving;
        receiving.queued -= bytes;
        receiving.free += bytes;
        let size = u64::from(self.sizes.receive_buffer);
        receiving.head = ((u64::from(receiving.head) + u64::from(bytes)) % size) as u32;
    }

    /// The credit message that is due, if any. The caller must post it.
    #[doc(alias("rs_give_credits", "rs_send_credits"))]
    pub fn credit(&mut self) -> Option<Credit> {
        let half = self.sizes.receive_buffer / 2;
        let receiving = &mut self.receiving;
        let has_half = receiving.free >= half;
        let is_due = receiving.number.wrapping_sub(receiving.due).cast_signed() >= 0;
        if !(has_half || is_due) || self.sending.controls == 0 || self.end.is_some() {
            return None;
        }
        self.sending.controls -= 1;
        receiving.due = receiving.number.wrapping_add((self.sizes.rq_size / 2) as u16);
        let message = Message::Credit(receiving.number.wrapping_add(self.sizes.rq_size as u16));
        let mut offer = None;
        if has_half {
            let addr = self.data.addr.wrapping_add(receiving.free_head.into());
            let entry = Sge { addr, key: self.data.key, length: half };
            receiving.free -= half;
            receiving.offered += half;
            receiving.free_head = (receiving.free_head + half) % self.sizes.receive_buffer;
            let list = self.peer.list;
            let to = list.addr.wrapping_add(u64::from(self.peer.next) * Sge::SIZE as u64);
            self.peer.next = (self.peer.next + 1) % list.length.max(1);
            let slot = self.sending.credits % Credit::SLOTS;
            offer = Some((entry.to_bytes(self.peer.order), slot, to, list.key));
        }
        self.sending.credits = self.sending.credits.wrapping_add(1);
        Some(Credit { message, offer })
    }

    /// Shuts down a direction. Returns the control message for the peer, if one is needed.
    pub fn shutdown(&mut self, how: How) -> Option<Control> {
        if self.end.is_some() {
            return None;
        }
        let was_readable = self.is_readable;
        if how != How::Read {
            self.is_writable = false;
        }
        if how != How::Write {
            self.is_readable = false;
        }
        match how {
            How::Both => Some(Control::Disconnect),
            How::Write if was_readable => Some(Control::Shutdown),
            How::Read if self.is_writable => None,
            How::Write | How::Read => Some(Control::Disconnect),
        }
    }

    /// Whether a control message can be sent.
    #[doc(alias = "rs_ctrl_avail")]
    pub const fn may_control(&self) -> bool {
        self.sending.controls > 0
    }

    /// A control message to post. [`may_control`](Self::may_control) must hold.
    pub fn control(&mut self, control: Control) -> (Message, Sent) {
        self.sending.controls -= 1;
        (Message::Control(control), Sent::Control(control))
    }

    /// Whether no posted request is outstanding.
    #[doc(alias = "rs_conn_all_sends_done")]
    pub const fn is_idle(&self) -> bool {
        self.sending.entries + self.sending.controls == self.sizes.sq_size
    }

    /// Whether the program may send.
    pub const fn is_writable(&self) -> bool {
        self.is_writable && self.end.is_none()
    }

    /// Whether more data may arrive.
    pub const fn is_readable(&self) -> bool {
        self.is_readable && self.end.is_none()
    }

    /// Whether it has ended, and how.
    pub const fn end(&self) -> Option<End> {
        self.end
    }

    /// Ends it, if it has not ended.
    pub fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}
