//! The structures of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>` as of rdma-core 65: what a
//! compiled program and this library both read.
//!
//! The header's inline functions reach through these structures, so their layout is the ABI as much
//! as the symbols are. Field names are C's. Enumerations are plain integers, because a C program
//! may store any value in them. What a program only hands around (`struct ibv_counters`, ...) is an
//! opaque pointer here.
//!
//! Structures grow at their end (`ibv_port_attr`, `ibv_device_attr_ex`), and a program built with
//! an older header has less room: such calls carry the size, and nothing may be written beyond it.
//! `verbs_context` grows at its *start*: the `ibv_context` that programs hold is its last field,
//! and `sz` says how far it reaches before that.
//!
//! [`c_struct!`] declares each structure once and, in tests, also lists its fields, so that
//! `layout` can compare all of them with the C compiler's.

use std::ffi::{c_int, c_uint, c_void};

pub(crate) mod ah;
pub(crate) mod comp_cntr;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod event;
pub(crate) mod flow;
pub(crate) mod mr;
pub(crate) mod ops;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod rdma;
pub(crate) mod srq;
pub(crate) mod wc;
pub(crate) mod wr;

/// Something a program passes and this library does not look into.
pub(crate) type Opaque = c_void;

/// A function pointer that this library leaves NULL: the inline functions of the header then answer
/// EOPNOTSUPP.
pub(crate) type Absent = Option<extern "C" fn()>;

/// An enumeration of C without negative values.
pub(crate) type CEnum = c_uint;

/// An enumeration of C with negative values.
pub(crate) type CSignedEnum = c_int;

/// A field of a C structure: name, offset, size.
#[cfg(test)]
pub(crate) type Field = (&'static str, usize, usize);

/// A structure that C knows too.
#[cfg(test)]
pub(crate) trait Layout: Sized {
    /// Its C name, with `struct` or `union`.
    const C: &'static str;

    /// Its fields, named as in C.
    fn fields() -> Vec<Field>;
}

/// Declares a structure with C's layout: `pub(crate) struct Name = "struct c_name" { fields }`.
macro_rules! c_struct {
    (
        $(#[$meta:meta])*
        pub(crate) struct $name:ident = $c:literal {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[doc(alias = $c)]
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $ty,)*
        }

        #[cfg(test)]
        impl $crate::abi::types::Layout for $name {
            const C: &'static str = $c;

            fn fields() -> Vec<$crate::abi::types::Field> {
                vec![$((
                    stringify!($field).trim_start_matches("r#"),
                    std::mem::offset_of!($name, $field),
                    size_of::<$ty>(),
                ),)*]
            }
        }
    };
}
pub(crate) use c_struct;
