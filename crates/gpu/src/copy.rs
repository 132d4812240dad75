//! Copies: by the CPU from and to buffers, and from buffer to buffer.

use std::sync::Arc;

use dmabuf::{AcquireCtx, Reach, Resv, Usage};
use umem::{Fault, HostBuf, Umem};

use crate::bo::BoInner;
use crate::device::Device;
use crate::error::{Result, invalid, no_memory};
use crate::handle::{Bo, Memory};
use crate::stats::Counters;

/// Copies of an imported buffer are done in pieces of this size; its owner may move it in between.
const PIECE: u64 = 1 << 20;

/// How much is staged in system memory at a time.
const STAGE: usize = 256 << 10;

impl Bo {
    /// Copies out `out.len()` bytes at `offset`, after their writers are done. Must not be called
    /// with the reservation lock held.
    ///
    /// # Errors
    ///
    /// EINVAL when the range exceeds the buffer, ENODEV when the buffer was revoked.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.pieces(offset, out.len() as u64, |at, len| {
            let out = &mut out[at as usize..(at + len) as usize];
            self.access(Usage::Write, |umem| umem.read(offset + at, out))
        })
    }

    /// Copies in `bytes` at `offset`, after all their users are done. Must not be called with the
    /// reservation lock held.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pieces(offset, bytes.len() as u64, |at, len| {
            let bytes = &bytes[at as usize..(at + len) as usize];
            self.access(Usage::Read, |umem| umem.write(offset + at, bytes))
        })
    }

    /// Copies `len` bytes at `offset` to other memory, such as a program's, whose pages may be
    /// missing.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); EINVAL also when a page of `out` cannot be written.
    #[doc(alias = "cuMemcpyDtoH")]
    pub fn read_into(&self, offset: u64, out: &Umem, at: u64, len: u64) -> Result<()> {
        self.pieces(offset, len, |piece, len| {
            let copy = |umem: &Umem| Umem::copy(out, at + piece, umem, offset + piece, len);
            self.access(Usage::Write, copy)
        })
    }

    /// Copies `len` bytes of other memory to `offset`.
    ///
    /// # Errors
    ///
    /// As [`read_into`](Self::read_into).
    #[doc(alias = "cuMemcpyHtoD")]
    pub fn write_from(&self, offset: u64, from: &Umem, at: u64, len: u64) -> Result<()> {
        self.pieces(offset, len, |piece, len| {
            let copy = |umem: &Umem| Umem::copy(umem, offset + piece, from, at + piece, len);
            self.access(Usage::Read, copy)
        })
    }

    /// Stores `pattern` repeatedly in `len` bytes at `offset`; the last time, as much of it as
    /// fits.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[doc(alias = "cuMemsetD8")]
    #[doc(alias = "cuMemsetD32")]
    pub fn fill(&self, offset: u64, pattern: &[u8], len: u64) -> Result<()> {
        if pattern.is_empty() {
            return Err(invalid("nothing to fill memory with"));
        }
        let mut pattern = pattern.to_vec();
        let mut start = 0;
        self.pieces(offset, len, |at, len| {
            // A piece need not begin where the pattern does.
            // CAST: less than the pattern's length.
            let shift = ((at - start) % pattern.len() as u64) as usize;
            pattern.rotate_left(shift);
            start = at;
            self.access(Usage::Read, |umem| umem.fill_with(offset + at, &pattern, len))
        })
    }

    /// Visits a range: at once, or in pieces if the buffer was imported.
    fn pieces(
        &self,
        offset: u64,
        len: u64,
        mut act: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.check(offset, len)?;
        let piece = if self.is_imported() { PIECE } else { len.max(1) };
        let mut at = 0;
        while at < len {
            let here = piece.min(len - at);
            act(at, here)?;
            self.count(here);
            self.device().throttle.pace(here);
            at += here;
        }
        Ok(())
    }

    /// Runs a function on the bytes, after the fences of `usage` and stronger.
    fn access(
        &self,
        usage: Usage,
        mut act: impl FnMut(&Umem) -> std::result::Result<(), Fault>,
    ) -> Result<()> {
        match self.memory() {
            Memory::Own(bo) => {
                let resv = bo.resv.lock();
                bo.bring_back(&resv, false);
                bo.wait(usage);
                act(&bo.umem()?).map_err(|fault| invalid(fault.to_string()))
            }
            Memory::Imported(imported) => {
                wait_for_others(imported.buffer().resv(), usage);
                imported.access(|view| act(&view.umem))
            }
        }
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.device().check_present()?;
        let size = self.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(invalid(format!(
                "{len:#x} bytes at {offset:#x} are not all inside {} of {size:#x} bytes",
                self.name()
            )));
        }
        Ok(())
    }

    fn count(&self, len: u64) {
        let stats = &self.device().stats;
        let in_bar = match self.memory() {
            Memory::Own(bo) => bo.resource().is_ok_and(|resource| bo.is_in_reach(&resource)),
            Memory::Imported(_) => false,
        };
        Counters::add(if in_bar { &stats.bar_bytes } else { &stats.copied_bytes }, len);
    }

    /// The GPU that uses the buffer.
    pub(crate) fn device(&self) -> &Arc<Device> {
        match self.memory() {
            Memory::Own(bo) => &bo.device,
            Memory::Imported(imported) => &imported.device,
        }
    }
}

impl BoInner {
    /// Its bytes in their present place. Called under the reservation lock, so that they stay
    /// there.
    fn umem(&self) -> Result<Umem> {
        let resource = self.resource()?;
        resource.touch();
        resource.umem().map_err(|fault| invalid(fault.to_string()))
    }
}

