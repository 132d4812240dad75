//! A key-value store whose clients look values up by one-sided READs, without a lock and without
//! the server: it changes values at the same time, and a look-up that met a change is done again.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example key_value_store             # the server prints its address
//! cargo run --release -p peerdma-verbs --example key_value_store HOST:PORT   # the client
//! ```

mod meet;

use std::thread;

use meet::{Outcome, bind};
use verbs::Access;
use verbs::aio::{Connection, Listener};
use verbs::owned::{RemoteSlice, Shared};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SLOTS: u64 = 1024;
const KEYS: u64 = 600;
const LOOK_UPS: u64 = 20_000;

/// A slot of the table. A READ may find it half changed: then its words do not fit.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    key: u64, // 0: empty
    version: u64,
    value: [u64; 6],
}

/// What a value is, so that every client can tell a whole one.
fn value(key: u64, version: u64) -> [u64; 6] {
    [key ^ version; 6]
}

/// Where a key is looked for first; then in the slots behind.
fn first(key: u64) -> u64 {
    ((key * 0x9e37_79b9) >> 7) % SLOTS
}

fn main() -> Outcome<()> {
    pollster::block_on(async {
        match std::env::args().nth(1) {
            Some(to) => look_up(Connection::connect(&to).await?).await,
            None => serve(&bind().await?).await,
        }
    })
}

async fn serve(listener: &Listener) -> Outcome<()> {
    let table = Shared::<Slot>::in_file(listener.nic().pd(), SLOTS as usize, Access::REMOTE_READ)?;
    let mut slots = Vec::new();
    for key in 1..=KEYS {
        let places = (first(key)..).map(|place| (place % SLOTS) as usize);
        slots.extend(places.take(1000).find(|place| table.get(*place).key == 0));
        table.set(slots[key as usize - 1], Slot { key, version: 1, value: value(key, 1) });
    }
    let client = listener.accept().await?;
    let whole = client.pd().register(table.remote().to_bytes().to_vec())?;
    // Until this process ends.
    thread::spawn(move || {
        for version in 2.. {
            for (place, key) in slots.iter().zip(1..) {
                table.set(*place, Slot { key, version, value: value(key, version) });
            }
        }
    });
    client.send(whole).await.0?;
    println!("the client is done: {:?}", client.closed().await?);
    Ok(())
}

async fn look_up(server: Connection) -> Outcome<()> {
    let table = RemoteSlice::<Slot>::from_bytes(server.recv().await?[..].try_into()?)?;
    let mut buffer = server.pd().register(vec![0; size_of::<Slot>()])?;
    let (mut newest, mut again) = (vec![0; KEYS as usize + 1], 0);
    for turn in 0..LOOK_UPS {
        let (key, mut place) = (turn % KEYS + 1, first(turn % KEYS + 1));
        let slot = loop {
            let (result, back) = server.read(buffer, table.at(place).ok_or("no such slot")?).await;
            result?;
            buffer = back;
            let slot = Slot::read_from_bytes(&buffer).expect("as long as a slot");
            match (slot.value == value(slot.key, slot.version), slot.key) {
                (false, _) => again += 1,
                (true, 0) => return Err("a key is not in the table".into()),
                (true, found) if found == key => break slot,
                (true, _) => place = (place + 1) % SLOTS,
            }
        };
        assert!(slot.version >= newest[key as usize], "an old value");
        newest[key as usize] = slot.version;
    }
    println!("{LOOK_UPS} look-ups, every value whole and none older than the one before");
    println!("{again} slots were read again, since the server was changing them");
    Ok(server.disconnect().await.map(drop)?)
}
