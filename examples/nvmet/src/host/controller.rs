//! A controller, as a host sees it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs::Context;
use zerocopy::IntoBytes;

use super::queue::CAPSULE_DATA;
use super::{Answer, Data, HostError, Queue};
use crate::target::admin::feature;
use crate::target::registers::{CC_ENABLE, CC_SHN_NORMAL, CSTS_CFS, CSTS_RDY, offset};
use crate::wire::capsule::{COMMAND_LEN, opcode};
use crate::wire::cm::{ADMIN_DEPTH, Request};
use crate::wire::discovery::{self, ENTRY_LEN, Entry};
use crate::wire::fabrics::{ANY_CNTLID, Connect, ConnectData, Fabrics};
use crate::wire::{Command, DISCOVERY_NQN};

/// The host that connects, and what it connects to.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs build it")]
pub struct Who {
    /// Where the target listens.
    pub to: SocketAddr,
    /// The subsystem.
    pub subsysnqn: String,
    /// The host.
    pub hostnqn: String,
    /// The host's identifier.
    pub hostid: [u8; 16],
    /// The keep alive timer, in milliseconds; 0: none.
    pub kato: u32,
}

/// A controller: its admin queue, and its I/O queues.
#[derive(Debug)]
pub struct Host {
    context: Context,
    who: Who,
    /// The number that the target gave it.
    pub cntlid: u16,
    /// The admin queue.
    pub admin: Queue,
    /// The I/O queues.
    pub queues: Vec<Queue>,
    /// How many bytes of data a capsule of an I/O queue may bring.
    in_capsule: usize,
}

/// What a host knows of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceInfo {
    /// Its number.
    pub nsid: u32,
    /// How many blocks.
    pub blocks: u64,
    /// Bytes of each.
    pub block: u32,
    /// Its identifier.
    pub nguid: [u8; 16],
}

impl Who {
    /// A host of this process, for a subsystem.
    pub fn new(to: SocketAddr, subsysnqn: &str) -> Self {
        let mut hostid = [0x80; 16];
        hostid[..4].copy_from_slice(&std::process::id().to_be_bytes());
        let hostnqn = format!("nqn.2014-08.org.nvmexpress:peerdma:{}", std::process::id());
        Self { to, subsysnqn: subsysnqn.to_owned(), hostnqn, hostid, kato: 0 }
    }

    /// The data of Connect for a controller.
    pub fn connect_data(&self, cntlid: u16) -> ConnectData {
        ConnectData::new(self.hostid, cntlid, &self.subsysnqn, &self.hostnqn)
    }

    /// The command Connect for a queue.
    pub fn connect(&self, qid: u16, depth: u16) -> Command {
        let (recfmt, no_flow) = (0, false);
        let sqsize = depth.wrapping_sub(1);
        let kato = if qid == 0 { self.kato } else { 0 };
        Fabrics::Connect(Connect { recfmt, qid, sqsize, no_flow, kato }).to_command()
    }
}

