//! What a device and a port report about themselves.

use std::borrow::Cow;

use iba::{Gid, Guid, Mtu};

use crate::config::{NicConfig, Preset};

/// A locally administered number (IEEE 802c: the bit of value 2 in its first byte), which anyone
/// may use. It is not 0, which programs take for a missing answer.
const LOCAL_VENDOR: u32 = 0x02_7064;

/// The limits and capabilities of a device.
#[derive(Clone, Debug, Default)]
#[doc(alias = "ibv_device_attr")]
#[non_exhaustive]
pub struct DeviceAttr {
    /// The version of the library, as the firmware version.
    pub fw_ver: Cow<'static, str>,
    /// Unique to the node.
    pub node_guid: Guid,
    /// Unique to the system.
    pub sys_image_guid: Guid,
    /// Largest memory region.
    pub max_mr_size: u64,
    /// Page sizes a region may have, as a bit mask.
    pub page_size_cap: u64,
    /// Vendor, by its IEEE number: a locally administered one, as no vendor is impersonated.
    pub vendor_id: u32,
    /// Device of the vendor.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// QPs of one process.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one work request.
    pub max_sge: u32,
    /// The same for a READ.
    pub max_sge_rd: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics a QP holds as responder.
    pub max_qp_rd_atom: u32,
    /// READs and atomics a QP may have outstanding as requester.
    pub max_qp_init_rd_atom: u32,
    /// The same over all QPs.
    pub max_res_rd_atom: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one of them.
    pub max_srq_sge: u32,
    /// Multicast groups; each takes a socket.
    pub max_mcast_grp: u32,
    /// QPs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Entries of the partition table.
    pub max_pkeys: u16,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Completion counters. Each counts up to 2^64 - 1.
    #[doc(alias = "ibv_comp_cntr_caps")]
    pub max_comp_cntr: u32,
    /// What on-demand paging can do.
    pub odp: OdpCaps,
    /// What tag matching can do.
    pub tm: TmCaps,
    /// Whether there are raw packet QPs, flow steering and work queues.
    pub has_raw_packets: bool,
    /// Indirection tables of receive side scaling.
    pub max_rwq_tables: u32,
    /// Entries of one of them.
    pub max_rwq_table_size: u32,
    /// Rates that a send queue may be limited to, in kbit/s; 0 if the device does not pace packets.
    #[doc(alias = "ibv_packet_pacing_caps")]
    pub min_rate_limit: u32,
    /// See [`DeviceAttr::min_rate_limit`].
    pub max_rate_limit: u32,
    /// Ports.
    pub phys_port_cnt: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// The most completions that one event of a CQ may stand for, and the longest time that an
    /// event may be held back, in microseconds; 0 if the device does not moderate events.
    pub max_cq_moderation_count: u16,
    /// See [`DeviceAttr::max_cq_moderation_count`].
    pub max_cq_moderation_period: u16,
    /// Ticks of a completion timestamp per millisecond: they count nanoseconds.
    pub hca_core_clock_khz: u64,
}

/// What on-demand paging can do, with the bits of libibverbs; 0 is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_odp_caps")]
#[expect(clippy::exhaustive_structs, reason = "a word for the whole and one for each transport")]
pub struct OdpCaps {
    /// Whether there is any, and whether for the whole address space (`enum ibv_odp_general_caps`).
    pub general: u64,
    /// Operations of RC that may touch such memory (`enum ibv_odp_transport_cap_bits`).
    pub rc: u32,
    /// The same for UC.
    pub uc: u32,
    /// The same for UD.
    pub ud: u32,
    /// The same for XRC.
    pub xrc: u32,
}

/// What tag matching can do; all is 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_tm_caps")]
#[expect(clippy::exhaustive_structs, reason = "the fields of libibverbs")]
pub struct TmCaps {
    /// Bytes of the message of a rendezvous, with what its sender adds to the headers.
    pub max_rndv_hdr_size: u32,
    /// Receives in one list.
    pub max_num_tags: u32,
    /// Operations on one list that have not completed. As each is carried out when it is posted,
    /// there are never more.
    pub max_ops: u32,
    /// Scatter/gather elements of a receive with a tag.
    pub max_sge: u32,
}

impl TmCaps {
    fn new(config: &NicConfig) -> Self {
        match config.preset {
            // The size of the message is that of mlx5 (`MLX5_TM_MAX_RNDV_MSG_SIZE`). The other NICs
            // match no tags.
            Preset::Mlx5 => {
                Self { max_rndv_hdr_size: 64, max_num_tags: 1_024, max_ops: 1_024, max_sge: 32 }
            }
            _ => Self::default(),
        }
    }
}

