//! Status codes of HSA.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use umd::Kind;

/// The result of a call, or the result of a function of the program, which the call then returns.
#[doc(alias = "hsa_status_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

/// The name, number and meaning of each code.
macro_rules! statuses {
    ($($name:ident $number:literal $c:literal $text:literal)*) => {
        impl Status {
            $(
                #[doc = $text]
                #[expect(clippy::allow_attributes, reason = "some are only translated to text")]
                #[allow(dead_code, reason = "the header's list is complete")]
                pub(crate) const $name: Self = Self($number);
            )*

            /// The meaning of a number in words.
            pub(crate) fn words(self) -> Option<&'static CStr> {
                Some(match self.0 {
                    $($number => {
                        const WORDS: &str = concat!($c, ": ", $text, "\0");
                        CStr::from_bytes_with_nul(WORDS.as_bytes()).unwrap_or_default()
                    })*
                    _ => return None,
                })
            }
        }
    };
}

statuses! {
    SUCCESS 0 "HSA_STATUS_SUCCESS" "done."
    INFO_BREAK 1 "HSA_STATUS_INFO_BREAK" "the program ended a traversal."
    INVALID_MEMORY_POOL 40 "HSA_STATUS_ERROR_INVALID_MEMORY_POOL" "there is no such memory pool."
    MEMORY_APERTURE_VIOLATION 41 "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION"
        "an address beyond the agent's memory."
    ILLEGAL_INSTRUCTION 42 "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION" "not an instruction of the agent."
    MEMORY_FAULT 43 "HSA_STATUS_ERROR_MEMORY_FAULT" "an address that the agent cannot reach."
    CU_MASK_REDUCED 44 "HSA_STATUS_CU_MASK_REDUCED"
        "done, but for compute units that the process may not have."
    ERROR 0x1000 "HSA_STATUS_ERROR" "an error without a number of its own."
    INVALID_ARGUMENT 0x1001 "HSA_STATUS_ERROR_INVALID_ARGUMENT" "an argument is invalid."
    INVALID_QUEUE_CREATION 0x1002 "HSA_STATUS_ERROR_INVALID_QUEUE_CREATION"
        "the agent has no such queues."
    INVALID_ALLOCATION 0x1003 "HSA_STATUS_ERROR_INVALID_ALLOCATION"
        "no allocation of the kind that is needed."
    INVALID_AGENT 0x1004 "HSA_STATUS_ERROR_INVALID_AGENT" "there is no such agent, or it cannot do this."
    INVALID_REGION 0x1005 "HSA_STATUS_ERROR_INVALID_REGION" "there is no such region."
    INVALID_SIGNAL 0x1006 "HSA_STATUS_ERROR_INVALID_SIGNAL" "there is no such signal."
    INVALID_QUEUE 0x1007 "HSA_STATUS_ERROR_INVALID_QUEUE" "there is no such queue."
    OUT_OF_RESOURCES 0x1008 "HSA_STATUS_ERROR_OUT_OF_RESOURCES"
        "no memory, no descriptor, or no device."
    INVALID_PACKET_FORMAT 0x1009 "HSA_STATUS_ERROR_INVALID_PACKET_FORMAT" "not a packet."
    RESOURCE_FREE 0x100a "HSA_STATUS_ERROR_RESOURCE_FREE" "the resource to release does not exist."
    NOT_INITIALIZED 0x100b "HSA_STATUS_ERROR_NOT_INITIALIZED" "hsa_init was not called."
    REFCOUNT_OVERFLOW 0x100c "HSA_STATUS_ERROR_REFCOUNT_OVERFLOW" "hsa_init was called too often."
    INCOMPATIBLE_ARGUMENTS 0x100d "HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS"
        "arguments that do not go together."
    INVALID_INDEX 0x100e "HSA_STATUS_ERROR_INVALID_INDEX" "there is no such index."
    INVALID_ISA 0x100f "HSA_STATUS_ERROR_INVALID_ISA" "there is no such instruction set."
    INVALID_CODE_OBJECT 0x1010 "HSA_STATUS_ERROR_INVALID_CODE_OBJECT" "not a code object."
    INVALID_EXECUTABLE 0x1011 "HSA_STATUS_ERROR_INVALID_EXECUTABLE" "there is no such executable."
    FROZEN_EXECUTABLE 0x1012 "HSA_STATUS_ERROR_FROZEN_EXECUTABLE" "the executable is frozen."
    INVALID_SYMBOL_NAME 0x1013 "HSA_STATUS_ERROR_INVALID_SYMBOL_NAME" "no symbol has this name."
    VARIABLE_ALREADY_DEFINED 0x1014 "HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED"
        "the variable is defined."
    VARIABLE_UNDEFINED 0x1015 "HSA_STATUS_ERROR_VARIABLE_UNDEFINED" "the variable is not defined."
    EXCEPTION 0x1016 "HSA_STATUS_ERROR_EXCEPTION" "an instruction trapped."
    INVALID_ISA_NAME 0x1017 "HSA_STATUS_ERROR_INVALID_ISA_NAME"
        "no instruction set has this name."
    INVALID_CODE_SYMBOL 0x1018 "HSA_STATUS_ERROR_INVALID_CODE_SYMBOL" "not a symbol of code."
    INVALID_EXECUTABLE_SYMBOL 0x1019 "HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL"
        "not a symbol of an executable."
    INVALID_FILE 0x1020 "HSA_STATUS_ERROR_INVALID_FILE" "the descriptor's file cannot be used."
    INVALID_CODE_OBJECT_READER 0x1021 "HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER"
        "not a reader of code objects."
    INVALID_CACHE 0x1022 "HSA_STATUS_ERROR_INVALID_CACHE" "there is no such cache."
    INVALID_WAVEFRONT 0x1023 "HSA_STATUS_ERROR_INVALID_WAVEFRONT" "there is no such wavefront."
    INVALID_SIGNAL_GROUP 0x1024 "HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP"
        "there is no such group of signals."
    INVALID_RUNTIME_STATE 0x1025 "HSA_STATUS_ERROR_INVALID_RUNTIME_STATE"
        "the runtime can no longer be configured."
    FATAL 0x1026 "HSA_STATUS_ERROR_FATAL" "a queue met what the process cannot survive."
}

/// Why a call is refused.
pub(crate) type Refusal = umd::Refused<Status>;

/// A result, or why the call is refused.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(&words.to_string_lossy()),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// An invalid argument.
pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Status::INVALID_ARGUMENT, what)
}

/// The status for each kind of refusal that all drivers share.
impl From<Kind> for Status {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Invalid | Kind::Null | Kind::NotPermitted | Kind::Destroyed => {
                Self::INVALID_ARGUMENT
            }
            Kind::NoMemory | Kind::System => Self::OUT_OF_RESOURCES,
            Kind::NotSupported | Kind::Unavailable | Kind::Busy | Kind::Unknown => Self::ERROR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_told_with_its_name_and_no_other_is() {
        let words = |number| Status(number).words().map(|words| words.to_str().expect("ASCII"));
        assert!(words(0x1003).is_some_and(|it| it.starts_with("HSA_STATUS_ERROR_INVALID_ALLOC")));
        assert_eq!((words(2), words(0x1027)), (None, None));
    }
}
