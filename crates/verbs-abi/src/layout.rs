//! Checks that our structures have C's layout: a C program prints the size and every offset of
//! every structure, and so do we.
//!
//! The headers are the system's `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, or the one below
//! the directory `PEERDMA_VERBS_INCLUDE`. Our structures are those of rdma-core 65, so fields
//! younger than the system's header may be missing there, and no others ([`NEWER`]). Without a C
//! compiler or header the test reports that, and fails if `PEERDMA_REQUIRE` is set.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use crate::{
    Field, Layout, ah, comp_cntr, context, cq, device, dm, event, flow, mr, ops, pd, qp, rdma, srq,
    wc, wr,
};

/// Fields younger than rdma-core 44, the oldest release this test is meant to run beside.
const NEWER: &[(&str, &str)] = &[
    ("struct ibv_port_attr", "active_speed_ex"),
    ("struct verbs_context", "free_buf"),
    ("struct verbs_context", "alloc_buf"),
    ("struct verbs_context", "dm_export_dmabuf_fd"),
    ("struct verbs_context", "reg_mr_ex"),
    ("struct verbs_context", "dealloc_dmah"),
    ("struct verbs_context", "alloc_dmah"),
    ("struct ibv_device_attr_ex", "phys_port_cnt_ex"),
    ("struct ibv_qp_ex", "wr_atomic_write"),
    ("struct ibv_qp_ex", "wr_flush"),
];

/// Structures younger than that.
const NEWER_STRUCTURES: &[&str] = &[
    "struct ibv_comp_cntr",
    "struct ibv_comp_cntr_caps",
    "struct ibv_comp_cntr_init_attr",
    "struct ibv_mr_init_attr",
    "struct ibv_qp_attach_comp_cntr_attr",
];

/// The structure that grows at its start: offsets in it count from its end.
const GROWS_DOWN: &str = "struct verbs_context";

type Table = BTreeMap<String, (usize, usize)>;

