//! Other processes of this user that share the GPU.
//!
//! ```text
//!   peerdma/gpu/UID/NAME/door     held while a process joins
//!   peerdma/gpu/UID/NAME/0        process 0 listens: "join" is answered with ledger, VRAM and GTT;
//!   peerdma/gpu/UID/NAME/1        "evict this buffer of yours" with whether it did,
//!   ...                           "what do you have" and "do this to it" with text, for `peerdma gpu`
//! ```
//!
//! These are abstract sockets: they belong to the network namespace, and a name is free once its
//! process is dead. No process is special: the first one creates the memory, and any process that
//! has it can pass it on. Abstract names have no owner, so both sides check the other's uid.

pub(crate) mod survey;
pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use descriptors::PrivateFd;
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::config::GpuConfig;
use crate::error::{Result, busy, invalid, no_device, no_memory};
use crate::ledger::{Entry, Ledger, ORPHAN};
use crate::need::Evicted;
use crate::pools::Pools;
use wire::{Answer, Ask, Caller, MEMBERS, Name};

/// How long a process that did not answer is not asked again.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// How long to wait for another process that is joining at the same time.
const DOOR_PATIENCE: Duration = Duration::from_secs(10);

/// This process among those that share the GPU.
pub(crate) struct Peers {
    name: Name,
    gpu: String,
    /// Which ledger we share: a process's number means nothing in another ledger.
    ledger: u64,
    /// None for a GPU of this process only.
    listener: Option<Arc<PrivateFd>>,
    server: Mutex<Option<JoinHandle<()>>>,
    silent: Mutex<BTreeMap<u8, Instant>>,
    pid: u32,
}

impl Peers {
    /// Finds the other processes, or creates the memory.
    pub(crate) fn join(config: &GpuConfig) -> Result<(Self, Pools)> {
        let name = Name::new(&config.name);
        let geometry = geometry(config);
        let alone = |owner| Pools::create(config, Ledger::create(geometry, owner)?);
        if !config.shared {
            let pools = alone(0)?;
            return Ok((Self::over(name, config, &pools.ledger, None), pools));
        }
        let _door = open_door(&name, &config.name)?;
        let mut found = None;
        let mut place = None;
        for member in 0..MEMBERS {
            if found.is_some() && place.is_some() {
                break;
            }
            match name.ask(member, &Ask::Join { geometry }) {
                Answer::Nobody if place.is_none() => match name.listen(member) {
                    Ok(listener) => place = Some((member, listener)),
                    // Somebody who leaves: it no longer answers, and still has the name.
                    Err(Errno::ADDRINUSE) => {}
                    Err(errno) => {
                        return Err(no_device(format!(
                            "{} cannot be shared: bind failed: {errno}",
                            config.name
                        )));
                    }
                },
                Answer::Memory(files) if found.is_none() => found = Some(files),
                Answer::Otherwise => {
                    return Err(invalid(format!(
                        "another process has {} with another configuration or version",
                        config.name
                    )));
                }
                Answer::Silence => tracing::warn!(
                    "process {member} of those that share {} does not answer",
                    config.name
                ),
                _ => {}
            }
        }
        let (member, listener) = place.ok_or_else(|| {
            busy(format!("{MEMBERS} processes have {} open, and no more can", config.name))
        })?;
        let pools = match found {
            None => alone(member)?,
            Some([ledger, vram, gtt]) => {
                let ledger = Ledger::join(ledger, geometry, member)?;
                Pools::join(config, ledger, vram, gtt)?
            }
        };
        pools.ledger.lock().orphan(member);
        let listener = Arc::new(PrivateFd::new(listener));
        let peers = Self::over(name, config, &pools.ledger, Some(listener));
        peers.reclaim_dead(&pools);
        Ok((peers, pools))
    }

    fn over(
        name: Name,
        config: &GpuConfig,
        ledger: &Ledger,
        listener: Option<Arc<PrivateFd>>,
    ) -> Self {
        let ledger = rustix::fs::fstat(&**ledger.file()).map_or(0, |stat| stat.st_ino);
        let (server, silent) = (Mutex::new(None), Mutex::default());
        let gpu = config.name.clone();
        Self { name, gpu, ledger, listener, server, silent, pid: std::process::id() }
    }

    /// Answers other processes from now on, in a thread that ends with this value, or when it can
    /// answer no more.
    pub(crate) fn serve(
        &self,
        mut answer: impl FnMut(Ask, Caller) -> bool + Send + 'static,
    ) -> Result<()> {
        let Some(listener) = self.listener.clone() else { return Ok(()) };
        let builder = Builder::new().name("peerdma-gpu".to_owned()).stack_size(256 << 10);
        let spawned = threads::start(builder, move || {
            while let Some((ask, from)) = wire::next(&listener) {
                if !answer(ask, from) {
                    return;
                }
            }
        });
        let spawned = spawned
            .map_err(|error| no_memory(format!("no thread to serve a shared GPU: {error}")))?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        Ok(())
    }

