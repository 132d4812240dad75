//! Memory windows. Programs call all of it through pointers in the context, and bind windows by
//! work requests.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::ids::MwId;
use device::{Hca, Kind, MwType, Refusal};
use iba::{Access, LKey, RKey, SendFlags, WrOpcode};
use transport::wr::{Bind, Data, SendWr};

use super::boundary::{control, data};
use super::mr::MrObject;
use super::object::{Object, given};
use super::own::pd::PdObject;
use super::own::qp;
use super::types::mr::{Mw, MwBind, MwBindInfo};
use super::types::pd::Pd;
use super::types::qp::Qp;
use super::types::wr::BindMw;
use super::{errno, lists};

/// The library's part of a window.
pub(crate) struct OwnMw {
    hca: Arc<Hca>,
    id: MwId,
}

type MwObject = Object<Mw, OwnMw>;

/// `IBV_MW_TYPE_1`.
const TYPE_1: u32 = 1;
/// `IBV_MW_TYPE_2`.
const TYPE_2: u32 = 2;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut Pd, mw_type: u32) -> *mut Mw {
    control("ibv_alloc_mw", ptr::null_mut(), || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        let kind = match mw_type {
            TYPE_1 => Ok(MwType::One),
            TYPE_2 => Ok(MwType::Two),
            _ => {
                let what = format!("ibv_alloc_mw: there is no type {mw_type}");
                Err(Refusal::new(Kind::Invalid, what))
            }
        };
        let made = kind.and_then(|kind| own.hca.alive()?.alloc_mw(own.id, kind));
        errno::or_null(made.map(|(id, rkey)| {
            // SAFETY: contract: the PD is alive.
            let context = unsafe { (*pd).context };
            let c = Mw { context, pd, rkey, handle: id.handle(), r#type: mw_type };
            MwObject::create(c, OwnMw { hca: Arc::clone(&own.hca), id })
        }))
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    control("ibv_dealloc_mw", libc::EIO, || {
        // SAFETY: contract: the window is one of ours.
        let own = unsafe { MwObject::lookup(mw) };
        if let Err(refusal) = own.hca.lock().dealloc_mw(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { MwObject::destroy(mw) });
        0
    })
}

/// Binds a window of type 1: by a work request, with the next key in turn.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut Qp, mw: *mut Mw, how: *mut MwBind) -> c_int {
    data("ibv_bind_mw", libc::EIO, || {
        // SAFETY: contract: the QP is one of ours.
        let own = unsafe { qp::own(qp) };
        // SAFETY: contract: the question is valid.
        let how = unsafe { given(how) };
        // SAFETY: contract: the window is one of ours.
        let _ = unsafe { MwObject::own(mw) };
        // SAFETY: it is.
        let next = next_key(unsafe { (*mw).rkey });
        // SAFETY: as above, and so is the region.
        let bind = match unsafe { bind_of(&own.hca, mw, TYPE_1, next, &how.bind_info) } {
            Ok(bind) => bind,
            Err(errno) => return errno,
        };
        let flags = SendFlags::from_bits_retain(how.send_flags);
        let wr = SendWr::new(how.wr_id, WrOpcode::BindMw, flags, bind);
        let posted = own.hca.lock_to_post().post_send(own.id, wr);
        if let Err(error) = posted {
            return lists::refused("send", &error);
        }
        // The program passes the new key on once the bind has completed; if the bind fails, the
        // window has no valid key. SAFETY: contract: the window is alive; the field is the
        // library's to write.
        unsafe { (*mw).rkey = next };
        0
    })
}

/// The key after this one: the low eight bits count (`ibv_inc_rkey`).
const fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// The data of a request to bind a window of this type.
///
/// # Safety
///
/// The window is NULL or one of ours, and so is the region.
pub(crate) unsafe fn bind_of(
    hca: &Arc<Hca>,
    mw: *mut Mw,
    mw_type: u32,
    rkey: u32,
    info: &MwBindInfo,
) -> Result<Data, c_int> {
    let refused = |what| {
        tracing::info!(target: "peerdma::refusal", "a memory window: {what}");
        libc::EINVAL
    };
    // SAFETY: the caller's promise.
    let own = unsafe { MwObject::find(mw) }.map_err(refused)?;
    // SAFETY: it is one of ours.
    let window = unsafe { &*mw };
    if !info.mr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { MrObject::find(info.mr) }.map_err(refused)?;
    }
    // SAFETY: it is NULL or one of ours.
    let region = unsafe { info.mr.as_ref() };
    if !Arc::ptr_eq(&own.hca, hca) {
        return Err(refused("the window is of another device".to_owned()));
    }
    // `ibv_bind_mw` binds windows of type 1. A window of type 2 needs a region; that the binding is
    // not empty is checked when the request is carried out (`rxe_check_bind_mw`).
    if window.r#type != mw_type || mw_type == TYPE_2 && region.is_none() {
        return Err(libc::EINVAL);
    }
    Ok(Data::Bind(Box::new(Bind {
        window: own.id.handle(),
        key: RKey(rkey),
        lkey: LKey(region.map_or(0, |region| region.lkey)),
        addr: info.addr,
        length: if region.is_some() { info.length } else { 0 },
        access: Access::from_bits_retain(info.mw_access_flags),
    })))
}

/// The data of a request that binds a window of type 2.
///
/// # Safety
///
/// As for [`bind_of`].
pub(crate) unsafe fn posted(hca: &Arc<Hca>, c: &BindMw) -> Result<Data, c_int> {
    // SAFETY: the caller's promise.
    unsafe { bind_of(hca, c.mw, TYPE_2, c.rkey, &c.bind_info) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_count_in_their_low_eight_bits() {
        assert_eq!(next_key(0x8000_01ff), 0x8000_0100);
        assert_eq!(next_key(0x8000_0100), 0x8000_0101);
    }
}
