//! The objects of all processes: how many of each kind, all of a kind, one by its number.
//!
//! Numbers of queue pairs are a NIC's. All others are a process's, and become a NIC's with the VF
//! of the process in front ([`number`]).

use view::{Address, CmId, Cq, Gathered, Mr, Pd, Process, Qp, Srq};

use super::devices::handle;
use super::message::{Attributes, Message, Request};
use super::numbers::{attr, cmd};
use super::{Answer, DATAGRAM, Machine, NO_OBJECT, device, some_devices};

/// Bits of a number that are the process's own.
const OWN_BITS: u32 = 20;

/// Types of queue pairs (`enum ib_qp_type`) that have one peer, and may have a path to migrate.
const RC: u8 = 2;
const UC: u8 = 3;
const XRC_INI: u8 = 9;
const XRC_TGT: u8 = 10;

/// An object: its number, and its attributes.
type Entry = (u32, Attributes);

/// A kind of objects: the attribute of the list, of an entry, and of the number.
struct Kind {
    list: u16,
    entry: u16,
    number: u16,
    all: fn(&Gathered) -> Vec<Entry>,
}

/// `RDMA_NLDEV_CMD_RES_GET`.
pub(super) fn summary(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    let describe = |index: usize| {
        let objects = machine.objects(index);
        let count = |of: fn(&Process) -> usize| -> u64 {
            objects.processes.iter().map(|(_, _, process)| of(process) as u64).sum()
        };
        let counts = [
            ("pd", count(|process| process.pds.len())),
            ("cq", count(|process| process.cqs.len())),
            ("qp", count(|process| process.qps.len())),
            ("cm_id", count(|process| process.cm_ids.len())),
            ("mr", count(|process| process.mrs.len())),
            ("ctx", count(|process| process.contexts.len())),
            ("srq", count(|process| process.srqs.len())),
        ];
        let mut out = request.answer(port);
        handle(&mut out, index, &machine.nics()[index]);
        out.nest(attr::RES_SUMMARY, |out| {
            for (name, count) in counts {
                out.nest(attr::RES_SUMMARY_ENTRY, |out| {
                    out.text(attr::RES_SUMMARY_ENTRY_NAME, name);
                    out.u64(attr::RES_SUMMARY_ENTRY_CURR, count);
                });
            }
        });
        out.finish()
    };
    Ok(some_devices(request, machine)?.into_iter().map(describe).collect())
}

/// `RDMA_NLDEV_CMD_RES_QP_GET` and those of the other kinds: a list, or one by its number.
pub(super) fn list(request: &Request<'_>, port: u32, machine: &dyn Machine) -> Answer {
    let kind = kind(request.kind & 0x3ff);
    let index = device(request, machine)?;
    let nic = &machine.nics()[index];
    let entries = (kind.all)(&machine.objects(index));
    if !request.is_dump() {
        let wanted = request.number(kind.number).ok_or(NO_OBJECT)?;
        let (_, entry) =
            entries.into_iter().find(|(number, _)| *number == wanted).ok_or(NO_OBJECT)?;
        let mut out = request.answer(port);
        handle(&mut out, index, nic);
        out.append(&entry);
        return Ok(vec![out.finish()]);
    }
    let mut pages = Vec::new();
    let mut rest = entries.as_slice();
    loop {
        let mut out = request.answer(port);
        handle(&mut out, index, nic);
        let room = DATAGRAM - out.len();
        let mut used = 0;
        let fits = rest.iter().take_while(|(_, entry)| {
            used += entry.nested_len();
            used <= room
        });
        // No entry is longer than a page.
        let (now, later) = rest.split_at(fits.count());
        out.nest(kind.list, |out| {
            for (_, entry) in now {
                out.nest(kind.entry, |out| out.append(entry));
            }
        });
        pages.push(out.finish());
        rest = later;
        if rest.is_empty() || now.is_empty() {
            return Ok(pages);
        }
    }
}

