//! The send queue of the UDP carrier: packets with headers and ICRC, gathered into batches for GSO.

use std::collections::VecDeque;
use std::net::SocketAddr;

use iba::{Av, Gid, Qpn};
use link::udp::TxSocketId;
use transport::env::TransmitError;
use umem::Pieces;
use wire::Headers;
use wire::bth::{self, Bth};
use wire::icrc::{self, Flow, Sealer};
use zerocopy::IntoBytes;

use crate::carrier::udp::tx_sockets::{Destination, TxSockets};
use crate::qp::vf_of;

/// The most packets that are built in one pass: headers, payloads, trailers. More do not stay in
/// the L1 cache.
const TOGETHER: usize = 16;

/// Writes the payloads of packets that are cut from one message.
pub(crate) trait Fill {
    /// Writes a payload that begins at `at` in the message; if it is given a CRC-32, it continues
    /// that over what it writes.
    fn one(&mut self, at: u32, room: &mut [u8], crc: Option<&mut u32>)
    -> Result<(), TransmitError>;

    /// Writes several payloads, the first of which begins at `at` in the message, and continues a
    /// CRC-32 over each. Returns false if that is not possible, or not at once: then they are
    /// written one by one.
    fn several(&mut self, at: u32, train: &mut [u8], pieces: Pieces, crcs: &mut [u32]) -> bool {
        let _ = (at, train, pieces, crcs);
        false
    }
}

impl<F> Fill for F
where
    F: FnMut(u32, &mut [u8], Option<&mut u32>) -> Result<(), TransmitError>,
{
    fn one(
        &mut self,
        at: u32,
        room: &mut [u8],
        crc: Option<&mut u32>,
    ) -> Result<(), TransmitError> {
        self(at, room, crc)
    }
}

/// Datagrams of one size (the last may be shorter) to one destination.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Its destination, as packets name it.
    pub(crate) to: Destination,
    /// The port that counts it.
    pub(super) port_num: u8,
    /// The transmit socket it goes on.
    pub(super) tx_socket: Option<TxSocketId>,
    /// The part of the addresses that their ICRC covers.
    flow: Option<Flow>,
    /// The identification of the first datagram; those of the others count up.
    first_id: u16,
    /// The first `used` bytes are the batch; the rest is left from earlier ones.
    buffer: Vec<u8>,
    used: usize,
    pub(crate) segment: usize,
    pub(crate) count: usize,
    /// Whether a short segment ended the batch.
    closed: bool,
}

impl Batch {
    /// The datagrams, contiguous.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Makes sure that the buffer has this many bytes after the used ones.
    fn make_room(&mut self, bytes: usize) {
        let end = self.used + bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end.next_power_of_two(), 0);
        }
    }

    /// The identification of the datagram that is added next.
    fn next_id(&self) -> u16 {
        self.first_id.wrapping_add(self.count as u16)
    }

    /// Counts a datagram of this size that was appended.
    fn added(&mut self, size: usize) {
        self.used += size;
        self.count += 1;
        // A shorter one ends the batch.
        self.closed = size < self.segment;
    }

    /// Adds packets whose only header is this BTH, each with the next sequence number, as far as
    /// several of their payloads can be written at once. Returns how many. There is room for them,
    /// and their payloads need no padding.
    fn push_alike(
        &mut self,
        sealer: &mut Sealer,
        mut bth: Bth,
        length: u32,
        packets: u32,
        fill: &mut impl Fill,
    ) -> u32 {
        let Some(flow) = self.flow else { return 0 };
        let len = length as usize;
        let size = bth::LEN + len + icrc::LEN;
        let mut crcs = [0; TOGETHER];
        // The ICRC up to the end of the headers.
        let mut begun: Option<u32> = None;
        let mut done = 0;
        while done < packets {
            let count = TOGETHER.min((packets - done) as usize);
            let first_id = self.next_id();
            let train = &mut self.buffer[self.used..][..count * size];
            for (index, (packet, crc)) in train.chunks_exact_mut(size).zip(&mut crcs).enumerate() {
                let id = first_id.wrapping_add(index as u16);
                let header = &mut packet[..bth::LEN];
                header.copy_from_slice(bth.to_raw().as_bytes());
                *crc = match begun {
                    Some(before) => {
                        icrc::next_of_train(before, &flow, id.wrapping_sub(1), bth.psn.sub(1))
                    }
                    None => sealer.begin(&flow, id, size - icrc::LEN, header),
                };
                begun = Some(*crc);
                bth.psn = bth.psn.add(1);
            }
            let pieces = Pieces { first: bth::LEN, len, stride: size, count };
            if !fill.several(done * length, train, pieces, &mut crcs[..count]) {
                break;
            }
            for (packet, crc) in train.chunks_exact_mut(size).zip(&crcs) {
                packet[size - icrc::LEN..].copy_from_slice(&crc.to_le_bytes());
            }
            self.used += train.len();
            self.count += count;
            done += count as u32;
        }
        done
    }

    /// Recounts and reseals the datagrams. They are sent in trains of `max_segments`, and the
    /// identifications of each train start again.
    fn reseal(&mut self, sealer: &mut Sealer, max_segments: usize) {
        self.count = 0;
        for packet in self.buffer[..self.used].chunks_mut(self.segment.max(1)) {
            let id = self.first_id.wrapping_add((self.count % max_segments) as u16);
            seal(sealer, packet, id, self.flow.as_ref());
            self.count += 1;
        }
    }
}

