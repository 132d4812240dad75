//! Memory windows: keys that a program creates and invalidates by work requests, without a
//! registration (IBA 10.6.7).
//!
//! A window of type 1 is for every QP of its protection domain, and may be bound again at any time.
//! One of type 2 (IBA's 2B) is for the QP that bound it, the program chooses the low eight bits of
//! its key, and it must be invalidated before it is bound again. The rules are those of the
//! kernel's `rxe_mw.c`.
//!
//! A window names its region which is looked up at each access, so that the window follows the
//! region's memory.

use iba::{Access, Qpn, RKey};
use slab::Slab;
use transport::env::RemoteError;
use transport::wr::Bind;

use crate::ids::{MrId, MwId, PdId};
use crate::memory::mr::{Mr, MrTable};
use crate::objects::charges::Charge;
use crate::objects::uses::Use;

/// The two kinds of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_mw_type")]
#[expect(clippy::exhaustive_enums, reason = "the types of IBA, with 2A left out as every NIC does")]
pub enum MwType {
    /// For a protection domain.
    One,
    /// For a QP.
    Two,
}

/// A window.
#[derive(Debug)]
struct Window {
    pd: PdId,
    _pd_use: Use,
    mw_type: MwType,
    key: u32,
    bound: Option<Bound>,
    _charge: Charge,
}

/// What a window exposes.
#[derive(Clone, Copy, Debug)]
struct Bound {
    mr: MrId,
    /// The first address, as peers name it and as the region names it.
    base: u64,
    addr: u64,
    length: u64,
    access: Access,
    /// For type 2, the QP that it is for.
    qpn: Option<Qpn>,
}

/// Set in the keys of windows; those of regions are smaller, as `max_mr` bounds them.
const WINDOW: u32 = 1 << 31;
/// The bits of a key that change with each use.
const TAG: u32 = 0xff;

/// The rights that a window may grant. LOCAL_WRITE has no meaning for a window, but programs name
/// it.
const MW_ACCESS: Access = Access::REMOTE.union(Access::ZERO_BASED).union(Access::LOCAL_WRITE);

/// All windows, by key.
#[derive(Debug, Default)]
pub(crate) struct WindowTable {
    slots: Slab<Window>,
}

impl WindowTable {
    fn by_key(&self, key: u32) -> Option<&Window> {
        let index = ((key & !WINDOW) >> 8) as usize;
        let is_window = key & WINDOW != 0;
        self.slots.get(index).filter(|window| is_window && window.key == key)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a window that exposes nothing yet, and returns its key.
    pub(crate) fn add(
        &mut self,
        pd: PdId,
        pd_use: Use,
        mw_type: MwType,
        charge: Charge,
    ) -> (MwId, u32) {
        let entry = self.slots.vacant_entry();
        let id = MwId::from(entry.key());
        let key = WINDOW | id.0 << 8;
        entry.insert(Window { pd, _pd_use: pd_use, mw_type, key, bound: None, _charge: charge });
        (id, key)
    }

    /// Removes a window, bound or not. Returns false if there is none.
    pub(crate) fn remove(&mut self, id: MwId) -> bool {
        self.slots.try_remove(id.index()).is_some()
    }

    /// Whether a window is bound to a region.
    pub(crate) fn shows(&self, mr: MrId) -> bool {
        let shows = |window: &Window| window.bound.is_some_and(|bound| bound.mr == mr);
        self.slots.iter().any(|(_, window)| shows(window))
    }

    /// The region of a window and the address in it, if a peer has this access there.
    fn remote(
        &self,
        pd: PdId,
        RKey(key): RKey,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(MrId, u64), RemoteError> {
        let window = self.by_key(key).ok_or(RemoteError::Access)?;
        let bound = window.bound.ok_or(RemoteError::Access)?;
        if window.pd != pd || !bound.access.contains(access) {
            return Err(RemoteError::Access);
        }
        let offset = addr.checked_sub(bound.base).ok_or(RemoteError::Access)?;
        let end = offset.checked_add(length).ok_or(RemoteError::Access)?;
        if end > bound.length {
            return Err(RemoteError::Access);
        }
        Ok((bound.mr, bound.addr + offset))
    }

    /// Whether a key belongs to a window.
    pub(crate) fn has(&self, key: u32) -> bool {
        self.by_key(key).is_some()
    }

    /// What a window exposes at an address: the region, and the address in it.
    pub(crate) fn behind(&self, key: u32, addr: u64) -> Option<(MrId, u64)> {
        let bound = self.by_key(key)?.bound?;
        Some((bound.mr, bound.addr.wrapping_add(addr.wrapping_sub(bound.base))))
    }

    /// Whether a key does not belong to a window, or to one that the QP may use.
    pub(crate) fn check_qp(&self, RKey(key): RKey, qpn: Qpn) -> Result<(), RemoteError> {
        let bound = self.by_key(key).and_then(|window| window.bound);
        match bound.and_then(|bound| bound.qpn) {
            Some(owner) if owner != qpn => Err(RemoteError::Access),
            _ => Ok(()),
        }
    }

    /// Unbinds a window of type 2. Its key is dead until it is bound again.
    pub(crate) fn invalidate(&mut self, pd: PdId, qpn: Qpn, rkey: RKey) -> Result<(), RemoteError> {
        let window = self.by_key(rkey.0).ok_or(RemoteError::Access)?;
        // IBA o10-37.2.26: a window of type 1 cannot be invalidated.
        if window.mw_type == MwType::One || window.pd != pd {
            return Err(RemoteError::Access);
        }
        self.check_qp(rkey, qpn)?;
        let index = ((rkey.0 & !WINDOW) >> 8) as usize;
        self.slots[index].bound = None;
        Ok(())
    }

    /// Unbinds the windows of a QP that is destroyed.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        for (_, window) in &mut self.slots {
            if window.bound.is_some_and(|bound| bound.qpn == Some(qpn)) {
                window.bound = None;
            }
        }
    }

