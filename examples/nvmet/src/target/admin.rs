//! Commands of the admin queue (NVMe 1.4, 5).

use crate::target::controller::Controller;
use crate::target::io::MAX_DATA;
use crate::target::subsystem::MAX_NSID;
use crate::target::{identify, log};
use crate::wire::capsule::opcode;
use crate::wire::{Command, Status};

/// Features.
pub mod feature {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    pub const KATO: u8 = 0x0f;
    pub const HOST_ID: u8 = 0x81;
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Outcome {
    /// It is done, with this result.
    Done(u64),
    /// These bytes go to the host.
    Data(Vec<u8>),
    /// It is answered when there is an event.
    Held,
}

/// Carries out a command of a controller that is ready.
///
/// # Errors
///
/// The status for the host.
pub fn execute(controller: &Controller, command: &Command) -> Result<Outcome, Status> {
    let data = command.data()?;
    let cdw10 = command.cdw10.get();
    let is_discovery = controller.discovery().is_some();
    let outcome = match command.opcode {
        opcode::IDENTIFY => Outcome::Data(identify(controller, command)?),
        opcode::GET_LOG_PAGE => Outcome::Data(get_log_page(controller, command)?),
        opcode::KEEP_ALIVE => {
            controller.keep_alive();
            Outcome::Done(0)
        }
        opcode::SET_FEATURES => Outcome::Done(set_features(controller, command)?),
        opcode::GET_FEATURES => Outcome::Done(get_features(controller, cdw10)?),
        opcode::ASYNC_EVENT_REQUEST => Outcome::Held,
        // The command that it names runs to its end: bit 0 says that it was not aborted.
        opcode::ABORT if !is_discovery => Outcome::Done(1),
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    if let Outcome::Data(bytes) = &outcome {
        data.expect_len(bytes.len() as u64)?;
    }
    Ok(outcome)
}

fn identify(controller: &Controller, command: &Command) -> Result<Vec<u8>, Status> {
    let (subsystem, nsid) = (controller.subsystem(), command.nsid.get());
    let discovery = controller.discovery();
    // CAST: the low byte.
    match (command.cdw10.get() as u8, discovery) {
        (0x01, _) => Ok(identify::controller(controller.cntlid(), subsystem, discovery)),
        (0x00, None) if nsid == 0 || nsid > MAX_NSID => Err(Status::INVALID_NAMESPACE.dnr()),
        (0x00, None) => Ok(identify::namespace(subsystem.namespace(nsid).as_deref())),
        (0x02, None) if nsid >= 0xffff_fffe => Err(Status::INVALID_NAMESPACE.dnr()),
        (0x02, None) => Ok(identify::active_list(subsystem, nsid)),
        (0x03, None) => match subsystem.namespace(nsid) {
            Some(namespace) => Ok(identify::descriptors(&namespace)),
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        },
        // A page of the NVM command set, which is set 0 and defines no fields: all zeros.
        (0x05, None) if command.cdw11.get() >> 24 == 0 => match subsystem.namespace(nsid) {
            Some(_) => Ok(vec![0; identify::PAGE]),
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        },
        (0x06, None) if command.cdw11.get() >> 24 == 0 => Ok(vec![0; identify::PAGE]),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// Retain Asynchronous Event: a bit of Get Log Page.
const RETAIN: u32 = 1 << 15;

fn get_log_page(controller: &Controller, command: &Command) -> Result<Vec<u8>, Status> {
    let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
    let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xffff) << 16;
    let len = (dwords + 1) * 4;
    let offset = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
    // CAST: the low byte.
    let number = cdw10 as u8;
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    if len > MAX_DATA.into() || !offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    command.data()?.expect_len(len)?;
    // No page is longer: such a command is refused, and takes no event.
    let retain = cdw10 & RETAIN != 0 || offset > identify::PAGE;
    let page = log::page(controller, number, retain)?;
    if offset > page.len() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    // Beyond its end a page reads as zeros. CAST: checked above.
    let mut bytes = page[offset..].to_vec();
    bytes.resize(len as usize, 0);
    Ok(bytes)
}

/// As many queues of each kind as the host asks for, up to the limit.
fn queues(controller: &Controller, asked: u32) -> Result<u64, Status> {
    let most = u32::from(controller.subsystem().queues()) - 1;
    let (submission, completion) = (asked & 0xffff, asked >> 16);
    if submission == 0xffff || completion == 0xffff {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok((submission.min(most) | completion.min(most) << 16).into())
}

fn set_features(controller: &Controller, command: &Command) -> Result<u64, Status> {
    let value = command.cdw11.get();
    // CAST: the low byte.
    match command.cdw10.get() as u8 {
        feature::NUMBER_OF_QUEUES if controller.discovery().is_none() => queues(controller, value),
        feature::KATO => {
            controller.set_kato(value);
            Ok(0)
        }
        feature::ASYNC_EVENT_CONFIG => {
            controller.events(|events| events.enable(value));
            Ok(0)
        }
        // Connect has set it.
        feature::HOST_ID => Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
        feature::VOLATILE_WRITE_CACHE => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

fn get_features(controller: &Controller, cdw10: u32) -> Result<u64, Status> {
    // CAST: the low byte.
    match cdw10 as u8 {
        feature::NUMBER_OF_QUEUES if controller.discovery().is_none() => {
            queues(controller, 0xfffe_fffe)
        }
        feature::KATO => Ok(controller.kato().into()),
        feature::ASYNC_EVENT_CONFIG => Ok(controller.events(|events| events.enabled()).into()),
        feature::VOLATILE_WRITE_CACHE => Ok(1),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}
