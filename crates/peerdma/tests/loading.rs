//! Both names are one library, however a program loads it.

mod common;

use std::process::Command;

use common::Scratch;

const ONE_COPY: &str = "\
one handle yes
copies 1
ibv_get_device_list@IBVERBS_1.1 yes
ibv_get_device_list@IBVERBS_1.0 no
ibv_create_comp_channel@IBVERBS_1.0 yes
ibv_reg_mr_iova2@IBVERBS_1.8 yes
ibv_query_ece@IBVERBS_1.10 yes
ibv_reg_dmabuf_mr@IBVERBS_1.12 yes
ibv_query_port_speed@IBVERBS_1.16 yes
execute_ioctl@IBVERBS_PRIVATE_34 yes
execute_ioctl@IBVERBS_PRIVATE_65 yes
verbs_register_driver_57@IBVERBS_PRIVATE_57 yes
rdma_connect@RDMACM_1.0 yes
rdma_establish@RDMACM_1.2 yes
copies after dlclose 1
";

#[test]
fn two_names_are_one_library_by_path() {
    let scratch = Scratch::new("loading-path");
    scratch.install();
    let Some(program) = scratch.compile("loading.c", &["-ldl"]) else {
        return common::cannot_run("there is no C compiler");
    };
    let mut run = Command::new(program);
    assert_eq!(common::stdout(run.env("LD_LIBRARY_PATH", scratch.path())), ONE_COPY);
}

/// glibc compares the preloaded library's soname for the first name, and its inode for the second.
#[test]
fn two_names_are_one_library_by_preload_and_path() {
    let scratch = Scratch::new("loading-preload");
    scratch.install();
    let Some(program) = scratch.compile("loading.c", &["-ldl"]) else {
        return common::cannot_run("there is no C compiler");
    };
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", scratch.path()).env("LD_PRELOAD", common::library());
    assert_eq!(common::stdout(&mut run), ONE_COPY);
}

/// A vendor library binds every private symbol when it loads, and finds no device of its kind.
#[test]
fn vendor_libraries_load() {
    let scratch = Scratch::new("loading-vendor");
    scratch.install();
    let Some(program) = scratch.compile("loading.c", &["-ldl"]) else {
        return common::cannot_run("there is no C compiler");
    };
    let mut system = Command::new(&program);
    let vendors = ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1", "libmana.so.1", "libhns.so.1"];
    let output = system.args(vendors).output().expect("the program was just compiled");
    let output = String::from_utf8(output.stdout).expect("it prints text");
    let installed: Vec<&str> =
        vendors.into_iter().filter(|name| output.contains(&format!("{name} loads\n"))).collect();
    if installed.is_empty() {
        return common::cannot_run("no vendor library is installed");
    }
    let mut run = Command::new(program);
    run.args(&installed).env("LD_LIBRARY_PATH", scratch.path());
    let expected: String = installed.iter().map(|name| format!("{name} loads\n")).collect();
    assert_eq!(common::stdout(&mut run), format!("{ONE_COPY}{expected}"));
}
