//! How a command ended (NVMe 1.4, 4.6.1; NVMe over Fabrics 1.1, 2.2.1).

use std::fmt;

/// A status: the code in the low byte, the type of code above it, and the bit that forbids a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u16);

/// Do not retry.
const DNR: u16 = 0x4000;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, $words:literal;)*) => {
        impl Status {
            $($(#[doc = $doc])+ pub const $name: Self = Self($value);)*
        }

        fn words(code: u16) -> Option<&'static str> {
            match code {
                $($value => Some($words),)*
                _ => None,
            }
        }
    };
}

statuses! {
    /// It was carried out.
    SUCCESS = 0x000, "success";
    /// There is no such command here.
    INVALID_OPCODE = 0x001, "invalid command opcode";
    /// A field has a value that it must not have.
    INVALID_FIELD = 0x002, "invalid field in command";
    /// The data did not arrive, or the memory for them went away.
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    /// Something in the target failed.
    INTERNAL_ERROR = 0x006, "internal error";
    /// There is no such namespace.
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    /// It is not this command's turn.
    COMMAND_SEQUENCE_ERROR = 0x00c, "command sequence error";
    /// The length in the descriptor differs from that of the command.
    DATA_SGL_LENGTH_INVALID = 0x00f, "data SGL length invalid";
    /// Descriptors of this type are not understood.
    SGL_TYPE_INVALID = 0x011, "SGL descriptor type invalid";
    /// The data would lie outside the capsule.
    SGL_OFFSET_INVALID = 0x016, "SGL offset invalid";
    /// Identifiers of hosts have another length.
    HOST_ID_INCONSISTENT = 0x018, "host identifier inconsistent format";
    /// Another host has reserved the namespace, or the key is not the host's.
    RESERVATION_CONFLICT = 0x083, "reservation conflict";
    /// Blocks beyond the namespace's last one.
    LBA_OUT_OF_RANGE = 0x080, "LBA out of range";
    /// The disk below is full.
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    /// More Async Event Requests than are held.
    ASYNC_EVENT_LIMIT = 0x105, "asynchronous event request limit exceeded";
    /// There is no such log page.
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    /// The format of the Connect data is not known.
    CONNECT_INCOMPATIBLE = 0x180, "connect incompatible format";
    /// No controller is free.
    CONNECT_BUSY = 0x181, "connect controller busy";
    /// A parameter of Connect is wrong; the result tells which.
    CONNECT_INVALID_PARAMETERS = 0x182, "connect invalid parameters";
    /// The host may not use the subsystem, or is not the one that the controller is for.
    CONNECT_INVALID_HOST = 0x184, "connect invalid host";
    /// The disk did not take the blocks.
    WRITE_FAULT = 0x280, "write fault";
    /// The disk does not give the blocks.
    UNRECOVERED_READ_ERROR = 0x281, "unrecovered read error";
    /// The namespace cannot be written.
    NAMESPACE_WRITE_PROTECTED = 0x020, "namespace is write protected";
}

impl Status {
    /// From the 15 bits of a completion.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The 15 bits of a completion.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The same, with the bit that says that a retry would fail as well.
    #[must_use]
    #[doc(alias = "NVME_SC_DNR")]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Without the bit that forbids a retry.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// Whether a retry may succeed.
    pub const fn may_retry(self) -> bool {
        self.0 & DNR == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match words(self.code().0) {
            Some(words) => write!(f, "{words} ({:#x})", self.0),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

impl std::error::Error for Status {}