impl Host {
    /// Connects an admin queue, and enables the controller.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn connect(context: &Context, who: &Who) -> Result<Self, HostError> {
        let mut admin = Queue::open(context, who.to, &Request::new(0, ADMIN_DEPTH))?;
        let data = who.connect_data(ANY_CNTLID);
        let out = Data::Out { bytes: data.as_bytes(), invalidate: true };
        let answer = admin.run(&who.connect(0, ADMIN_DEPTH), out, &mut [])?;
        // CAST: the low half of the result.
        let cntlid = answer.completion.result.get() as u16;
        let (context, who) = (context.clone(), who.clone());
        let mut host = Self { context, who, cntlid, admin, queues: Vec::new(), in_capsule: 0 };
        host.set_register(offset::CC, CC_ENABLE)?;
        host.until(|csts| csts & (CSTS_RDY | CSTS_CFS) != 0)?;
        if host.register(offset::CSTS, 4)? & u64::from(CSTS_CFS) != 0 {
            return Err(HostError::Protocol("the controller does not become ready".to_owned()));
        }
        Ok(host)
    }

    /// The same, with I/O queues of `depth`.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn connect_io(
        context: &Context,
        who: &Who,
        queues: u16,
        depth: u16,
    ) -> Result<Self, HostError> {
        let mut host = Self::connect(context, who)?;
        let page = host.identify(0x01, 0)?;
        let capsule = u32::from_le_bytes(page[1792..1796].try_into().expect("four bytes")) as usize;
        host.in_capsule = capsule.saturating_mul(16).saturating_sub(COMMAND_LEN).min(CAPSULE_DATA);
        let asked = u32::from(queues.max(1) - 1);
        let got = host.set_feature(feature::NUMBER_OF_QUEUES, asked | asked << 16)?;
        // CAST: the low half of the result, less one.
        for qid in 1..=queues.min(got as u16 + 1) {
            host.add_queue(qid, depth)?;
        }
        Ok(host)
    }

    /// How many bytes of data a capsule of an I/O queue may bring: what the controller says
    /// (IOCCSZ), and 16 KiB at most.
    pub fn in_capsule(&self) -> usize {
        self.in_capsule
    }

    /// Connects an I/O queue. Capsules have the data of its Connect.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn add_queue(&mut self, qid: u16, depth: u16) -> Result<(), HostError> {
        let mut request = Request::new(qid, depth);
        request.cntlid = self.cntlid.into();
        let mut queue = Queue::open(&self.context, self.who.to, &request)?;
        let data = self.who.connect_data(self.cntlid);
        let capsule = Data::Capsule(data.as_bytes());
        queue.run(&self.who.connect(qid, depth), capsule, &mut [])?;
        self.queues.push(queue);
        Ok(())
    }

    fn until(&mut self, is_so: impl Fn(u32) -> bool) -> Result<(), HostError> {
        let until = Instant::now() + Duration::from_secs(10);
        // CAST: a register of 32 bits.
        while !is_so(self.register(offset::CSTS, 4)? as u32) {
            if Instant::now() > until {
                return Err(HostError::Protocol("CSTS does not change".to_owned()));
            }
        }
        Ok(())
    }

    /// Reads a register.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn register(&mut self, offset: u32, size: u8) -> Result<u64, HostError> {
        let get = Fabrics::PropertyGet { offset, size }.to_command();
        Ok(self.admin.run(&get, Data::None, &mut [])?.completion.result.get())
    }

    /// Writes a register of four bytes.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn set_register(&mut self, offset: u32, value: u32) -> Result<(), HostError> {
        let set = Fabrics::PropertySet { offset, size: 4, value: value.into() }.to_command();
        self.admin.run(&set, Data::None, &mut []).map(drop)
    }

    /// Identify: a page of 4096 bytes.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>, HostError> {
        let mut command = Command::new(opcode::IDENTIFY, nsid);
        command.cdw10 = u32::from(cns).into();
        self.page(&command, 4096)
    }

    /// Get Log Page, from an offset on. The length is a multiple of four.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn log_page(&mut self, page: u8, offset: u64, len: usize) -> Result<Vec<u8>, HostError> {
        let mut command = Command::new(opcode::GET_LOG_PAGE, 0xffff_ffff);
        let dwords = (len / 4).wrapping_sub(1) as u32;
        command.cdw10 = (u32::from(page) | (dwords & 0xffff) << 16).into();
        command.cdw11 = (dwords >> 16).into();
        // CAST: the two halves.
        (command.cdw12, command.cdw13) = ((offset as u32).into(), ((offset >> 32) as u32).into());
        self.page(&command, len)
    }

    fn page(&mut self, command: &Command, len: usize) -> Result<Vec<u8>, HostError> {
        let mut bytes = vec![0; len];
        self.admin.run(command, Data::In { len, invalidate: true }, &mut bytes)?;
        Ok(bytes)
    }

    /// Set Features.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn set_feature(&mut self, feature: u8, value: u32) -> Result<u64, HostError> {
        let mut command = Command::new(opcode::SET_FEATURES, 0);
        (command.cdw10, command.cdw11) = (u32::from(feature).into(), value.into());
        Ok(self.admin.run(&command, Data::None, &mut [])?.completion.result.get())
    }

    /// Get Features.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn feature(&mut self, feature: u8) -> Result<u64, HostError> {
        let mut command = Command::new(opcode::GET_FEATURES, 0);
        command.cdw10 = u32::from(feature).into();
        Ok(self.admin.run(&command, Data::None, &mut [])?.completion.result.get())
    }

    /// Keep Alive.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        let command = Command::new(opcode::KEEP_ALIVE, 0);
        self.admin.run(&command, Data::None, &mut []).map(drop)
    }

    /// The namespaces.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn namespaces(&mut self) -> Result<Vec<NamespaceInfo>, HostError> {
        let list = self.identify(0x02, 0)?;
        let numbers = list
            .chunks_exact(4)
            .map(|number| u32::from_le_bytes(number.try_into().expect("four bytes")));
        let mut namespaces = Vec::new();
        for nsid in numbers.take_while(|nsid| *nsid != 0) {
            let page = self.identify(0x00, nsid)?;
            let blocks = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
            let shift = u32::from(page[130]);
            let block = 1u32.checked_shl(shift).unwrap_or(0);
            let nguid = page[104..120].try_into().expect("sixteen bytes");
            namespaces.push(NamespaceInfo { nsid, blocks, block, nguid });
        }
        Ok(namespaces)
    }

    /// Reads blocks, by the first I/O queue. `into` is as long as they are.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn read(
        &mut self,
        nsid: u32,
        slba: u64,
        blocks: u16,
        into: &mut [u8],
    ) -> Result<Answer, HostError> {
        let data = Data::In { len: into.len(), invalidate: true };
        self.io()?.run(&Command::io(opcode::READ, nsid, slba, blocks), data, into)
    }

    /// Writes blocks: in the capsule if they fit.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn write(
        &mut self,
        nsid: u32,
        slba: u64,
        blocks: u16,
        bytes: &[u8],
    ) -> Result<Answer, HostError> {
        let data = match bytes.len() <= self.in_capsule {
            true => Data::Capsule(bytes),
            false => Data::Out { bytes, invalidate: true },
        };
        self.io()?.run(&Command::io(opcode::WRITE, nsid, slba, blocks), data, &mut [])
    }

    /// Flush, Write Zeroes and others without data.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn plain(&mut self, command: &Command) -> Result<Answer, HostError> {
        self.io()?.run(command, Data::None, &mut [])
    }

    /// The first I/O queue.
    ///
    /// # Errors
    ///
    /// [`HostError::Lost`] if there is none.
    pub fn io(&mut self) -> Result<&mut Queue, HostError> {
        self.queues.first_mut().ok_or_else(|| HostError::Lost("no I/O queue".to_owned()))
    }

    /// Shuts the controller down, and disconnects.
    ///
    /// # Errors
    ///
    /// [`HostError`].
    pub fn shut_down(mut self) -> Result<(), HostError> {
        for queue in self.queues.drain(..) {
            queue.close()?;
        }
        self.set_register(offset::CC, CC_ENABLE | CC_SHN_NORMAL)?;
        self.until(|csts| csts >> 2 & 3 == 2)?;
        self.admin.close()
    }
}

/// The subsystems that a target lists.
///
/// # Errors
///
/// [`HostError`].
pub fn discover(context: &Context, to: SocketAddr) -> Result<Vec<Entry>, HostError> {
    let mut host = Host::connect(context, &Who::new(to, DISCOVERY_NQN))?;
    let broken = || HostError::Protocol("the discovery log page is malformed".to_owned());
    let header = host.log_page(discovery::LOG_PAGE, 0, ENTRY_LEN)?;
    let (count, _) = discovery::entries(&header).ok_or_else(broken)?;
    let count = usize::try_from(count).ok().filter(|count| *count < 64).ok_or_else(broken)?;
    let page = host.log_page(discovery::LOG_PAGE, 0, (count + 1) * ENTRY_LEN)?;
    let (_, entries) = discovery::entries(&page).ok_or_else(broken)?;
    host.shut_down()?;
    Ok(entries)
}
