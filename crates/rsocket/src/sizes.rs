//! Sizes of a socket's queues and buffers.

/// Entries of a target list: one for each half of the receive buffer.
#[doc(alias = "RS_SGL_SIZE")]
pub const TARGETS: u32 = 2;

/// The minimum of free bytes in the send buffer for sending, and the size of a datagram's buffer.
#[doc(alias = "RS_SNDLOWAT")]
pub const SEND_LOW_WATER: u32 = 2048;

/// Entries of the send queue that are reserved for control messages.
#[doc(alias = "RS_QP_CTRL_SIZE")]
pub(crate) const CONTROL: u32 = 4;

/// Entries of a stream's queues: the least and the most.
const QUEUE: (u32, u32) = (16, 0xfffe);

/// The maximum size of a buffer, in bytes.
const BUFFER_MAX: u32 = 1 << 30;

/// Sizes of queues, in entries, and of buffers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Send queue.
    #[doc(alias = "RDMA_SQSIZE")]
    pub sq_size: u32,
    /// Receive queue.
    #[doc(alias = "RDMA_RQSIZE")]
    pub rq_size: u32,
    /// Data up to this size is sent inline.
    #[doc(alias = "RDMA_INLINE")]
    pub inline: u32,
    /// Send buffer.
    #[doc(alias = "SO_SNDBUF")]
    pub send_buffer: u32,
    /// Receive buffer.
    #[doc(alias = "SO_RCVBUF")]
    pub receive_buffer: u32,
    /// Mappings that the peer may make.
    #[doc(alias = "RDMA_IOMAPSIZE")]
    pub mappings: u32,
}

impl Default for Sizes {
    /// The defaults of `rsocket(7)` without configuration files.
    fn default() -> Self {
        Self {
            sq_size: 384,
            rq_size: 384,
            inline: 64,
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            mappings: 0,
        }
    }
}

impl Sizes {
    /// Clamps the sizes to what a stream supports, on a device whose queues have `max_qp_wr`
    /// entries.
    #[must_use]
    pub fn for_stream(self, max_qp_wr: u32) -> Self {
        let most = max_qp_wr.clamp(QUEUE.0, QUEUE.1);
        Self {
            sq_size: self.sq_size.clamp(QUEUE.0, most),
            rq_size: self.rq_size.clamp(QUEUE.0, most),
            send_buffer: self.send_buffer.clamp(SEND_LOW_WATER, BUFFER_MAX),
            // An even size, for two halves.
            receive_buffer: self.receive_buffer.clamp(2, BUFFER_MAX) & !1,
            mappings: unscale(scale(self.mappings)),
            ..self
        }
    }

    /// Clamps the sizes to what datagram sockets support: a buffer for each entry of a queue.
    #[must_use]
    pub fn for_datagrams(self, max_qp_wr: u32) -> Self {
        let most = max_qp_wr.clamp(1, QUEUE.1);
        let entries = |wanted: u32, buffer: u32| {
            wanted.clamp(1, most).min((buffer.min(BUFFER_MAX) / SEND_LOW_WATER).max(1))
        };
        let sq_size = entries(self.sq_size, self.send_buffer);
        let rq_size = entries(self.rq_size, self.receive_buffer);
        Self {
            sq_size,
            rq_size,
            send_buffer: sq_size * SEND_LOW_WATER,
            receive_buffer: rq_size * SEND_LOW_WATER,
            ..self
        }
    }
}

/// Encodes a number of mappings in the byte that a peer gets: above 128, only multiples of 256 have
/// an encoding.
#[doc(alias = "rs_value_to_scale")]
pub const fn scale(value: u32) -> u8 {
    if value <= 1 << 7 {
        value as u8
    } else {
        let high = if value >> 8 < 1 << 7 { value >> 8 } else { (1 << 7) - 1 };
        1 << 7 | high as u8
    }
}

/// Decodes that byte.
#[doc(alias = "rs_scale_to_value")]
pub const fn unscale(byte: u8) -> u32 {
    if byte <= 1 << 7 { byte as u32 } else { ((byte & !(1 << 7)) as u32) << 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_mappings_with_an_encoding_survive_it() {
        for value in (0..=128).chain((256..=0x7f00).step_by(256)) {
            assert_eq!(unscale(scale(value)), value);
        }
        assert_eq!(unscale(scale(300)), 256);
        assert_eq!(unscale(scale(u32::MAX)), 0x7f00);
        // Just above the exact numbers, rdma-core rounds down to 128.
        assert_eq!(unscale(scale(129)), 128);
    }

    #[test]
    fn sizes_are_clamped_to_their_ranges() {
        let wild = Sizes {
            sq_size: 0,
            rq_size: u32::MAX,
            inline: 0,
            send_buffer: 0,
            receive_buffer: 7,
            mappings: 300,
        };
        let stream = wild.for_stream(1000);
        assert_eq!((stream.sq_size, stream.rq_size), (16, 1000));
        assert_eq!((stream.send_buffer, stream.receive_buffer, stream.mappings), (2048, 6, 256));
        let datagrams = Sizes::default().for_datagrams(1 << 20);
        assert_eq!((datagrams.sq_size, datagrams.send_buffer), (64, 1 << 17));
        assert_eq!(wild.for_datagrams(10).receive_buffer, 2048);
    }
}
