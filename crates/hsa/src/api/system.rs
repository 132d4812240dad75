//! Initialisation and shutdown, and attributes of the whole system.

use std::ffi::c_char;

use crate::boundary::calls;
use crate::c::Out;
use crate::process;
use crate::status::{Refusal, Result, Status, invalid};

/// The versions of the specification, and of AMD's extensions to it.
const VERSION: [u16; 2] = [1, 1];
const EXTENSIONS: [u16; 2] = [1, 7];

/// The frequency of the clock of `HSA_SYSTEM_INFO_TIMESTAMP`.
pub(super) const CLOCK_HZ: u64 = 1_000_000_000;

/// Attributes of the system.
fn put(attribute: u32, value: Out<u8>) -> Result<()> {
    match attribute {
        0 => value.of::<u16>().put(VERSION[0]),
        1 => value.of::<u16>().put(VERSION[1]),
        // The current time, and the units per second.
        2 => value.of::<u64>().put(umd::wait::now()),
        3 => value.of::<u64>().put(CLOCK_HZ),
        // The longest wait for a signal.
        4 => value.of::<u64>().put(u64::MAX),
        // Little endian, and the large machine model.
        5 => value.of::<u32>().put(0),
        6 => value.of::<u32>().put(1),
        // Extensions: none.
        7 => value.of::<[u8; 128]>().put([0; 128]),
        // How this runtime was built.
        0x200 => value.of::<*const c_char>().put(c"peerdma".as_ptr()),
        // Shared virtual memory: supported, and accessible by default; MWAITX; the virtual memory
        // API; XNACK.
        0x201..=0x203 | 0x205 | 0x206 => value.of::<bool>().put(false),
        0x204 => {
            let gpus = &process::get()?.gpus;
            value.of::<bool>().put(gpus.iter().any(|gpu| gpu.config.dma_buf != Some(false)))
        }
        0x207 => value.of::<u16>().put(EXTENSIONS[0]),
        0x208 => value.of::<u16>().put(EXTENSIONS[1]),
        _ => Err(invalid(format!("there is no attribute {attribute:#x} of the system"))),
    }
}

calls! { CALLS:
    fn hsa_init() {
        process::init()
    }

    fn hsa_shut_down() {
        process::get()?.shut_down()
    }

    // It also answers before hsa_init.
    fn hsa_status_string(status: i32, text: Out<*const c_char>) {
        text.check()?;
        let words = Status(status).words();
        let words = words.ok_or_else(|| invalid(format!("there is no status {status:#x}")))?;
        text.put(words.as_ptr())
    }

    fn hsa_system_get_info(attribute: u32, value: Out<u8>) {
        process::get()?;
        value.check()?;
        put(attribute, value)
    }

    // There are none.
    fn hsa_system_extension_supported(
        extension: u16,
        _major: u16,
        _minor: u16,
        is_supported: Out<bool>,
    ) {
        process::get()?;
        is_supported.check()?;
        if extension > 3 && !(0x200..=0x203).contains(&extension) {
            return Err(invalid(format!("there is no extension {extension:#x}")));
        }
        is_supported.put(false)
    }
}

/// Checks the result of the program's function: anything but success ends the traversal.
pub(super) fn go_on(answer: i32) -> Result<()> {
    if answer == Status::SUCCESS.0 {
        return Ok(());
    }
    Err(Refusal::new(Status(answer), "the program's function ended the traversal"))
}