/// Batches that wait for the socket.
#[derive(Debug)]
pub(crate) struct UdpQueue {
    batches: VecDeque<Batch>,
    spare: Vec<Vec<u8>>,
    sealer: Sealer,
    max_segments: usize,
    src_port: u16,
    dst_port: u16,
    pub(super) tx_sockets: TxSockets,
    /// Whether another process has the port: then datagrams of other hosts reach this process
    /// through the holder, or not at all.
    is_deaf: bool,
    /// Whether a QP was ever connected over UDP.
    is_used: bool,
}

impl UdpQueue {
    /// The datagram size for which the link is asked how many it takes at once: [`Self::MAX_BYTES`]
    /// bounds trains of larger ones.
    pub(crate) const TYPICAL: usize = 1024;
    /// Batches that may wait before a QP is told to.
    const MAX_BATCHES: usize = 4;
    /// The CRC of payloads of at least this length is computed while they are copied; for shorter
    /// ones, a CRC in pieces costs more than it saves.
    const LONG: u32 = 256;
    /// A UDP datagram, GSO or not, ends at 64 KiB with its headers.
    const MAX_BYTES: usize = 65_000;

    pub(crate) fn new(max_segments: usize, src_port: u16, dst_port: u16) -> Self {
        let max_segments = max_segments.max(1);
        Self {
            batches: VecDeque::new(),
            spare: Vec::new(),
            sealer: Sealer::new(),
            max_segments,
            src_port,
            dst_port,
            tx_sockets: TxSockets::default(),
            is_deaf: false,
            is_used: false,
        }
    }

    /// The same with these transmit sockets; `is_deaf` says whether another process has the port.
    pub(crate) fn with(self, tx_sockets: TxSockets, is_deaf: bool) -> Self {
        Self { tx_sockets, is_deaf, ..self }
    }

    /// The port is ours now: later packets leave from it, unless they use a transmit socket. No
    /// packet waits.
    pub(super) fn leave_from(&mut self, src_port: u16) {
        debug_assert!(self.batches.is_empty(), "their ICRC covers the port before");
        self.src_port = src_port;
        self.is_deaf = false;
    }

    /// The transmit sockets that are open.
    #[cfg(test)]
    pub(crate) fn open_tx_sockets(&self) -> impl Iterator<Item = TxSocketId> {
        self.tx_sockets.open()
    }

