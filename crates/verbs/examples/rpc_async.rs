//! Remote procedure calls as futures: a server of many clients that receives for all of them from
//! one shared queue, whichever calls next. The clients are those of `rpc`.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example rpc_async       # the server prints its address
//! cargo run --release -p peerdma-verbs --example rpc HOST:PORT   # a client; three of them
//! ```

mod meet;

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use meet::Outcome;
use verbs::Qpn;
use verbs::aio::{
    Connection, ConnectionOptions, Drive, Error, Listener, Message, Nic, QpOptions, Srq, SrqOptions,
};
use verbs::owned::Pool;

const SLOTS: u32 = 64;
const CLIENTS: u32 = 3;

/// What comes next.
enum Next {
    Client(Connection),
    Call(Qpn, Result<Message, Error>),
}

fn main() -> Outcome<()> {
    pollster::block_on(serve())
}

async fn serve() -> Outcome<()> {
    let nic = Nic::new(&verbs::devices()?[0].open()?, Drive::default())?;
    // As much memory as there are calls at once, however many clients there are.
    let srq = nic.create_srq(&SrqOptions { receives: SLOTS, receive_length: 8 }, 4096)?;
    let qp = QpOptions { srq: Some(srq.clone()), sends: 16, inline: 8, ..QpOptions::default() };
    let options = ConnectionOptions { qp, ..ConnectionOptions::default() };
    let pool = Pool::new(nic.pd(), 8, SLOTS)?;
    let here = nic.ip_addr().ok_or("the NIC has no address")?;
    let listener = nic.listen(SocketAddr::new(here, 0))?;
    println!("{}", listener.local_addr());
    let (mut clients, mut early, mut served) = (HashMap::new(), Vec::<Message>::new(), 0);
    while served < CLIENTS {
        match next(&listener, &options, &srq).await? {
            Next::Client(client) => {
                let of_client = |message: &mut Message| message.wc().qpn == client.qpn();
                for call in early.extract_if(.., of_client) {
                    answer(&client, &call, &pool).await?;
                }
                clients.insert(client.qpn(), client);
            }
            Next::Call(qpn, Ok(call)) => match clients.get(&qpn) {
                Some(client) => answer(client, &call, &pool).await?,
                // It was faster than the last message of the handshake.
                None => early.push(call),
            },
            Next::Call(qpn, Err(_)) => served += u32::from(clients.remove(&qpn).is_some()),
        }
    }
    println!("{served} clients were served");
    Ok(())
}

/// A client or a call, whichever comes first.
async fn next(listener: &Listener, options: &ConnectionOptions, srq: &Srq) -> Outcome<Next> {
    let mut accepted = pin!(listener.accept_with(options));
    let next = poll_fn(|cx| match accepted.as_mut().poll(cx) {
        Poll::Ready(client) => Poll::Ready(client.map(Next::Client)),
        Poll::Pending => srq.poll_recv(cx).map(|(qpn, call)| Ok(Next::Call(qpn, call))),
    });
    Ok(next.await?)
}

async fn answer(client: &Connection, call: &[u8], pool: &Pool) -> Outcome<()> {
    let number = u64::from_be_bytes(call.try_into()?);
    let mut answer = pool.take().await;
    answer.fill_with(&number.pow(2).to_be_bytes());
    // A client that is gone needs none, and its end comes next.
    let (_result, _answer) = client.send(answer).await;
    Ok(())
}