    /// The windows of some protection domains.
    pub(crate) fn ids_in(&self, pds: &[PdId]) -> Vec<MwId> {
        let of_pds = self.slots.iter().filter(|(_, window)| pds.contains(&window.pd));
        of_pds.map(|(index, _)| index.into()).collect()
    }
}

impl MrTable {
    /// Carries out a bind. The rules, in order, are those of `rxe_check_bind_mw`.
    pub(crate) fn bind(&mut self, pd: PdId, qpn: Qpn, bind: &Bind) -> Result<(), &'static str> {
        let index = bind.window as usize;
        let window = self.windows.slots.get(index).ok_or("there is no such window")?;
        let is_two = window.mw_type == MwType::Two;
        // IBA C10-72.
        if window.pd != pd {
            return Err("the window belongs to another protection domain");
        }
        if is_two && window.bound.is_some() {
            return Err("a window of type 2 must be invalidated before it is bound again");
        }
        // IBA o10-36.2.2.
        if !is_two && bind.access.contains(Access::ZERO_BASED) {
            return Err("a window of type 1 cannot be zero based");
        }
        let bound = if bind.length == 0 {
            if is_two {
                return Err("a window of type 2 must expose at least one byte");
            }
            None
        } else {
            let qpn = is_two.then_some(qpn);
            Some(self.bound(pd, bind, qpn)?)
        };
        let window = &mut self.windows.slots[index];
        window.key = window.key & !TAG | bind.key.0 & TAG;
        window.bound = bound;
        Ok(())
    }

    fn bound(&self, pd: PdId, bind: &Bind, qpn: Option<Qpn>) -> Result<Bound, &'static str> {
        let Some((mr, region)) = self.find(bind.lkey.0) else {
            return Err("there is no region with this key");
        };
        if region.pd != pd {
            return Err("the region belongs to another protection domain");
        }
        if region.access.contains(Access::ZERO_BASED) {
            return Err("the region is zero based");
        }
        // IBA C10-73.
        if !region.access.contains(Access::MW_BIND) {
            return Err("the region lacks IBV_ACCESS_MW_BIND");
        }
        if !MW_ACCESS.contains(bind.access) {
            return Err("a window can grant only remote rights");
        }
        // IBA C10-74.
        let writes = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
        if bind.access.intersects(writes) && !region.access.contains(Access::LOCAL_WRITE) {
            return Err("the region lacks IBV_ACCESS_LOCAL_WRITE");
        }
        // IBA C10-75.
        if region.place(bind.addr, bind.length).is_none() {
            return Err("it is not inside the region");
        }
        let base = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        let (addr, length, access) = (bind.addr, bind.length, bind.access);
        Ok(Bound { mr, base, addr, length, access, qpn })
    }

    /// The region that a peer names through a window, and the address in it.
    pub(super) fn through_window(
        &self,
        pd: PdId,
        key: RKey,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(&Mr, u64), RemoteError> {
        let (mr, addr) = self.windows.remote(pd, key, addr, length, access)?;
        let region = self.get(mr).filter(|region| !region.is_revoked).ok_or(RemoteError::Access)?;
        Ok((region, addr))
    }
}

