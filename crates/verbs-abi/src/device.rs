//! Devices, ports and what they say of themselves.

use std::ffi::{c_char, c_int, c_uint};

use crate::{Absent, CEnum, CSignedEnum, c_struct};

/// Room for the name of a device.
#[doc(alias = "IBV_SYSFS_NAME_MAX")]
pub const SYSFS_NAME_MAX: usize = 64;

/// Room for a path in sysfs.
#[doc(alias = "IBV_SYSFS_PATH_MAX")]
pub const SYSFS_PATH_MAX: usize = 256;

/// A GID. Aligned as C's union with two 64-bit halves is.
#[derive(Clone, Copy)]
#[doc(alias = "ibv_gid")]
#[repr(C, align(8))]
pub struct Gid {
    /// In network order.
    pub raw: [u8; 16],
}

c_struct! {
    /// A device that can be opened.
    pub struct Device = "struct ibv_device" {
        /// Obsolete and never called.
        _ops: [Absent; 2],
        node_type: CSignedEnum,
        transport_type: CSignedEnum,
        name: [c_char; SYSFS_NAME_MAX],
        /// Name of the character device that a kernel would have.
        dev_name: [c_char; SYSFS_NAME_MAX],
        /// Path of that device's class entry in sysfs.
        dev_path: [c_char; SYSFS_PATH_MAX],
        /// Path of the InfiniBand class entry in sysfs, which programs append file names to.
        ibdev_path: [c_char; SYSFS_PATH_MAX],
    }
}

c_struct! {
    /// Limits of a device. `node_guid` and `sys_image_guid` are in network order.
    #[derive(Clone, Copy, Debug)]
    pub struct DeviceAttr = "struct ibv_device_attr" {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: CEnum,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
}

c_struct! {
    /// Which operations of each transport may fault pages in.
    #[derive(Clone, Copy)]
    pub struct OdpCaps = "struct ibv_odp_caps" {
        general_caps: u64,
        /// C nests these three: RC, UC, UD.
        per_transport_caps: [u32; 3],
    }
}

c_struct! {
    /// Segmentation of raw packets.
    #[derive(Clone, Copy)]
    pub struct TsoCaps = "struct ibv_tso_caps" {
        max_tso: u32,
        supported_qpts: u32,
    }
}

c_struct! {
    /// Receive side scaling of raw packets.
    #[derive(Clone, Copy)]
    pub struct RssCaps = "struct ibv_rss_caps" {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
}

c_struct! {
    /// Pacing, in kbit/s.
    #[derive(Clone, Copy)]
    pub struct PacketPacingCaps = "struct ibv_packet_pacing_caps" {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
}

c_struct! {
    /// Tag matching.
    #[derive(Clone, Copy)]
    pub struct TmCaps = "struct ibv_tm_caps" {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }
}

c_struct! {
    /// Moderation of completion events; the period is in microseconds.
    #[derive(Clone, Copy)]
    pub struct CqModerationCaps = "struct ibv_cq_moderation_caps" {
        max_cq_count: u16,
        max_cq_period: u16,
    }
}

c_struct! {
    /// Operand sizes of PCI atomics, as bits.
    #[derive(Clone, Copy)]
    pub struct PciAtomicCaps = "struct ibv_pci_atomic_caps" {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }
}

c_struct! {
    /// Everything a device says. A program passes how much of it it has room for.
    #[derive(Clone, Copy)]
    pub struct DeviceAttrEx = "struct ibv_device_attr_ex" {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: OdpCaps,
        completion_timestamp_mask: u64,
        /// In kHz.
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: TsoCaps,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        packet_pacing_caps: PacketPacingCaps,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_mod_caps: CqModerationCaps,
        max_dm_size: u64,
        pci_atomic_caps: PciAtomicCaps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
}

c_struct! {
    /// The question of `ibv_query_device_ex`; no bit of it means anything yet.
    pub struct QueryDeviceExInput = "struct ibv_query_device_ex_input" {
        comp_mask: u32,
    }
}

c_struct! {
    /// The state of a port. `ibv_query_port` the symbol writes no further than `flags`; the
    /// header's inline function passes the program's size.
    #[derive(Clone, Copy, Debug)]
    pub struct PortAttr = "struct ibv_port_attr" {
        state: CEnum,
        max_mtu: CEnum,
        active_mtu: CEnum,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32,
    }
}

c_struct! {
    /// A GID, where it stands, and the interface it belongs to.
    #[derive(Clone, Copy)]
    pub struct GidEntry = "struct ibv_gid_entry" {
        gid: Gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
}