    /// Which memory it is: the same number in all processes that share it.
    pub(crate) fn memory(&self) -> u64 {
        self.ledger
    }

    /// Asks a process to evict one of its buffers.
    pub(crate) fn evict(&self, owner: u8, bo: u64, only_out_of_bar: bool) -> Evicted {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if owner == ORPHAN || silent.get(&owner).is_some_and(|at| at.elapsed() < LEFT_ALONE) {
            return Evicted::Nothing;
        }
        silent.remove(&owner);
        drop(silent);
        let ask = Ask::Evict { ledger: self.ledger, bo, only_out_of_bar };
        match self.name.ask(owner, &ask) {
            Answer::Done => Evicted::Yes,
            Answer::NotNow => Evicted::Busy,
            Answer::Silence => {
                tracing::warn!(
                    "process {owner} of those that share the GPU does not evict: no answer"
                );
                let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
                silent.insert(owner, Instant::now());
                Evicted::Nothing
            }
            _ => Evicted::Nothing,
        }
    }

    /// Frees memory that dead processes left and no process holds; returns how many placements it
    /// freed.
    pub(crate) fn reclaim_dead(&self, pools: &Pools) -> u64 {
        let ours = pools.ledger.owner();
        let entries = pools.ledger.lock().entries();
        let mut alive = BTreeMap::from([(ours, true), (ORPHAN, false)]);
        let mut left: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| {
                let owner = entry.owner;
                !*alive.entry(owner).or_insert_with(|| self.name.is_taken(owner))
            })
            .collect();
        if left.is_empty() {
            return 0;
        }
        if left.iter().any(|entry| entry.exporter != 0) {
            // Only the kernel knows which processes have a buffer open. If we cannot ask it, all
            // buffers count as held.
            let held = dmabuf::open_exports();
            left.retain(|entry| entry.exporter == 0 || !is_held(held.as_ref(), &self.gpu, entry));
        }
        let table = pools.ledger.lock();
        let mut count = 0;
        for entry in left {
            // It may have been freed, and even reused, since we looked.
            let same = table.entry(entry.index).is_some_and(|now| {
                (now.owner, now.bo, now.offset) == (entry.owner, entry.bo, entry.offset)
            });
            if same {
                pools.reclaim(&table, entry);
                count += 1;
            }
        }
        count
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let Some(listener) = &self.listener else { return };
        if self.pid != std::process::id() {
            // A forked child has neither the thread nor the socket.
            return;
        }
        if !listener.is_ours() {
            // The program has closed our descriptor and may reuse its number; the thread is left
            // waiting for something that never ends.
            return;
        }
        let _ = rustix::net::shutdown(listener.as_fd(), Shutdown::Both);
        let server = self.server.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = server
            && server.thread().id() != std::thread::current().id()
        {
            let _ = server.join();
        }
    }
}

/// Only one process joins at a time.
fn open_door(name: &Name, gpu: &str) -> Result<std::os::fd::OwnedFd> {
    let start = Instant::now();
    loop {
        match name.door() {
            Ok(door) => return Ok(door),
            Err(Errno::ADDRINUSE) if start.elapsed() < DOOR_PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(errno) => {
                return Err(no_device(format!(
                    "{gpu} cannot be shared: bind of its door failed: {errno}"
                )));
            }
        }
    }
}

/// Whether some process has a dma-buf open that shows a placement of a dead exporter.
fn is_held(open: Option<&BTreeSet<(u64, String)>>, gpu: &str, entry: &Entry) -> bool {
    let Some(open) = open else { return true };
    let bo = crate::names::bo(gpu, entry.bo);
    let of_exporter = open.range((entry.exporter, String::new())..);
    let names = of_exporter.take_while(|(token, _)| *token == entry.exporter);
    names.into_iter().any(|(_, name)| crate::names::is_of(&bo, name))
}

/// The facts that all processes must agree on.
pub(crate) fn geometry(config: &GpuConfig) -> u64 {
    let parts = [config.vram, config.gtt, config.visible()];
    // FNV-1a over the words.
    parts
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, part| (hash ^ part).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_process_that_leaves_is_not_taken_for_a_free_one() {
        let config = GpuConfig {
            name: format!("leaving-{}", std::process::id()),
            vram: 16 << 20,
            gtt: 16 << 20,
            ..GpuConfig::default()
        };
        let name = Name::new(&config.name);
        let leaving = name.listen(0).expect("nobody has the name");
        rustix::net::shutdown(&leaving, Shutdown::Both).expect("it listens");
        let (peers, _pools) = Peers::join(&config).expect("others are free");
        assert!(name.is_taken(1), "the next free one");
        drop((peers, leaving));
        assert!(!name.is_taken(0) && !name.is_taken(1));
    }
}
