//! Either side of the demo: a QP, a GPU, and every kind of memory.

use gpu::{Gpu, Machine};
use verbs::{Context, Cq, Qp, QpSpec, SendRequest};

use super::memory::{Kind, Memory};
use super::mover::Mover;
use super::peer::{Outcome, PATIENCE};

/// The QP of either side and its resources.
pub(super) struct Side {
    pub(super) context: Context,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    pub(super) memories: Vec<Memory>,
    pub(super) gpu: Gpu,
    _mover: Mover,
}

impl Side {
    pub(super) fn open(size: u32) -> Outcome<Self> {
        let devices = verbs::devices()?;
        let device = devices.first().ok_or("there is no device")?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(512)?;
        let qp = pd.create_qp(&QpSpec::rc(&cq))?;
        let gpu = Machine::load()?.open_first()?;
        let memories = Kind::ALL
            .into_iter()
            .map(|kind| Memory::new(&pd, &gpu, kind, u64::from(size)))
            .collect::<Outcome<Vec<_>>>()?;
        let bos = memories.iter().filter_map(Memory::bo).cloned().collect();
        let mover = Mover::start(&gpu, bos);
        Ok(Self { context, cq, qp, memories, gpu, _mover: mover })
    }

    /// The next completion, which must be a success.
    pub(super) fn completion(&self) -> Outcome<verbs::Wc> {
        let wc = self.cq.wait_timeout(PATIENCE)?.ok_or("no completion within 20 seconds")?;
        if !wc.is_success() {
            return Err(format!("work request {} ended with {:?}", wc.wr_id, wc.status).into());
        }
        Ok(wc)
    }

    pub(super) fn post(&self, request: &SendRequest<'_>) -> Outcome<()> {
        Ok(self.qp.post_send(request)?)
    }
}
