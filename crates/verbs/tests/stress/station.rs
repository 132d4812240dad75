//! What one thread has in one process: a NIC of its own, buffers, regions, QPs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use gpu::{Bo, Domain, Gpu, GpuConfig, Place};
use verbs::soft::{self, NicConfig};
use verbs::{
    Access, AttrMask, Av, Context, Cq, Dm, DmaBuf, Endpoint, Gid, HostBuf, Mr, Pd, Psn, Qp, QpAttr,
    QpSpec, QpState, Qpn, RKey, Remote, SendRequest, Wc,
};

use crate::held;
use crate::seat::{Answer, Op};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
/// Far longer than anything here takes: work that does not complete in this time hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the ids of receives.
pub(crate) const RECV: u64 = 1 << 63;

/// A work request: its numbers in the order of [`Post::words`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) qp: u64,
    pub(crate) what: What,
    pub(crate) region: u64,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: u64,
    /// What an atomic adds, or compares with and stores.
    pub(crate) first: u64,
    pub(crate) second: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Write,
    Read,
    Send,
    Add,
    Swap,
}

pub(crate) const WHATS: [What; 5] = [What::Write, What::Read, What::Send, What::Add, What::Swap];

impl Post {
    pub(crate) fn words(&self) -> [u64; 10] {
        let Self { id, qp, what, region, at, len, addr, rkey, first, second } = *self;
        [id, qp, what as u64, region, at, len, addr, rkey, first, second]
    }

    fn of(words: &[u64]) -> Self {
        let &[id, qp, what, region, at, len, addr, rkey, first, second] = words else {
            panic!("ten words, not {words:?}");
        };
        let what = WHATS[what as usize];
        Self { id, qp, what, region, at, len, addr, rkey, first, second }
    }
}

/// The device, open.
struct Open {
    context: Context,
    pd: Pd,
    cq: Cq,
}

enum Memory {
    Gpu(Bo, Gpu),
    Host(HostBuf),
    Dm(Dm, Option<DmaBuf>),
}

pub(crate) struct Station {
    gpu: Gpu,
    config: NicConfig,
    open: Option<Open>,
    buffers: BTreeMap<u64, Memory>,
    regions: BTreeMap<u64, Mr>,
    qps: BTreeMap<u64, Qp>,
    /// Completions that have not been requested yet.
    done: Vec<Wc>,
}

impl Station {
    pub(crate) fn new(gpu: &Gpu, config: &NicConfig) -> Self {
        Self {
            gpu: gpu.clone(),
            config: config.clone(),
            open: None,
            buffers: BTreeMap::new(),
            regions: BTreeMap::new(),
            qps: BTreeMap::new(),
            done: vec![],
        }
    }

    fn open(&mut self) -> &Open {
        self.open.get_or_insert_with(|| {
            let context = soft::device(self.config.clone()).unwrap().open().unwrap();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(256).unwrap();
            Open { context, pd, cq }
        })
    }

    pub(crate) fn answer(&mut self, op: Op, words: &[u64], bytes: &[u8]) -> Answer {
        match self.try_answer(op, words, bytes) {
            Ok(answer) => answer,
            Err(Refused(kind, what)) => Answer::refuse(Plain(&kind), what),
        }
    }

