//! A process that imports, or the same in this process.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmabuf::{
    Attachment, Direction, DmaBuf, GateSlot, Importer, ImporterClass, MapGuard, PinGuard,
    ResvGuard, Stale,
};

use crate::child;

/// A device that reads and writes the whole buffer all the time.
pub(crate) struct Nic {
    name: String,
    class: ImporterClass,
    held: Mutex<Held>,
    pub(crate) told: AtomicUsize,
    /// An address of the last map that was taken away.
    lost: AtomicU64,
}

#[derive(Default)]
struct Held {
    map: Option<MapGuard>,
    pin: Option<PinGuard>,
}

/// The device, attached.
pub(crate) struct Attached {
    pub(crate) nic: Arc<Nic>,
    pub(crate) buf: DmaBuf,
    pub(crate) attachment: Attachment,
    slot: GateSlot,
    memory: std::fs::File,
}

impl Importer for Nic {
    fn name(&self) -> &str {
        &self.name
    }

    fn class(&self) -> ImporterClass {
        self.class
    }

    fn invalidate_mappings(&self, resv: &ResvGuard<'_>, _: &Attachment) {
        self.told.fetch_add(1, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held());
        if let Some(map) = held.map {
            self.lose(map, resv);
        }
        if let Some(pin) = held.pin {
            if self.class == ImporterClass::PinnedRevocable {
                pin.unpin(resv);
            } else {
                self.held().pin = Some(pin);
            }
        }
    }
}

impl Nic {
    /// Drops a map and remembers its address.
    fn lose(&self, map: MapGuard, resv: &ResvGuard<'_>) {
        self.lost.store(map.table().entries[0].addr, Ordering::SeqCst);
        map.unmap(resv);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic")
    }
}

impl Attached {
    pub(crate) fn new(buf: &DmaBuf, class: ImporterClass, name: &str) -> Result<Self, String> {
        let held = Mutex::default();
        let (told, lost) = (AtomicUsize::new(0), AtomicU64::new(0));
        let nic = Arc::new(Nic { name: name.to_owned(), class, held, told, lost });
        let importer: Arc<dyn Importer> = Arc::clone(&nic) as _;
        let attachment = buf.attach(&importer).map_err(|error| error.to_string())?;
        let slot = buf.gate_slot().map_err(|error| error.to_string())?.ok_or("no gate")?;
        // The whole address space as a file, to access foreign memory without pointers.
        let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem");
        let memory = memory.map_err(|error| error.to_string())?;
        Ok(Self { nic, buf: buf.clone(), attachment, slot, memory })
    }

    pub(crate) fn pin(&self) -> Result<(), String> {
        let resv = self.buf.resv().lock();
        let pin = self.attachment.pin(&resv).map_err(|error| error.to_string())?;
        self.nic.held().pin = Some(pin);
        Ok(())
    }

    pub(crate) fn unpin(&self) {
        let held = std::mem::take(&mut *self.nic.held());
        drop(held.map);
        drop(held.pin);
    }

    /// Maps, unless there is a valid map: another thread may be accessing the buffer through it.
    pub(crate) fn map(&self) -> Result<u64, String> {
        let resv = self.buf.resv().lock();
        if let Some(epoch) = self.epoch().filter(|epoch| self.slot.is_current(*epoch)) {
            return Ok(epoch);
        }
        let old = self.nic.held().map.take();
        if let Some(old) = old {
            self.nic.lose(old, &resv);
        }
        let map = self.attachment.map(&resv, Direction::Bidirectional);
        let map = map.map_err(|error| error.to_string())?;
        let epoch = map.table().epoch.ok_or("no epoch")?;
        self.nic.held().map = Some(map);
        Ok(epoch)
    }

    fn epoch(&self) -> Option<u64> {
        self.nic.held().map.as_ref()?.table().epoch
    }

    /// Reads the whole buffer and writes it back unchanged, entering the gate for each range.
    pub(crate) fn access(&self) -> Result<u64, Stale> {
        let (epoch, entries) = {
            let held = self.nic.held();
            let Some(map) = &held.map else { return Err(Stale::Moved) };
            let entries: Vec<_> = map.table().entries.iter().map(|e| (e.addr, e.len)).collect();
            (map.table().epoch.expect("there is a gate"), entries)
        };
        for (addr, len) in entries {
            let guard = self.slot.enter(epoch)?;
            let mut bytes = vec![0; len as usize];
            self.memory.read_exact_at(&mut bytes, addr).expect("mapped");
            for word in bytes.chunks_exact(8) {
                let word = u64::from_ne_bytes(word.try_into().expect("eight"));
                assert_eq!(word, epoch, "the buffer of this epoch");
            }
            self.memory.write_all_at(&bytes, addr).expect("mapped");
            drop(guard);
        }
        Ok(epoch)
    }

    /// Accesses until told to stop, and maps again whenever that is needed.
    fn traffic(&self, stop: &AtomicBool, accesses: &AtomicU64, maps: &AtomicU64) {
        while !stop.load(Ordering::SeqCst) {
            match self.access() {
                Ok(_) => accesses.fetch_add(1, Ordering::SeqCst),
                Err(Stale::Revoked | Stale::Husk) => return,
                Err(Stale::Closed | Stale::Moved) => {
                    if self.map().is_err() {
                        return;
                    }
                    maps.fetch_add(1, Ordering::SeqCst)
                }
            };
        }
    }
}

