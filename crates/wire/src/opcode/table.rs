//! The opcode table itself.

use super::{Ext, OpcodeInfo, Operation, PayloadRule, Places, Position};

/// Builds the enum, both conversions and the table from one row per opcode.
macro_rules! opcodes {
    ($(
        $code:literal $variant:ident $name:literal
        $operation:ident $position:ident [$($header:ident),*] $payload:ident$(($bytes:literal))?
    )*) => {
        /// The opcode of a packet.
        ///
        /// Conversion from and to `u8` is total; a code that is not in the table is
        /// [`Opcode::Unknown`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Opcode {
            $(#[doc = $name] $variant,)*
            /// Any other code: reserved, reliable datagram, or vendor-specific.
            Unknown(u8),
        }

        impl Opcode {
            /// Every opcode of the table, by its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The byte for this opcode in a BTH.
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// The row of this opcode. An unknown opcode has no headers, and any payload.
            #[inline]
            pub const fn info(self) -> &'static OpcodeInfo {
                match self {
                    $(Self::$variant => &OpcodeInfo {
                        name: $name,
                        operation: Operation::$operation,
                        position: Position::$position,
                        headers: &[$(Ext::$header),*],
                        places: const { Places::of(&[$(Ext::$header),*]) },
                        payload: PayloadRule::$payload$(($bytes))?,
                    },)*
                    Self::Unknown(_) => &OpcodeInfo {
                        name: "UNKNOWN",
                        operation: Operation::Unknown,
                        position: Position::Only,
                        headers: &[],
                        places: const { Places::of(&[]) },
                        payload: PayloadRule::Any,
                    },
                }
            }
        }

        impl From<u8> for Opcode {
            #[inline]
            fn from(code: u8) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    unknown => Self::Unknown(unknown),
                }
            }
        }

        impl From<Opcode> for u8 {
            #[inline]
            fn from(opcode: Opcode) -> Self {
                opcode.code()
            }
        }
    };
}

