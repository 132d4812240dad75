//! Log pages (NVMe 1.4, 5.14).

use std::sync::atomic::Ordering;

use crate::target::controller::{Controller, ERRORS, Failure};
use crate::target::events::CHANGED_NAMESPACES;
use crate::wire::capsule::opcode;
use crate::wire::discovery::{self, Entry};
use crate::wire::{Status, put, put_text};

const ERROR: u8 = 0x01;
const SMART: u8 = 0x02;
const FIRMWARE: u8 = 0x03;
#[doc(alias = "NVME_LOG_CMD_EFFECTS")]
const EFFECTS: u8 = 0x05;

/// Bytes of an entry of the error page.
const FAILURE_LEN: usize = 64;
const SMART_LEN: usize = 512;
const FIRMWARE_LEN: usize = 512;
const EFFECTS_LEN: usize = 4096;
/// Where the commands of I/O queues begin in the page of effects.
const IO_COMMANDS: usize = 1024;
/// A command is supported; it changes what blocks contain.
const CSUPP: u32 = 1;
const LBCC: u32 = 1 << 1;

/// A whole page. Unless the host retains the event that the page belongs to, it has taken it.
///
/// # Errors
///
/// Invalid Log Page.
pub fn page(controller: &Controller, number: u8, retain: bool) -> Result<Vec<u8>, Status> {
    match (number, controller.discovery()) {
        (discovery::LOG_PAGE, Some(addr)) => {
            let subnqn = controller.subsystem().nqn().to_owned();
            let is_for = controller.subsystem().is_for(controller.hostnqn());
            let entries = [Entry { subnqn, addr }];
            Ok(discovery::page(1, if is_for { &entries } else { &[] }))
        }
        (ERROR, _) => Ok(errors(controller)),
        (SMART, None) => Ok(smart(controller)),
        (FIRMWARE, None) => Ok(firmware()),
        (EFFECTS, None) => Ok(effects()),
        (CHANGED_NAMESPACES, None) => {
            Ok(controller.events(|events| events.changed_namespaces(retain)))
        }
        _ => Err(Status::INVALID_LOG_PAGE.dnr()),
    }
}

fn errors(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; ERRORS * FAILURE_LEN];
    let (_, failures) = controller.errors();
    for (bytes, failure) in page.chunks_exact_mut(FAILURE_LEN).zip(&failures) {
        let Failure { number, qid, command, status } = failure;
        put(bytes, &number.to_le_bytes());
        put(&mut bytes[8..], &qid.to_le_bytes());
        put(&mut bytes[10..], &command.cid.get().to_le_bytes());
        put(&mut bytes[12..], &(status.bits() << 1).to_le_bytes());
        // No byte of the command is named as the cause.
        put(&mut bytes[14..], &[0xff, 0xff]);
        put(&mut bytes[16..], &command.slba().to_le_bytes());
        put(&mut bytes[24..], &command.nsid.get().to_le_bytes());
    }
    page
}

fn smart(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; SMART_LEN];
    let counts = &controller.counts;
    // Thousands of 512 bytes, rounded up.
    let units = |bytes: u64| bytes.div_ceil(512_000);
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    // 300 K, for a device without a temperature; all of its spare blocks.
    put(&mut page[1..], &300u16.to_le_bytes());
    page[3] = 100;
    for (at, value) in [
        (32, units(load(&counts.bytes_read))),
        (48, units(load(&counts.bytes_written))),
        (64, load(&counts.reads)),
        (80, load(&counts.writes)),
        (160, load(&counts.media_errors)),
        (176, controller.errors().0),
    ] {
        put(&mut page[at..], &value.to_le_bytes());
    }
    page
}

/// Commands Supported and Effects: the commands of both kinds of queues, by opcode.
fn effects() -> Vec<u8> {
    let mut page = vec![0; EFFECTS_LEN];
    let mut at = |first: usize, opcode: u8, effects: u32| {
        put(&mut page[first + 4 * usize::from(opcode)..], &effects.to_le_bytes());
    };
    for opcode in [
        opcode::GET_LOG_PAGE,
        opcode::IDENTIFY,
        opcode::ABORT,
        opcode::SET_FEATURES,
        opcode::GET_FEATURES,
        opcode::ASYNC_EVENT_REQUEST,
        opcode::KEEP_ALIVE,
    ] {
        at(0, opcode, CSUPP);
    }
    for opcode in [
        opcode::READ,
        opcode::FLUSH,
        opcode::RESERVATION_REGISTER,
        opcode::RESERVATION_REPORT,
        opcode::RESERVATION_ACQUIRE,
        opcode::RESERVATION_RELEASE,
    ] {
        at(IO_COMMANDS, opcode, CSUPP);
    }
    for opcode in [opcode::WRITE, opcode::WRITE_ZEROES, opcode::DATASET_MANAGEMENT] {
        at(IO_COMMANDS, opcode, CSUPP | LBCC);
    }
    page
}

fn firmware() -> Vec<u8> {
    let mut page = vec![0; FIRMWARE_LEN];
    page[0] = 1;
    put_text(&mut page[8..16], env!("CARGO_PKG_VERSION"));
    page
}
