//! The verbs as C programs use them, compiled with the system's header.

mod common;
#[path = "../src/abi/symbols/mod.rs"]
#[expect(dead_code, reason = "only the verbs without a symbol are looked at here")]
mod symbols;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::Scratch;
use symbols::{Answer, INLINE, RDMACM, Refusal, VERBS};

/// A number for each name that must be unique.
static NEXT: AtomicU32 = AtomicU32::new(0);

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Runs a program of `tests/c` on the library.
fn run(source: &str) {
    run_with(source, |_| {});
}

/// The same for one that includes files, which `prepare` writes.
fn run_with(source: &str, prepare: impl FnOnce(&Path)) {
    run_as(source, prepare, |_, _| {});
}

/// The same with arguments and an environment, which `choose` sets. Returns what it wrote to
/// standard error.
fn run_as(
    source: &str,
    prepare: impl FnOnce(&Path),
    choose: impl FnOnce(&mut Command, &Path),
) -> Option<String> {
    if !Path::new(HEADER).exists() {
        common::cannot_run("there is no <infiniband/verbs.h>");
        return None;
    }
    // Several tests may run the same program.
    let scratch = Scratch::new(&format!("{source}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    scratch.install();
    prepare(scratch.path());
    let library = format!("-L{}", scratch.path().display());
    let include = format!("-I{}", scratch.path().display());
    let flags = [&*library, &*include, "-l:libibverbs.so.1"];
    let Some(program) = scratch.compile(source, &flags) else {
        common::cannot_run("there is no C compiler");
        return None;
    };
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", scratch.path());
    choose(&mut run, scratch.path());
    let out = run.output().expect("the program exists");
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{run:?}: {}\n{errors}", out.status);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "every check passed\n");
    Some(errors)
}

/// Runs `on_demand.c` on a NIC with these keys.
fn on_demand(nic: &str, keys: &str) -> Option<String> {
    run_on("on_demand.c", nic, keys)
}

/// Runs a program on a NIC with these keys, and passes it the NIC's preset.
fn run_on(source: &str, nic: &str, keys: &str) -> Option<String> {
    let configure = |dir: &Path| {
        let name = format!("nic{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let text = format!("[[nic]]\nname = \"{name}\"\n{keys}\n");
        fs::write(dir.join("nic.toml"), text).expect("a scratch directory is writable");
    };
    run_as(source, configure, |run, dir| {
        run.arg(nic).env("PEERDMA_CONFIG", dir.join("nic.toml"));
        run.env("PEERDMA_LOG", "peerdma::counters=info");
    })
}

/// Explicit and implicit regions, every advice with every errno, random traffic, memory that is
/// unmapped.
#[test]
fn pages_come_on_demand_with_the_errnos_of_mlx5() {
    on_demand("mlx5", "preset = \"mlx5\"");
}

/// No implicit region, and errnos of its own. The kernel's rxe gets the offset in the page wrong;
/// here it is right.
#[test]
fn pages_come_on_demand_with_the_errnos_of_rxe() {
    on_demand("rxe", "preset = \"rxe\"");
}

#[test]
fn a_nic_without_on_demand_paging_refuses_it() {
    on_demand("none", "preset = \"irdma\"");
    on_demand("none", "odp = false");
}

/// Two faults of 20 ms; three pages that are already present cause none.
#[test]
fn a_page_fault_takes_as_long_as_the_persona_says() {
    let Some(log) = on_demand("slow", "fault_us = 20000") else { return };
    let count = |name: &str| log.split_whitespace().find_map(|word| word.strip_prefix(name));
    assert_eq!((count("page_faults="), count("page_prefetch=")), (Some("2"), Some("3")), "{log}");
    assert!(count("page_faults_pending=").is_some(), "{log}");
}

/// Eight pages fault. Those that the program drops or maps anew, three and two, do so again and are
/// counted as taken away, and so do two of four that were brought in ahead.
#[test]
fn pages_that_the_kernel_took_away_fault_again() {
    let log = run_on("odp_drop.c", "drop", "preset = \"mlx5\"");
    let Some(log) = log else { return };
    let count = |name: &str| log.split_whitespace().find_map(|word| word.strip_prefix(name));
    let counts = ["page_faults=", "page_invalidations=", "page_prefetch="].map(count);
    assert_eq!(counts, [Some("15"), Some("7"), Some("4")], "{log}");
}

/// Regions of dma-bufs, host and device memory: each errno, and the order of the checks.
#[test]
fn registering_is_refused_in_the_kernels_order() {
    run_on("memory_rules.c", "mlx5", "preset = \"mlx5\"");
}

#[test]
fn a_nic_that_imports_nothing_refuses_before_any_other_check() {
    run_on("memory_rules.c", "none", "importer = \"none\"");
}

#[test]
fn an_exporter_that_does_not_pin_refuses_importers_that_do() {
    run_on("memory_rules.c", "pinned", "importer = \"pinned\"");
    run_on("memory_rules.c", "pinned", "importer = \"revocable\"");
}

#[test]
fn the_preset_rxe_has_no_rights_that_rxe_lacks() {
    run_on("memory_rules.c", "rxe", "preset = \"rxe\"");
}

#[test]
fn locked_memory_is_limited_before_the_memory_is_looked_at() {
    run_on("memory_rules.c", "locked", "pin_limit = true");
}

/// `phys_port_cnt_ex` has them all, `phys_port_cnt` saturates, and calls reach the first 255.
#[test]
fn a_nic_has_more_ports_than_eight_bits_count() {
    run_on("ports.c", "ports", "ports = 300");
}

/// Every object, within one process, with the errno of each wrong use.
#[test]
fn a_program_uses_every_object() {
    run("verbs.c");
}

/// Memory windows, parent domains, imports, XRC, prefetch advice.
#[test]
fn a_program_uses_every_domain() {
    run("domains.c");
}

/// Every verb of both tables, with each argument wrong in turn.
#[test]
fn bad_arguments_are_refused_by_every_verb() {
    let Ok(header) = fs::read_to_string(HEADER) else {
        return common::cannot_run("there is no <infiniband/verbs.h>");
    };
    let mut names = String::new();
    for verb in VERBS {
        let node = verb.nodes.last().expect("every symbol has a version");
        let (name, answer) = (verb.name, in_c(verb.answer));
        writeln!(names, "VERB(\"{name}\", \"{node}\", {answer})").expect("a String");
    }
    for verb in INLINE {
        let (object, field) = verb.through.split_once('.').expect("object.field");
        let is_known = header.contains(&format!("(*{})", field.trim_start_matches("ops.")));
        let (name, answer) = (verb.name, in_c(verb.answer));
        let line = match is_known {
            true => format!("INLINE(\"{name}\", {object}, {field}, {answer})"),
            // An old header has no member for it.
            false => format!("ABSENT(\"{name}\")"),
        };
        writeln!(names, "{line}").expect("a String");
    }
    run_with("badinput.c", |dir| {
        fs::write(dir.join("names.h"), names).expect("a scratch directory is writable");
    });
}

/// Every call of the connection manager, with each argument wrong in turn, in every state.
#[test]
fn bad_arguments_are_refused_by_the_connection_manager() {
    let netdevs = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = netdevs.lines().filter_map(|line| line.split_once(':'));
    if names.map(|(name, _)| name.trim()).all(|name| name == "lo") {
        // Its addresses belong to no device (`cma_bind_loopback` of the kernel).
        return common::cannot_run("there is no netdev beside lo");
    }
    let mut names = String::new();
    for call in RDMACM.iter().filter(|call| call.name.starts_with("rdma_")) {
        let node = call.nodes.last().expect("every symbol has a version");
        writeln!(names, "NAME(\"{}\", \"{node}\")", call.name).expect("a String");
    }
    run_with("badcm.c", |dir| {
        fs::write(dir.join("names.h"), names).expect("a scratch directory is writable");
    });
}

/// How a verb answers, in the words of `badinput.c`.
fn in_c(answer: Answer) -> String {
    let how = match answer {
        Answer::In(_) | Answer::Never(..) => return "DONE".to_owned(),
        Answer::Byte => unreachable!("no verb is a byte"),
        Answer::Refuse(Refusal::Errno, _) => "ERRNO",
        Answer::Refuse(Refusal::MinusOne, _) => "MINUS",
        Answer::Refuse(Refusal::Null, _) => "NIL",
        Answer::Refuse(Refusal::Silent, _) => "NEVER",
    };
    format!("REFUSED({how})")
}

/// Eight threads use one QP and one CQ, and objects of their own.
#[test]
fn threads_share_a_device() {
    run("threads.c");
}

#[test]
fn a_child_holds_husks_and_opens_its_own() {
    run("fork.c");
}

/// The table says which verbs without a symbol are implemented; the others are refused by a NULL
/// pointer.
#[test]
fn pointers_are_there_for_what_the_table_says_is_implemented() {
    let Ok(header) = fs::read_to_string(HEADER) else {
        return common::cannot_run("there is no <infiniband/verbs.h>");
    };
    // The pointers of each object, and whether the table lists them. Several verbs may share one.
    let mut pointers = BTreeMap::new();
    for verb in INLINE {
        let (object, field) = verb.through.split_once('.').expect("object.field");
        let is_known = header.contains(&format!("(*{})", field.trim_start_matches("ops.")));
        if is_known {
            pointers.insert((object, field), matches!(verb.answer, Answer::In(_)));
        }
    }
    let mut source = String::from(POINTERS_HEAD);
    let mut expected = String::new();
    for ((object, field), is_there) in &pointers {
        writeln!(source, "printf(\"{object}.{field} %d\\n\", !!{object}->{field});")
            .expect("a String");
        writeln!(expected, "{object}.{field} {}", u8::from(*is_there)).expect("a String");
    }
    source.push_str("return 0;\n}\n");

    let scratch = Scratch::new("pointers");
    scratch.install();
    let file = scratch.path().join("pointers.c");
    fs::write(&file, source).expect("the directory is new");
    let library = format!("-L{}", scratch.path().display());
    let Some(program) = scratch.compile_file(&file, &[&library, "-l:libibverbs.so.1"]) else {
        return common::cannot_run("there is no C compiler");
    };
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", scratch.path());
    assert_eq!(common::stdout(&mut run), expected);
}

/// Creates one of each object, in variables named after their types.
const POINTERS_HEAD: &str = r#"
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void) {
struct ibv_context *ibv_context = ibv_open_device(ibv_get_device_list(NULL)[0]);
struct verbs_context *verbs_context = verbs_get_ctx(ibv_context);
struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
struct ibv_dm *ibv_dm = ibv_alloc_dm(ibv_context, &dm_attr);
struct ibv_cq_init_attr_ex cq_attr = { .cqe = 1 };
struct ibv_cq_ex *ibv_cq_ex = ibv_create_cq_ex(ibv_context, &cq_attr);
struct ibv_qp_init_attr_ex qp_attr = {
	.send_cq = ibv_cq_ex_to_cq(ibv_cq_ex), .recv_cq = ibv_cq_ex_to_cq(ibv_cq_ex), .qp_type = IBV_QPT_RC,
	.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = ibv_alloc_pd(ibv_context),
};
struct ibv_qp_ex *ibv_qp_ex = ibv_qp_to_qp_ex(ibv_create_qp_ex(ibv_context, &qp_attr));
struct ibv_wq_init_attr wq_attr = {
	.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = qp_attr.pd, .cq = qp_attr.send_cq,
};
struct ibv_wq *ibv_wq = ibv_create_wq(ibv_context, &wq_attr);
if (!verbs_context || !ibv_dm || !ibv_qp_ex || !ibv_wq)
	return 1;
"#;