fn kind(command: u16) -> Kind {
    use attr as a;
    let (list, entry, number, all): (_, _, _, fn(&Gathered) -> Vec<Entry>) = match command {
        cmd::RES_QP_GET => (a::RES_QP, a::RES_QP_ENTRY, a::RES_LQPN, |gathered| {
            every(gathered, |process| &process.qps, |vf, qp| (qp.qpn, describe_qp(vf, qp)))
        }),
        cmd::RES_CM_ID_GET => (a::RES_CM_ID, a::RES_CM_ID_ENTRY, a::RES_CM_IDN, |gathered| {
            every(
                gathered,
                |process| &process.cm_ids,
                |vf, id| (number(vf, id.id), describe_cm_id(vf, id)),
            )
        }),
        cmd::RES_CQ_GET => (a::RES_CQ, a::RES_CQ_ENTRY, a::RES_CQN, |gathered| {
            every(
                gathered,
                |process| &process.cqs,
                |vf, cq| (number(vf, cq.id), describe_cq(vf, cq)),
            )
        }),
        cmd::RES_MR_GET => (a::RES_MR, a::RES_MR_ENTRY, a::RES_MRN, |gathered| {
            every(
                gathered,
                |process| &process.mrs,
                |vf, mr| (number(vf, mr.id), describe_mr(vf, mr)),
            )
        }),
        cmd::RES_PD_GET => (a::RES_PD, a::RES_PD_ENTRY, a::RES_PDN, |gathered| {
            every(
                gathered,
                |process| &process.pds,
                |vf, pd| (number(vf, pd.id), describe_pd(vf, pd)),
            )
        }),
        cmd::RES_SRQ_GET => (a::RES_SRQ, a::RES_SRQ_ENTRY, a::RES_SRQN, |gathered| {
            let mut entries = Vec::new();
            for (_, pid, process) in &gathered.processes {
                for srq in &process.srqs {
                    let number = number(process.vf, srq.id);
                    entries.push((number, describe_srq(process, srq, *pid)));
                }
            }
            entries
        }),
        _ => (a::RES_CTX, a::RES_CTX_ENTRY, a::RES_CTXN, |gathered| {
            every(
                gathered,
                |process| &process.contexts,
                |vf, context| {
                    let number = number(vf, context.id);
                    (number, Attributes::new(|out| out.u32(a::RES_CTXN, number)))
                },
            )
        }),
    };
    Kind { list, entry, number, all }
}

/// The entries of all processes, each with the process that has it.
fn every<T>(
    gathered: &Gathered,
    of: fn(&Process) -> &Vec<T>,
    describe: fn(u16, &T) -> Entry,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (_, pid, process) in &gathered.processes {
        for object in of(process) {
            let (number, mut attributes) = describe(process.vf, object);
            attributes.add(|out| out.u32(attr::RES_PID, *pid));
            entries.push((number, attributes));
        }
    }
    entries
}

/// The number of an object of a process, among those of the NIC.
fn number(vf: u16, own: u32) -> u32 {
    u32::from(vf) << OWN_BITS | own & ((1 << OWN_BITS) - 1)
}

fn describe_qp(vf: u16, qp: &Qp) -> Attributes {
    let is_connected = matches!(qp.kind, RC | UC);
    Attributes::new(|out| {
        if qp.port > 0 {
            out.u32(attr::PORT_INDEX, qp.port.into());
        }
        out.u32(attr::RES_LQPN, qp.qpn);
        if is_connected {
            out.u32(attr::RES_RQPN, qp.remote_qpn.unwrap_or(0));
            out.u32(attr::RES_RQ_PSN, qp.rq_psn);
        }
        out.u32(attr::RES_SQ_PSN, qp.sq_psn);
        if is_connected || matches!(qp.kind, XRC_INI | XRC_TGT) {
            out.u8(attr::RES_PATH_MIG_STATE, qp.path_mig_state);
        }
        out.u8(attr::RES_TYPE, qp.kind);
        out.u8(attr::RES_STATE, qp.state);
        qp.pd.inspect(|pd| out.u32(attr::RES_PDN, number(vf, *pd)));
    })
}