    /// Whether another process has the port.
    pub(crate) fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// A QP is connected over UDP.
    pub(crate) fn use_it(&mut self) {
        self.is_used = true;
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Adds a packet; `fill` writes its payload.
    pub(crate) fn push(
        &mut self,
        sgid: Gid,
        av: &Av,
        headers: &Headers,
        length: u32,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), TransmitError>,
    ) -> Result<(), TransmitError> {
        self.push_run(
            sgid,
            av,
            headers,
            length,
            1,
            |_, room: &mut [u8], crc: Option<&mut u32>| {
                fill(room)?;
                if let Some(crc) = crc {
                    *crc = icrc::go_on(*crc, room);
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    /// Adds packets of `length` bytes each in a row. The first has these headers, and each later
    /// one the next sequence number. `fill` writes their payloads. Returns how many had room and
    /// readable memory; on an error, nothing was added.
    pub(crate) fn push_run(
        &mut self,
        sgid: Gid,
        av: &Av,
        headers: &Headers,
        length: u32,
        packets: u32,
        mut fill: impl Fill,
    ) -> Result<u32, TransmitError> {
        let pad = length.wrapping_neg() as usize % 4;
        let header_len = headers.len();
        let size = header_len + length as usize + pad + icrc::LEN;
        self.find_batch(sgid, av, headers.bth.dest_qp, size)?;
        let Self { batches, sealer, max_segments, .. } = self;
        let batch = batches.back_mut().expect("a batch was just found or added");
        let room = (*max_segments - batch.count).min((Self::MAX_BYTES - batch.used) / size);
        // A shorter one ends the batch.
        let packets = if size < batch.segment { 1 } else { packets.min(room.max(1) as u32) };
        batch.make_room(packets as usize * size);
        let mut headers = *headers;
        headers.bth.pad = pad as u8;
        let mut done = 0;
        if packets > 1 && header_len == bth::LEN && pad == 0 && umem::sums_pieces(length as usize) {
            done = batch.push_alike(sealer, headers.bth, length, packets, &mut fill);
            headers.bth.psn = headers.bth.psn.add(done);
        }
        // The ICRC up to the end of the headers.
        let mut begun = None;
        for index in done..packets {
            let id = batch.next_id();
            let whole = &mut batch.buffer[batch.used..][..size];
            let (packet, trailer) = whole.split_at_mut(size - icrc::LEN);
            headers.emit(packet);
            let flow = batch.flow.as_ref();
            begun = match (flow, begun) {
                (Some(flow), Some(before)) if header_len == bth::LEN => Some(icrc::next_of_train(
                    before,
                    flow,
                    id.wrapping_sub(1),
                    headers.bth.psn.sub(1),
                )),
                (Some(flow), _) if length >= Self::LONG => {
                    Some(sealer.begin(flow, id, packet.len(), &packet[..header_len]))
                }
                _ => None,
            };
            let mut crc = begun;
            let payload_end = header_len + length as usize;
            let payload = &mut packet[header_len..payload_end];
            if let Err(error) = fill.one(index * length, payload, crc.as_mut()) {
                if batch.count == 0 {
                    self.recycle_last();
                }
                // The error of a later packet is found again when it is the first one.
                return if index > 0 { Ok(index) } else { Err(error) };
            }
            packet[payload_end..].fill(0);
            let icrc = match crc {
                Some(crc) => icrc::go_on(crc, &packet[payload_end..]),
                None => compute(sealer, packet, id, flow),
            };
            trailer.copy_from_slice(&icrc.to_le_bytes());
            batch.added(size);
            headers.bth.psn = headers.bth.psn.add(1);
        }
        Ok(packets)
    }

    /// Adds a packet of `length` bytes to a QP, with these headers; `fill` writes its payload.
    #[inline]
    pub(crate) fn push_fast(
        &mut self,
        sgid: Gid,
        av: &Av,
        dest: Qpn,
        headers: &[u8],
        length: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), TransmitError>,
    ) -> Result<(), TransmitError> {
        let payload_end = headers.len() + length as usize;
        let size = payload_end.next_multiple_of(4) + icrc::LEN;
        self.find_batch(sgid, av, dest, size)?;
        let Self { batches, sealer, .. } = self;
        let batch = batches.back_mut().expect("a batch was just found or added");
        batch.make_room(size);
        let id = batch.next_id();
        let packet = &mut batch.buffer[batch.used..][..size];
        packet[..headers.len()].copy_from_slice(headers);
        if let Err(error) = fill(&mut packet[headers.len()..payload_end]) {
            if batch.count == 0 {
                self.recycle_last();
            }
            return Err(error);
        }
        packet[payload_end..size - icrc::LEN].fill(0);
        seal(sealer, packet, id, batch.flow.as_ref());
        batch.added(size);
        Ok(())
    }

    /// Makes sure that a packet of this size fits in the last batch.
    fn find_batch(
        &mut self,
        sgid: Gid,
        av: &Av,
        dest: Qpn,
        size: usize,
    ) -> Result<(), TransmitError> {
        let to = Destination {
            src: sgid,
            dst: av.dgid,
            vf: vf_of(dest),
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit_on_wire(),
        };
        let fits = |batch| self.fits(batch, &to, size);
        if !self.batches.back().is_some_and(|batch| batch.port_num == av.port_num && fits(batch)) {
            if self.is_full() {
                return Err(TransmitError::Blocked);
            }
            let buffer = self.spare.pop().unwrap_or_default();
            let (place, ports) = (self.tx_sockets.take(to), (self.src_port, self.dst_port));
            self.batches.push_back(Batch {
                to,
                port_num: av.port_num,
                tx_socket: place.map(|place| place.tx_socket),
                flow: place.map_or_else(|| flow(&to, ports), |place| Some(place.flow)),
                first_id: place.map_or(0, |place| place.first_id),
                buffer,
                used: 0,
                segment: size,
                count: 0,
                closed: false,
            });
        }
        Ok(())
    }

    /// Makes the ICRC of the last packet wrong, as bits that flip on the wire do.
    pub(crate) fn spoil_last(&mut self) {
        if let Some(batch) = self.batches.back_mut() {
            // A train that must be split is resealed, but this packet must stay as it is.
            batch.closed = true;
            if let Some(byte) = batch.used.checked_sub(1).and_then(|at| batch.buffer.get_mut(at)) {
                *byte ^= 0x55;
            }
        }
    }

    fn fits(&self, batch: &Batch, to: &Destination, size: usize) -> bool {
        !batch.closed
            && batch.to == *to
            && size <= batch.segment
            && batch.count < self.max_segments
            && batch.used + size <= Self::MAX_BYTES
    }

    /// Whether the first batch cannot grow any more, so that waiting gains nothing.
    pub(crate) fn has_full(&self) -> bool {
        self.batches.len() > 1
            || self.front().is_some_and(|batch| {
                batch.closed
                    || batch.count >= self.max_segments
                    || batch.used + batch.segment > Self::MAX_BYTES
            })
    }

    /// Whether a packet that fits in no batch must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.batches.len() >= Self::MAX_BATCHES
    }

    pub(crate) fn front(&self) -> Option<&Batch> {
        self.batches.front()
    }

    /// Forgets the first batch, after it was sent or dropped.
    pub(super) fn pop(&mut self) {
        if let Some(batch) = self.batches.pop_front() {
            self.recycle(batch.buffer);
        }
    }

    /// Drops the part of the first batch that was sent before the socket was full.
    pub(super) fn sent(&mut self, bytes: usize) {
        let Self { batches, sealer, max_segments, .. } = self;
        let Some(batch) = batches.front_mut() else { return };
        if bytes == 0 || bytes > batch.used {
            return;
        }
        batch.buffer.copy_within(bytes..batch.used, 0);
        batch.used -= bytes;
        batch.reseal(sealer, *max_segments);
    }

    /// Sets how many datagrams one system call takes: 1 once the kernel has refused to split.
    /// Waiting batches are resealed if they will now be sent in other trains.
    pub(super) fn set_max_segments(&mut self, max_segments: usize) {
        let max_segments = max_segments.max(1);
        if max_segments == self.max_segments {
            return;
        }
        self.max_segments = max_segments;
        // A batch for a transmit socket is sent at once, or not at all.
        let is_split = |batch: &&mut Batch| batch.count > max_segments && batch.tx_socket.is_none();
        for batch in self.batches.iter_mut().filter(is_split) {
            batch.reseal(&mut self.sealer, max_segments);
        }
    }

    /// A transmit socket broke: batches that wait for it are sent like all others.
    pub(super) fn tx_socket_broke(&mut self, tx_socket: TxSocketId) {
        self.tx_sockets.broke(tx_socket);
        let ports = (self.src_port, self.dst_port);
        let Self { batches, sealer, max_segments, .. } = self;
        for batch in batches.iter_mut().filter(|batch| batch.tx_socket == Some(tx_socket)) {
            (batch.tx_socket, batch.first_id) = (None, 0);
            batch.flow = flow(&batch.to, ports);
            batch.reseal(sealer, *max_segments);
        }
    }

    fn recycle_last(&mut self) {
        if let Some(batch) = self.batches.pop_back() {
            if let Some(tx_socket) = batch.tx_socket {
                self.tx_sockets.put_back(tx_socket);
            }
            self.recycle(batch.buffer);
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < Self::MAX_BATCHES {
            self.spare.push(buffer);
        }
    }
}

/// The part of the addresses that the ICRC covers, for packets without a transmit socket.
fn flow(to: &Destination, (src_port, dst_port): (u16, u16)) -> Option<Flow> {
    let [src, dst] = [to.src, to.dst].map(Gid::to_ip);
    Flow::new(SocketAddr::new(src, src_port), SocketAddr::new(dst, dst_port))
}

/// Writes the ICRC of a packet with this IPv4 identification.
fn seal(sealer: &mut Sealer, packet: &mut [u8], id: u16, flow: Option<&Flow>) {
    let Some(end) = packet.len().checked_sub(icrc::LEN) else { return };
    let (packet, trailer) = packet.split_at_mut(end);
    trailer.copy_from_slice(&compute(sealer, packet, id, flow).to_le_bytes());
}

/// The ICRC of a packet. It covers the IPv4 identification, which the kernel counts up within one
/// GSO send: from 0, except on a transmit socket.
fn compute(sealer: &mut Sealer, packet: &[u8], id: u16, flow: Option<&Flow>) -> u32 {
    flow.map_or(0, |flow| sealer.compute(flow, id, packet))
}