/// The commands of a process that imports.
pub(crate) fn run() -> std::process::ExitCode {
    let mut buf: Option<DmaBuf> = None;
    let mut all: Vec<Attached> = Vec::new();
    child::serve(|socket, line| {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        let done = |result: Result<String, String>| match result {
            Ok(words) => format!("ok {words}"),
            Err(words) => format!("err {words}"),
        };
        let first = all.first().ok_or("nothing is attached".to_owned());
        match command {
            "import" => done(import(&mut buf, std::io::stdout().as_fd())),
            "receive" => {
                let fd = child::receive_fd(socket);
                done(import(&mut buf, fd.as_fd()))
            }
            "forget" => {
                all.clear();
                buf = None;
                "ok".to_owned()
            }
            "attach" => done(attach(buf.as_ref(), argument).map(|one| {
                all.push(one);
                all.len().to_string()
            })),
            "pin" => done(first.and_then(Attached::pin).map(|()| String::new())),
            "unpin" => done(first.map(|one| {
                one.unpin();
                String::new()
            })),
            "map" => {
                let maps: Result<Vec<_>, _> = all.iter().map(Attached::map).collect();
                done(maps.map(|epochs| epochs.last().map_or(0, |epoch| *epoch).to_string()))
            }
            "access" => done(first.and_then(|one| {
                one.access().map(|epoch| epoch.to_string()).map_err(|stale| stale.to_string())
            })),
            "traffic" => {
                let Ok(one) = first else { return "err nothing is attached".to_owned() };
                let (stop, accesses, maps) = <(AtomicBool, AtomicU64, AtomicU64)>::default();
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| one.traffic(&stop, &accesses, &maps));
                    }
                    // Until the parent sends something.
                    let mut byte = [0];
                    let _ = std::io::Read::read(&mut &*socket, &mut byte);
                    stop.store(true, Ordering::SeqCst);
                });
                let (accesses, maps) = (accesses.into_inner(), maps.into_inner());
                format!("ok {accesses} {maps}")
            }
            "inside" => done(first.and_then(|one| {
                let epoch = one.epoch().ok_or("nothing is mapped")?;
                std::mem::forget(one.slot.enter(epoch).map_err(|stale| stale.to_string())?);
                Ok(String::new())
            })),
            "whose" => done(first.and_then(|one| {
                let addr = one.nic.lost.load(Ordering::SeqCst);
                let retired = dmabuf::window::describe(addr + 100).ok_or("nobody's")?;
                Ok(retired.to_string())
            })),
            "fds" => format!("ok {}", fds()),
            "told" => {
                let told = |one: &Attached| one.nic.told.load(Ordering::SeqCst);
                format!("ok {}", all.iter().filter(|one| told(one) > 0).count())
            }
            "mmap" => done(buf.as_ref().ok_or("nothing is imported".to_owned()).and_then(|buf| {
                buf.map(0, 4096).map(|_| String::new()).map_err(|error| error.to_string())
            })),
            "export" => {
                let (bo, own) = crate::bo::new(dmabuf::Sharing::HostKept);
                child::send_fd(socket, own.fd());
                // "go", once it has arrived.
                let mut line = [0; 3];
                if std::io::Read::read_exact(&mut &*socket, &mut line).is_err() {
                    return "err nobody is there".to_owned();
                }
                let stop = Arc::new(AtomicBool::new(false));
                let mover = std::thread::spawn({
                    let stop = Arc::clone(&stop);
                    move || {
                        while !stop.load(Ordering::SeqCst) {
                            bo.relocate(&own).expect("nobody pins");
                        }
                    }
                });
                for _ in 0..200 {
                    if let Err(error) = all[0].map() {
                        return format!("err {error}");
                    }
                }
                stop.store(true, Ordering::SeqCst);
                mover.join().expect("no panic");
                "ok".to_owned()
            }
            _ => format!("err what is {line:?}"),
        }
    })
}

/// Descriptors of this process.
pub(crate) fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux tells").count()
}

fn import(buf: &mut Option<DmaBuf>, fd: BorrowedFd<'_>) -> Result<String, String> {
    let imported = DmaBuf::import(fd).map_err(|error| error.to_string())?;
    let again = DmaBuf::import(fd).map_err(|error| error.to_string())?;
    if !again.is_same(&imported) {
        return Err("two imports are two buffers".to_owned());
    }
    let words = format!(
        "{} {} {} {}",
        imported.name(),
        imported.size(),
        imported.exporter_name(),
        imported.is_dynamic()
    );
    *buf = Some(imported);
    Ok(words)
}

fn attach(buf: Option<&DmaBuf>, class: &str) -> Result<Attached, String> {
    let (class, name) = match class {
        "dynamic" => (ImporterClass::Dynamic, "nic"),
        "pinned" => (ImporterClass::Pinned, "nic"),
        "revocable" => (ImporterClass::PinnedRevocable, "nic"),
        "static" => (ImporterClass::Static, "nic"),
        "unwelcome" => (ImporterClass::Dynamic, "unwelcome"),
        _ => return Err(format!("what is {class:?}")),
    };
    Attached::new(buf.ok_or("nothing is imported")?, class, name)
}
