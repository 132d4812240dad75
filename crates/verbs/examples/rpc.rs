//! Remote procedure calls: a server of many clients with one shared receive queue, and one thread
//! that sleeps until an event comes, of a connection or of a completion.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example rpc             # the server prints its address
//! cargo run --release -p peerdma-verbs --example rpc HOST:PORT   # a client; three of them
//! ```

mod meet;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use meet::Outcome;
use rustix::event::{PollFd, PollFlags, poll};
use verbs::aio::Connection;
use verbs::cm::{ConnParam, EventChannel, EventKind, Id};
use verbs::{Access, HostBuf, Qp, QpSpec, Qpn, SendRequest, WcOpcode};

const SLOTS: u32 = 64;
const CALLS: u64 = 1000;
const CLIENTS: u32 = 3;

fn main() -> Outcome<()> {
    match std::env::args().nth(1) {
        Some(to) => pollster::block_on(call(&to)),
        None => serve(),
    }
}

fn serve() -> Outcome<()> {
    let context = verbs::devices()?[0].open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(4 * SLOTS)?);
    // As much memory as there are calls at once, however many clients there are.
    let (srq, buffer) = (pd.create_srq(SLOTS, 1)?, HostBuf::anonymous(8 * SLOTS as usize)?);
    let mr = pd.reg_mr(&buffer, Access::LOCAL_WRITE)?;
    let receive = |slot| srq.post_recv(slot, &[mr.slice(8 * slot, 8)]);
    (0..u64::from(SLOTS)).try_for_each(receive)?;
    let channel = EventChannel::new(&context)?;
    let listener = channel.create_id()?;
    let here = context.default_gid().ok_or("the NIC has no address")?.gid.to_ip();
    println!("{}", listener.bind(SocketAddr::new(here, 0))?);
    listener.listen(16)?;
    let (mut clients, mut served) = (HashMap::<Qpn, (Id, Qp)>::new(), 0);
    while served < CLIENTS {
        cq.req_notify(false)?;
        while let Some(wc) = cq.poll() {
            let (slot, client) = (wc.wr_id, clients.get(&wc.qpn));
            match (wc.is_success(), wc.opcode, client) {
                (true, WcOpcode::Recv, Some((_, client))) => {
                    let (mut number, at) = ([0; 8], 8 * slot as usize);
                    buffer.read(at, &mut number)?;
                    buffer.write(at, &u64::from_be_bytes(number).pow(2).to_be_bytes())?;
                    // In the place of the call, which receives again when the answer is gone.
                    let answer = SendRequest::send(slot, &[mr.slice(8 * slot, 8)]);
                    client.post_send(&answer.signaled())?;
                }
                _ => receive(slot)?,
            }
        }
        let fds = [channel.as_fd(), cq.as_fd()];
        poll(&mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), None)?;
        while cq.event(Duration::ZERO)? {}
        while let Some(event) = channel.event(Duration::ZERO)? {
            match event.kind {
                EventKind::ConnectRequest { .. } => {
                    let spec = QpSpec { srq: Some(srq.clone()), ..QpSpec::rc(&cq) };
                    let qp = pd.create_qp(&spec)?;
                    event.id.accept(&qp, &ConnParam::default())?;
                    clients.insert(qp.qpn(), (event.id, qp));
                }
                EventKind::Disconnected { .. } => {
                    clients.retain(|_, (id, _)| *id != event.id);
                    served += 1;
                }
                _ => {}
            }
        }
    }
    println!("{served} clients were served");
    Ok(())
}

async fn call(to: &str) -> Outcome<()> {
    let server = Connection::connect(to).await?;
    let mut call = server.pd().register(vec![0; 8])?;
    for number in 0..CALLS {
        call.fill_with(&number.to_be_bytes());
        let (result, back) = server.send(call).await;
        result?;
        call = back;
        assert_eq!(server.recv().await?[..], (number * number).to_be_bytes(), "another's answer");
    }
    server.disconnect().await?;
    println!("{CALLS} calls, every answer right");
    Ok(())
}
