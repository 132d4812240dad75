//! The messages: IBA 12.6, tables 106 to 120.

use core::fmt;

use iba::{Gid, Guid, PKey, Psn, QKey, Qpn};

use super::CommId;
use super::field::Field;
use crate::mad::DATA_LEN;

/// Shows a program's bytes as their count and their beginning, since most of them are padding.
struct Bytes<'a>(&'a [u8]);

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "{}/{} bytes", used, self.0.len())
    }
}

macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident = $attr:literal, $words:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $byte:literal : $bit:literal, $width:expr;)*
        }
        bytes { $($(#[$bytes_doc:meta])* $bytes:ident: $len:literal = $start:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[expect(clippy::exhaustive_structs, reason = "the fields of the message")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            $($(#[$bytes_doc])* pub $bytes: [u8; $len],)*
        }

        impl $name {
            /// The attribute that names this message.
            pub const ATTR_ID: u16 = $attr;
            pub(super) const NAME: &str = $words;

            /// Reads the message from what follows the header.
            pub fn parse(data: &[u8; DATA_LEN]) -> Self {
                Self {
                    $($field: Field::get(data, $byte * 8 + $bit, $width),)*
                    $($bytes: Field::get(data, $start * 8, $len * 8),)*
                }
            }

            /// What follows the header, reserved bits zero.
            pub fn to_bytes(&self) -> [u8; DATA_LEN] {
                let mut data = [0; DATA_LEN];
                $(self.$field.put(&mut data, $byte * 8 + $bit, $width);)*
                $(self.$bytes.put(&mut data, $start * 8, $len * 8);)*
                data
            }

            #[cfg(test)]
            pub(super) const PLACES: &[(usize, usize)] =
                &[$(($byte * 8 + $bit, $width),)* $(($start * 8, $len * 8),)*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self::parse(&[0; DATA_LEN])
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($words)
                    $(.field(stringify!($field), &self.$field))*
                    $(.field(stringify!($bytes), &Bytes(&self.$bytes)))*
                    .finish()
            }
        }
    };
}

message! {
    /// Request for communication (IBA table 106). The alternate path has no fields here: its port
    /// LID and GID say whether there is one.
    Req = 0x10, "REQ" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The vendor whose options are in the header: an IEEE company id, or 0 (IBA annex on
        /// enhanced connection establishment; the kernel's `CM_REQ_VENDOR_ID`).
        vendor_id: u32 = 5:0, 24;
        /// The requested service.
        service_id: u64 = 8:0, 64;
        /// The sender's channel adapter.
        local_ca_guid: Guid = 16:0, 64;
        /// The sender's Q_Key, for a datagram QP.
        local_qkey: QKey = 28:0, 32;
        /// The sender's QP.
        local_qpn: Qpn = 32:0, 24;
        /// READs and atomics that the sender accepts at once.
        responder_resources: u8 = 35:0, 8;
        /// The sender's EE context.
        local_eecn: u32 = 36:0, 24;
        /// READs and atomics that the sender has outstanding at once.
        initiator_depth: u8 = 39:0, 8;
        /// The receiver's EE context.
        remote_eecn: u32 = 40:0, 24;
        /// How long the receiver may take to answer: `4.096 us * 2^code`.
        remote_cm_response_timeout: u8 = 43:0, 5;
        /// 0 RC, 1 UC, 2 RD, 3 see the extended type.
        transport_service_type: u8 = 43:5, 2;
        /// Whether the sender's QP has end-to-end flow control.
        flow_control: bool = 43:7, 1;
        /// The first PSN that the receiver of this message must send (IBA 12.7.31).
        starting_psn: Psn = 44:0, 24;
        /// The longest time that the sender takes to answer.
        local_cm_response_timeout: u8 = 47:0, 5;
        /// Transport retries.
        retry_count: u8 = 47:5, 3;
        /// The partition.
        pkey: PKey = 48:0, 16;
        /// The path MTU, as a code.
        path_mtu: u8 = 50:0, 4;
        /// Whether a reliable datagram channel exists.
        rdc_exists: bool = 50:4, 1;
        /// RNR retries.
        rnr_retry_count: u8 = 50:5, 3;
        /// How often the sender repeats a message that is not answered.
        max_cm_retries: u8 = 51:0, 4;
        /// Whether the sender's QP has a shared receive queue.
        srq: bool = 51:4, 1;
        /// 1 is XRC.
        extended_transport_type: u8 = 51:5, 3;
        /// The sender's port, by its LID.
        primary_local_lid: u16 = 52:0, 16;
        /// The receiver's port, by its LID.
        primary_remote_lid: u16 = 54:0, 16;
        /// The sender's port.
        primary_local_gid: Gid = 56:0, 128;
        /// The receiver's port.
        primary_remote_gid: Gid = 72:0, 128;
        /// Flow label.
        primary_flow_label: u32 = 88:0, 20;
        /// Static rate.
        primary_packet_rate: u8 = 91:2, 6;
        /// Traffic class.
        primary_traffic_class: u8 = 92:0, 8;
        /// Hop limit.
        primary_hop_limit: u8 = 93:0, 8;
        /// Service level.
        primary_sl: u8 = 94:0, 4;
        /// Whether both ports are in one subnet.
        primary_subnet_local: bool = 94:4, 1;
        /// The ACK timeout that the sender uses: `4.096 us * 2^code`.
        primary_local_ack_timeout: u8 = 95:0, 5;
        /// The sender's other port, by its LID.
        alternate_local_lid: u16 = 96:0, 16;
        /// The sender's other port.
        alternate_local_gid: Gid = 100:0, 128;
    }
    bytes {
        /// For the program.
        private_data: 92 = 140;
    }
}

