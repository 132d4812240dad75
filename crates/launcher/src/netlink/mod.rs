//! What the kernel's RDMA subsystem answers on a NETLINK_RDMA socket, for our NICs and the objects
//! of all their processes (`drivers/infiniband/core/nldev.c`).
//!
//! ```text
//!   rdma, rdma-core's discovery          door::netlink: the socket
//!                 \                        /
//!                  request -> answer -> datagrams
//!                               |
//!               devices, resources: one command each
//!                               |
//!                            Machine: the NICs, and who has what (view)
//! ```
//!
//! Devices and objects can be listed, not changed. A request that changes something is refused in
//! words, by the extended acknowledgement that `rdma` prints.

mod devices;
mod message;
mod numbers;
mod resources;

use std::sync::Arc;

use view::{Counts, Gathered};

use self::message::{NLM_F_ACK, NLM_F_REQUEST, Request};
use self::numbers::{NLDEV, attr, cmd};
use crate::sysfs::NicFacts;

/// What there is to tell of.
pub(crate) trait Machine {
    /// The NICs, by device index.
    fn nics(&self) -> &[NicFacts];
    /// The objects of a NIC now.
    fn objects(&self, nic: usize) -> Arc<Gathered>;
    /// The counters of one of its ports.
    fn counters(&self, nic: usize, port: u32) -> Counts;
}

/// The most bytes of a datagram: programs receive into a page (`MNL_SOCKET_BUFFER_SIZE`), and the
/// kernel keeps room for headers of its own in its (`NLMSG_GOODSIZE`).
const DATAGRAM: usize = 3776;

/// Why a request is refused: an errno, and words.
type Refusal = (i32, &'static str);
type Answer = Result<Vec<Vec<u8>>, Refusal>;

const UNKNOWN: Refusal = (libc::EINVAL, "this is no command of the RDMA subsystem");
const READ_ONLY: Refusal =
    (libc::EOPNOTSUPP, "devices of peerdma are configured in its file, not by netlink");
const NO_DEVICE: Refusal = (libc::EINVAL, "there is no device with this index");
const NO_PORT: Refusal = (libc::EINVAL, "the device has no port with this number");
const NO_OBJECT: Refusal = (libc::ENOENT, "no process has an object with this number");

/// The datagrams that answer what a program sent, to the program's `port`.
pub(crate) fn answer(mut bytes: &[u8], port: u32, machine: &dyn Machine) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((request, rest)) = Request::first(bytes) {
        bytes = rest;
        if request.flags & NLM_F_REQUEST == 0 {
            continue;
        }
        match command(&request, port, machine) {
            Ok(answers) => {
                out.extend(answers);
                if request.is_dump() {
                    out.push(request.done(port));
                } else if request.flags & NLM_F_ACK != 0 {
                    out.push(request.acknowledge(port, None));
                }
            }
            Err(refusal) => {
                let (errno, words) = refusal;
                tracing::info!(kind = request.kind, errno, "door: netlink: {words}");
                out.push(request.acknowledge(port, Some(refusal)));
            }
        }
    }
    out
}

fn command(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    if request.kind >> 10 != NLDEV {
        return Err(UNKNOWN);
    }
    match request.kind & 0x3ff {
        cmd::GET => devices::get(request, port, machine),
        cmd::PORT_GET => devices::ports(request, port, machine),
        cmd::SYS_GET => Ok(vec![devices::system(request, port)]),
        cmd::GET_CHARDEV => devices::chardev(request, port, machine),
        cmd::STAT_GET => devices::statistics(request, port, machine),
        cmd::RES_GET => resources::summary(request, port, machine),
        cmd::RES_QP_GET
        | cmd::RES_CM_ID_GET
        | cmd::RES_CQ_GET
        | cmd::RES_MR_GET
        | cmd::RES_PD_GET
        | cmd::RES_CTX_GET
        | cmd::RES_SRQ_GET => resources::list(request, port, machine),
        2..=31 => Err(READ_ONLY),
        _ => Err(UNKNOWN),
    }
}

/// The device that a request names, by index or by name.
fn device(request: &Request<'_>, machine: &dyn Machine) -> Result<usize, Refusal> {
    if let Some(index) = request.number(attr::DEV_INDEX) {
        let index = index as usize;
        return if index < machine.nics().len() { Ok(index) } else { Err(NO_DEVICE) };
    }
    let name = request.text(attr::DEV_NAME).ok_or((libc::EINVAL, "no device is named"))?;
    machine.nics().iter().position(|nic| nic.name == name).ok_or(NO_DEVICE)
}

/// The devices that a request is about: one, or all of them for a list.
fn some_devices(request: &Request<'_>, machine: &dyn Machine) -> Result<Vec<usize>, Refusal> {
    if request.is_dump() && request.number(attr::DEV_INDEX).is_none() {
        return Ok((0..machine.nics().len()).collect());
    }
    device(request, machine).map(|index| vec![index])
}

#[cfg(test)]
mod tests;