#[cfg(test)]
mod tests {
    use iba::LKey;
    use umem::{HostBuf, Umem};

    use super::*;
    use crate::engine::MrKind;
    use crate::objects::uses::Uses;

    const PD: PdId = PdId(3);
    const QPN: Qpn = Qpn::new(77);

    /// A region of 4096 bytes at 0x1000, and a window of each type.
    fn table() -> (MrTable, LKey) {
        let mut mrs = MrTable::default();
        let umem = Umem::host(&HostBuf::anonymous(4096).unwrap());
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let (iova, length, offset, kind) = (0x1000, 4096, 0, MrKind::User);
        let (_, key) = mrs.insert(|key| Mr {
            pd: PD,
            pd_use: Uses::default().take(),
            _dm_use: None,
            key,
            access,
            iova,
            length,
            umem,
            offset,
            kind,
            import: None,
            peer: None,
            odp: None,
            is_revoked: false,
            pinned: 0,
            is_writable: true,
            _charge: Charge::none(),
        });
        for mw_type in [MwType::One, MwType::Two] {
            let key = WINDOW | (mrs.windows.slots.len() as u32) << 8;
            mrs.windows.slots.insert(Window {
                pd: PD,
                _pd_use: Uses::default().take(),
                mw_type,
                key,
                bound: None,
                _charge: Charge::none(),
            });
        }
        (mrs, LKey(key))
    }

    fn bind(window: u32, tag: u32, lkey: LKey, addr: u64, length: u64) -> Bind {
        let access = Access::REMOTE_WRITE;
        Bind { window, key: RKey(tag), lkey, addr, length, access }
    }

    #[test]
    fn a_window_exposes_its_part_of_the_region_and_no_more() {
        let (mut mrs, lkey) = table();
        mrs.bind(PD, QPN, &bind(0, 9, lkey, 0x1100, 0x100)).unwrap();
        let key = RKey(WINDOW | 9);
        let may =
            |addr, length, access| mrs.remote(PD, key, addr, length, access).map(|(_, at)| at);
        assert_eq!(may(0x1100, 0x100, Access::REMOTE_WRITE), Ok(0x100));
        assert_eq!(may(0x10ff, 1, Access::REMOTE_WRITE), Err(RemoteError::Access));
        assert_eq!(may(0x1100, 0x101, Access::REMOTE_WRITE), Err(RemoteError::Access));
        assert_eq!(may(0x1100, 1, Access::REMOTE_READ), Err(RemoteError::Access));
        // Bound to nothing, it exposes nothing.
        mrs.bind(PD, QPN, &bind(0, 10, LKey(0), 0, 0)).unwrap();
        assert!(mrs.remote(PD, RKey(WINDOW | 10), 0x1100, 1, Access::REMOTE_WRITE).is_err());
    }

    #[test]
    fn a_window_of_type_two_is_for_one_qp_and_one_binding() {
        let (mut mrs, lkey) = table();
        let first = bind(1, 1, lkey, 0x1000, 8);
        mrs.bind(PD, QPN, &first).unwrap();
        assert!(mrs.bind(PD, QPN, &first).is_err());
        let key = RKey(WINDOW | 1 << 8 | 1);
        assert!(mrs.windows.check_qp(key, QPN).is_ok());
        assert!(mrs.windows.check_qp(key, Qpn::new(78)).is_err());
        assert!(mrs.windows.invalidate(PD, Qpn::new(78), key).is_err());
        mrs.windows.invalidate(PD, QPN, key).unwrap();
        assert!(mrs.remote(PD, key, 0x1000, 8, Access::REMOTE_WRITE).is_err());
        mrs.bind(PD, QPN, &bind(1, 2, lkey, 0x1000, 8)).unwrap();
        assert!(mrs.remote(PD, key, 0x1000, 8, Access::REMOTE_WRITE).is_err());
    }

    #[test]
    fn a_window_cannot_grant_what_the_region_does_not_allow() {
        let (mut mrs, lkey) = table();
        assert!(mrs.bind(PD, QPN, &bind(0, 1, lkey, 0x1fff, 2)).is_err(), "beyond its end");
        assert!(mrs.bind(PdId(4), QPN, &bind(0, 1, lkey, 0x1000, 1)).is_err(), "another domain");
        assert!(mrs.bind(PD, QPN, &bind(0, 1, LKey(lkey.0 + 1), 0x1000, 1)).is_err(), "no region");
        assert!(mrs.windows.invalidate(PD, QPN, RKey(WINDOW)).is_err(), "type 1");
    }
}