/// Copies `len` bytes from one buffer to another, or within one buffer; the two ranges must not
/// overlap. Between two GPUs the bytes are copied directly if the GPU of the destination reaches
/// the other one, by the rules for NICs, and otherwise through system memory. Must not be called
/// with a reservation lock held.
///
/// # Errors
///
/// EINVAL when a range exceeds its buffer, ENODEV when a buffer was revoked.
#[doc(alias = "cuMemcpyDtoD")]
pub fn copy((from, start): (&Bo, u64), (to, at): (&Bo, u64), len: u64) -> Result<()> {
    from.check(start, len)?;
    to.check(at, len)?;
    if len == 0 {
        return Ok(());
    }
    let way = way(from, to);
    let stage = match way {
        Way::Staged => Some(HostBuf::anonymous(STAGE).map_err(|error| {
            no_memory(format!("no memory for a copy from {}: {error}", from.name()))
        })?),
        Way::Within | Way::Peer => None,
    };
    let is_own = !from.is_imported() && !to.is_imported();
    let piece = match (&stage, is_own) {
        (Some(_), _) => STAGE as u64,
        (None, true) => len,
        (None, false) => PIECE,
    };
    let mut done = 0;
    while done < len {
        let here = piece.min(len - done);
        let ends = ((from, start + done), (to, at + done));
        match &stage {
            None => {
                copy_piece(ends.0, ends.1, here)?;
                to.device().throttle.pace(here);
            }
            Some(stage) => {
                let stage = Umem::host(stage);
                from.read_into(ends.0.1, &stage, 0, here)?;
                to.write_from(ends.1.1, &stage, 0, here)?;
            }
        }
        done += here;
    }
    let stats = &to.device().stats;
    match way {
        Way::Within => Counters::add(&stats.copied_bytes, len),
        Way::Peer => Counters::add(&stats.peer_bytes, len),
        Way::Staged => Counters::add(&stats.staged_bytes, len),
    }
    Ok(())
}

/// How bytes go from buffer to buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Both buffers are the GPU's own, or one is in system memory.
    Within,
    /// From another GPU.
    Peer,
    /// From another GPU that is out of reach, through system memory.
    Staged,
}

fn way(from: &Bo, to: &Bo) -> Way {
    let (source, target) = (from.device(), to.device());
    let is_one = Arc::ptr_eq(source, target) || source.bdf.is_some() && source.bdf == target.bdf;
    // The GPU that imported a buffer reaches it, so the buffer counts as its own.
    let is_far = |bo: &Bo| match bo.memory() {
        Memory::Own(_) => false,
        Memory::Imported(imported) => imported
            .view()
            .is_ok_and(|view| view.map_type != Reach::System && imported.is_of_another()),
    };
    match is_one {
        true if is_far(from) || is_far(to) => Way::Peer,
        true => Way::Within,
        false if source.reach(target.addr()).is_ok() => Way::Peer,
        false => Way::Staged,
    }
}

/// Copies without a pause. Takes the locks of this process's buffers, so that they stay in place.
/// An imported buffer is mapped before that, since its owner may need time, and accessed through
/// its gate.
fn copy_piece((from, start): (&Bo, u64), (to, at): (&Bo, u64), len: u64) -> Result<()> {
    let mut locks: Vec<Resv> = Vec::new();
    for bo in [from, to] {
        match bo.memory() {
            Memory::Own(own) => locks.push(own.resv.clone()),
            Memory::Imported(imported) => {
                let usage = if std::ptr::eq(bo, from) { Usage::Write } else { Usage::Read };
                wait_for_others(imported.buffer().resv(), usage);
            }
        }
    }
    let once = |from_view: Option<&Umem>, to_view: Option<&Umem>| -> Result<Option<Fault>> {
        let ctx = AcquireCtx::new();
        let guards = ctx.lock_all(&locks);
        for own in [from, to].into_iter().filter_map(|bo| bo.own().ok()) {
            let resv = guards.iter().find(|guard| guard.protects(&own.resv));
            own.bring_back(resv.expect("its lock is among those"), false);
        }
        let source = umem_of(from, Usage::Write, from_view)?;
        let target = umem_of(to, Usage::Read, to_view)?;
        match Umem::copy(&target, at, &source, start, len) {
            Ok(()) => Ok(None),
            Err(fault @ Fault::Stale { .. }) => Ok(Some(fault)),
            Err(fault) => Err(invalid(fault.to_string())),
        }
    };
    let again = |fault: Option<Fault>| fault.map_or(Ok(()), Err);
    match (from.memory(), to.memory()) {
        (Memory::Own(_), Memory::Own(_)) => once(None, None).map(drop),
        (Memory::Imported(source), Memory::Own(_)) => {
            source.access_with(|view| once(Some(&view.umem), None).map(again))
        }
        (Memory::Own(_), Memory::Imported(target)) => {
            target.access_with(|view| once(None, Some(&view.umem)).map(again))
        }
        (Memory::Imported(source), Memory::Imported(target)) => source.access_with(|from| {
            let to = target.view()?;
            once(Some(&from.umem), Some(&to.umem)).map(again)
        }),
    }
}

fn umem_of(bo: &Bo, usage: Usage, view: Option<&Umem>) -> Result<Umem> {
    match (bo.memory(), view) {
        (Memory::Own(own), _) => {
            own.wait(usage);
            own.umem()
        }
        (Memory::Imported(_), Some(umem)) => Ok(umem.clone()),
        (Memory::Imported(imported), None) => imported.view().map(|view| view.umem),
    }
}

/// Waits for the fences that this process knows.
fn wait_for_others(resv: &Resv, usage: Usage) {
    // TIMEOUT: none; a fence is signaled in finite time without outside help.
    let _ = resv.wait(usage, None);
}
