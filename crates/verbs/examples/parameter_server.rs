//! A parameter server in GPU memory: workers READ the parameters out of the memory of a GPU, WRITE
//! their gradients into it, and the server applies them.
//!
//! ```text
//! cargo run --release -p peerdma-verbs --example parameter_server             # the server prints its address
//! cargo run --release -p peerdma-verbs --example parameter_server HOST:PORT   # a worker; two of them
//! ```

mod meet;

use gpu::{Bo, Machine, Place};
use meet::{Outcome, bind};
use verbs::Access;
use verbs::aio::Connection;
use verbs::owned::RemoteSlice;
use zerocopy::{FromBytes, IntoBytes};

const WORKERS: u64 = 2;
const ROUNDS: u32 = 20;
const COUNT: u64 = 1 << 16;
const BYTES: u64 = COUNT * size_of::<f32>() as u64;

fn main() -> Outcome<()> {
    pollster::block_on(async {
        match std::env::args().nth(1) {
            Some(to) => work(Connection::connect(&to).await?).await,
            None => serve().await,
        }
    })
}

/// What the parameters are to become, as a worker sees it in its part of the data.
fn wanted(at: usize) -> f32 {
    (at % 1000) as f32
}

async fn serve() -> Outcome<()> {
    let listener = bind().await?;
    // The parameters, and then the gradients of each worker.
    let bo = Machine::load()?.open_first()?.alloc(BYTES * (1 + WORKERS), Place::VRAM)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mr = listener.nic().pd().reg_whole_dmabuf(&bo.export()?, access)?;
    let part = |number| RemoteSlice::<f32>::new(mr.remote(number * BYTES), COUNT);
    let mut workers = Vec::new();
    for number in 1..=WORKERS {
        workers.push(listener.accept().await?);
        let parts = [part(0)?.to_bytes(), part(number)?.to_bytes()];
        say(&workers[workers.len() - 1], parts.concat()).await?;
    }
    for _ in 0..ROUNDS {
        for worker in &workers {
            worker.recv().await?; // its gradients are there
        }
        let mut parameters = floats(&bo, 0)?; // on a real GPU a kernel would do this
        for worker in 1..=WORKERS {
            let gradients = floats(&bo, worker)?;
            parameters.iter_mut().zip(gradients).for_each(|(value, gradient)| *value += gradient);
        }
        bo.write(0, parameters.as_bytes())?;
        for worker in &workers {
            say(worker, vec![0]).await?;
        }
    }
    let far = |(at, value): (usize, f32)| (value - wanted(at)).abs();
    let worst = floats(&bo, 0)?.into_iter().enumerate().map(far).fold(0.0, f32::max);
    println!("{COUNT} parameters in {}, at most {worst:.4} from the best", bo.domain()?);
    if worst < 0.01 { Ok(()) } else { Err("they did not converge".into()) }
}

fn floats(bo: &Bo, part: u64) -> Outcome<Vec<f32>> {
    let mut values = vec![0.0; COUNT as usize];
    bo.read(part * BYTES, values.as_mut_bytes())?;
    Ok(values)
}

async fn say(to: &Connection, bytes: Vec<u8>) -> Outcome<()> {
    Ok(to.send(to.pd().register(bytes)?).await.0.map(drop)?)
}

async fn work(server: Connection) -> Outcome<()> {
    let said = server.recv().await?;
    let parameters = RemoteSlice::<f32>::from_bytes(said[..20].try_into()?)?;
    let gradients = RemoteSlice::<f32>::from_bytes(said[20..].try_into()?)?;
    let mut values = server.pd().register(vec![0; BYTES as usize])?;
    for _ in 0..ROUNDS {
        let (result, mut back) = server.read(values, parameters).await;
        result?;
        let floats = <[f32]>::mut_from_bytes(&mut back).expect("a multiple of four bytes");
        for (at, value) in floats.iter_mut().enumerate() {
            *value = (wanted(at) - *value) / (2 * WORKERS) as f32;
        }
        let (result, back) = server.write_with_imm(back, gradients, 0).await;
        result?;
        values = back;
        server.recv().await?; // all gradients are applied
    }
    println!("{ROUNDS} rounds, {:?}", server.closed().await?);
    Ok(())
}
