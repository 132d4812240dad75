//! Bytes in transit from one process to another wait in the memory of a NIC.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example dm_staging
//! ```
//!
//! A source writes messages into device memory of a relay, which sends them on from there to a
//! sink. The relay registers no host memory at all: on hardware, the forwarded bytes never cross
//! the host's bus, and need not be read back from it.

mod meet;

use std::net::TcpStream;

use meet::{Outcome, accept, connect, done, hear, offer, parent, start, tell};
use verbs::{Access, Context, HostBuf, QpSpec, SendRequest};

const SIZE: u32 = 16 << 10;
/// Places for a message in the relay's device memory.
const SLOTS: u64 = 4;
const MESSAGES: u64 = 64;

fn message(number: u64) -> Vec<u8> {
    (0..u64::from(SIZE)).map(|at| (at * 7 + at / 251 + number * 13) as u8).collect()
}

fn relay(context: &Context) -> Outcome<()> {
    let pd = context.alloc_pd()?;
    let (arrived, forwarded) = (context.create_cq(16)?, context.create_cq(16)?);
    let dm = context.alloc_dm(SLOTS * u64::from(SIZE))?;
    let staging = pd.reg_dm_mr(&dm, 0, dm.len(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (from, to) = (pd.create_qp(&QpSpec::rc(&arrived))?, pd.create_qp(&QpSpec::rc(&forwarded))?);
    let (mut source, mut sink) = (start("source")?, start("sink")?);
    connect(&from, &mut source.stream)?;
    connect(&to, &mut sink.stream)?;
    offer(&mut source.stream, staging.remote(0))?;
    for slot in 0..SLOTS {
        from.post_recv(slot, &[])?; // a WRITE with immediate data needs one, without memory
        tell(&mut source.stream)?; // the place is free
    }
    for number in 0..MESSAGES {
        done(&arrived)?;
        let place = staging.slice(number % SLOTS * u64::from(SIZE), SIZE);
        to.post_send(&SendRequest::send(number, &[place]).signaled())?;
        done(&forwarded)?;
        from.post_recv(number, &[])?;
        tell(&mut source.stream)?; // it is free again
    }
    source.wait()?;
    sink.wait()?;
    println!("{MESSAGES} messages of {SIZE} bytes came through device memory, each one correct");
    Ok(())
}

fn source(context: &Context, mut relay: TcpStream) -> Outcome<()> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let buffer = HostBuf::anonymous(SIZE as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    connect(&qp, &mut relay)?;
    let staging = accept(&mut relay)?;
    for number in 0..MESSAGES {
        hear(&mut relay)?;
        buffer.write(0, &message(number))?;
        let to = staging.add(number % SLOTS * u64::from(SIZE));
        let write = SendRequest::write_with_imm(number, &[mr.slice(0, SIZE)], to, 0);
        qp.post_send(&write.signaled())?;
        done(&cq)?;
    }
    (0..SLOTS).try_for_each(|_| hear(&mut relay))
}

fn sink(context: &Context, mut relay: TcpStream) -> Outcome<()> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let qp = pd.create_qp(&QpSpec::rc(&cq))?;
    let buffer = HostBuf::anonymous(SIZE as usize)?;
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    qp.post_recv(0, &[mr.slice(0, SIZE)])?; // before the first message can come
    connect(&qp, &mut relay)?;
    for number in 0..MESSAGES {
        let got = done(&cq)?;
        let mut bytes = vec![0; SIZE as usize];
        buffer.read(0, &mut bytes)?;
        if got.byte_len != SIZE || bytes != message(number) {
            return Err(format!("message {number} is not what the source wrote").into());
        }
        qp.post_recv(number, &[mr.slice(0, SIZE)])?; // what comes before it is sent again: RNR NAK
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    match parent()? {
        None => relay(&context),
        Some((part, stream)) if part == "source" => source(&context, stream),
        Some((_, stream)) => sink(&context, stream),
    }
}