message! {
    /// Message receipt acknowledgement (IBA table 107): the answer takes longer.
    Mra = 0x11, "MRA" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// What was received: 0 REQ, 1 REP, 2 LAP.
        message: u8 = 8:0, 2;
        /// How much longer: `4.096 us * 2^code`.
        service_timeout: u8 = 9:0, 5;
    }
    bytes {
        /// For the program.
        private_data: 222 = 10;
    }
}

message! {
    /// Reject (IBA table 108).
    Rej = 0x12, "REJ" {
        /// The sender's id for the connection; 0 if it has none.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// What is rejected: 0 REQ, 1 REP, 2 no message that was received.
        message: u8 = 8:0, 2;
        /// Bytes of the additional information.
        info_length: u8 = 9:0, 7;
        /// The reason.
        reason: u16 = 10:0, 16;
    }
    bytes {
        /// Additional information.
        ari: 72 = 12;
        /// For the program.
        private_data: 148 = 84;
    }
}

message! {
    /// Reply to a request for communication (IBA table 110).
    Rep = 0x13, "REP" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// The sender's Q_Key, for a datagram QP.
        local_qkey: QKey = 8:0, 32;
        /// The sender's QP.
        local_qpn: Qpn = 12:0, 24;
        /// The vendor whose options are in the header: the first byte of three.
        vendor_id_h: u8 = 15:0, 8;
        /// The sender's EE context; for an initiating XRC QP, its number.
        local_eecn: u32 = 16:0, 24;
        /// The second byte of the company id.
        vendor_id_m: u8 = 19:0, 8;
        /// The first PSN that the receiver of this message must send (IBA 12.7.31).
        starting_psn: Psn = 20:0, 24;
        /// The third byte of the company id.
        vendor_id_l: u8 = 23:0, 8;
        /// READs and atomics that the sender accepts at once.
        responder_resources: u8 = 24:0, 8;
        /// READs and atomics that the sender has outstanding at once.
        initiator_depth: u8 = 25:0, 8;
        /// The longest time that the sender's channel adapter takes to acknowledge: `4.096 us *
        /// 2^code`.
        target_ack_delay: u8 = 26:0, 5;
        /// 0 the alternate path is accepted, 1 not supported, 2 not acceptable.
        failover_accepted: u8 = 26:5, 2;
        /// Whether the sender's QP has end-to-end flow control.
        flow_control: bool = 26:7, 1;
        /// RNR retries.
        rnr_retry_count: u8 = 27:0, 3;
        /// Whether the sender's QP has a shared receive queue.
        srq: bool = 27:3, 1;
        /// The sender's channel adapter.
        local_ca_guid: Guid = 28:0, 64;
    }
    bytes {
        /// For the program.
        private_data: 196 = 36;
    }
}