#[test]
fn structures_are_those_of_the_header() {
    let mut structures = structures();
    let Some(header) = preprocessed_header() else {
        assert!(env::var_os("PEERDMA_REQUIRE").is_none(), "no C compiler or no <rdma/rdma_cma.h>");
        eprintln!("SKIPPED: no C compiler or no <rdma/rdma_cma.h>");
        return;
    };
    structures.retain(|name, _| !NEWER_STRUCTURES.contains(name) || header.contains(name));
    let is_missing =
        |name: &str, field: &str| NEWER.contains(&(name, field)) && !header.contains(field);
    let grew = |name: &str| structures[name].1.iter().any(|(field, ..)| is_missing(name, field));

    let mut ours = Table::new();
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for (name, (size, fields)) in &structures {
        if !grew(name) {
            ours.insert((*name).to_owned(), (0, *size));
            writeln!(source, "printf(\"{name}\\t0\\t%zu\\n\", sizeof({name}));").expect("a String");
        }
        for (field, offset, length) in fields.iter().filter(|(field, ..)| !is_missing(name, field))
        {
            let (at, c_at) = if *name == GROWS_DOWN {
                (size - offset, format!("sizeof({name}) - offsetof({name}, {field})"))
            } else {
                (*offset, format!("offsetof({name}, {field})"))
            };
            ours.insert(format!("{name}.{field}"), (at, *length));
            writeln!(
                source,
                "printf(\"{name}.{field}\\t%zu\\t%zu\\n\", {c_at}, sizeof((({name} *)0)->{field}));"
            )
            .expect("a String takes all");
        }
    }
    source.push_str("return 0;\n}\n");

    let theirs = run(&source);
    for (name, layout) in &ours {
        assert_eq!(Some(layout), theirs.get(name), "{name}: (offset, size) here and in C");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// A structure's size and fields, by its C name.
type Structures = BTreeMap<&'static str, (usize, Vec<Field>)>;

fn structures() -> Structures {
    let mut all = Structures::new();
    fn add<T: Layout>(all: &mut Structures, more: Vec<Field>) {
        let mut fields = T::fields();
        fields.extend(more);
        assert!(all.insert(T::C, (size_of::<T>(), fields)).is_none(), "{} is listed twice", T::C);
    }
    add::<ah::Ah>(&mut all, vec![]);
    add::<ah::AhAttr>(&mut all, vec![]);
    add::<ah::GlobalRoute>(&mut all, vec![]);
    add::<ah::Grh>(&mut all, vec![]);
    add::<context::Context>(&mut all, vec![]);
    add::<ops::ContextOps>(&mut all, vec![]);
    add::<context::ValuesEx>(&mut all, vec![]);
    add::<ops::VerbsContext>(&mut all, vec![]);
    add::<cq::CompChannel>(&mut all, vec![]);
    add::<cq::Cq>(&mut all, vec![]);
    add::<cq::CqEx>(&mut all, vec![]);
    add::<cq::CqInitAttrEx>(&mut all, vec![]);
    add::<cq::ModerateCq>(&mut all, vec![]);
    add::<cq::ModifyCqAttr>(&mut all, vec![]);
    add::<cq::PollCqAttr>(&mut all, vec![]);
    add::<cq::WcTmInfo>(&mut all, vec![]);
    add::<device::CqModerationCaps>(&mut all, vec![]);
    add::<device::Device>(&mut all, vec![]);
    add::<device::DeviceAttr>(&mut all, vec![]);
    add::<device::DeviceAttrEx>(&mut all, vec![]);
    add::<device::GidEntry>(&mut all, vec![]);
    let transports = offset_of!(device::OdpCaps, per_transport_caps);
    let transport = |name, index| (name, transports + index * size_of::<u32>(), size_of::<u32>());
    let nested = vec![
        transport("per_transport_caps.rc_odp_caps", 0),
        transport("per_transport_caps.uc_odp_caps", 1),
        transport("per_transport_caps.ud_odp_caps", 2),
    ];
    add::<device::OdpCaps>(&mut all, nested);
    add::<device::PacketPacingCaps>(&mut all, vec![]);
    add::<device::PciAtomicCaps>(&mut all, vec![]);
    add::<device::PortAttr>(&mut all, vec![]);
    add::<device::QueryDeviceExInput>(&mut all, vec![]);
    add::<device::RssCaps>(&mut all, vec![]);
    add::<device::TmCaps>(&mut all, vec![]);
    add::<device::TsoCaps>(&mut all, vec![]);
    add::<dm::AllocDmAttr>(&mut all, vec![]);
    add::<dm::Dm>(&mut all, vec![]);
    add::<event::AsyncEvent>(&mut all, vec![]);
    add::<flow::EthFilter>(&mut all, vec![]);
    add::<flow::Flow>(&mut all, vec![]);
    add::<flow::FlowAttr>(&mut all, vec![]);
    add::<flow::Ipv4ExtFilter>(&mut all, vec![]);
    add::<flow::Ipv4Filter>(&mut all, vec![]);
    add::<flow::Ipv6Filter>(&mut all, vec![]);
    add::<flow::RwqIndTable>(&mut all, vec![]);
    add::<flow::RwqIndTableInitAttr>(&mut all, vec![]);
    add::<flow::SpecEth>(&mut all, vec![]);
    add::<flow::SpecIpv4>(&mut all, vec![]);
    add::<flow::SpecIpv4Ext>(&mut all, vec![]);
    add::<flow::SpecIpv6>(&mut all, vec![]);
    add::<flow::SpecTcpUdp>(&mut all, vec![]);
    add::<flow::TcpUdpFilter>(&mut all, vec![]);
    add::<flow::Wq>(&mut all, vec![]);
    add::<flow::WqAttr>(&mut all, vec![]);
    add::<flow::WqInitAttr>(&mut all, vec![]);
    add::<mr::Mr>(&mut all, vec![]);
    add::<mr::MrInitAttr>(&mut all, vec![]);
    add::<mr::MwBindInfo>(&mut all, vec![]);
    add::<mr::Mw>(&mut all, vec![]);
    add::<mr::MwBind>(&mut all, vec![]);
    add::<pd::ParentDomainInitAttr>(&mut all, vec![]);
    add::<pd::Pd>(&mut all, vec![]);
    add::<pd::Td>(&mut all, vec![]);
    add::<pd::TdInitAttr>(&mut all, vec![]);
    add::<qp::Ece>(&mut all, vec![]);
    add::<qp::Qp>(&mut all, vec![]);
    add::<qp::QpAttr>(&mut all, vec![]);
    add::<qp::QpCap>(&mut all, vec![]);
    add::<qp::QpEx>(&mut all, vec![]);
    add::<qp::QpInitAttr>(&mut all, vec![]);
    add::<qp::QpOpenAttr>(&mut all, vec![]);
    add::<qp::QpRateLimitAttr>(&mut all, vec![]);
    add::<qp::QpInitAttrEx>(&mut all, vec![]);
    add::<qp::RxHashConf>(&mut all, vec![]);
    add::<srq::OpsWr>(&mut all, ops_wr_nested());
    add::<rdma::Addr>(&mut all, addr_unions());
    add::<rdma::AddrInfo>(&mut all, vec![]);
    let param = offset_of!(rdma::CmEvent, param);
    let params = vec![
        ("param.conn", param, size_of::<rdma::ConnParam>()),
        ("param.ud", param, size_of::<rdma::UdParam>()),
    ];
    add::<rdma::CmEvent>(&mut all, params);
    add::<rdma::CmId>(&mut all, vec![]);
    add::<rdma::ConnParam>(&mut all, vec![]);
    add::<rdma::EventChannel>(&mut all, vec![]);
    add::<rdma::IbAddr>(&mut all, vec![]);
    add::<rdma::JoinMcAttrEx>(&mut all, vec![]);
    add::<rdma::PathData>(&mut all, vec![]);
    add::<rdma::PathRecord>(&mut all, vec![]);
    add::<rdma::Route>(&mut all, vec![]);
    add::<rdma::SaPathRec>(&mut all, vec![]);
    add::<rdma::UdParam>(&mut all, vec![]);
    add::<comp_cntr::CompCntr>(&mut all, vec![]);
    add::<comp_cntr::CompCntrCaps>(&mut all, vec![]);
    add::<comp_cntr::CompCntrInitAttr>(&mut all, vec![]);
    add::<comp_cntr::QpAttachCompCntrAttr>(&mut all, vec![]);
    add::<srq::Srq>(&mut all, vec![]);
    add::<srq::SrqAttr>(&mut all, vec![]);
    add::<srq::SrqInitAttr>(&mut all, vec![]);
    add::<srq::SrqInitAttrEx>(&mut all, vec![]);
    add::<srq::Xrcd>(&mut all, vec![]);
    add::<srq::XrcdInitAttr>(&mut all, vec![]);
    add::<srq::TmCap>(&mut all, vec![]);
    add::<wc::Wc>(&mut all, vec![("invalidated_rkey", offset_of!(wc::Wc, imm_data), 4)]);
    add::<wr::DataBuf>(&mut all, vec![]);
    add::<wr::RecvWr>(&mut all, vec![]);
    add::<wr::SendWr>(&mut all, send_wr_unions());
    add::<wr::Sge>(&mut all, vec![]);
    all.insert("union ibv_gid", (size_of::<device::Gid>(), vec![("raw", 0, 16)]));
    all
}

/// What C overlays in the addresses of an identifier.
fn addr_unions() -> Vec<Field> {
    let [src, dst] = [offset_of!(rdma::Addr, src_storage), offset_of!(rdma::Addr, dst_storage)];
    vec![
        ("src_addr", src, size_of::<libc::sockaddr>()),
        ("src_sin", src, size_of::<libc::sockaddr_in>()),
        ("src_sin6", src, size_of::<libc::sockaddr_in6>()),
        ("dst_addr", dst, size_of::<libc::sockaddr>()),
        ("dst_sin", dst, size_of::<libc::sockaddr_in>()),
        ("dst_sin6", dst, size_of::<libc::sockaddr_in6>()),
    ]
}

/// What C nests in unions of a send request.
fn send_wr_unions() -> Vec<Field> {
    let remote = offset_of!(wr::SendWr, wr);
    let bind = offset_of!(wr::SendWr, bind_mw);
    vec![
        ("invalidate_rkey", offset_of!(wr::SendWr, imm_data), 4),
        ("wr.rdma", remote, size_of::<wr::Rdma>()),
        ("wr.rdma.remote_addr", remote + offset_of!(wr::Rdma, remote_addr), 8),
        ("wr.rdma.rkey", remote + offset_of!(wr::Rdma, rkey), 4),
        ("wr.atomic", remote, size_of::<wr::Atomic>()),
        ("wr.atomic.remote_addr", remote + offset_of!(wr::Atomic, remote_addr), 8),
        ("wr.atomic.compare_add", remote + offset_of!(wr::Atomic, compare_add), 8),
        ("wr.atomic.swap", remote + offset_of!(wr::Atomic, swap), 8),
        ("wr.atomic.rkey", remote + offset_of!(wr::Atomic, rkey), 4),
        ("wr.ud", remote, size_of::<wr::Ud>()),
        ("wr.ud.ah", remote + offset_of!(wr::Ud, ah), size_of::<usize>()),
        ("wr.ud.remote_qpn", remote + offset_of!(wr::Ud, remote_qpn), 4),
        ("wr.ud.remote_qkey", remote + offset_of!(wr::Ud, remote_qkey), 4),
        ("qp_type.xrc.remote_srqn", offset_of!(wr::SendWr, qp_type), 4),
        ("bind_mw.mw", bind + offset_of!(wr::BindMw, mw), size_of::<usize>()),
        ("bind_mw.rkey", bind + offset_of!(wr::BindMw, rkey), 4),
        (
            "bind_mw.bind_info",
            bind + offset_of!(wr::BindMw, bind_info),
            size_of::<mr::MwBindInfo>(),
        ),
    ]
}

/// What C nests in an operation on a list of tags.
fn ops_wr_nested() -> Vec<Field> {
    let tm = offset_of!(srq::OpsWr, tm);
    let add = tm + offset_of!(srq::Tm, add);
    vec![
        ("tm.unexpected_cnt", tm + offset_of!(srq::Tm, unexpected_cnt), 4),
        ("tm.handle", tm + offset_of!(srq::Tm, handle), 4),
        ("tm.add", add, size_of::<srq::TmAdd>()),
        ("tm.add.recv_wr_id", add + offset_of!(srq::TmAdd, recv_wr_id), 8),
        ("tm.add.sg_list", add + offset_of!(srq::TmAdd, sg_list), size_of::<usize>()),
        ("tm.add.num_sge", add + offset_of!(srq::TmAdd, num_sge), 4),
        ("tm.add.tag", add + offset_of!(srq::TmAdd, tag), 8),
        ("tm.add.mask", add + offset_of!(srq::TmAdd, mask), 8),
    ]
}

fn compiler() -> Command {
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    if let Some(include) = env::var_os("PEERDMA_VERBS_INCLUDE") {
        cc.arg("-I").arg(include);
    }
    cc
}

/// The header with everything it includes; `None` if it cannot be preprocessed.
fn preprocessed_header() -> Option<String> {
    let mut cc = compiler();
    cc.args(["-E", "-include", "rdma/rdma_cma.h", "-x", "c", "/dev/null"]);
    let output = cc.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compiles and runs a C program that prints lines of name, offset and size.
fn run(source: &str) -> Table {
    let program = env::temp_dir().join(format!("peerdma-layout-{}", std::process::id()));
    let mut cc = compiler();
    cc.args(["-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped());
    let mut child = cc.spawn().expect("the compiler ran a moment ago");
    let mut stdin = child.stdin.take().expect("its input is piped");
    stdin.write_all(source.as_bytes()).expect("the compiler reads its input");
    drop(stdin);
    assert!(child.wait().expect("it is our child").success(), "the C compiler refused:\n{source}");
    let output = Command::new(&program).output();
    std::fs::remove_file(&program).expect("the compiler wrote it");
    let text =
        String::from_utf8(output.expect("the program runs").stdout).expect("it prints ASCII");
    let entry = |line: &str| {
        let mut parts = line.split('\t');
        let name = parts.next()?.to_owned();
        Some((name, (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)))
    };
    text.lines().map(|line| entry(line).expect("name, offset, size")).collect()
}
