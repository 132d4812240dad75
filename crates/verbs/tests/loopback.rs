//! Every operation between two QPs of one process.

mod chosen;

use std::time::Duration;

use verbs::{
    Access, Context, Cq, DEFAULT_QKEY, DmaBuf, Flush, HostBuf, Kind, Mr, Pd, PostError, Qp, QpSpec,
    QpState, Reason, SendRequest, Wc, WcOpcode, WcStatus, WrOpcode, soft,
};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

struct Side {
    cq: Cq,
    qp: Qp,
    buffer: HostBuf,
    mr: Mr,
}

fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

fn side(context: &Context, pd: &Pd, spec: impl Fn(&Cq) -> QpSpec, length: usize) -> Side {
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&spec(&cq)).unwrap();
    let buffer = HostBuf::anonymous(length).unwrap();
    let mr = pd.reg_mr(&buffer, ALL).unwrap();
    Side { cq, qp, buffer, mr }
}

fn pair(spec: impl Fn(&Cq) -> QpSpec, length: usize) -> (Side, Side) {
    let (context, pd) = open();
    let (a, b) = (side(&context, &pd, &spec, length), side(&context, &pd, &spec, length));
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
    (a, b)
}

#[track_caller]
fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("a completion within ten seconds")
}

fn bytes_of(buffer: &HostBuf) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn send_arrives_in_the_posted_receive() {
    let length = 3 << 20;
    let (a, b) = pair(QpSpec::rc, length);
    let sent = pattern(length, 1);
    a.buffer.write(0, &sent).unwrap();
    b.qp.post_recv(7, &[b.mr.slice(0, length as u32)]).unwrap();
    let request =
        SendRequest::send(9, &[a.mr.slice(0, length as u32)]).with_imm(0xabcd_1234).signaled();
    a.qp.post_send(&request).unwrap();
    let (sent_wc, recv_wc) = (completion(&a.cq), completion(&b.cq));
    assert_eq!((sent_wc.wr_id, sent_wc.status), (9, WcStatus::Success));
    assert_eq!((recv_wc.wr_id, recv_wc.status), (7, WcStatus::Success));
    assert_eq!((recv_wc.opcode, recv_wc.byte_len), (WcOpcode::Recv, length as u32));
    assert_eq!(recv_wc.imm, Some(0xabcd_1234));
    assert!(bytes_of(&b.buffer) == sent);
}

#[test]
fn write_and_read_move_the_bytes_they_name() {
    let (a, b) = pair(QpSpec::rc, 1 << 20);
    let sent = pattern(1 << 20, 3);
    a.buffer.write(0, &sent).unwrap();
    let write =
        SendRequest::write(1, &[a.mr.slice(5, 100_000), a.mr.slice(200_000, 77)], b.mr.remote(33));
    a.qp.post_send(&write.signaled()).unwrap();
    assert!(completion(&a.cq).is_success());
    let got = bytes_of(&b.buffer);
    assert_eq!(got[..33], [0; 33]);
    assert!(got[33..100_033] == sent[5..100_005]);
    assert!(got[100_033..100_110] == sent[200_000..200_077]);
    assert_eq!(got[100_110..100_200], [0; 90]);

    let read = SendRequest::read(2, &[b.mr.slice(500_000, 4097)], a.mr.remote(11)).signaled();
    b.qp.post_send(&read).unwrap();
    assert_eq!(completion(&b.cq).opcode, WcOpcode::RdmaRead);
    assert!(bytes_of(&b.buffer)[500_000..504_097] == sent[11..4108]);
}

#[test]
fn atomics_return_the_old_value() {
    let (a, b) = pair(QpSpec::rc, 4096);
    b.buffer.write(8, &5u64.to_ne_bytes()).unwrap();
    let old = |a: &Side| {
        assert!(completion(&a.cq).is_success());
        a.buffer.load_u64(0, std::sync::atomic::Ordering::Relaxed).unwrap()
    };
    a.qp.post_send(&SendRequest::fetch_add(1, a.mr.slice(0, 8), b.mr.remote(8), 10).signaled())
        .unwrap();
    assert_eq!(old(&a), 5);
    let swap = |compare, swap| {
        SendRequest::compare_swap(2, a.mr.slice(0, 8), b.mr.remote(8), compare, swap).signaled()
    };
    a.qp.post_send(&swap(15, 100)).unwrap();
    assert_eq!(old(&a), 15);
    a.qp.post_send(&swap(15, 200)).unwrap();
    assert_eq!(old(&a), 100);
}

