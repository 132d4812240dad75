//! Work requests in C's form.

use std::ffi::c_int;
use std::mem::{self, offset_of};
use std::ptr;

use iba::{QpType, SendFlags, WrOpcode};
use smallvec::SmallVec;
use transport::PostError;
use transport::wr::{Data, RecvWr, SendWr, SgList, Sge};
use verbs_abi::wr as c;

use crate::ah::Ah;
use crate::mw::Mw;

/// Whether a QP of a type has an operation in a list of requests (`ibv_post_send(3)`). A provider
/// may not look.
pub(crate) const fn has(qp_type: QpType, opcode: WrOpcode) -> bool {
    use WrOpcode as O;
    match opcode {
        O::Send | O::SendWithImm => true,
        O::RdmaWrite | O::RdmaWriteWithImm => qp_type.is_connected(),
        O::SendWithInv | O::LocalInv | O::BindMw => qp_type.is_connected(),
        O::RdmaRead | O::AtomicCmpAndSwp | O::AtomicFetchAndAdd => {
            matches!(qp_type, QpType::Rc | QpType::XrcSend)
        }
        // FLUSH and ATOMIC WRITE are calls (`crate::calls`).
        _ => false,
    }
}

/// The operations of a QP of a type whose requests are plain, a bit for each: their bytes are in a
/// list, and they name nothing of this side but these.
pub(crate) fn plain_ops(qp_type: QpType) -> u16 {
    use WrOpcode as O;
    let all =
        [O::Send, O::SendWithImm, O::SendWithInv, O::RdmaWrite, O::RdmaWriteWithImm, O::RdmaRead];
    let own = all.into_iter().filter(|opcode| qp_type.is_connected() && has(qp_type, *opcode));
    own.fold(0, |ops, opcode| ops | 1 << opcode as u16)
}

/// Whether an operation is among them.
pub(crate) const fn is_among(ops: u16, opcode: WrOpcode) -> bool {
    ops >> opcode as u16 & 1 != 0
}

/// Calls `post` with a plain request in C's form, as [`send`].
#[inline]
pub(crate) fn plain(
    wr: &SendWr,
    list: &SgList,
    max_wr: u32,
    post: impl FnOnce(*mut c::SendWr, *mut *mut c::SendWr) -> c_int,
) -> Result<(), PostError> {
    let mut request = plain_request(wr, list);
    let mut bad = ptr::null_mut();
    posted(post(&raw mut request, &raw mut bad), max_wr)
}

/// A plain request in C's form.
#[inline]
fn plain_request(wr: &SendWr, list: &SgList) -> c::SendWr {
    // CAST: no more than a QP takes.
    let count = list.len() as c_int;
    request(wr, sges(list), count, wr.flags.difference(SendFlags::INLINE))
}

/// A request in C's form, without what other operations than the plain ones have.
#[inline]
fn request(wr: &SendWr, sg_list: *mut c::Sge, num_sge: c_int, flags: SendFlags) -> c::SendWr {
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut request: c::SendWr = unsafe { mem::zeroed() };
    request.wr_id = wr.wr_id;
    request.sg_list = sg_list;
    request.num_sge = num_sge;
    request.opcode = wr.opcode as u32;
    request.send_flags = flags.bits();
    // In the byte order of the wire; the key to invalidate is not.
    request.imm_data = match wr.opcode {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => wr.imm.to_be(),
        _ => wr.imm,
    };
    request.wr.rdma = c::Rdma { remote_addr: wr.remote_addr, rkey: wr.rkey.0 };
    // Read for an XRC_SEND QP alone.
    request.qp_type = wr.srqn;
    request
}

/// A list in C's form: its own elements, which providers only read.
pub(crate) fn sges(list: &SgList) -> *mut c::Sge {
    const {
        assert!(size_of::<Sge>() == size_of::<c::Sge>());
        assert!(offset_of!(Sge, addr) == offset_of!(c::Sge, addr));
        assert!(offset_of!(Sge, length) == offset_of!(c::Sge, length));
        assert!(offset_of!(Sge, lkey) == offset_of!(c::Sge, lkey));
    }
    list.as_ptr().cast_mut().cast()
}

