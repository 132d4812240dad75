//! `HL_IOCTL_INFO`: what the device reports about itself.

use std::time::Duration;

use gpu::Domain;
use rustix::time::{ClockId, clock_gettime};

use super::context::Context;
use super::space::{BASE, PAGE, PAGES, refuse};
use crate::args::{Uapi, uapi};
use crate::file::File;
use crate::{Result, pointer};

uapi! {
    #[doc(alias = "hl_info_args")]
    struct Args: 24 {
        place: u64,
        size: u32,
        op: u32,
        detail: u32,
        pad: u32,
    }
    #[doc(alias = "hl_info_hw_ip_info")]
    struct HwIp: 304 {
        sram_base_address: u64,
        dram_base_address: u64,
        dram_size: u64,
        sram_size: u32,
        num_of_events: u32,
        device_id: u32,
        module_id: u32,
        decoder_enabled_mask: u32,
        first_available_interrupt_id: u16,
        server_type: u16,
        cpld_version: u32,
        psoc_pci_pll: [u32; 4],
        tpc_enabled_mask: u8,
        dram_enabled: u8,
        security_enabled: u8,
        mme_master_slave_mode: u8,
        cpucp_version: [u8; 128],
        card_name: [u8; 16],
        tpc_enabled_mask_ext: u64,
        dram_page_size: u64,
        edma_enabled_mask: u32,
        number_of_user_interrupts: u16,
        reserved_a: [u8; 2],
        reserved_b: u64,
        device_mem_alloc_default_page_size: u64,
        reserved_c: [u64; 2],
        reserved_d: u32,
        reserved_e: u8,
        revision_id: u8,
        tpc_interrupt_id: u16,
        rotator_enabled_mask: u32,
        reserved_f: u32,
        engine_core_interrupt_reg_addr: u64,
        reserved_dram_size: u64,
    }
    #[doc(alias = "hl_info_dram_usage")]
    struct DramUsage: 16 {
        free: u64,
        of_context: u64,
    }
    #[doc(alias = "hl_info_hw_idle")]
    struct HwIdle: 40 {
        is_idle: u32,
        busy: u32,
        busy_ext: [u64; 4],
    }
    #[doc(alias = "hl_info_device_status")]
    #[doc(alias = "hl_info_device_utilization")]
    struct Number: 8 {
        number: u32,
        pad: u32,
    }
    #[doc(alias = "hl_info_reset_count")]
    struct ResetCount: 8 {
        hard: u32,
        soft: u32,
    }
    #[doc(alias = "hl_info_time_sync")]
    struct TimeSync: 24 {
        device: u64,
        host: u64,
        tsc: u64,
    }
    #[doc(alias = "hl_open_stats_info")]
    struct OpenStats: 24 {
        opened: u64,
        last_ms: u64,
        is_active: u8,
        is_in_release: u8,
        pad: [u8; 6],
    }
    #[doc(alias = "hl_info_dev_memalloc_page_sizes")]
    struct PageSizes: 8 {
        bitmask: u64,
    }
}

/// Gaudi2's.
const DEVICE_ID: u32 = 0x1020;
const CARD_NAME: &[u8] = b"peerdma";

#[doc(alias = "HL_DEVICE_STATUS_IN_RESET")]
const IN_RESET: u32 = 1;