fn describe_cm_id(vf: u16, id: &CmId) -> Attributes {
    Attributes::new(|out| {
        out.u32(attr::PORT_INDEX, 1);
        if let Some(qpn) = id.qpn {
            out.u32(attr::RES_LQPN, qpn);
            out.u8(attr::RES_TYPE, id.kind);
        }
        out.u32(attr::RES_PS, id.port_space);
        out.u8(attr::RES_STATE, id.state);
        let addresses = [(attr::RES_SRC_ADDR, &id.local), (attr::RES_DST_ADDR, &id.remote)];
        for (kind, address) in addresses {
            address.as_ref().inspect(|address| out.bytes(kind, &storage(address)));
        }
        out.u32(attr::RES_CM_IDN, number(vf, id.id));
    })
}

fn describe_cq(vf: u16, cq: &Cq) -> Attributes {
    Attributes::new(|out| {
        out.u32(attr::RES_CQE, cq.capacity);
        out.u64(attr::RES_USECNT, cq.users);
        out.u32(attr::RES_CQN, number(vf, cq.id));
        out.u32(attr::RES_CTXN, number(vf, cq.context));
    })
}

fn describe_mr(vf: u16, mr: &Mr) -> Attributes {
    Attributes::new(|out| {
        if let Some(key) = mr.key {
            out.u32(attr::RES_RKEY, key);
            out.u32(attr::RES_LKEY, key);
        }
        mr.iova.inspect(|iova| out.u64(attr::RES_IOVA, *iova));
        out.u64(attr::RES_MRLEN, mr.length);
        out.u32(attr::RES_MRN, number(vf, mr.id));
        out.u32(attr::RES_PDN, number(vf, mr.pd));
    })
}

fn describe_pd(vf: u16, pd: &Pd) -> Attributes {
    Attributes::new(|out| {
        out.u32(attr::RES_PDN, number(vf, pd.id));
        out.u64(attr::RES_USECNT, pd.users);
        out.u32(attr::RES_CTXN, number(vf, pd.context));
    })
}

/// With the numbers of the queue pairs that take receives from it, as many as a message has room
/// for.
fn describe_srq(process: &Process, srq: &Srq, pid: u32) -> Attributes {
    let most = 64;
    let users = process.qps.iter().filter(|qp| qp.srq == Some(srq.id)).take(most);
    let users: Vec<u32> = users.map(|qp| qp.qpn).collect();
    let vf = process.vf;
    Attributes::new(|out| {
        out.u32(attr::RES_SRQN, number(vf, srq.id));
        out.u8(attr::RES_TYPE, srq.kind);
        srq.pd.inspect(|pd| out.u32(attr::RES_PDN, number(vf, *pd)));
        if !users.is_empty() {
            out.nest(attr::RES_QP, |out: &mut Message| {
                for qpn in users {
                    out.nest(attr::RES_QP_ENTRY, |out| out.u32(attr::RES_LQPN, qpn));
                }
            });
        }
        out.u32(attr::RES_PID, pid);
    })
}

/// `struct sockaddr_storage`.
fn storage(address: &Address) -> [u8; size_of::<libc::sockaddr_storage>()] {
    let mut out = [0; size_of::<libc::sockaddr_storage>()];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(2, &address.port.to_be_bytes());
    match address.to_socket() {
        std::net::SocketAddr::V4(v4) => {
            // CAST: families are 16 bits.
            put(0, &(libc::AF_INET as u16).to_ne_bytes());
            put(4, &v4.ip().octets());
        }
        std::net::SocketAddr::V6(v6) => {
            put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
        }
    }
    out
}
