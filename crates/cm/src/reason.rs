//! Why a request is refused.

use core::fmt;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$of:meta])* $code:ident = $value:literal, $words:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        #[allow(missing_docs, reason = "the words say it")]
        impl $name {
            $(
                $(#[$of])*
                #[doc = $words]
                pub const $code: Self = Self($value);
            )*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$code => f.write_str($words),)*
                    Self(other) => write!(f, "code {other}"),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({self})", self.0)
            }
        }
    };
}

codes! {
    /// Why a REJ was sent (IBA table 109). A peer may send values that have no name here.
    #[doc(alias = "ib_cm_rej_reason")]
    RejReason(u16) {
        NO_QP = 1, "no QP available";
        NO_EEC = 2, "no EEC available";
        NO_RESOURCES = 3, "no resources available";
        TIMEOUT = 4, "timeout";
        UNSUPPORTED = 5, "unsupported request";
        INVALID_COMM_ID = 6, "invalid communication id";
        INVALID_COMM_INSTANCE = 7, "invalid communication instance";
        INVALID_SERVICE_ID = 8, "invalid service id";
        INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
        STALE_CONN = 10, "stale connection";
        RDC_NOT_EXIST = 11, "RDC does not exist";
        INVALID_GID = 12, "primary remote port GID rejected";
        INVALID_LID = 13, "primary remote port LID rejected";
        INVALID_SL = 14, "invalid primary SL";
        INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
        INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
        INVALID_PACKET_RATE = 17, "invalid primary packet rate";
        INVALID_ALT_GID = 18, "alternate remote port GID rejected";
        INVALID_ALT_LID = 19, "alternate remote port LID rejected";
        INVALID_ALT_SL = 20, "invalid alternate SL";
        INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
        INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
        INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
        PORT_CM_REDIRECT = 24, "port and CM redirection";
        PORT_REDIRECT = 25, "port redirection";
        INVALID_MTU = 26, "invalid path MTU";
        INSUFFICIENT_RESP_RESOURCES = 27, "insufficient responder resources";
        CONSUMER_DEFINED = 28, "rejected by the consumer";
        INVALID_RNR_RETRY = 29, "RNR retry count rejected";
        DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication id";
        INVALID_CLASS_VERSION = 31, "invalid class version";
        INVALID_FLOW_LABEL = 32, "invalid primary flow label";
        INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    }
}

codes! {
    /// The outcome of a service id resolution (IBA table 121).
    #[doc(alias = "ib_cm_sidr_status")]
    SidrStatus(u8) {
        SUCCESS = 0, "valid QPN";
        UNSUPPORTED = 1, "service id not supported";
        REJECT = 2, "rejected by the service provider";
        NO_QP = 3, "no QP available";
        REDIRECT = 4, "redirection";
        UNSUPPORTED_VERSION = 5, "unsupported version";
    }
}
