//! What two programs exchange to connect a QP by hand, and how it is connected.

use iba::{AckTimeout, Gid, Mtu, Psn, Qpn, RnrTimer};

use crate::context::HOPS;
use crate::{Kind, Refusal, Result};

/// How to reach a QP: what two programs exchange to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs send it to each other")]
pub struct Endpoint {
    /// The address of the port.
    pub gid: Gid,
    /// The QP.
    pub qpn: Qpn,
    /// The first sequence number it will send.
    pub psn: Psn,
}

/// How many bytes [`Endpoint::to_bytes`] gives.
const BYTES: usize = 24;

impl Endpoint {
    /// What to send to the peer: the GID, the number of the QP and the sequence number, in network
    /// byte order.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[20..].copy_from_slice(&self.psn.value().to_be_bytes());
        bytes
    }

    /// What a peer sent.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if one of the two numbers has more than 24 bits.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self> {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        Self::checked(bytes[..16].try_into().expect("sixteen"), number(16), number(20))
    }

    fn checked(gid: [u8; 16], qpn: u32, psn: u32) -> Result<Self> {
        for (what, number) in [("QP", qpn), ("sequence", psn)] {
            if number >> 24 != 0 {
                let what = format!("endpoint: the {what} number {number:#x} has more than 24 bits");
                return Err(Refusal::new(Kind::Invalid, what));
            }
        }
        Ok(Self { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        (self.gid.0, self.qpn.value(), self.psn.value()).serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        let (gid, qpn, psn) = <([u8; 16], u32, u32)>::deserialize(deserializer)?;
        Self::checked(gid, qpn, psn).map_err(serde::de::Error::custom)
    }
}

/// How a QP is connected by hand: for [`Qp::connect_with`](crate::Qp::connect_with). What it does
/// not have, [`Qp::modify`](crate::Qp::modify) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_attr")]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct ConnectOptions {
    /// The GID that packets come from: its index in the port's table. None: that of
    /// [`Context::default_gid`](crate::Context::default_gid), as in
    /// [`Qp::endpoint`](crate::Qp::endpoint).
    pub gid_index: Option<u8>,
    /// The MTU of the path. None: the port's.
    pub mtu: Option<Mtu>,
    /// How long an acknowledgement may take before packets are sent again.
    pub timeout: AckTimeout,
    /// How often they are, at most 7.
    pub retry_count: u8,
    /// Retries while the peer has no receive posted, at most 7, which means without end.
    pub rnr_retry_count: u8,
    /// How long a peer waits before it tries again, where this side has no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics that this side takes at once.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once, at most what the peer takes.
    pub initiator_depth: u8,
    /// IP type of service.
    pub traffic_class: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// IP time to live.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    /// The port's MTU, a timeout of 67 ms with 7 retries, receivers that are not ready waited for
    /// without end, and 16 READs and atomics each way.
    fn default() -> Self {
        Self {
            gid_index: None,
            mtu: None,
            timeout: AckTimeout::from_code(14).expect("14 is below 32"),
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: RnrTimer::from_code(12).expect("12 is below 32"),
            responder_resources: 16,
            initiator_depth: 16,
            traffic_class: 0,
            service_level: 0,
            hop_limit: HOPS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_peer_are_checked() {
        let here = Endpoint { gid: Gid([7; 16]), qpn: Qpn::new(0x12_3456), psn: Psn::new(9) };
        assert_eq!(Endpoint::from_bytes(&here.to_bytes()), Ok(here));
        for at in [16, 20] {
            let mut bytes = here.to_bytes();
            bytes[at] = 1;
            let refusal = Endpoint::from_bytes(&bytes).unwrap_err();
            assert!(refusal.what().contains("more than 24 bits"), "{refusal}");
        }
    }
}
