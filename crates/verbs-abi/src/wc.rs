//! Work completions.

use std::ffi::c_uint;

use crate::{CEnum, c_struct};

c_struct! {
    /// A completion. `imm_data` is in network order, or the invalidated key in host order, as
    /// `wc_flags` says.
    #[derive(Clone, Copy)]
    pub struct Wc = "struct ibv_wc" {
        wr_id: u64,
        status: CEnum,
        opcode: CEnum,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
}
