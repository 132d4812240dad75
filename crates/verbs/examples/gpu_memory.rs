//! A peer writes into the memory of a GPU.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example gpu_memory             # the target prints its address
//! cargo run --release -p peerdma-verbs --example gpu_memory HOST:PORT   # the writer
//! ```
//!
//! `target` is the program that a user writes first: eight lines. The GPU is peerdma's software
//! GPU; pass the fd of a real GPU's buffer to `reg_dmabuf_mr` in the same way.

mod meet;

use std::net::TcpStream;

use gpu::{Machine, Place};
use meet::{Outcome, accept, connect, done, hear, listen, offer, tell};
use verbs::{Access, Cq, HostBuf, Pd, Qp, QpSpec, SendRequest};

const LENGTH: u64 = 1 << 20;

fn target(pd: &Pd, qp: &Qp, writer: &mut TcpStream) -> Outcome<()> {
    let gpu = Machine::load()?.open_first()?;
    let bo = gpu.alloc(LENGTH, Place::VRAM)?;
    let mr = pd.reg_whole_dmabuf(&bo.export()?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    connect(qp, writer)?;
    offer(writer, mr.remote(0))?;
    hear(writer)?; // "written": nothing completes on this side
    let mut bytes = vec![0; LENGTH as usize];
    bo.read(0, &mut bytes)?;
    if bytes.iter().any(|byte| *byte != 0x5a) {
        return Err("the bytes there are not those that the peer wrote".into());
    }
    println!("{LENGTH} bytes in {}, every one correct", bo.domain()?);
    Ok(())
}

fn writer(pd: &Pd, qp: &Qp, cq: &Cq, target: &mut TcpStream) -> Outcome<()> {
    let buffer = HostBuf::anonymous(LENGTH as usize)?;
    buffer.fill(0, 0x5a, LENGTH as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    connect(qp, target)?;
    let there = accept(target)?;
    qp.post_send(&SendRequest::write(1, &[mr.slice(0, LENGTH as u32)], there).signaled())?;
    println!("wrote {LENGTH} bytes: {:?}", done(cq)?.status);
    tell(target)
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    match std::env::args().nth(1) {
        Some(address) => writer(&pd, &qp, &cq, &mut TcpStream::connect(address)?),
        None => target(&pd, &qp, &mut listen()?),
    }
}
