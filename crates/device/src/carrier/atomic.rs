//! Atomics without a packet, on a word that is mapped in this process.

use dmabuf::Direction;
use iba::Access;
use smallvec::SmallVec;
use transport::env::{AtomicOp, Direct, Local, LocalError, OneSided};
use umem::{CpuAccess, Umem};

use crate::ids::PdId;
use crate::memory::mr::MrTable;
use crate::payload::{for_each_sge, local_fault};

/// Carries an atomic out on the word at `offset` of `there`, and stores what was there before in
/// the list of the request.
pub(crate) fn carry_out(
    mrs: &MrTable,
    pd: PdId,
    op: &OneSided<'_>,
    there: &Umem,
    offset: u64,
    atomic: AtomicOp,
) -> Direct {
    let Local::Sges(sges) = op.local else { return Direct::Declined };
    if !op.remote_addr.is_multiple_of(8) {
        return Direct::Declined;
    }
    // Both ends are held in place before anything happens: an atomic cannot be undone.
    let mut parts: SmallVec<[(Umem, u64, u64); 1]> = SmallVec::new();
    let found = for_each_sge(mrs, pd, sges, 0, 8, Access::LOCAL_WRITE, |umem, at, length| {
        parts.push((umem.clone(), at, u64::from(length)));
        Ok(())
    });
    if let Err(error) = found {
        return Direct::Local(error);
    }
    let mut ours: SmallVec<[CpuAccess<'_>; 1]> = SmallVec::new();
    for (umem, ..) in &parts {
        match umem.cpu_access(Direction::ToDevice) {
            Ok(access) => ours.push(access),
            Err(fault) => return Direct::Local(local_fault(&fault)),
        }
    }
    let old = match atomic {
        AtomicOp::CompareSwap { compare, swap } => there.compare_swap(offset, compare, swap),
        AtomicOp::FetchAdd { add } => there.fetch_add(offset, add),
    };
    let Ok(old) = old else { return Direct::Declined };
    let mut bytes = &old.to_ne_bytes()[..];
    for (umem, (_, at, length)) in ours.iter().zip(&parts) {
        let (piece, rest) = bytes.split_at(*length as usize);
        bytes = rest;
        if let Err(fault) = umem.write(*at, piece) {
            return Direct::Local(match local_fault(&fault) {
                // It was carried out: a retry would do it twice.
                LocalError::NotPresent => LocalError::Fault,
                error => error,
            });
        }
    }
    Direct::Done
}
