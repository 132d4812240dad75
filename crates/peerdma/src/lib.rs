//! `libpeerdma.so`: the verbs, for programs that know nothing of peerdma.
//!
//! The library *is* a `libibverbs.so.1` and a `librdmacm.so.1`: the same symbols in the same
//! version nodes, the same structures, the same return values. A program linked against rdma-core
//! runs on it unchanged, by a library path or by preloading. Below the C interface is one
//! [`device`] engine per process, started by `ibv_open_device`.
//!
//! ```text
//!   ibv_reg_mr(pd, ...) ---------- a symbol --------> exports: peerdma_entry_ibv_reg_mr
//!                                                         |
//!   ibv_post_send(qp, ...)                                v
//!     = qp->context->ops.post_send ---- a pointer ---> abi::{device, context, pd, mr, dm, cq, srq, qp, ah, events}
//!                                                         |         C in, C out: pointers, errno
//!                                                         v
//!                                                     device::Hca   ids, refusals in words
//! ```
//!
//! There is no protocol here, no memory access beyond the structures that a caller passes, and no
//! state beyond what those structures must hold. Nothing runs when the library is loaded; there are
//! no constructors.
//!
//! * The tables in `abi::symbols` say which symbols exist and what implements them; `build.rs`
//!   turns them into the library's symbol table, and `docs/VERBS_MATRIX.md` is their printed form.
//! * The crate `verbs-abi` has the structures; its test compares each field with the C compiler's
//!   layout.
//! * `abi::errno` is the only place that knows errno.
//! * A panic stops at the boundary (`abi::boundary`): the call fails with EIO, and so does the
//!   device from then on.
//!
//! A program starts with
//!
//! ```c
//! struct ibv_device **list = ibv_get_device_list(NULL);
//! struct ibv_context *context = ibv_open_device(list[0]);
//! struct ibv_pd *pd = ibv_alloc_pd(context);
//! struct ibv_mr *mr = ibv_reg_mr(pd, buffer, length, IBV_ACCESS_LOCAL_WRITE);
//! ```

#[allow(unsafe_code, reason = "this is the boundary to C")]
#[cfg_attr(test, expect(dead_code, reason = "a test program exports nothing"))]
mod abi;
mod logging;
