//! Options of a link.

/// Options of a [`UdpLink`](super::UdpLink).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The VF that packets are received for; it answers the questions of [`crate::steer`].
    pub vf: u16,
    /// The netdev of the NIC, by index: link-local and multicast addresses need one. 0 for none.
    pub ifindex: u32,
    /// Bytes of socket buffer to ask for in each direction. The kernel grants at most
    /// `net.core.{r,w}mem_max`.
    pub buffer_bytes: usize,
    /// Whether to let the kernel split datagrams to send (`UDP_SEGMENT`).
    pub gso: bool,
    /// Whether to let the kernel join received datagrams (`UDP_GRO`).
    pub gro: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { vf: 0, ifindex: 0, buffer_bytes: 4 << 20, gso: true, gro: true }
    }
}
