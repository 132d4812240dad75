//! Management datagrams (IBA 13.4): 256 bytes from one QP 1 to another, of which 24 are a header
//! that all classes share.

use iba::QKey;

use crate::cm::field::Field;

/// Bytes of a management datagram.
pub const LEN: usize = 256;
/// Bytes of its header.
pub const HEADER_LEN: usize = 24;
/// Bytes that follow the header.
pub const DATA_LEN: usize = LEN - HEADER_LEN;

/// The Q_Key of QP 1 (IBA 10.2.5).
#[doc(alias = "IB_QP1_QKEY")]
pub const GSI_QKEY: QKey = QKey(0x8001_0000);

/// The class of communication management (IBA table 102).
#[doc(alias = "IB_MGMT_CLASS_CM")]
pub const CLASS_CM: u8 = 0x07;
/// The version of that class.
#[doc(alias = "IB_CM_CLASS_VERSION")]
pub const CLASS_CM_VERSION: u8 = 2;
/// The only version of the header.
pub const BASE_VERSION: u8 = 1;
/// The method of messages that are neither requests nor responses (IBA 13.4.5).
#[doc(alias = "IB_MGMT_METHOD_SEND")]
pub const METHOD_SEND: u8 = 0x03;

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ib_mad_hdr")]
#[expect(clippy::exhaustive_structs, reason = "the fields of IBA 13.4.2")]
pub struct MadHeader {
    /// Version of the header: 1.
    pub base_version: u8,
    /// The class, which tells QP 1 the agent.
    pub mgmt_class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// The method; the high bit marks a response.
    pub method: u8,
    /// The outcome, in a response.
    pub status: u16,
    /// For the class to use.
    pub class_specific: u16,
    /// The transaction id, which the messages of one exchange share.
    pub tid: u64,
    /// The attribute.
    pub attr_id: u16,
    /// The attribute modifier.
    pub attr_mod: u32,
}

impl MadHeader {
    /// The header of a message of communication management.
    pub fn cm(attr_id: u16, tid: u64) -> Self {
        Self {
            base_version: BASE_VERSION,
            mgmt_class: CLASS_CM,
            class_version: CLASS_CM_VERSION,
            method: METHOD_SEND,
            tid,
            attr_id,
            ..Self::default()
        }
    }

    /// Reads a header.
    pub fn parse(raw: &[u8; HEADER_LEN]) -> Self {
        Self {
            base_version: Field::get(raw, 0, 8),
            mgmt_class: Field::get(raw, 8, 8),
            class_version: Field::get(raw, 16, 8),
            method: Field::get(raw, 24, 8),
            status: Field::get(raw, 32, 16),
            class_specific: Field::get(raw, 48, 16),
            tid: Field::get(raw, 64, 64),
            attr_id: Field::get(raw, 128, 16),
            attr_mod: Field::get(raw, 160, 32),
        }
    }

    /// The header's bytes, reserved bits zero.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut raw = [0; HEADER_LEN];
        self.base_version.put(&mut raw, 0, 8);
        self.mgmt_class.put(&mut raw, 8, 8);
        self.class_version.put(&mut raw, 16, 8);
        self.method.put(&mut raw, 24, 8);
        self.status.put(&mut raw, 32, 16);
        self.class_specific.put(&mut raw, 48, 16);
        self.tid.put(&mut raw, 64, 64);
        self.attr_id.put(&mut raw, 128, 16);
        self.attr_mod.put(&mut raw, 160, 32);
        raw
    }
}
