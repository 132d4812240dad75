//! A disk, a pool of peer-to-peer memory that the kernel lends, and the wire: bytes of a block
//! device go through `p2pmem/allocate` to another host, and none of them through its memory.
//!
//! ```text
//!   p2pmem receive ADDR:PORT NETDEV FILE            the other host; FILE has what should arrive
//!   p2pmem send ADDR:PORT NETDEV DISK BDF [UNBIND]  DISK's bytes by the pool of function BDF
//! ```
//!
//! The sender needs root, for `p2pmem/allocate` and the disk. With UNBIND, a file of sysfs, it ends
//! with the removal of the pool's driver while the memory is in use.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dmabuf::DeviceAddr;
use orchestrator::{Client, KernelPool, Orchestrator, Placed};
use pci::{Bdf, Cpu, PciTree};
use storage::{Buffer, ClientConfig, Direct, File, OpenOptions};
use umem::ways::bytes_by_way;
use verbs::soft::{self, NicConfig};
use verbs::{
    Access, Context, Cq, Endpoint, Gid, HostBuf, Mr, Pd, Psn, Qp, QpSpec, Qpn, RKey, Remote,
    SendRequest,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// What is read and sent at once.
const PIECE: u32 = 256 << 10;
/// How long the other host, or a request, may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["receive", at, netdev, file] => receive(at, netdev, Path::new(file)),
        ["send", to, netdev, disk, pool] => send(to, netdev, disk, pool.parse()?, None),
        ["send", to, netdev, disk, pool, unbind] => {
            send(to, netdev, disk, pool.parse()?, Some(unbind))
        }
        _ => Err("p2pmem receive ADDR:PORT NETDEV FILE | send ADDR:PORT NETDEV DISK BDF".into()),
    }
}

/// The NIC with one connection.
struct Nic {
    // A connection ends before its NIC.
    qp: Qp,
    cq: Cq,
    pd: Pd,
    _context: Context,
}

impl Nic {
    fn open(config: NicConfig) -> Outcome<Self> {
        let context = soft::device(config)?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        Ok(Self { qp, cq, pd, _context: context })
    }

    /// Connects by lines over TCP. The memory of each side goes with its address.
    fn connect(&self, peer: &mut Peer, memory: Remote) -> Outcome<Remote> {
        let Endpoint { gid, qpn, psn, .. } = self.qp.endpoint()?;
        let gid: String = gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (addr, rkey) = (memory.addr, memory.rkey.0);
        peer.tell(&format!("{gid} {} {} {addr} {rkey}", qpn.value(), psn.value()))?;
        let line = peer.hear()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [gid, qpn, psn, addr, rkey] = words[..] else { return Err("no endpoint".into()) };
        let gid = Gid(u128::from_str_radix(gid, 16)?.to_be_bytes());
        let (qpn, psn) = (Qpn::new(qpn.parse()?), Psn::new(psn.parse()?));
        self.qp.connect(&Endpoint { gid, qpn, psn })?;
        // Nothing may be sent before the other side is also connected.
        peer.tell("connected")?;
        peer.hear()?;
        Ok(Remote { addr: addr.parse()?, rkey: RKey(rkey.parse()?) })
    }

    fn write(&self, mr: &Mr, count: u32, to: Remote) -> Outcome {
        self.qp.post_send(&SendRequest::write(1, &[mr.slice(0, count)], to).signaled())?;
        let wc = self.cq.wait_timeout(PATIENCE)?.ok_or("an RDMA WRITE does not end")?;
        match wc.is_success() {
            true => Ok(()),
            false => Err(format!("an RDMA WRITE ended with {:?}", wc.status).into()),
        }
    }
}

/// The other host, by TCP.
struct Peer(BufReader<TcpStream>);

impl Peer {
    fn new(stream: TcpStream) -> Outcome<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn tell(&mut self, line: &str) -> Outcome {
        Ok(writeln!(self.0.get_mut(), "{line}")?)
    }

    fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err("the other host has gone".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

fn receive(at: &str, netdev: &str, file: &Path) -> Outcome {
    let want = fs::read(file)?;
    let nic = Nic::open(NicConfig { netdev: Some(netdev.to_owned()), ..NicConfig::default() })?;
    let memory = HostBuf::anonymous(want.len())?;
    let mr = nic.pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let listener = TcpListener::bind(at)?;
    println!("listening");
    let mut peer = Peer::new(listener.accept()?.0)?;
    nic.connect(&mut peer, mr.remote(0))?;
    println!("{}", peer.hear()?);
    let mut got = vec![0; want.len()];
    memory.read(0, &mut got)?;
    let wrong = want.iter().zip(&got).filter(|(want, got)| want != got).count();
    peer.tell(&format!("{wrong} bytes are wrong"))?;
    match wrong {
        0 => println!("{} bytes arrived, every one right", want.len()),
        _ => return Err(format!("{wrong} of {} bytes are wrong", want.len()).into()),
    }
    Ok(())
}

fn send(to: &str, netdev: &str, disk: &str, at: Bdf, unbind: Option<&str>) -> Outcome {
    let cpu = Cpu::from_cpuinfo(&fs::read_to_string("/proc/cpuinfo")?);
    let tree = Arc::new(PciTree::from_sysfs(Path::new("/sys"), cpu)?);
    let orchestrator = Orchestrator::new(Arc::clone(&tree));
    let pool = Arc::new(KernelPool::open(Path::new("/sys"), &tree, "the pool", at)?);
    println!("pool: {} bytes, {} free", pool.size()?, pool.available()?);
    let published = orchestrator.publish(Arc::clone(&pool) as _)?;

    let options = OpenOptions { direct: Direct::Required, ..OpenOptions::default() };
    let file = File::open(disk, &options)?;
    let controller = file.controller().ok_or("the disk has no PCI function")?;
    let card = function_of(&tree, &Path::new("/sys/class/net").join(netdev))?;
    let clients = [
        Client { name: netdev.to_owned(), bdf: card },
        Client { name: disk.to_owned(), bdf: controller },
    ];
    let nic = Nic::open(NicConfig {
        netdev: Some(netdev.to_owned()),
        address: Some(DeviceAddr(card.to_bits())),
        tree: Some(Arc::clone(&tree)),
        ..NicConfig::default()
    })?;
    let addr = Some(DeviceAddr(controller.to_bits()));
    let config = ClientConfig { name: disk.to_owned(), addr, ..ClientConfig::default() };
    let disk = storage::Client::new(&config)?;

    let refused = orchestrator.place(&clients, pool.size()? + 4096).err();
    println!("too much: {}", refused.ok_or("more than the pool was placed")?);
    let placed = orchestrator.place(&clients, pool.available()?)?;
    println!("all of it: {} bytes free", pool.available()?);
    let refused = orchestrator.place(&clients, 4096).err();
    println!("nothing left: {}", refused.ok_or("more than the pool was placed")?);
    drop(placed);
    println!("given back: {} bytes free", pool.available()?);

    let placed = orchestrator.place(&clients, PIECE.into())?;
    for way in placed.ways() {
        println!("{}: {:?}, distance {}", way.client, way.map_type, way.distance);
    }
    let stage = Stage::new(&nic, &disk, placed)?;
    let mut peer = Peer::new(TcpStream::connect(to)?)?;
    let there = nic.connect(&mut peer, stage.mr.remote(0))?;
    let (before, began) = (bytes_by_way(), Instant::now());
    let length = file.size()?;
    for start in (0..length).step_by(PIECE as usize) {
        // CAST: no more than a piece.
        let count = (length - start).min(PIECE.into()) as u32;
        disk.read(&file, start, &stage.buffer, 0, u64::from(count))?;
        nic.write(&stage.mr, count, there.add(start))?;
    }
    let ways = bytes_by_way().since(&before);
    peer.tell(&format!("sent {length} bytes in {} ms", began.elapsed().as_millis()))?;
    println!("{}", peer.hear()?);
    if ways.bus_address != 2 * length || ways.bounced > 0 {
        return Err(format!("not every byte went from device to device:\n{ways}").into());
    }
    println!("bus_address={} bounced={}", ways.bus_address, ways.bounced);

    if let Some(unbind) = unbind {
        fs::write(unbind, at.to_string())?;
        println!("unbound: the pool is there: {}", pool.is_there());
        let error = nic.write(&stage.mr, 4096, there).err().ok_or("it wrote what is gone")?;
        println!("a write from it: {error}");
        published.remove("its driver was unbound");
        let error = disk.read(&file, 0, &stage.buffer, 0, 4096).err().ok_or("it read")?;
        println!("a read into it: {error}");
        let error = orchestrator.place(&clients, 4096).err().ok_or("it was placed")?;
        println!("placed anew: {error}");
    }
    Ok(())
}

/// Where the bytes are between the disk and the wire.
struct Stage {
    buffer: Buffer,
    mr: Mr,
    _placed: Placed,
}

impl Stage {
    fn new(nic: &Nic, disk: &storage::Client, placed: Placed) -> Outcome<Self> {
        let mr = nic.pd.reg_whole_dmabuf(placed.buffer(), Access::LOCAL_WRITE)?;
        Ok(Self { buffer: disk.attach(placed.buffer())?, mr, _placed: placed })
    }
}

/// The PCI function above a device of another kind.
fn function_of(tree: &PciTree, device: &Path) -> Outcome<Bdf> {
    let place = fs::canonicalize(device)?;
    let mut functions = place.iter().filter_map(|name| name.to_str()?.parse().ok());
    let last = functions.rfind(|bdf| tree.function(*bdf).is_some());
    last.ok_or_else(|| format!("{} belongs to no PCI function", device.display()).into())
}