/// Calls `post` with a send request in C's form, which is valid for the call.
pub(crate) fn send(
    wr: &SendWr,
    ah: Option<&Ah>,
    window: Option<&Mw>,
    post: impl FnOnce(*mut c::SendWr, *mut *mut c::SendWr) -> c_int,
) -> Result<(), i32> {
    // A provider reads inline data where the elements say, without a key: only bytes that the
    // request itself holds may be inline.
    let mut flags = wr.flags.difference(SendFlags::INLINE);
    let mut one = c::Sge { addr: 0, length: 0, lkey: 0 };
    let (sg_list, count) = match &wr.data {
        Data::Sges(list) => (sges(list), list.len()),
        Data::Inline(bytes) => {
            flags |= SendFlags::INLINE;
            one.length = u32::try_from(bytes.len()).map_err(|_| libc::EINVAL)?;
            one.addr = bytes.as_ptr().expose_provenance() as u64;
            (&raw mut one, 1)
        }
        Data::Bind(_) | Data::Flush(_) => (ptr::null_mut(), 0),
    };
    let count = c_int::try_from(count).map_err(|_| libc::EINVAL)?;
    let mut request = request(wr, sg_list, count, flags);
    if let Some(ud) = &wr.ud {
        let ah = ah.ok_or(libc::EINVAL)?.raw();
        request.wr.ud =
            c::Ud { ah, remote_qpn: ud.remote_qpn.value(), remote_qkey: ud.remote_qkey.0 };
    } else if wr.opcode.is_atomic() {
        let &SendWr { remote_addr, compare_add, swap, rkey, .. } = wr;
        request.wr.atomic = c::Atomic { remote_addr, compare_add, swap, rkey: rkey.0 };
    }
    if let Data::Bind(bind) = &wr.data {
        let window = window.ok_or(libc::EINVAL)?;
        request.bind_mw = c::BindMw {
            mw: window.raw(),
            rkey: bind.key.0,
            bind_info: verbs_abi::mr::MwBindInfo {
                mr: window.region().raw(),
                addr: bind.addr,
                length: bind.length,
                mw_access_flags: bind.access.bits(),
            },
        };
    }
    let mut bad = ptr::null_mut();
    errno(post(&raw mut request, &raw mut bad))
}

/// Calls `post` with a receive request in C's form, which is valid for the call.
pub(crate) fn recv(
    wr: &RecvWr,
    max_sge: u32,
    max_wr: u32,
    post: impl FnOnce(*mut c::RecvWr, *mut *mut c::RecvWr) -> c_int,
) -> Result<(), PostError> {
    let mut request = receive(wr, max_sge)?;
    let mut bad = ptr::null_mut();
    posted(post(&raw mut request, &raw mut bad), max_wr)
}

/// A receive in C's form.
fn receive(wr: &RecvWr, max_sge: u32) -> Result<c::RecvWr, PostError> {
    let count = wr.sges.len();
    if count > max_sge as usize {
        return Err(PostError::Sges { count, max: max_sge });
    }
    Ok(c::RecvWr {
        wr_id: wr.wr_id,
        next: ptr::null_mut(),
        sg_list: sges(&wr.sges),
        num_sge: c_int::try_from(count).map_err(|_| PostError::Provider(libc::EINVAL))?,
    })
}

/// How many requests a list has at most.
const LIST: usize = 16;

/// A request of a list: where the next one stands.
trait Linked: Sized {
    fn next(&mut self) -> &mut *mut Self;
}

impl Linked for c::SendWr {
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}

impl Linked for c::RecvWr {
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}

/// Calls `post` with lists of plain requests in C's form: how many it took, and why no more.
pub(crate) fn plain_lists<'wr>(
    wrs: impl Iterator<Item = (&'wr SendWr, &'wr SgList)>,
    max_wr: u32,
    post: impl FnMut(*mut c::SendWr, *mut *mut c::SendWr) -> c_int,
) -> (usize, Option<PostError>) {
    in_lists(wrs.map(|(wr, list)| plain_request(wr, list)), max_wr, post)
}

