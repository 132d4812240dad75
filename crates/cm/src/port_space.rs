//! Port spaces: how a port of an IP address becomes a service id (IBA annex A11; the kernel's
//! `rdma_get_service_id`).

/// A space of port numbers, with the values of `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "rdma_port_space")]
#[non_exhaustive]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp = 0x0106,
    /// For any QP type: programs that use XRC choose it (`cma_select_inet_ps` of the kernel).
    #[doc(alias = "RDMA_PS_IB")]
    Ib = 0x013f,
    /// Datagrams: to connect is to resolve a service to a QP.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp = 0x0111,
}

impl PortSpace {
    /// The space that `value` names, if it is one with ports.
    pub fn from_code(value: u32) -> Option<Self> {
        [Self::Tcp, Self::Ib, Self::Udp].into_iter().find(|space| *space as u32 == value)
    }

    /// The service id of a port: the space in bits 16 to 31, the port below (IBA A11.2).
    pub const fn service_id(self, port: u16) -> u64 {
        (self as u64) << 16 | port as u64
    }

    /// The space and the port that a service id stands for, if it is one of IP addressing.
    pub fn of_service(service_id: u64) -> Option<(Self, u16)> {
        let space = u32::try_from(service_id >> 16).ok().and_then(Self::from_code)?;
        Some((space, service_id as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_low_half_of_its_service() {
        assert_eq!(PortSpace::Tcp.service_id(7174), 0x0000_0000_0106_1c06);
        assert_eq!(PortSpace::of_service(0x0106_1c06), Some((PortSpace::Tcp, 7174)));
        assert_eq!(PortSpace::of_service(0x0111_0001), Some((PortSpace::Udp, 1)));
        assert_eq!(PortSpace::of_service(0x013f_0002), Some((PortSpace::Ib, 2)));
        assert_eq!(PortSpace::of_service(0x1_0106_1c06), None);
        assert_eq!(PortSpace::of_service(0x0107_1c06), None);
    }
}