/// They go the way of all requests, whichever call a library has for them: in order, completed by
/// their own names. rxe has both, and Debian's library for it neither.
#[test]
fn a_word_is_stored_at_once_and_what_was_written_before_is_flushed() {
    let (context, pd) = open();
    let access = Access::FLUSH_GLOBAL | Access::LOCAL_WRITE | Access::REMOTE;
    let spec = |cq: &Cq| QpSpec { access, ..QpSpec::rc(cq) };
    let [a, b] = [(); 2].map(|()| side(&context, &pd, spec, 4096));
    a.qp.connect(&b.qp.endpoint().unwrap()).unwrap();
    b.qp.connect(&a.qp.endpoint().unwrap()).unwrap();
    let grants = pd.reg_mr(&b.buffer, access).unwrap();
    a.buffer.write(0, &pattern(64, 5)).unwrap();

    let write = SendRequest::write(1, &[a.mr.slice(0, 64)], grants.remote(0)).signaled();
    let range = Flush { length: 64, whole: false, global: true, persistent: false };
    let flush = SendRequest::flush(2, grants.remote(0), range).signaled();
    let word = u64::from_ne_bytes(*b"a word !");
    let store = SendRequest::atomic_write(3, grants.remote(64), word).signaled();
    let all = Flush { whole: true, ..range };
    let flush_all = SendRequest::flush(4, grants.remote(0), all).signaled();
    a.qp.post_send(&write).unwrap();
    if chosen::is_rxe() {
        assert_eq!(a.qp.post_send(&flush), Err(PostError::Absent(WrOpcode::Flush)));
        assert_eq!(a.qp.post_send(&store), Err(PostError::Absent(WrOpcode::AtomicWrite)));
        assert!(completion(&a.cq).is_success());
        return;
    }
    for request in [&flush, &store, &flush_all] {
        a.qp.post_send(request).unwrap();
    }
    let done = [(); 4].map(|()| completion(&a.cq));
    assert_eq!(
        done.map(|wc| (wc.wr_id, wc.status)),
        [1, 2, 3, 4].map(|id| (id, WcStatus::Success))
    );
    use WcOpcode::{AtomicWrite, Flush as Flushed, RdmaWrite};
    assert_eq!(done.map(|wc| wc.opcode), [RdmaWrite, Flushed, AtomicWrite, Flushed]);
    let got = bytes_of(&b.buffer);
    assert!(got[..64] == pattern(64, 5) && got[64..72] == *b"a word !");

    // What a datagram cannot do is refused, too.
    let datagram = pd.create_qp(&QpSpec::ud(&a.cq)).unwrap();
    datagram.to_rts().unwrap();
    let error = datagram.post_send(&store).unwrap_err();
    assert!(matches!(error, PostError::Opcode { .. }), "{error}");
    // What the region does not grant fails there.
    a.qp.post_send(&SendRequest::flush(5, b.mr.remote(0), range).signaled()).unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::RemAccessErr);
}

#[test]
fn every_kind_of_memory_works_with_every_other() {
    let (context, pd) = open();
    let (a, b) = pair(QpSpec::rc, 4096);
    drop((context, pd));
    let pd = a.mr_pd();
    if chosen::is_rxe() {
        // It has no device memory, and takes dma-bufs of the kernel's exporters only.
        let refusal = pd.context().alloc_dm(4096).unwrap_err();
        assert_eq!(refusal.kind(), Kind::NotSupported, "{refusal}");
        return;
    }
    let dm = pd.context().alloc_dm(4096).unwrap();
    let on_dm = pd.reg_dm_mr(&dm, 0, 4096, ALL).unwrap();
    let dmabuf = DmaBuf::export(8192, "test").unwrap();
    let on_dmabuf = pd.reg_whole_dmabuf(&dmabuf, ALL).unwrap();
    let _ = &b;
    let kinds = [("host", &a.mr), ("dm", &on_dm), ("dmabuf", &on_dmabuf)];
    for (from_name, from) in kinds {
        for (to_name, to) in kinds {
            if from_name == to_name {
                continue;
            }
            let text = format!("{from_name} to {to_name}").into_bytes();
            let mut padded = text.clone();
            padded.resize(text.len().next_multiple_of(4), 0);
            match from_name {
                "host" => a.buffer.write(0, &text).unwrap(),
                "dm" => dm.write(0, &padded).unwrap(),
                _ => {
                    let request =
                        SendRequest::write(0, &[], on_dmabuf.remote(0)).inline(&text).signaled();
                    a.qp.post_send(&request).unwrap();
                    assert!(completion(&a.cq).is_success());
                }
            }
            let local = [from.slice(0, text.len() as u32)];
            a.qp.post_send(&SendRequest::write(1, &local, to.remote(1024)).signaled()).unwrap();
            assert!(completion(&a.cq).is_success(), "{from_name} to {to_name}");
            let back = [a.mr.slice(2048, text.len() as u32)];
            a.qp.post_send(&SendRequest::read(2, &back, to.remote(1024)).signaled()).unwrap();
            assert!(completion(&a.cq).is_success(), "{from_name} to {to_name}");
            assert_eq!(bytes_of(&a.buffer)[2048..2048 + text.len()], text);
        }
    }
}

impl Side {
    fn mr_pd(&self) -> Pd {
        self.qp.pd().clone()
    }
}