/// Calls `post` with lists of receives in C's form: how many it took, and why no more.
pub(crate) fn recv_lists(
    wrs: &[RecvWr],
    max_sge: u32,
    max_wr: u32,
    post: impl FnMut(*mut c::RecvWr, *mut *mut c::RecvWr) -> c_int,
) -> (usize, Option<PostError>) {
    let mut wrong = None;
    let in_c =
        wrs.iter().map_while(|wr| receive(wr, max_sge).map_err(|error| wrong = Some(error)).ok());
    let (done, refused) = in_lists(in_c, max_wr, post);
    (done, refused.or(wrong))
}

/// Calls `post` with as many requests at a time as a list has.
fn in_lists<W: Linked>(
    wrs: impl Iterator<Item = W>,
    max_wr: u32,
    mut post: impl FnMut(*mut W, *mut *mut W) -> c_int,
) -> (usize, Option<PostError>) {
    // What stands behind the first that is not for a list stays there.
    let mut wrs = wrs.fuse();
    let mut done = 0;
    loop {
        let mut list: SmallVec<[W; LIST]> = wrs.by_ref().take(LIST).collect();
        let count = list.len();
        if count == 0 {
            return (done, None);
        }
        let first = list.as_mut_ptr();
        for index in 1..count {
            // SAFETY: it is an element of the list, which is not touched otherwise until `post` has
            // returned.
            let before = unsafe { &mut *first.wrapping_add(index - 1) };
            *before.next() = first.wrapping_add(index);
        }
        let mut bad = ptr::null_mut();
        if let Err(error) = posted(post(first, &raw mut bad), max_wr) {
            let bytes = bad.addr().wrapping_sub(first.addr());
            // A library that names none of them is taken to have posted none.
            let index = Some(bytes / size_of::<W>()).filter(|index| *index < count).unwrap_or(0);
            return (done + index, Some(error));
        }
        done += count;
    }
}

/// What a call returned that posts to a queue of `max_wr` requests.
#[inline]
pub(crate) fn posted(returned: c_int, max_wr: u32) -> Result<(), PostError> {
    if returned == 0 {
        return Ok(());
    }
    errno(returned).map_err(|errno| refused(errno, max_wr))
}

fn errno(returned: c_int) -> Result<(), i32> {
    match crate::error::check("ibv_post", returned) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.errno),
    }
}

/// What a provider's number means: ENOMEM is a full queue (`ibv_post_send(3)`).
pub(crate) const fn refused(errno: i32, max_wr: u32) -> PostError {
    match errno {
        libc::ENOMEM => PostError::Full(max_wr),
        other => PostError::Provider(other),
    }
}

#[cfg(test)]
mod tests {
    use iba::{LKey, RKey};

    use super::*;

    #[test]
    fn inline_data_is_only_what_the_request_holds() {
        let list = SgList::from_iter([Sge { addr: 16, length: 8, lkey: LKey(1) }]);
        let flags = SendFlags::INLINE | SendFlags::SIGNALED;
        let wr = SendWr::new(1, WrOpcode::Send, flags, Data::Sges(list));
        let seen = send(&wr, None, None, |request, _| {
            // SAFETY: valid for the call.
            unsafe { (*request).send_flags }.cast_signed()
        });
        // A number that is not 0 is an error's.
        assert_eq!(seen, Err(SendFlags::SIGNALED.bits().cast_signed()));
    }

    #[test]
    fn operands_stand_where_c_reads_them() {
        let mut wr = SendWr::new(
            7,
            WrOpcode::AtomicCmpAndSwp,
            SendFlags::empty(),
            Data::Sges(SgList::new()),
        );
        (wr.remote_addr, wr.rkey, wr.compare_add, wr.swap) = (0x1000, RKey(5), 1, 2);
        let done = send(&wr, None, None, |request, _| {
            // SAFETY: valid for the call.
            let request = unsafe { &*request };
            // SAFETY: an atomic has this member.
            let atomic = unsafe { request.wr.atomic };
            let seen = (atomic.remote_addr, atomic.rkey, atomic.compare_add, atomic.swap);
            assert_eq!((request.wr_id, seen), (7, (0x1000, 5, 1, 2)));
            0
        });
        assert_eq!(done, Ok(()));
    }

