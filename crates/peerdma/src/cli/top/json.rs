//! The report for programs; docs/OBSERVE.md explains each key.

use ::gpu::Member;
use serde_json::{Map, Value, json};
use view::{
    CmId, Counter, Missing, Path, Process, Qp, cm_state_name, port_space_name, qp_state_name,
    qp_type_name,
};

use super::sample::{LOSSES, RECEIVED, Rates, SENT, Sample};

pub(super) fn of(sample: &Sample, rates: &Rates) -> Value {
    let nics = sample.nics.iter().enumerate().map(|(nic, (name, gathered))| {
        let processes = gathered.processes.iter();
        let processes = processes.map(|(comm, pid, it)| process(nic, comm, *pid, it, rates));
        json!({
            "name": name,
            "processes": processes.collect::<Vec<_>>(),
            "missing": gathered.missing.iter().map(missing).collect::<Vec<_>>(),
        })
    });
    json!({
        "nics": nics.collect::<Vec<_>>(),
        "gpus": sample.gpus.iter().map(gpu).collect::<Vec<_>>(),
    })
}

fn process(nic: usize, comm: &str, pid: u32, process: &Process, rates: &Rates) -> Value {
    let losses: Map<_, _> =
        LOSSES.iter().map(|name| ((*name).to_owned(), json!(process.counter(name)))).collect();
    json!({
        "pid": pid,
        "comm": comm,
        "vf": process.vf,
        "objects": {
            "ctx": process.contexts.len(),
            "pd": process.pds.len(),
            "cq": process.cqs.len(),
            "qp": process.qps.len(),
            "mr": process.mrs.len(),
            "srq": process.srqs.len(),
            "cm_id": process.cm_ids.len(),
            "left_out": process.left_out,
        },
        "registered_bytes": process.mrs.iter().map(|mr| mr.length).sum::<u64>(),
        "rates": {
            "sent_packets": rates.sum(nic, process, &SENT),
            "received_packets": rates.sum(nic, process, &RECEIVED),
            "direct_operations": rates.of(nic, process, "direct_operations"),
            "direct_bytes": rates.of(nic, process, "direct_bytes"),
        },
        "losses": losses,
        "qps": process.qps.iter().map(|it| qp(nic, process, it, rates)).collect::<Vec<_>>(),
        "cm_ids": process.cm_ids.iter().map(cm_id).collect::<Vec<_>>(),
        "counters": process.counts(),
        "ports": process.ports().map(port).collect::<Vec<_>>(),
        "failures": process.failures,
    })
}

fn port((number, counters): (u32, &[Counter])) -> Value {
    let counted = counters.iter().filter(|counter| counter.value > 0);
    let counted: Map<_, _> =
        counted.map(|counter| (counter.name.clone(), json!(counter.value))).collect();
    json!({ "port": number, "counters": counted })
}

fn qp(nic: usize, process: &Process, qp: &Qp, rates: &Rates) -> Value {
    let rate = rates.of_qp(nic, process, qp);
    json!({
        "qpn": qp.qpn,
        "type": qp_type_name(qp.kind),
        "state": qp_state_name(qp.state),
        "port": qp.port,
        "remote_qpn": qp.remote_qpn,
        "sq_psn": qp.sq_psn,
        "rq_psn": qp.rq_psn,
        "sends": qp.sends,
        "receives": qp.receives,
        "timeouts": qp.timeouts,
        "rates": {
            "sent_packets": rate.as_ref().map(|rate| rate.sent),
            "received_packets": rate.as_ref().map(|rate| rate.received),
        },
        "path": qp.path.as_ref().map(path),
    })
}

fn path(path: &Path) -> Value {
    json!({
        "carrier": path.carrier,
        "why": path.why,
        "peer": path.to.to_ip(),
        "vf": path.vf,
        "mtu": path.mtu,
    })
}

fn cm_id(id: &CmId) -> Value {
    json!({
        "id": id.id,
        "port_space": port_space_name(id.port_space),
        "state": cm_state_name(id.state),
        "qpn": id.qpn,
        "local": id.local.as_ref().map(view::Address::to_socket),
        "remote": id.remote.as_ref().map(view::Address::to_socket),
    })
}

fn missing(missing: &Missing) -> Value {
    let Missing { vf, pid, uid, comm, reason } = missing;
    json!({ "vf": vf, "pid": pid, "uid": uid, "comm": comm, "reason": reason })
}

fn gpu(member: &Member) -> Value {
    let view = match &member.view {
        Ok(view) => view,
        Err(why) => {
            return json!({ "name": member.gpu, "pid": member.pid, "missing": why.to_string() });
        }
    };
    let buffer = |buffer: &::gpu::BufferView| {
        json!({
            "number": buffer.number,
            "size": buffer.size,
            "place": buffer.place,
            "offset": buffer.offset,
            "pins": buffer.pins,
            "moves": buffer.moves,
            "importers": buffer.importers,
        })
    };
    json!({
        "name": view.name,
        "preset": view.preset,
        "pid": member.pid,
        "vram": view.vram,
        "vram_used": view.vram_used,
        "gtt": view.gtt,
        "gtt_used": view.gtt_used,
        "is_removed": view.is_removed,
        "buffers": view.buffers.iter().map(buffer).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::example::sample;
    use super::*;

    #[test]
    fn a_process_is_shown_with_its_queue_pairs_their_path_and_rates() {
        let at = Instant::now();
        let (before, now) = (sample(at, 1, 1), sample(at + Duration::from_secs(1), 6, 4));
        let report = of(&now, &Rates::between(&before, &now));
        let process = &report["nics"][0]["processes"][0];
        assert_eq!((&process["pid"], &process["comm"]), (&json!(4711), &json!("ping")));
        assert_eq!(process["rates"]["sent_packets"], json!(5.0));
        let qp = &process["qps"][0];
        assert_eq!((&qp["type"], &qp["state"]), (&json!("RC"), &json!("RTS")));
        assert_eq!(qp["rates"]["sent_packets"], json!(3.0));
        assert_eq!(qp["path"]["why"], json!("the address belongs to another host"));
    }
}
