//! A peer writes into the memory of a GPU.
//!
//! ```text
//! cargo run --release -p verbs --example gpu_memory             # the target prints its address
//! cargo run --release -p verbs --example gpu_memory HOST:PORT   # the writer
//! ```
//!
//! The program that a user writes first is `target`, eight lines. The GPU is peerdma's software one; the fd of a real
//! GPU's buffer goes to `reg_dmabuf_mr` the same way.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use gpu::{Machine, Place};
use verbs::{Access, Endpoint, Gid, HostBuf, Pd, Psn, Qp, QpSpec, Qpn, RKey, Remote, SendRequest};

const LENGTH: u64 = 1 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn target(pd: &Pd, qp: &Qp, writer: &mut TcpStream) -> Outcome<()> {
    let gpu = Machine::load()?.open_first()?;
    let bo = gpu.alloc(LENGTH, Place::VRAM)?;
    let mr = pd.reg_whole_dmabuf(&bo.export()?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    meet(writer, qp, mr.remote(0))?;
    writer.read_exact(&mut [0])?; // "written": nothing completes on this side
    let mut bytes = vec![0; LENGTH as usize];
    bo.read(0, &mut bytes)?;
    println!("{LENGTH} bytes in {}, all 0x5a: {}", bo.domain()?, bytes.iter().all(|b| *b == 0x5a));
    Ok(())
}

fn writer(pd: &Pd, qp: &Qp, cq: &verbs::Cq, target: &mut TcpStream) -> Outcome<()> {
    let buffer = HostBuf::anonymous(LENGTH as usize)?;
    buffer.fill(0, 0x5a, LENGTH as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    let there = meet(target, qp, mr.remote(0))?;
    qp.post_send(&SendRequest::write(1, &[mr.slice(0, LENGTH as u32)], there).signaled())?;
    println!("wrote {LENGTH} bytes: {:?}", cq.wait()?.status);
    Ok(target.write_all(b"!")?)
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    match std::env::args().nth(1) {
        Some(address) => writer(&pd, &qp, &cq, &mut TcpStream::connect(address)?),
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?);
            target(&pd, &qp, &mut listener.accept()?.0)
        }
    }
}

/// Each tells the other where its QP and its memory are, and both connect.
fn meet(peer: &mut TcpStream, qp: &Qp, memory: Remote) -> Outcome<Remote> {
    let here = qp.endpoint()?;
    peer.write_all(&here.gid.0)?;
    for number in [here.qpn.value(), here.psn.value(), memory.rkey.0] {
        peer.write_all(&number.to_be_bytes())?;
    }
    peer.write_all(&memory.addr.to_be_bytes())?;
    let (mut gid, mut numbers, mut addr) = ([0; 16], [[0; 4]; 3], [0; 8]);
    peer.read_exact(&mut gid)?;
    for number in &mut numbers {
        peer.read_exact(number)?;
    }
    peer.read_exact(&mut addr)?;
    let [qpn, psn, rkey] = numbers.map(u32::from_be_bytes);
    qp.connect(&Endpoint { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })?;
    // Nothing may be written before the other side is connected, too.
    peer.write_all(b"!")?;
    peer.read_exact(&mut [0])?;
    Ok(Remote { addr: u64::from_be_bytes(addr), rkey: RKey(rkey) })
}
