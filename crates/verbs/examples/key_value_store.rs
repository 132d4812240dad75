//! A key-value store whose clients look values up by one-sided READs, without a lock and without
//! the server: it changes values at the same time, and a look-up that met a change is done again.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example key_value_store             # the server prints its address
//! cargo run --release -p peerdma-verbs --example key_value_store HOST:PORT   # the client
//! ```

mod meet;

use std::io::Write;
use std::net::TcpStream;

use meet::{Outcome, exchange, listen, receive, tell};
use verbs::aio::{self, QpOptions};
use verbs::owned::{RemoteSlice, Shared};
use verbs::{Access, Pd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SLOTS: u64 = 1024;
const KEYS: u64 = 600;
const LOOK_UPS: u64 = 20_000;

/// A slot of the table. A READ may find it half changed: then the sum is wrong.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    key: u64, // 0: empty
    version: u64,
    value: [u64; 5],
    sum: u64,
}

impl Slot {
    fn new(key: u64, version: u64) -> Self {
        let slot = Self { key, version, value: [key ^ version; 5], sum: 0 };
        Self { sum: slot.summed(), ..slot }
    }

    fn summed(&self) -> u64 {
        let words = [self.key, self.version].into_iter().chain(self.value);
        words.fold(1, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Where a key is looked for first; then in the slots behind.
fn first(key: u64) -> u64 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % SLOTS
}

fn main() -> Outcome<()> {
    let context = verbs::devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let cq = aio::Cq::polled(&context, 64)?;
    let qp = cq.create_qp(&pd, &QpOptions { sends: 1, receives: 0, ..QpOptions::default() })?;
    let server = std::env::args().nth(1);
    let mut peer = match &server {
        Some(address) => TcpStream::connect(address)?,
        None => listen()?,
    };
    qp.connect(&exchange(qp.endpoint()?, &mut peer)?)?;
    if server.is_none() {
        return serve(&pd, peer);
    }
    let table = RemoteSlice::from_bytes(&receive(&mut peer)?)?;
    pollster::block_on(look_up(&qp, table))?;
    tell(&mut peer)
}

fn serve(pd: &Pd, mut client: TcpStream) -> Outcome<()> {
    let table = Shared::<Slot>::new(pd, SLOTS as usize, Access::REMOTE_READ)?;
    let mut slots = Vec::new();
    for key in 1..=KEYS {
        let places = (first(key)..).map(|place| (place % SLOTS) as usize);
        slots.extend(places.take(1000).find(|place| table.get(*place).key == 0));
        table.set(slots[key as usize - 1], Slot::new(key, 1));
    }
    client.write_all(&table.remote().to_bytes())?;
    client.set_nonblocking(true)?;
    let mut version = 1;
    while client.peek(&mut [0]).is_err() {
        version += 1;
        for (place, key) in slots.iter().zip(1..) {
            table.set(*place, Slot::new(key, version));
        }
    }
    println!("the client is done");
    Ok(())
}

async fn look_up(qp: &aio::Qp, table: RemoteSlice<Slot>) -> Outcome<()> {
    let mut buffer = qp.pd().register(vec![0; size_of::<Slot>()])?;
    let (mut newest, mut again) = (vec![0; KEYS as usize + 1], 0);
    for turn in 0..LOOK_UPS {
        let (key, mut place) = (turn % KEYS + 1, first(turn % KEYS + 1));
        let slot = loop {
            let (result, back) = qp.read(buffer, table.at(place).ok_or("no such slot")?).await;
            result?;
            buffer = back;
            let slot = Slot::read_from_bytes(&buffer).map_err(|_| "a slot of another size")?;
            match (slot.sum == slot.summed(), slot.key) {
                (false, _) => again += 1,
                (true, 0) => return Err("a key is not in the table".into()),
                (true, found) if found == key => break slot,
                (true, _) => place = (place + 1) % SLOTS,
            }
        };
        let before = std::mem::replace(&mut newest[key as usize], slot.version);
        assert!(slot.version >= before && slot.value == [key ^ slot.version; 5], "an old value");
    }
    println!("{LOOK_UPS} look-ups, every value whole and none older than the one before");
    println!("{again} slots were read again, since the server was changing them");
    Ok(())
}