impl OdpCaps {
    /// `IBV_ODP_SUPPORT` and `IBV_ODP_SUPPORT_IMPLICIT`.
    const SUPPORT: u64 = 1;
    const IMPLICIT: u64 = 1 << 1;
    /// `IBV_ODP_SUPPORT_SEND`, `_RECV`, `_WRITE`, `_READ`, `_ATOMIC`, `_SRQ_RECV`, `_FLUSH` and
    /// `_ATOMIC_WRITE`.
    const SEND: u32 = 1;
    const RECV: u32 = 1 << 1;
    const WRITE: u32 = 1 << 2;
    const READ: u32 = 1 << 3;
    const ATOMIC: u32 = 1 << 4;
    const SRQ_RECV: u32 = 1 << 5;
    const FLUSH: u32 = 1 << 6;
    const ATOMIC_WRITE: u32 = 1 << 7;

    fn new(config: &NicConfig) -> Self {
        if !config.has_odp() {
            return Self::default();
        }
        let implicit = if config.has_implicit_odp() { Self::IMPLICIT } else { 0 };
        let messages = Self::SEND | Self::RECV | Self::SRQ_RECV;
        let rc = messages | Self::WRITE | Self::READ | Self::ATOMIC;
        // An XRC endpoint supports only the older operations.
        let xrc = rc;
        let rc = rc | Self::FLUSH | Self::ATOMIC_WRITE;
        // No peer repeats what an unreliable service loses to a page fault, so on-demand receives
        // are of no use there.
        Self { general: Self::SUPPORT | implicit, rc, uc: Self::SEND, ud: Self::SEND, xrc }
    }
}

impl DeviceAttr {
    pub(crate) fn new(config: &NicConfig, guid: Guid) -> Self {
        // The widths of the two fields in mlx5's CQ context. The other NICs do not moderate for
        // programs.
        let (moderation_count, moderation_period) = match config.preset {
            Preset::Mlx5 => (u16::MAX, 0xfff),
            _ => (0, 0),
        };
        // The drivers of the other NICs have none.
        let has_raw_packets = config.preset == Preset::Mlx5;
        let has_pacing = config.preset == Preset::Mlx5;
        Self {
            fw_ver: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: 1 << 47,
            page_size_cap: 0xffff_ffff_ffff_f000,
            vendor_id: LOCAL_VENDOR,
            vendor_part_id: 0,
            hw_ver: 1,
            max_qp: 16_000,
            max_qp_wr: 32_768,
            max_sge: 32,
            max_sge_rd: 32,
            max_inline: 1_024,
            max_cq: 65_536,
            max_cqe: 4_194_303,
            max_mr: 1 << 20,
            max_mw: 1 << 20,
            max_pd: 65_536,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_res_rd_atom: 16 * 16_000,
            max_ah: 1 << 20,
            max_srq: 16_384,
            max_srq_wr: 32_767,
            max_srq_sge: 32,
            max_mcast_grp: 256,
            max_mcast_qp_attach: 1_024,
            max_pkeys: 1,
            max_dm_size: config.max_dm_size,
            max_comp_cntr: 16_384,
            odp: OdpCaps::new(config),
            tm: TmCaps::new(config),
            has_raw_packets,
            max_rwq_tables: if has_raw_packets { 4_096 } else { 0 },
            max_rwq_table_size: if has_raw_packets { 2_048 } else { 0 },
            min_rate_limit: if has_pacing { 1 } else { 0 },
            max_rate_limit: if has_pacing { 100_000_000 } else { 0 },
            phys_port_cnt: config.ports,
            num_comp_vectors: 1,
            max_cq_moderation_count: moderation_count,
            max_cq_moderation_period: moderation_period,
            hca_core_clock_khz: 1_000_000,
        }
    }
}

/// The state of a port.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_port_attr")]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether the port passes packets.
    pub active: bool,
    /// Largest MTU the device can do.
    pub max_mtu: Mtu,
    /// Largest MTU that the netdev has room for.
    pub active_mtu: Mtu,
    /// Entries of the GID table, set or not.
    pub gid_tbl_len: u32,
    /// Longest message.
    pub max_msg_sz: u32,
    /// Entries of the partition table.
    pub pkey_tbl_len: u16,
    /// Width code: 2 is 4x.
    pub active_width: u8,
    /// Speed code per lane: 32 is 25 Gb/s.
    pub active_speed: u8,
    /// Name of the netdev.
    pub netdev: String,
    /// Index of the netdev.
    pub ifindex: u32,
}

impl Default for PortAttr {
    /// A port of which nothing is known.
    fn default() -> Self {
        Self {
            active: false,
            max_mtu: Mtu::Mtu256,
            active_mtu: Mtu::Mtu256,
            gid_tbl_len: 0,
            max_msg_sz: 0,
            pkey_tbl_len: 0,
            active_width: 0,
            active_speed: 0,
            netdev: String::new(),
            ifindex: 0,
        }
    }
}

/// A GID and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_gid_entry")]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the table.
    pub index: u32,
    /// The netdev it belongs to.
    pub ifindex: u32,
}

impl GidEntry {
    /// An entry of a table that is not this device's own.
    pub const fn new(gid: Gid, index: u32, ifindex: u32) -> Self {
        Self { gid, index, ifindex }
    }
}
