//! Devices: the list of them, their attributes and those of their ports, GIDs and partition keys.

use std::cmp;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::mem::{self, offset_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use device::{EngineGuard, Hca, Kind, NicInfo, Refusal};
use iba::{HashFields, QpType};
use libc::{size_t, ssize_t};
use threads::whole::Mutex;

use super::boundary::control;
use super::errno;
use super::object::{Object, given, is_object, room};
use super::own::context::opened;
use super::pointers::Pointers;
use super::types::context::Context;
use super::types::device::{
    CqModerationCaps, Device, DeviceAttr, DeviceAttrEx, Gid, GidEntry, PacketPacingCaps, PortAttr,
    QueryDeviceExInput, RssCaps, TmCaps,
};
use super::wq::TOEPLITZ;

/// What the library keeps of a device beside what programs see.
pub(crate) struct Nic {
    info: Mutex<NicInfo>,
}

type DeviceObject = Object<Device, Nic>;

/// A device, by its address. It lives as long as the process, so that a pointer that a program kept
/// stays valid.
struct Known(*mut Device);

// SAFETY: the C part is never written after its creation, and the library's part is behind a mutex.
unsafe impl Send for Known {}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The lists that programs hold.
static LISTS: Pointers = Pointers::new();

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`: RoCE speaks InfiniBand's transport.
const TRANSPORT_IB: c_int = 0;
/// `IBV_GID_TYPE_ROCE_V2`.
const GID_TYPE_ROCE_V2: u32 = 2;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`: the same in the numbers of the private call.
const GID_TYPE_SYSFS_ROCE_V2: u32 = 1;
/// The only partition: full membership in the default one.
const PKEY: u16 = 0xffff;

/// The NIC of a device.
///
/// # Safety
///
/// `device` is from [`ibv_get_device_list`].
pub(crate) unsafe fn nic(device: *mut Device) -> NicInfo {
    // SAFETY: the caller's promise; devices are never destroyed.
    let nic = unsafe { DeviceObject::own(device) };
    nic.info.lock().clone()
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut Device {
    let report = |count: usize| {
        if !num_devices.is_null() {
            // SAFETY: contract: it is NULL or points to an int.
            unsafe { num_devices.write(count as c_int) };
        }
    };
    report(0);
    control("ibv_get_device_list", ptr::null_mut(), || {
        errno::or_null(device::nics().map(|nics| {
            let mut list: Vec<*mut Device> = nics.into_iter().map(remember).collect();
            report(list.len());
            list.push(ptr::null_mut());
            let list: *mut *mut Device = Box::into_raw(list.into_boxed_slice()).cast();
            LISTS.add(list.addr());
            list
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    if list.is_null() {
        return;
    }
    if !LISTS.remove(list.addr()) {
        tracing::info!(target: "peerdma::refusal", "ibv_free_device_list: {list:p} is no list, or was freed");
        return;
    }
    let mut length = 1;
    let mut end = list;
    // SAFETY: the list is one of ours, and ends with NULL.
    while !unsafe { end.read() }.is_null() {
        length += 1;
        end = end.wrapping_add(1);
    }
    let slice = ptr::slice_from_raw_parts_mut(list, length);
    // SAFETY: it is the boxed slice of this length that `ibv_get_device_list` gave away.
    drop(unsafe { Box::from_raw(slice) });
}

/// The device of a NIC: the known one with its attributes updated, or a new one.
fn remember(info: NicInfo) -> *mut Device {
    let mut known = KNOWN.lock();
    for Known(device) in known.iter() {
        // SAFETY: known devices are ours and never destroyed.
        let nic = unsafe { DeviceObject::own(*device) };
        let mut old = nic.info.lock();
        if old.config.name == info.config.name {
            *old = info;
            return *device;
        }
    }
    let name = &info.config.name;
    let index = info.index;
    let c = Device {
        _ops: [None; 2],
        node_type: NODE_CA,
        transport_type: TRANSPORT_IB,
        name: text(name),
        dev_name: text(&format!("uverbs{index}")),
        dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
        ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
    };
    let device = DeviceObject::create(c, Nic { info: Mutex::new(info) });
    known.push(Known(device));
    device
}

/// Text in a field of fixed size, cut so that the terminating NUL remains.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

/// The name in the structure, as in rdma-core: programs build device structures of their own to
/// test how they handle names.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    control("ibv_get_device_name", ptr::null(), || {
        let device = room(device);
        // SAFETY: contract: a device, of ours or the program's.
        if unsafe { is_object(device) } {
            // SAFETY: as above.
            let _ = unsafe { DeviceObject::own(device) };
        }
        // SAFETY: as above.
        unsafe { &raw const (*device).name }.cast()
    })
}

pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> u64 {
    // SAFETY: contract: the device is one of ours.
    control("ibv_get_device_guid", 0, || unsafe { nic(device) }.guid.0.to_be())
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut Device) -> c_int {
    // SAFETY: contract: the device is one of ours.
    control("ibv_get_device_index", -1, || unsafe { nic(device) }.index as c_int)
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut Context,
    attr: *mut DeviceAttr,
) -> c_int {
    control("ibv_query_device", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let attr = room(attr);
        errno::or_errno(open.hca.alive().map(|engine| {
            // SAFETY: contract: the program has room for the attributes.
            unsafe { attr.write(limits(&engine)) };
        }))
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input: *const QueryDeviceExInput,
    attr: *mut DeviceAttrEx,
    size: size_t,
) -> c_int {
    control("ibv_query_device_ex", libc::EIO, || {
        // SAFETY: contract: the question is NULL or valid.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
            || size < size_of::<DeviceAttr>()
        {
            return libc::EINVAL;
        }
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let attr = room(attr);
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut all: DeviceAttrEx = unsafe { mem::zeroed() };
        let engine = match open.hca.alive() {
            Ok(engine) => engine,
            Err(refusal) => return errno::of(refusal.kind()),
        };
        all.orig_attr = limits(&engine);
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags) | CAP_FLAGS_EX;
        all.completion_timestamp_mask = u64::MAX;
        all.phys_port_cnt_ex = engine.device_attr().phys_port_cnt;
        all.hca_core_clock = engine.device_attr().hca_core_clock_khz;
        all.max_dm_size = engine.device_attr().max_dm_size;
        all.cq_mod_caps = CqModerationCaps {
            max_cq_count: engine.device_attr().max_cq_moderation_count,
            max_cq_period: engine.device_attr().max_cq_moderation_period,
        };
        let odp = engine.device_attr().odp;
        all.odp_caps.general_caps = odp.general;
        all.odp_caps.per_transport_caps = [odp.rc, odp.uc, odp.ud];
        all.xrc_odp_caps = odp.xrc;
        let tm = engine.device_attr().tm;
        all.tm_caps = TmCaps {
            max_rndv_hdr_size: tm.max_rndv_hdr_size,
            max_num_tags: tm.max_num_tags,
            flags: if tm.max_num_tags > 0 { TM_CAP_RC } else { 0 },
            max_ops: tm.max_ops,
            max_sge: tm.max_sge,
        };
        let raw = engine.device_attr();
        if raw.has_raw_packets {
            all.rss_caps = RssCaps {
                supported_qpts: 1 << QpType::RawPacket as u32,
                max_rwq_indirection_tables: raw.max_rwq_tables,
                max_rwq_indirection_table_size: raw.max_rwq_table_size,
                rx_hash_fields_mask: HashFields::all().bits(),
                rx_hash_function: TOEPLITZ,
            };
            all.max_wq_type_rq = raw.max_qp;
            all.raw_packet_caps = RAW_PACKET_IP_CSUM;
        }
        if raw.max_rate_limit > 0 {
            all.packet_pacing_caps = PacketPacingCaps {
                qp_rate_limit_min: raw.min_rate_limit,
                qp_rate_limit_max: raw.max_rate_limit,
                supported_qpts: 1 << QpType::RawPacket as u32 | 1 << QpType::Rc as u32,
            };
        }
        drop(engine);
        // SAFETY: contract: the program has room for `size` bytes.
        unsafe { write_part(attr, &all, size) };
        0
    })
}

/// Writes as much of `all` as the program has room for, and zeroes the fields that it knows and we
/// do not.
///
/// # Safety
///
/// `to` has room for `size` bytes.
unsafe fn write_part<T: Copy>(to: *mut T, all: &T, size: usize) {
    let known = cmp::min(size, size_of::<T>());
    // SAFETY: the caller's promise.
    unsafe { to.cast::<u8>().write_bytes(0, size) };
    // SAFETY: the caller's promise; the two do not overlap, as `all` is ours.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(all).cast::<u8>(), to.cast(), known) };
}

/// The capabilities that `device_cap_flags` reports: `BAD_PKEY_CNTR`, `BAD_QKEY_CNTR`,
/// `UD_AV_PORT_ENFORCE`, `CURR_QP_STATE_MOD`, `PORT_ACTIVE_EVENT`, `SYS_IMAGE_GUID`,
/// `RC_RNR_NAK_GEN`, `SRQ_RESIZE`, `MEM_WINDOW`, `XRC`, `MEM_MGT_EXTENSIONS` (invalidation by work
/// requests) and `MEM_WINDOW_TYPE_2B`.
const CAP_FLAGS: u32 = 1 << 1
    | 1 << 2
    | 1 << 6
    | 1 << 7
    | 1 << 10
    | 1 << 11
    | 1 << 12
    | 1 << 13
    | 1 << 17
    | 1 << 20
    | 1 << 21
    | 1 << 24;

/// `IBV_DEVICE_MANAGED_FLOW_STEERING`.
const MANAGED_FLOW_STEERING: u32 = 1 << 29;

/// `IBV_DEVICE_RAW_IP_CSUM`.
const RAW_IP_CSUM: u32 = 1 << 26;
/// `IBV_RAW_PACKET_CAP_IP_CSUM`.
const RAW_PACKET_IP_CSUM: u32 = 1 << 2;

/// `IBV_TM_CAP_RC`.
const TM_CAP_RC: u32 = 1;

/// Bits that only the 64-bit word has room for: `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
const CAP_FLAGS_EX: u64 = 1 << 38 | 1 << 40;

fn limits(engine: &EngineGuard<'_>) -> DeviceAttr {
    let attr = engine.device_attr();
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut c: DeviceAttr = unsafe { mem::zeroed() };
    c.fw_ver = text(&attr.fw_ver);
    c.node_guid = attr.node_guid.0.to_be();
    c.sys_image_guid = attr.sys_image_guid.0.to_be();
    c.max_mr_size = attr.max_mr_size;
    c.page_size_cap = attr.page_size_cap;
    c.vendor_id = attr.vendor_id;
    c.vendor_part_id = attr.vendor_part_id;
    c.hw_ver = attr.hw_ver;
    c.max_qp = int(attr.max_qp);
    c.max_qp_wr = int(attr.max_qp_wr);
    c.device_cap_flags = CAP_FLAGS;
    if attr.has_raw_packets {
        c.device_cap_flags |= MANAGED_FLOW_STEERING | RAW_IP_CSUM;
    }
    c.max_sge = int(attr.max_sge);
    c.max_sge_rd = int(attr.max_sge_rd);
    c.max_cq = int(attr.max_cq);
    c.max_cqe = int(attr.max_cqe);
    c.max_mr = int(attr.max_mr);
    c.max_mw = int(attr.max_mw);
    c.max_pd = int(attr.max_pd);
    c.max_qp_rd_atom = int(attr.max_qp_rd_atom);
    c.max_res_rd_atom = int(attr.max_res_rd_atom);
    c.max_qp_init_rd_atom = int(attr.max_qp_init_rd_atom);
    // IBV_ATOMIC_HCA: atomic among the QPs of a device.
    c.atomic_cap = 1;
    c.max_mcast_grp = int(attr.max_mcast_grp);
    c.max_mcast_qp_attach = int(attr.max_mcast_qp_attach);
    c.max_total_mcast_qp_attach = int(attr.max_mcast_grp.saturating_mul(attr.max_mcast_qp_attach));
    c.max_ah = int(attr.max_ah);
    c.max_srq = int(attr.max_srq);
    c.max_srq_wr = int(attr.max_srq_wr);
    c.max_srq_sge = int(attr.max_srq_sge);
    c.max_pkeys = attr.max_pkeys;
    // 4.096 us * 2^15, about 134 ms: a process may not run for that long.
    c.local_ca_ack_delay = 15;
    // As uverbs: the count saturates, and `phys_port_cnt_ex` has all of it.
    c.phys_port_cnt = u8::try_from(attr.phys_port_cnt).unwrap_or(u8::MAX);
    c
}

/// The exported symbol, for programs whose header knows only the first fields of the structure.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port_num: u8,
    attr: *mut PortAttr,
) -> c_int {
    // SAFETY: contract: the program has room for the fields of old.
    unsafe { query_port(context, port_num, attr, offset_of!(PortAttr, port_cap_flags2)) }
}

/// The pointer that the header's inline function calls.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut Context,
    port_num: u8,
    attr: *mut PortAttr,
    size: size_t,
) -> c_int {
    control("ibv_query_port", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        if let Err(refusal) = check_port(&open.hca, "ibv_query_port", u32::from(port_num)) {
            return errno::of(refusal.kind());
        }
        let attr = room(attr);
        errno::or_errno(open.hca.alive().map(|engine| {
            let all = port(&engine.port_attr());
            drop(engine);
            // SAFETY: contract: the program has room for `size` bytes.
            unsafe { write_part(attr, &all, size) };
        }))
    })
}

fn port(port: &device::PortAttr) -> PortAttr {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut c: PortAttr = unsafe { mem::zeroed() };
    // IBV_PORT_ACTIVE or IBV_PORT_DOWN; physically LinkUp or Disabled (IBA 14.2.5.6).
    (c.state, c.phys_state) = if port.active { (4, 5) } else { (1, 3) };
    c.max_mtu = port.max_mtu as u32;
    c.active_mtu = port.active_mtu as u32;
    c.gid_tbl_len = c_int::try_from(port.gid_tbl_len).unwrap_or(c_int::MAX);
    // IBV_PORT_CM_SUP and IBV_PORT_IP_BASED_GIDS.
    c.port_cap_flags = 1 << 16 | 1 << 26;
    c.max_msg_sz = port.max_msg_sz;
    c.pkey_tbl_len = port.pkey_tbl_len;
    c.max_vl_num = 1;
    c.active_width = port.active_width;
    c.active_speed = port.active_speed;
    c.active_speed_ex = u32::from(port.active_speed);
    // IBV_LINK_LAYER_ETHERNET.
    c.link_layer = 2;
    // IBV_QPF_GRH_REQUIRED: every path of RoCE is global.
    c.flags = 1;
    c
}

pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut Context,
    port_num: u32,
    speed: *mut u64,
) -> c_int {
    control("ibv_query_port_speed", libc::EIO, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        if let Err(refusal) = check_port(&open.hca, "ibv_query_port_speed", port_num) {
            return errno::of(refusal.kind());
        }
        let speed = room(speed);
        let port = open.hca.lock().port_attr();
        // SAFETY: contract: the program has room for the number.
        unsafe { speed.write(lanes(port.active_width) * lane_speed(port.active_speed)) };
        0
    })
}