opcodes! {
    // Reliable connection.
    0x00 RcSendFirst            "RC_SEND_FIRST"                      Send         First  []                         Full
    0x01 RcSendMiddle           "RC_SEND_MIDDLE"                     Send         Middle []                         Full
    0x02 RcSendLast             "RC_SEND_LAST"                       Send         Last   []                         Some
    0x03 RcSendLastWithImm      "RC_SEND_LAST_WITH_IMMEDIATE"        SendWithImm  Last   [ImmDt]                    Some
    0x04 RcSendOnly             "RC_SEND_ONLY"                       Send         Only   []                         Any
    0x05 RcSendOnlyWithImm      "RC_SEND_ONLY_WITH_IMMEDIATE"        SendWithImm  Only   [ImmDt]                    Any
    0x06 RcWriteFirst           "RC_RDMA_WRITE_FIRST"                Write        First  [Reth]                     Full
    0x07 RcWriteMiddle          "RC_RDMA_WRITE_MIDDLE"               Write        Middle []                         Full
    0x08 RcWriteLast            "RC_RDMA_WRITE_LAST"                 Write        Last   []                         Some
    0x09 RcWriteLastWithImm     "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE"  WriteWithImm Last   [ImmDt]                    Some
    0x0a RcWriteOnly            "RC_RDMA_WRITE_ONLY"                 Write        Only   [Reth]                     Any
    0x0b RcWriteOnlyWithImm     "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"  WriteWithImm Only   [Reth, ImmDt]              Any
    0x0c RcReadRequest          "RC_RDMA_READ_REQUEST"               ReadRequest  Only   [Reth]                     Empty
    0x0d RcReadResponseFirst    "RC_RDMA_READ_RESPONSE_FIRST"        ReadResponse First  [Aeth]                     Full
    0x0e RcReadResponseMiddle   "RC_RDMA_READ_RESPONSE_MIDDLE"       ReadResponse Middle []                         Full
    0x0f RcReadResponseLast     "RC_RDMA_READ_RESPONSE_LAST"         ReadResponse Last   [Aeth]                     Some
    0x10 RcReadResponseOnly     "RC_RDMA_READ_RESPONSE_ONLY"         ReadResponse Only   [Aeth]                     Any
    0x11 RcAck                  "RC_ACKNOWLEDGE"                     Ack          Only   [Aeth]                     Empty
    0x12 RcAtomicAck            "RC_ATOMIC_ACKNOWLEDGE"              AtomicAck    Only   [Aeth, AtomicAckEth]       Empty
    0x13 RcCmpSwap              "RC_COMPARE_SWAP"                    CmpSwap      Only   [AtomicEth]                Empty
    0x14 RcFetchAdd             "RC_FETCH_ADD"                       FetchAdd     Only   [AtomicEth]                Empty
    0x16 RcSendLastWithInv      "RC_SEND_LAST_WITH_INVALIDATE"       SendWithInv  Last   [Ieth]                     Some
    0x17 RcSendOnlyWithInv      "RC_SEND_ONLY_WITH_INVALIDATE"       SendWithInv  Only   [Ieth]                     Any
    0x1c RcFlush                "RC_FLUSH"                           Flush        Only   [Feth, Reth]               Empty
    0x1d RcAtomicWrite          "RC_ATOMIC_WRITE"                    AtomicWrite  Only   [Reth]                     Exactly(8)

    // Unreliable connection.
    0x20 UcSendFirst            "UC_SEND_FIRST"                      Send         First  []                         Full
    0x21 UcSendMiddle           "UC_SEND_MIDDLE"                     Send         Middle []                         Full
    0x22 UcSendLast             "UC_SEND_LAST"                       Send         Last   []                         Some
    0x23 UcSendLastWithImm      "UC_SEND_LAST_WITH_IMMEDIATE"        SendWithImm  Last   [ImmDt]                    Some
    0x24 UcSendOnly             "UC_SEND_ONLY"                       Send         Only   []                         Any
    0x25 UcSendOnlyWithImm      "UC_SEND_ONLY_WITH_IMMEDIATE"        SendWithImm  Only   [ImmDt]                    Any
    0x26 UcWriteFirst           "UC_RDMA_WRITE_FIRST"                Write        First  [Reth]                     Full
    0x27 UcWriteMiddle          "UC_RDMA_WRITE_MIDDLE"               Write        Middle []                         Full
    0x28 UcWriteLast            "UC_RDMA_WRITE_LAST"                 Write        Last   []                         Some
    0x29 UcWriteLastWithImm     "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE"  WriteWithImm Last   [ImmDt]                    Some
    0x2a UcWriteOnly            "UC_RDMA_WRITE_ONLY"                 Write        Only   [Reth]                     Any
    0x2b UcWriteOnlyWithImm     "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"  WriteWithImm Only   [Reth, ImmDt]              Any

    // Unreliable datagram.
    0x64 UdSendOnly             "UD_SEND_ONLY"                       Send         Only   [Deth]                     Any
    0x65 UdSendOnlyWithImm      "UD_SEND_ONLY_WITH_IMMEDIATE"        SendWithImm  Only   [Deth, ImmDt]              Any

    // Congestion notification: sixteen reserved bytes follow the BTH (RoCEv2 Annex A17.9).
    0x81 Cnp                    "CNP"                                Cnp          Only   []                         Exactly(16)

    // Extended reliable connection.
    0xa0 XrcSendFirst           "XRC_SEND_FIRST"                     Send         First  [Xrceth]                   Full
    0xa1 XrcSendMiddle          "XRC_SEND_MIDDLE"                    Send         Middle [Xrceth]                   Full
    0xa2 XrcSendLast            "XRC_SEND_LAST"                      Send         Last   [Xrceth]                   Some
    0xa3 XrcSendLastWithImm     "XRC_SEND_LAST_WITH_IMMEDIATE"       SendWithImm  Last   [Xrceth, ImmDt]            Some
    0xa4 XrcSendOnly            "XRC_SEND_ONLY"                      Send         Only   [Xrceth]                   Any
    0xa5 XrcSendOnlyWithImm     "XRC_SEND_ONLY_WITH_IMMEDIATE"       SendWithImm  Only   [Xrceth, ImmDt]            Any
    0xa6 XrcWriteFirst          "XRC_RDMA_WRITE_FIRST"               Write        First  [Xrceth, Reth]             Full
    0xa7 XrcWriteMiddle         "XRC_RDMA_WRITE_MIDDLE"              Write        Middle [Xrceth]                   Full
    0xa8 XrcWriteLast           "XRC_RDMA_WRITE_LAST"                Write        Last   [Xrceth]                   Some
    0xa9 XrcWriteLastWithImm    "XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE" WriteWithImm Last   [Xrceth, ImmDt]            Some
    0xaa XrcWriteOnly           "XRC_RDMA_WRITE_ONLY"                Write        Only   [Xrceth, Reth]             Any
    0xab XrcWriteOnlyWithImm    "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE" WriteWithImm Only   [Xrceth, Reth, ImmDt]      Any
    0xac XrcReadRequest         "XRC_RDMA_READ_REQUEST"              ReadRequest  Only   [Xrceth, Reth]             Empty
    0xad XrcReadResponseFirst   "XRC_RDMA_READ_RESPONSE_FIRST"       ReadResponse First  [Aeth]                     Full
    0xae XrcReadResponseMiddle  "XRC_RDMA_READ_RESPONSE_MIDDLE"      ReadResponse Middle []                         Full
    0xaf XrcReadResponseLast    "XRC_RDMA_READ_RESPONSE_LAST"        ReadResponse Last   [Aeth]                     Some
    0xb0 XrcReadResponseOnly    "XRC_RDMA_READ_RESPONSE_ONLY"        ReadResponse Only   [Aeth]                     Any
    0xb1 XrcAck                 "XRC_ACKNOWLEDGE"                    Ack          Only   [Aeth]                     Empty
    0xb2 XrcAtomicAck           "XRC_ATOMIC_ACKNOWLEDGE"             AtomicAck    Only   [Aeth, AtomicAckEth]       Empty
    0xb3 XrcCmpSwap             "XRC_COMPARE_SWAP"                   CmpSwap      Only   [Xrceth, AtomicEth]        Empty
    0xb4 XrcFetchAdd            "XRC_FETCH_ADD"                      FetchAdd     Only   [Xrceth, AtomicEth]        Empty
    0xb6 XrcSendLastWithInv     "XRC_SEND_LAST_WITH_INVALIDATE"      SendWithInv  Last   [Xrceth, Ieth]             Some
    0xb7 XrcSendOnlyWithInv     "XRC_SEND_ONLY_WITH_INVALIDATE"      SendWithInv  Only   [Xrceth, Ieth]             Any
    0xbc XrcFlush               "XRC_FLUSH"                          Flush        Only   [Xrceth, Feth, Reth]       Empty
    0xbd XrcAtomicWrite         "XRC_ATOMIC_WRITE"                   AtomicWrite  Only   [Xrceth, Reth]             Exactly(8)

    // Manufacturers' own (IBA table 38): what peerdma's responder keeps.
    0xe0 Sack                   "SACK"                               Sack         Only   [Sack]                     Empty
}