/// Answers one query. `context` is that of the program that has the device, or none if the query
/// came through the control device.
#[doc(alias = "hl_info_ioctl")]
pub(super) fn answer(file: &File, context: Option<&Context>, args: &mut Args) -> Result<()> {
    if args.pad != 0 {
        return Err(refuse(libc::EINVAL, format_args!("the padding is not zero")));
    }
    let gpu = file.node.gpu()?;
    match args.op {
        0 => give(args, &hw_ip(file)),
        // DRAM_USAGE
        2 => {
            let free = gpu.config().vram.saturating_sub(gpu.used(Domain::Vram));
            let of_context = context.map_or(0, |context| context.memory().used());
            give(args, &DramUsage { free, of_context })
        }
        // HW_IDLE, DEVICE_UTILIZATION, TIME_SYNC
        3 | 6 | 10 if !gpu.is_operational() => {
            Err(refuse(libc::EBUSY, format_args!("the device is not operational")))
        }
        3 => give(args, &HwIdle { is_idle: 1, busy: 0, busy_ext: [0; 4] }),
        4 => {
            let number = if gpu.is_operational() { 0 } else { IN_RESET };
            give(args, &Number { number, pad: 0 })
        }
        6 => give(args, &Number { number: 0, pad: 0 }),
        9 => give(args, &ResetCount { hard: 0, soft: 0 }),
        10 => {
            let now = clock_gettime(ClockId::MonotonicRaw);
            let now = Duration::try_from(now).unwrap_or_default();
            // CAST: 64 bits of nanoseconds are centuries.
            let host = now.as_nanos() as u64;
            give(args, &TimeSync { device: host, host, tsc: host })
        }
        // OPEN_STATS
        18 => {
            let is_active = u8::from(context.is_some());
            give(
                args,
                &OpenStats { opened: 1, last_ms: 0, is_active, is_in_release: 0, pad: [0; 6] },
            )
        }
        26 => give(args, &PageSizes { bitmask: PAGES }),
        28..=30 if context.is_none() => {
            Err(refuse(libc::EOPNOTSUPP, format_args!("the control device tells of no events")))
        }
        // GET_EVENTS: there never are any.
        30 if (args.size as usize) < size_of::<u64>() => Err(libc::EINVAL),
        30 => give(args, &PageSizes { bitmask: 0 }),
        op => Err(refuse(libc::EINVAL, format_args!("question {op} has no answer here"))),
    }
}

#[doc(alias = "HL_INFO_HW_IP_INFO")]
fn hw_ip(file: &File) -> HwIp {
    let config = file.node.config();
    let mut card_name = [0; 16];
    card_name[..CARD_NAME.len()].copy_from_slice(CARD_NAME);
    HwIp {
        sram_base_address: 0,
        dram_base_address: BASE,
        // Only memory that peers can reach is allocated, since no other can be exported.
        dram_size: config.visible() - config.visible() % PAGE,
        sram_size: 0,
        num_of_events: 0,
        device_id: DEVICE_ID,
        module_id: 0,
        decoder_enabled_mask: 0,
        first_available_interrupt_id: 0,
        server_type: 0,
        cpld_version: 0,
        psoc_pci_pll: [0; 4],
        tpc_enabled_mask: 0,
        dram_enabled: 1,
        security_enabled: 0,
        mme_master_slave_mode: 0,
        cpucp_version: [0; 128],
        card_name,
        tpc_enabled_mask_ext: 0,
        dram_page_size: PAGE,
        edma_enabled_mask: 0,
        number_of_user_interrupts: 0,
        reserved_a: [0; 2],
        reserved_b: 0,
        device_mem_alloc_default_page_size: PAGE,
        reserved_c: [0; 2],
        reserved_d: 0,
        reserved_e: 0,
        revision_id: 1,
        tpc_interrupt_id: 0,
        rotator_enabled_mask: 0,
        reserved_f: 0,
        engine_core_interrupt_reg_addr: 0,
        reserved_dram_size: 0,
    }
}

/// Copies an answer to the program, as much as fits.
fn give<T: Uapi>(args: &Args, answer: &T) -> Result<()> {
    if args.size == 0 || args.place == 0 {
        return Err(refuse(libc::EINVAL, format_args!("there is no room for an answer")));
    }
    let place = pointer::<u8>(args.place)?;
    let len = size_of::<T>().min(args.size as usize);
    // SAFETY: contract: the program has as much room there as it said, and this copies no more.
    unsafe { std::ptr::copy(std::ptr::from_ref(answer).cast::<u8>(), place, len) };
    Ok(())
}