    #[test]
    fn a_plain_request_is_what_it_is_by_the_long_way() {
        let seen = |wr: *mut c::SendWr| {
            // SAFETY: valid for the call.
            let wr = unsafe { &*wr };
            // SAFETY: such a request has this member.
            let rdma = unsafe { wr.wr.rdma };
            let head = (wr.wr_id, wr.num_sge, wr.opcode, wr.send_flags);
            (head, wr.sg_list, wr.imm_data, rdma.remote_addr, rdma.rkey, wr.qp_type)
        };
        let ops = plain_ops(QpType::Rc);
        let plain_ones = (0..16).filter_map(WrOpcode::from_code).filter(|op| is_among(ops, *op));
        let mut count = 0;
        for opcode in plain_ones {
            let list = SgList::from_iter([Sge { addr: 16, length: 8, lkey: LKey(1) }]);
            let flags = SendFlags::INLINE | SendFlags::SIGNALED;
            let mut wr = SendWr::new(7, opcode, flags, Data::Sges(list));
            (wr.imm, wr.remote_addr, wr.rkey, wr.srqn) = (0x0102_0304, 0x1000, RKey(5), 9);
            let Data::Sges(list) = &wr.data else { unreachable!("it has a list") };
            let mut each = Vec::new();
            let mut note = |wr, _: *mut *mut c::SendWr| {
                each.push(seen(wr));
                0
            };
            assert!(plain(&wr, list, 1, &mut note).is_ok());
            assert!(send(&wr, None, None, &mut note).is_ok());
            assert_eq!(each[0], each[1], "{opcode:?}");
            count += 1;
        }
        assert_eq!(count, 6);
        assert_eq!(plain_ops(QpType::Ud), 0, "a datagram has an address handle");
    }

    #[test]
    fn operations_are_those_of_the_manual_page() {
        assert!(has(QpType::Ud, WrOpcode::SendWithImm));
        assert!(!has(QpType::Ud, WrOpcode::RdmaWrite));
        assert!(has(QpType::Uc, WrOpcode::RdmaWrite));
        assert!(!has(QpType::Uc, WrOpcode::RdmaRead));
        assert!(has(QpType::Rc, WrOpcode::AtomicFetchAndAdd));
        assert!(!has(QpType::Rc, WrOpcode::Flush));
    }

    #[test]
    fn lists_are_linked_and_end_where_one_is_refused() {
        let wrs: Vec<_> = (0..40).map(|wr_id| RecvWr { wr_id, ..RecvWr::EMPTY }).collect();
        let mut seen = Vec::new();
        // Takes requests until one has this number.
        let mut post_until = |last: u64| {
            let mut lists = Vec::new();
            let posted = recv_lists(&wrs, 1, 64, |mut wr, bad| {
                lists.push(0);
                while !wr.is_null() {
                    // SAFETY: the list is valid for the call.
                    let request = unsafe { &*wr };
                    if request.wr_id == last {
                        // SAFETY: there is room for a pointer.
                        unsafe { *bad = wr };
                        return libc::ENOMEM;
                    }
                    seen.push(request.wr_id);
                    *lists.last_mut().expect("begun above") += 1;
                    wr = request.next;
                }
                0
            });
            (posted, lists, mem::take(&mut seen))
        };
        let full = Some(PostError::Full(64));
        let all: Vec<u64> = (0..40).collect();
        assert_eq!(post_until(99), ((40, None), vec![16, 16, 8], all.clone()));
        assert_eq!(post_until(17), ((17, full), vec![16, 1], all[..17].to_vec()));
        assert_eq!(post_until(0), ((0, full), vec![0], Vec::new()));
    }

    #[test]
    fn a_list_ends_at_what_is_not_for_lists() {
        let plain = SendWr::new(1, WrOpcode::Send, SendFlags::empty(), Data::Sges(SgList::new()));
        let inline = SendWr { data: Data::Inline(SmallVec::new()), ..plain.clone() };
        let wrs = [plain.clone(), plain.clone(), inline, plain];
        let lists = wrs.iter().map_while(|wr| match &wr.data {
            Data::Sges(list) => Some((wr, list)),
            _ => None,
        });
        assert_eq!(plain_lists(lists, 8, |_, _| 0), (2, None));
    }
}