/// Lanes of a width code (IBA 14.2.5.6, LinkWidthActive).
const fn lanes(width: u8) -> u64 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Speed of a lane in 100 Mbit/s, by its code (IBA 14.2.5.6, LinkSpeedActive and its extensions).
const fn lane_speed(code: u8) -> u64 {
    match code {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    }
}

/// The calls take a port as the kernel's do, most of them in 8 bits: of a device with more than 255
/// ports they reach the first 255.
fn check_port(hca: &Hca, verb: &str, port_num: u32) -> Result<(), Refusal> {
    hca.lock().check_port(verb, port_num)
}

/// An entry of the GID table. An empty one has no GID.
fn gid_at(hca: &Hca, verb: &str, port_num: u32, index: u32) -> Result<Option<GidEntry>, Refusal> {
    check_port(hca, verb, port_num)?;
    let engine = hca.lock();
    let places = engine.port_attr().gid_tbl_len;
    if index >= places {
        let what = format!("{verb}: index {index}; the table has {places} entries");
        return Err(Refusal::new(Kind::Invalid, what));
    }
    Ok(engine.gids().iter().find(|entry| entry.index == index).map(|gid| gid_entry(gid, port_num)))
}

fn gid_entry(entry: &device::GidEntry, port_num: u32) -> GidEntry {
    GidEntry {
        gid: Gid { raw: entry.gid.0 },
        gid_index: entry.index,
        port_num,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port_num: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    control("ibv_query_gid", -1, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let gid = room(gid);
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let entry = gid_at(&open.hca, "ibv_query_gid", u32::from(port_num), index);
        errno::or_minus_one(entry.map(|entry| {
            // This call reports an empty entry as zeros.
            let found = entry.map_or(Gid { raw: [0; 16] }, |entry| entry.gid);
            // SAFETY: contract: the program has room for a GID.
            unsafe { gid.write(found) };
        }))
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port_num: u32,
    index: u32,
    to: *mut GidEntry,
    flags: u32,
    size: size_t,
) -> c_int {
    control("ibv_query_gid_ex", libc::EIO, || {
        if flags != 0 {
            return libc::EINVAL;
        }
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let to = room(to);
        match gid_at(&open.hca, "ibv_query_gid_ex", port_num, index) {
            Err(refusal) => errno::of(refusal.kind()),
            Ok(None) => libc::ENODATA,
            Ok(Some(entry)) => {
                // SAFETY: contract: the program has room for `size` bytes.
                unsafe { write_part(to, &entry, size) };
                0
            }
        }
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    max_entries: size_t,
    flags: u32,
    size: size_t,
) -> ssize_t {
    control("ibv_query_gid_table", -(libc::EIO as ssize_t), || {
        if flags != 0 {
            return -(libc::EINVAL as ssize_t);
        }
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let engine = open.hca.lock();
        let (gids, ports) = (engine.gids(), engine.device_attr().phys_port_cnt);
        drop(engine);
        let rows: Vec<_> = (1..=ports)
            .flat_map(|port| gids.iter().map(move |entry| gid_entry(entry, port)))
            .collect();
        // The kernel returns the whole table or nothing (`rdma_query_gid_table`).
        if max_entries == 0 || rows.len() > max_entries {
            return -(libc::EINVAL as ssize_t);
        }
        let entries = room(entries);
        for (place, row) in rows.iter().enumerate() {
            // SAFETY: contract: the program has room for `max_entries` entries of `size` bytes.
            let to = unsafe { entries.byte_add(place * size) };
            // SAFETY: as above.
            unsafe { write_part(to, row, size) };
        }
        rows.len() as ssize_t
    })
}

/// Private, but `ibv_devinfo` and libraries of rdma-core call it.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut Context,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    control("ibv_query_gid_type", -1, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let gid_type = room(gid_type);
        let entry = gid_at(&open.hca, "ibv_query_gid_type", u32::from(port_num), index);
        errno::or_minus_one(entry.map(|_| {
            // An empty entry has the type that a GID in it would have. SAFETY: contract: the
            // program has room for the type.
            unsafe { gid_type.write(GID_TYPE_SYSFS_ROCE_V2) };
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    control("ibv_query_pkey", -1, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let pkey = room(pkey);
        let port_num = u32::from(port_num);
        let found = check_port(&open.hca, "ibv_query_pkey", port_num).and_then(|()| match index {
            0 => Ok(()),
            _ => Err(Refusal::new(
                Kind::Invalid,
                format!("ibv_query_pkey: index {index}; the table has 1 entry"),
            )),
        });
        errno::or_minus_one(found.map(|()| {
            // SAFETY: contract: the program has room for a key.
            unsafe { pkey.write(PKEY.to_be()) };
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut Context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    control("ibv_get_pkey_index", -1, || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        let port_num = u32::from(port_num);
        let found = check_port(&open.hca, "ibv_get_pkey_index", port_num).and_then(|()| {
            let pkey = u16::from_be(pkey);
            if pkey == PKEY {
                return Ok(());
            }
            let what = format!("ibv_get_pkey_index: {pkey:#06x}; the port has {PKEY:#06x}");
            Err(Refusal::new(Kind::Invalid, what))
        });
        errno::or_minus_one(found)
    })
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of sysfs. Where our device has no directory there, the library answers for the
/// files that programs read through it.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    control("ibv_read_sysfs_file", -1, || {
        // SAFETY: contract: the names are C strings.
        let [directory, file] = [directory, file].map(|name| {
            // SAFETY: contract: the names are C strings.
            let first = unsafe { given(name) };
            // SAFETY: as above.
            unsafe { CStr::from_ptr(first) }
        });
        let buffer = room(buffer);
        let directory = Path::new(OsStr::from_bytes(directory.to_bytes()));
        let path = directory.join(OsStr::from_bytes(file.to_bytes()));
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) => match known_file(directory, file) {
                Some(known) => known.into_bytes(),
                None => {
                    errno::set(error.raw_os_error().unwrap_or(libc::EIO));
                    return -1;
                }
            },
        };
        let content = content.strip_suffix(b"\n").unwrap_or(&content);
        if content.len() >= size {
            errno::set(libc::EOVERFLOW);
            return -1;
        }
        // SAFETY: contract: the buffer has room for `size` bytes, and there are fewer.
        unsafe { ptr::copy_nonoverlapping(content.as_ptr().cast(), buffer, content.len()) };
        let end = buffer.wrapping_add(content.len());
        // SAFETY: as above.
        unsafe { end.write(0) };
        content.len() as c_int
    })
}

fn known_file(directory: &Path, file: &CStr) -> Option<String> {
    let name = directory.strip_prefix("/sys/class/infiniband").ok()?.to_str()?;
    let known = KNOWN.lock();
    let info = known.iter().find_map(|Known(device)| {
        // SAFETY: known devices are ours and never destroyed.
        let nic = unsafe { nic(*device) };
        (nic.config.name == name).then_some(nic)
    })?;
    Some(match file.to_bytes() {
        b"board_id" => "PEERDMA".to_owned(),
        b"fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
        b"hca_type" => "peerdma".to_owned(),
        b"hw_rev" => "1".to_owned(),
        b"node_guid" | b"sys_image_guid" => info.guid.to_string(),
        b"node_type" => "1: CA".to_owned(),
        _ => return None,
    })
}