impl Rep {
    /// The vendor whose options are in the header: an IEEE company id, or 0.
    pub fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_h, self.vendor_id_m, self.vendor_id_l])
    }

    /// Sets the vendor whose options are in the header, from the low 24 bits.
    pub fn set_vendor_id(&mut self, vendor_id: u32) {
        [_, self.vendor_id_h, self.vendor_id_m, self.vendor_id_l] = vendor_id.to_be_bytes();
    }
}

message! {
    /// Ready to use (IBA table 111).
    Rtu = 0x14, "RTU" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
    }
    bytes {
        /// For the program.
        private_data: 224 = 8;
    }
}

message! {
    /// Request to end communication (IBA table 112).
    Dreq = 0x15, "DREQ" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// The receiver's QP.
        remote_qpn: Qpn = 8:0, 24;
    }
    bytes {
        /// For the program.
        private_data: 220 = 12;
    }
}

message! {
    /// Reply to a request to end communication (IBA table 113).
    Drep = 0x16, "DREP" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
    }
    bytes {
        /// For the program.
        private_data: 224 = 8;
    }
}

message! {
    /// Service id resolution request (IBA table 119).
    SidrReq = 0x17, "SIDR_REQ" {
        /// The sender's id for the request.
        request_id: CommId = 0:0, 32;
        /// The partition.
        pkey: PKey = 4:0, 16;
        /// The requested service.
        service_id: u64 = 8:0, 64;
    }
    bytes {
        /// For the program.
        private_data: 216 = 16;
    }
}

message! {
    /// Service id resolution response (IBA table 120).
    SidrRep = 0x18, "SIDR_REP" {
        /// The receiver's id for the request.
        request_id: CommId = 0:0, 32;
        /// The outcome.
        status: u8 = 4:0, 8;
        /// Bytes of the additional information.
        info_length: u8 = 5:0, 8;
        /// The QP of the service.
        qpn: Qpn = 8:0, 24;
        /// The service.
        service_id: u64 = 12:0, 64;
        /// The Q_Key of that QP.
        qkey: QKey = 20:0, 32;
    }
    bytes {
        /// Additional information.
        info: 72 = 24;
        /// For the program.
        private_data: 136 = 96;
    }
}

message! {
    /// Load alternate path (IBA table 115). Only the ids and the QP are read: no RoCE device
    /// migrates paths.
    Lap = 0x19, "LAP" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// The receiver's QP.
        remote_qpn: Qpn = 12:0, 24;
    }
    bytes {
        /// For the program.
        private_data: 168 = 64;
    }
}

message! {
    /// Alternate path response (IBA table 116).
    Apr = 0x1a, "APR" {
        /// The sender's id for the connection.
        local_comm_id: CommId = 0:0, 32;
        /// The receiver's id.
        remote_comm_id: CommId = 4:0, 32;
        /// Bytes of the additional information.
        info_length: u8 = 8:0, 8;
        /// The outcome.
        status: u8 = 9:0, 8;
    }
    bytes {
        /// Additional information.
        info: 72 = 12;
        /// For the program.
        private_data: 148 = 84;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are within the message, and do not overlap.
    #[test]
    fn fields_do_not_overlap() {
        for (name, places) in [
            (Req::NAME, Req::PLACES),
            (Mra::NAME, Mra::PLACES),
            (Rej::NAME, Rej::PLACES),
            (Rep::NAME, Rep::PLACES),
            (Rtu::NAME, Rtu::PLACES),
            (Dreq::NAME, Dreq::PLACES),
            (Drep::NAME, Drep::PLACES),
            (SidrReq::NAME, SidrReq::PLACES),
            (SidrRep::NAME, SidrRep::PLACES),
            (Lap::NAME, Lap::PLACES),
            (Apr::NAME, Apr::PLACES),
        ] {
            let mut used = [false; DATA_LEN * 8];
            for (at, width) in places {
                for bit in &mut used[*at..at + width] {
                    assert!(!*bit, "two fields of {name} share a bit at {at}");
                    *bit = true;
                }
            }
            assert!(used[DATA_LEN * 8 - 1], "{name} ends with its private data");
        }
    }
}