    fn try_answer(&mut self, op: Op, words: &[u64], bytes: &[u8]) -> Result<Answer, Refused> {
        let mut answer = Answer::default();
        match (op, words) {
            (Op::AllocGpu, &[buf, size, place, own]) => {
                let gpu = if own == 1 { private_gpu() } else { self.gpu.clone() };
                let place = [Place::VRAM, Place::VISIBLE_VRAM, Place::GTT, Place::ONLY_VRAM]
                    [place as usize];
                let bo = gpu.alloc(size, place)?;
                self.buffers.insert(buf, Memory::Gpu(bo, gpu));
            }
            (Op::AllocHost, &[buf, size]) => {
                let host = match size % 8192 {
                    0 => HostBuf::memfd("peerdma:stress", size as usize).unwrap(),
                    _ => HostBuf::anonymous(size as usize).unwrap(),
                };
                self.buffers.insert(buf, Memory::Host(host));
            }
            (Op::AllocDm, &[buf, size]) => {
                let dm = self.open().context.alloc_dm(size)?;
                self.buffers.insert(buf, Memory::Dm(dm, None));
            }
            (Op::Free, &[buf]) => drop(self.buffers.remove(&buf)),
            (Op::Write, &[buf, at]) => match &self.buffers[&buf] {
                Memory::Gpu(bo, _) => bo.write(at, bytes)?,
                Memory::Host(host) => host.write(at as usize, bytes).unwrap(),
                Memory::Dm(dm, _) => dm.write(at, bytes)?,
            },
            (Op::Read, &[buf, at, len]) => {
                answer.bytes = vec![0; len as usize];
                match &self.buffers[&buf] {
                    Memory::Gpu(bo, _) => bo.read(at, &mut answer.bytes)?,
                    Memory::Host(host) => host.read(at as usize, &mut answer.bytes).unwrap(),
                    Memory::Dm(dm, _) => dm.read(at, &mut answer.bytes)?,
                }
            }
            (Op::Move, &[buf, to]) => {
                if let Memory::Gpu(bo, gpu) = &self.buffers[&buf] {
                    match to {
                        0 => gpu.evict(bo)?,
                        1 => gpu.move_to(bo, Domain::Vram)?,
                        _ => gpu.move_to(bo, Domain::Gtt)?,
                    };
                }
            }
            (Op::EvictAll, &[]) => drop(self.gpu.evict_all()),
            (Op::Remove, &[buf]) => {
                if let Memory::Gpu(_, gpu) = &self.buffers[&buf] {
                    gpu.remove();
                }
            }
            (Op::Reset, &[micros]) => {
                let resetting = self.gpu.begin_reset();
                std::thread::sleep(Duration::from_micros(micros));
                drop(resetting);
            }
            (Op::Share, &[buf]) => {
                let fd = match self.buffers.get_mut(&buf).expect("it is held") {
                    Memory::Gpu(bo, _) => bo.export()?.fd().as_raw_fd(),
                    Memory::Dm(dm, export) => {
                        let export = export.insert(dm.export()?);
                        export.fd().as_raw_fd()
                    }
                    Memory::Host(_) => panic!("host memory is not a dma-buf"),
                };
                answer.words = vec![u64::from(std::process::id()), fd as u64];
            }
            (Op::Register, &[region, buf, at, len, iova]) => {
                self.open();
                let pd = &self.open.as_ref().expect("open").pd;
                let mr = match &self.buffers[&buf] {
                    Memory::Gpu(bo, _) => {
                        pd.reg_dmabuf_mr(bo.export()?.fd(), at, len, iova, ALL)?
                    }
                    Memory::Host(host) => pd.reg_mr(host, ALL)?,
                    Memory::Dm(dm, _) => pd.reg_dm_mr(dm, at, len, ALL)?,
                };
                answer.words = vec![mr.remote(0).addr, u64::from(mr.rkey().0)];
                self.regions.insert(region, mr);
            }
            (Op::Import, &[region, pid, fd, at, len, iova]) => {
                let path = format!("/proc/{pid}/fd/{fd}");
                let file = File::options().read(true).write(true).open(path).expect("it is shared");
                let mr = self.open().pd.reg_dmabuf_mr(file.as_fd(), at, len, iova, ALL)?;
                answer.words = vec![mr.remote(0).addr, u64::from(mr.rkey().0)];
                self.regions.insert(region, mr);
            }
            (Op::Dereg, &[region]) => drop(self.regions.remove(&region)),
            (Op::NewQp, &[qp]) => {
                let open = self.open();
                let new = open.pd.create_qp(&QpSpec::rc(&open.cq))?;
                let end = new.endpoint()?;
                let gid = u128::from_be_bytes(end.gid.0);
                let (high, low) = ((gid >> 64) as u64, gid as u64);
                answer.words =
                    vec![high, low, u64::from(end.qpn.value()), u64::from(end.psn.value())];
                self.qps.insert(qp, new);
            }
            (Op::Connect, &[qp, high, low, qpn, psn]) => {
                let gid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
                let (qpn, psn) = (Qpn::new(qpn as u32), Psn::new(psn as u32));
                connect(&self.qps[&qp], &Endpoint { gid: Gid(gid), qpn, psn })?;
            }
            (Op::FreeQp, &[qp]) => drop(self.qps.remove(&qp)),
            (Op::Recv, &[id, qp, region, at, len]) => {
                let slice = self.regions[&region].slice(at, len as u32);
                self.qps[&qp].post_recv(id | RECV, &[slice]).unwrap();
            }
            (Op::Post, _) => self.post(&Post::of(words)),
            (Op::Reap, &[first, count, recv]) => answer.words = self.reap(first, count, recv)?,
            (Op::Reopen, &[]) => {
                self.close();
                self.open();
            }
            (Op::Close, &[]) => {
                self.close();
                self.buffers.clear();
            }
            (Op::Objects, &[]) => {
                let all = soft::resources(&self.open().context).unwrap();
                let [ctx, pd, cq] = [all.ctx, all.pd, all.cq].map(|count| count as u64 - 1);
                let rest = [all.qp, all.mr, all.srq, all.dm].map(|count| count as u64);
                answer.words = [ctx, pd, cq].into_iter().chain(rest).collect();
            }
            (Op::Held, &[]) => answer.words = held::now(&self.gpu).to_vec(),
            (op, words) => panic!("{op:?} of {words:?}"),
        }
        Ok(answer)
    }

