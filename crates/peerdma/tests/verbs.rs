//! Every object of the verbs, used by a C program within one process, with the errno of each wrong use.

mod common;

use std::path::Path;
use std::process::Command;

use common::Scratch;

#[test]
fn a_c_program_uses_every_object() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return common::cannot_run("there is no <infiniband/verbs.h>");
    }
    let scratch = Scratch::new("verbs");
    scratch.install();
    let library = format!("-L{}", scratch.path().display());
    let Some(program) = scratch.compile("verbs.c", &[&library, "-l:libibverbs.so.1"]) else {
        return common::cannot_run("there is no C compiler");
    };
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", scratch.path());
    assert_eq!(common::stdout(&mut run), "every check passed\n");
}
