//! Every symbol of `libpeerdma.so`, in tables: its name, its version nodes, and what answers.
//!
//! These tables are the one source of the library's symbol table. `build.rs` reads them and writes
//! the linker's version script and, for each row, the exported entry: a jump to the function that
//! implements it, or a stub that refuses by the convention of the call. `docs/VERBS_MATRIX.md` is
//! generated from the same rows. To implement a verb, write its function and change its row from
//! [`Answer::Refuse`] to [`Answer::In`].
//!
//! | table | what | library of rdma-core 65 |
//! |---|---|---|
//! | [`VERBS`] | public verbs with a symbol | `libibverbs.so.1` |
//! | [`INLINE`] | public verbs that `<infiniband/verbs.h>` turns into a call through a pointer | none |
//! | [`PRIVATE`] | what vendor libraries bind at load | `libibverbs.so.1` |
//! | [`RDMACM`] | connection manager and rsockets | `librdmacm.so.1` |
//! | [`OWN`] | what our preload library binds | none |

mod inline;
mod own;
mod private;
mod rdmacm;
mod verbs;

pub(crate) use inline::INLINE;
pub(crate) use own::OWN;
pub(crate) use private::PRIVATE;
pub(crate) use rdmacm::RDMACM;
pub(crate) use verbs::VERBS;

/// How a call says that it is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Returns the errno, positive.
    Errno,
    /// Returns -1 and sets errno.
    MinusOne,
    /// Returns NULL and sets errno.
    Null,
    /// Returns nothing, or 0, and leaves errno alone: the call has no way to fail.
    Silent,
}

/// What answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The function of the same name in this module of `abi`.
    In(&'static str),
    /// The same, and it checks its arguments, but it always refuses in the end: what it returns,
    /// and why.
    Never(&'static str, &'static str, &'static str),
    /// A stub that touches no argument, and why there is no function.
    Refuse(Refusal, &'static str),
    /// Not a function but a byte, false: a switch that vendor libraries read.
    Byte,
}

/// One exported name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// The C name.
    pub(crate) name: &'static str,
    /// The version nodes it exists in, oldest first.
    pub(crate) nodes: &'static [&'static str],
    /// Whether a program linked today may bind to it. Its newest version is then the default one
    /// (`@@`).
    pub(crate) linkable: bool,
    /// What answers.
    pub(crate) answer: Answer,
}

/// One verb that has no symbol: the header calls through a pointer in an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline {
    /// The C name.
    pub(crate) name: &'static str,
    /// The pointer the header calls through.
    pub(crate) through: &'static str,
    /// What answers. A refused verb is a NULL pointer, for which the header itself returns
    /// EOPNOTSUPP.
    pub(crate) answer: Answer,
}

const fn verb(name: &'static str, nodes: &'static [&'static str], answer: Answer) -> Symbol {
    Symbol { name, nodes, linkable: true, answer }
}

/// The version nodes in the order of the version script, each with the node it inherits from.
pub(crate) const NODES: &[(&str, Option<&str>)] = &[
    ("IBVERBS_1.0", None),
    ("IBVERBS_1.1", Some("IBVERBS_1.0")),
    ("IBVERBS_1.5", Some("IBVERBS_1.1")),
    ("IBVERBS_1.6", Some("IBVERBS_1.5")),
    ("IBVERBS_1.7", Some("IBVERBS_1.6")),
    ("IBVERBS_1.8", Some("IBVERBS_1.7")),
    ("IBVERBS_1.9", Some("IBVERBS_1.8")),
    ("IBVERBS_1.10", Some("IBVERBS_1.9")),
    ("IBVERBS_1.11", Some("IBVERBS_1.10")),
    ("IBVERBS_1.12", Some("IBVERBS_1.11")),
    ("IBVERBS_1.13", Some("IBVERBS_1.12")),
    ("IBVERBS_1.14", Some("IBVERBS_1.13")),
    ("IBVERBS_1.15", Some("IBVERBS_1.14")),
    ("IBVERBS_1.16", Some("IBVERBS_1.15")),
    ("IBVERBS_1.17", Some("IBVERBS_1.16")),
    ("IBVERBS_1.18", Some("IBVERBS_1.17")),
    ("IBVERBS_PRIVATE_34", None),
    ("IBVERBS_PRIVATE_57", None),
    ("IBVERBS_PRIVATE_59", None),
    ("IBVERBS_PRIVATE_64", None),
    ("IBVERBS_PRIVATE_65", None),
    ("PEERDMA_PRIVATE_1", None),
    ("RDMACM_1.0", None),
    ("RDMACM_1.1", Some("RDMACM_1.0")),
    ("RDMACM_1.2", Some("RDMACM_1.1")),
    ("RDMACM_1.3", Some("RDMACM_1.2")),
    ("RDMACM_1.4", Some("RDMACM_1.3")),
    ("RDMACM_1.5", Some("RDMACM_1.4")),
];

/// Every exported symbol.
pub(crate) fn symbols() -> impl Iterator<Item = &'static Symbol> {
    VERBS.iter().chain(PRIVATE).chain(RDMACM).chain(OWN)
}