#[test]
fn a_wrong_key_is_a_remote_access_error_and_the_rest_is_flushed() {
    let (a, b) = pair(QpSpec::rc, 4096);
    let mut nowhere = b.mr.remote(0);
    nowhere.rkey.0 ^= 0x55;
    a.qp.post_send(&SendRequest::write(1, &[a.mr.slice(0, 8)], nowhere)).unwrap();
    a.qp.post_send(&SendRequest::write(2, &[a.mr.slice(0, 8)], b.mr.remote(0))).unwrap();
    let first = completion(&a.cq);
    assert_eq!((first.wr_id, first.status), (1, WcStatus::RemAccessErr));
    let second = completion(&a.cq);
    assert_eq!((second.wr_id, second.status), (2, WcStatus::WrFlushErr));
    assert_eq!(a.qp.query().unwrap().state, QpState::Err);
    assert_eq!(bytes_of(&b.buffer)[..8], [0; 8]);
}

#[test]
fn a_range_outside_the_region_is_a_local_protection_error() {
    let (a, b) = pair(QpSpec::rc, 4096);
    a.qp.post_send(&SendRequest::write(1, &[a.mr.slice(4090, 8)], b.mr.remote(0))).unwrap();
    // rxe flushes it, as all that is posted (`rxe_requester` calls `rxe_qp_error`).
    let expected = if chosen::is_rxe() { WcStatus::WrFlushErr } else { WcStatus::LocProtErr };
    assert_eq!(completion(&a.cq).status, expected);
}

#[test]
fn uc_writes_and_ud_sends() {
    let (a, b) = pair(QpSpec::uc, 4096);
    a.buffer.write(0, b"unreliable").unwrap();
    b.qp.post_recv(2, &[]).unwrap();
    let write = SendRequest::write_with_imm(1, &[a.mr.slice(0, 10)], b.mr.remote(0), 7);
    a.qp.post_send(&write.signaled()).unwrap();
    assert!(completion(&a.cq).is_success());
    // The sender's completion says only that the packets left: the bytes are there
    // when the receiver completes.
    let wc = completion(&b.cq);
    assert_eq!((wc.wr_id, wc.opcode, wc.imm), (2, WcOpcode::RecvRdmaWithImm, Some(7)));
    assert_eq!(bytes_of(&b.buffer)[..10], *b"unreliable");

    let (context, pd) = open();
    let (a, b) = (side(&context, &pd, QpSpec::ud, 4096), side(&context, &pd, QpSpec::ud, 4096));
    a.qp.to_rts().unwrap();
    b.qp.to_rts().unwrap();
    let there = b.qp.endpoint().unwrap();
    let ah = pd.create_ah(context.av_to(there.gid)).unwrap();
    a.buffer.write(0, b"datagram").unwrap();
    b.qp.post_recv(5, &[b.mr.slice(0, 140)]).unwrap();
    let request = SendRequest::send(4, &[a.mr.slice(0, 8)]).to(&ah, there.qpn, DEFAULT_QKEY);
    a.qp.post_send(&request.signaled()).unwrap();
    let wc = completion(&b.cq);
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qpn), (5, 48, a.qp.qpn()));
    assert_eq!(bytes_of(&b.buffer)[40..48], *b"datagram");
}

#[test]
fn a_failure_is_explained() {
    let (a, b) = pair(QpSpec::rc, 4096);
    b.qp.post_recv(7, &[b.mr.slice(0, 64)]).unwrap();
    a.qp.post_send(&SendRequest::send(9, &[a.mr.slice(0, 65)]).signaled()).unwrap();
    a.qp.post_send(&SendRequest::send(10, &[a.mr.slice(0, 1)]).signaled()).unwrap();

    let (failed, flushed, received) = (completion(&a.cq), completion(&a.cq), completion(&b.cq));
    // `crates/peerdma` also runs this file with a library, which gives no reasons.
    if chosen::is_library() {
        let expected = if chosen::is_rxe() {
            // It has no NAK for this (`RESPST_ERR_LENGTH` of `rxe_responder`).
            (WcStatus::RemOpErr, WcStatus::LocQpOpErr)
        } else {
            (WcStatus::RemInvReqErr, WcStatus::LocLenErr)
        };
        assert_eq!((failed.status, received.status), expected);
        assert_eq!((failed.reason, soft::explain(&a.cq, &failed)), (Reason::None, None));
        return;
    }
    assert_eq!((failed.status, failed.reason), (WcStatus::RemInvReqErr, Reason::InvalidRequestNak));
    let why = soft::explain(&a.cq, &failed).expect("it failed");
    let said = "REM_INV_REQ_ERR (9): SEND of 65 bytes, wr_id 0x9, QP ";
    assert!(why.starts_with(said) && why.contains("the peer found the request invalid"), "{why}");
    let why_flushed = soft::explain(&a.cq, &flushed).expect("it was flushed");
    assert!(why_flushed.starts_with("flushed, as") && why_flushed.ends_with(&why), "{why_flushed}");
    assert_eq!((received.status, received.reason), (WcStatus::LocLenErr, Reason::ReceiveTooShort));
    let why = soft::explain(&b.cq, &received).expect("it failed");
    assert!(why.starts_with("LOC_LEN_ERR (1): receive with room for 64 bytes, wr_id 0x7"), "{why}");
}