    fn post(&self, post: &Post) {
        let mr = &self.regions[&post.region];
        let local = [mr.slice(post.at, post.len as u32)];
        let there = Remote { addr: post.addr, rkey: RKey(post.rkey as u32) };
        let id = post.id;
        let request = match post.what {
            What::Write => SendRequest::write(id, &local, there),
            What::Read => SendRequest::read(id, &local, there),
            What::Send => SendRequest::send(id, &local),
            What::Add => SendRequest::fetch_add(id, local[0], there, post.first),
            What::Swap => SendRequest::compare_swap(id, local[0], there, post.first, post.second),
        };
        self.qps[&post.qp].post_send(&request.signaled()).unwrap();
    }

    /// Waits for completions of work that was numbered from `first` on.
    fn reap(&mut self, first: u64, count: u64, recv: u64) -> Result<Vec<u64>, Refused> {
        self.done.retain(|wc| wc.wr_id & !RECV >= first);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_meant = |wc: &&Wc| (wc.wr_id & RECV != 0) == (recv == 1);
            let meant: Vec<_> = self.done.iter().filter(is_meant).collect();
            if meant.len() as u64 >= count {
                let words = meant
                    .iter()
                    .flat_map(|wc| [wc.wr_id & !RECV, wc.status as u64, u64::from(wc.byte_len)]);
                let words = words.collect();
                self.done.retain(|wc| !is_meant(&wc));
                return Ok(words);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.open().cq.wait_timeout(left).unwrap() {
                Some(wc) if wc.wr_id & !RECV >= first => self.done.push(wc),
                Some(_) => {}
                None => {
                    let counters = soft::counters(&self.open().context).unwrap();
                    let seen = &self.done;
                    let what = format!("{count} completions from {first}: {seen:?} {counters:?}");
                    return Err(Refused("Hang".to_owned(), what));
                }
            }
        }
    }

    fn close(&mut self) {
        self.qps.clear();
        self.regions.clear();
        self.buffers.retain(|_, memory| !matches!(memory, Memory::Dm(..)));
        self.done.clear();
        self.open = None;
    }
}

/// Like [`Qp::connect`], with longer timeouts: this machine may be busy.
fn connect(qp: &Qp, peer: &Endpoint) -> verbs::Result<()> {
    use AttrMask as A;
    let own = qp.endpoint()?;
    let mut attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: qp.pd().context().port_attr().active_mtu,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        av: Av { dgid: peer.gid, is_global: true, port_num: 1, hop_limit: 64, ..Av::default() },
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        min_rnr_timer: verbs::RnrTimer::from_code(6).expect("below 32"),
        timeout: verbs::AckTimeout::from_code(17).expect("below 32"),
        retry_cnt: 7,
        rnr_retry: 7,
        sq_psn: own.psn,
        ..QpAttr::default()
    };
    let mask = A::STATE | A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    qp.modify(&attr, mask | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER)?;
    attr.state = QpState::Rts;
    let mask = A::STATE | A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY;
    qp.modify(&attr, mask | A::MAX_QP_RD_ATOMIC)
}

fn private_gpu() -> Gpu {
    let config = GpuConfig { vram: 1 << 20, gtt: 1 << 20, shared: false, ..GpuConfig::default() };
    Gpu::open(&config).unwrap()
}

/// A refusal: its kind, and its text.
struct Refused(String, String);

impl From<verbs::Refusal> for Refused {
    fn from(refusal: verbs::Refusal) -> Self {
        Self(format!("{:?}", refusal.kind()), refusal.to_string())
    }
}

impl From<dmabuf::ExporterError> for Refused {
    fn from(error: dmabuf::ExporterError) -> Self {
        // The same name for the same kind.
        let kind = match format!("{:?}", error.kind) {
            again if again == "Again" => "WouldBlock".to_owned(),
            kind => kind,
        };
        Self(kind, error.to_string())
    }
}

/// Shown without quotes.
struct Plain<'a>(&'a str);

impl std::fmt::Debug for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}
