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
//! `c_struct!` declares each structure once and, in tests, also lists its fields, so that
//! `layout` can compare all of them with the C compiler's.
#![expect(unsafe_code, reason = "the room for the operations is seen under two types")]
#![expect(
    missing_docs,
    reason = "fields and calls have C's names; their manual pages say the rest"
)]

use std::ffi::{c_int, c_uint, c_void};

#[cfg(test)]
mod layout;

pub mod ah;
pub mod comp_cntr;
pub mod context;
pub mod cq;
pub mod device;
pub mod dm;
pub mod event;
pub mod flow;
pub mod mr;
pub mod ops;
pub mod pd;
pub mod qp;
pub mod rdma;
pub mod sockaddr;
pub mod srq;
pub mod wc;
pub mod wr;

/// Something a program passes and this library does not look into.
pub type Opaque = c_void;

/// A function pointer that this library leaves NULL: the inline functions of the header then answer
/// EOPNOTSUPP.
pub type Absent = Option<extern "C" fn()>;

/// An enumeration of C without negative values.
pub type CEnum = c_uint;

/// An enumeration of C with negative values.
pub type CSignedEnum = c_int;

/// A field of a C structure: name, offset, size.
#[cfg(test)]
pub type Field = (&'static str, usize, usize);

/// A structure that C knows too.
#[cfg(test)]
pub trait Layout: Sized {
    /// Its C name, with `struct` or `union`.
    const C: &'static str;

    /// Its fields, named as in C.
    fn fields() -> Vec<Field>;
}

/// Declares a structure with C's layout: `pub struct Name = "struct c_name" { fields }`.
macro_rules! c_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident = $c:literal {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[doc(alias = $c)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        #[cfg(test)]
        impl $crate::Layout for $name {
            const C: &'static str = $c;

            fn fields() -> Vec<$crate::Field> {
                vec![$((
                    stringify!($field).trim_start_matches("r#"),
                    std::mem::offset_of!($name, $field),
                    size_of::<$ty>(),
                ),)*]
            }
        }
    };
}
use c_struct;
