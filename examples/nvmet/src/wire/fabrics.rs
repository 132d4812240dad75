//! Commands that only fabrics have: Connect, Property Get, Property Set (NVMe over Fabrics 1.1, 3).

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::capsule::opcode;
use super::{Command, NQN_LEN, Status, nqn, nqn_of};

/// Types of fabrics commands.
const PROPERTY_SET: u8 = 0x00;
const CONNECT: u8 = 0x01;
const PROPERTY_GET: u8 = 0x04;

/// Bytes of the data of Connect.
pub const CONNECT_DATA_LEN: usize = 1024;

/// Any controller: the target makes one.
pub const ANY_CNTLID: u16 = 0xffff;

/// Where fields are that Connect Invalid Parameters may point to.
mod offset {
    pub(super) const SQE_QID: u32 = 42;
    pub(super) const SQE_SQSIZE: u32 = 44;
    pub(super) const DATA_CNTLID: u32 = 16;
    pub(super) const DATA_SUBSYSNQN: u32 = 256;
    pub(super) const DATA_HOSTNQN: u32 = 512;
}

/// The field that Connect Invalid Parameters is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "those that are checked")]
pub enum Field {
    /// The queue.
    Qid,
    /// Its length.
    SqSize,
    /// The controller.
    Cntlid,
    /// The subsystem.
    SubsysNqn,
    /// The host.
    HostNqn,
}

impl Field {
    /// The result of the command: the offset, and whether it is into the data.
    #[doc(alias = "IPO_IATTR_CONNECT_DATA")]
    pub const fn result(self) -> u64 {
        const DATA: u32 = 1 << 16;
        let at = match self {
            Self::Qid => offset::SQE_QID,
            Self::SqSize => offset::SQE_SQSIZE,
            Self::Cntlid => DATA | offset::DATA_CNTLID,
            Self::SubsysNqn => DATA | offset::DATA_SUBSYSNQN,
            Self::HostNqn => DATA | offset::DATA_HOSTNQN,
        };
        at as u64
    }
}

/// A fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fabrics {
    /// Joins the queue to a controller.
    Connect(Connect),
    /// Reads a register of the controller.
    PropertyGet {
        /// The register's offset.
        offset: u32,
        /// Its length in bytes.
        size: u8,
    },
    /// Writes a register.
    PropertySet {
        /// The register's offset.
        offset: u32,
        /// Its length in bytes.
        size: u8,
        /// The value.
        value: u64,
    },
}

/// The parameters of Connect that are in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The format of the data: 0.
    pub recfmt: u16,
    /// The queue.
    pub qid: u16,
    /// Its length, less one.
    pub sqsize: u16,
    /// Whether the host asks for no flow control.
    pub no_flow: bool,
    /// The number of milliseconds without Keep Alive after which the controller ends; 0: never.
    pub kato: u32,
}

/// The data of Connect.
#[doc(alias = "nvmf_connect_data")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// The host's identifier.
    pub hostid: [u8; 16],
    /// The controller; [`ANY_CNTLID`] for the admin queue.
    pub cntlid: U16,
    reserved: [u8; 238],
    subsysnqn: [u8; NQN_LEN],
    hostnqn: [u8; NQN_LEN],
    reserved2: [u8; 256],
}

impl ConnectData {
    /// The data of a host for a subsystem.
    pub fn new(hostid: [u8; 16], cntlid: u16, subsysnqn: &str, hostnqn: &str) -> Self {
        Self {
            hostid,
            cntlid: cntlid.into(),
            reserved: [0; 238],
            subsysnqn: nqn(subsysnqn),
            hostnqn: nqn(hostnqn),
            reserved2: [0; 256],
        }
    }

    /// The subsystem.
    pub fn subsysnqn(&self) -> Option<&str> {
        nqn_of(&self.subsysnqn)
    }

    /// The host.
    pub fn hostnqn(&self) -> Option<&str> {
        nqn_of(&self.hostnqn)
    }
}

impl Fabrics {
    /// Parses a command with the opcode for fabrics.
    ///
    /// # Errors
    ///
    /// Invalid Field for a type that is not known.
    pub fn parse(command: &Command) -> Result<Self, Status> {
        // CAST: the fields are halves and bytes of these words.
        let kind = command.nsid.get() as u8;
        let size = if command.cdw10.get() & 7 == 1 { 8 } else { 4 };
        let offset = command.cdw11.get();
        match kind {
            CONNECT => Ok(Self::Connect(Connect {
                recfmt: command.cdw10.get() as u16,
                qid: (command.cdw10.get() >> 16) as u16,
                sqsize: command.cdw11.get() as u16,
                no_flow: command.cdw11.get() >> 16 & 4 != 0,
                kato: command.cdw12.get(),
            })),
            PROPERTY_GET if command.cdw10.get() & 7 < 2 => Ok(Self::PropertyGet { offset, size }),
            PROPERTY_SET if command.cdw10.get() & 7 < 2 => {
                let value = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
                Ok(Self::PropertySet { offset, size, value })
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// The command, without data.
    pub fn to_command(self) -> Command {
        // CAST: the two halves of a value.
        let value = |value: u64| ((value as u32).into(), ((value >> 32) as u32).into());
        let with = |kind: u8| Command::new(opcode::FABRICS, kind.into());
        match self {
            Self::Connect(connect) => {
                let flow = if connect.no_flow { 4 << 16 } else { 0 };
                let words = u32::from(connect.recfmt) | u32::from(connect.qid) << 16;
                let mut command = with(CONNECT);
                command.cdw10 = words.into();
                command.cdw11 = (u32::from(connect.sqsize) | flow).into();
                command.cdw12 = connect.kato.into();
                command
            }
            Self::PropertyGet { offset, size } => {
                let cdw10 = u32::from(size == 8).into();
                Command { cdw10, cdw11: offset.into(), ..with(PROPERTY_GET) }
            }
            Self::PropertySet { offset, size, value: it } => {
                let (cdw12, cdw13) = value(it);
                let cdw10 = u32::from(size == 8).into();
                Command { cdw10, cdw11: offset.into(), cdw12, cdw13, ..with(PROPERTY_SET) }
            }
        }
    }
}
