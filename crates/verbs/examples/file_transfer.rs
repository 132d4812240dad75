//! One program sends a file to another, with a bar that shows how far it is.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example file_transfer INTO               # prints its address
//! cargo run --release -p peerdma-verbs --example file_transfer FILE HOST:PORT     # the sender
//! ```

mod meet;

use std::fs::File;
use std::io::{IsTerminal, Read, Write, stderr};

use meet::{Outcome, bind};
use verbs::aio::Connection;
use verbs::owned::Pool;

/// What a receive has room for, by default.
const PIECE: usize = 4096;
/// How many pieces are posted together.
const BATCH: u32 = 32;

fn main() -> Outcome<()> {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [into] => pollster::block_on(receive(File::create(into)?)),
        [file, to] => pollster::block_on(send(File::open(file)?, to)),
        _ => Err("use: file_transfer INTO, or file_transfer FILE HOST:PORT".into()),
    }
}

async fn receive(mut into: File) -> Outcome<()> {
    let sender = bind().await?.accept().await?;
    let length = number(&sender.recv().await?)?;
    let (mut done, mut bar) = (0, Bar::new(length));
    while done < length {
        let piece = sender.recv().await?;
        into.write_all(&piece)?;
        done += piece.len() as u64;
        bar.show(done);
    }
    // Only now is it the sender's no more.
    into.sync_all()?;
    let mut answer = sender.pd().register(vec![0; 8])?;
    answer.fill_with(&done.to_be_bytes());
    sender.send(answer).await.0?;
    sender.disconnect().await?;
    println!("received {done} bytes");
    Ok(())
}

async fn send(mut file: File, to: &str) -> Outcome<()> {
    let receiver = Connection::connect(to).await?;
    let pool = Pool::new(receiver.pd(), PIECE, BATCH)?;
    let length = file.metadata()?.len();
    let mut first = pool.take().await;
    first.fill_with(&length.to_be_bytes());
    receiver.send(first).await.0?;
    let (mut done, mut bar) = (0, Bar::new(length));
    while done < length {
        let mut batch = receiver.batch();
        while done < length && batch.len() < BATCH as usize {
            let mut piece = pool.take().await;
            piece.set_len(PIECE.min((length - done) as usize));
            file.read_exact(&mut piece)?;
            done += piece.len() as u64;
            batch = batch.send(piece);
        }
        batch.post().await.0?;
        bar.show(done);
    }
    let arrived = number(&receiver.recv().await?)?;
    receiver.closed().await?;
    println!("sent {arrived} bytes");
    Ok(())
}

fn number(message: &[u8]) -> Outcome<u64> {
    Ok(u64::from_be_bytes(message.try_into().map_err(|_| "not a number of eight bytes")?))
}

/// A bar on a terminal.
struct Bar(u64, Option<u64>);

impl Bar {
    fn new(whole: u64) -> Self {
        Self(whole.max(1), stderr().is_terminal().then_some(0))
    }

    fn show(&mut self, done: u64) {
        let part = done * 40 / self.0;
        if let Some(shown) = &mut self.1
            && *shown != part
        {
            *shown = part;
            eprint!("\r[{:<40}]{}", "#".repeat(part as usize), if part == 40 { "\n" } else { "" });
        }
    }
}
