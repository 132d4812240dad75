//! Gives `libpeerdma.so` the symbol table of `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! From the tables of `src/abi/symbols` this writes two files:
//!
//! * `libpeerdma.map`, the linker's version script: each version node with the names it holds;
//! * `exports.rs`, which the library includes: for each name an entry in assembly
//!   (`peerdma_entry_NAME: jmp FUNCTION`) with one `.symver` per version, and for each name that
//!   nothing implements a stub that refuses and logs why.
//!
//! # Why assembly
//!
//! `#[no_mangle]` and a version script do not make versioned symbols. rustc passes a version script
//! of its own first, with all `#[no_mangle]` names in an anonymous node, and a name belongs to the
//! first node that lists it: programs would load, but `dlvsym` would find nothing. A name with a
//! version given by `.symver` is not in rustc's script, so ours decides. Every version of a name
//! must be listed in its node, or the linker drops it without a word. The entry is a jump and not
//! an alias because an alias must stand in the same object file as its function, which codegen
//! units and LTO do not promise. The verbs of the data path have no symbol (the header calls them
//! through pointers), so the jump costs nothing that matters.
//!
//! The linker must be lld (rustc's default on x86_64 Linux) or mold: GNU ld refuses an anonymous
//! node beside named ones. Zig, with which wheels are linked, takes the last script only, which is
//! ours: so ours also says that all other names are local.
//!
//! # Names of the library
//!
//! The soname is `libibverbs.so.1`. Programs also ask for `librdmacm.so.1`, and both must be this
//! one file, or there would be two engines in one process. glibc recognizes a library that it
//! already loaded by name and soname first, and then by device and inode, so two symbolic links to
//! one file are one library; `tests/loading.rs` proves it. The soname lets
//! `LD_PRELOAD=libpeerdma.so` alone satisfy a program that needs `libibverbs.so.1`, even one with
//! an RPATH to a copy of its own. The links themselves belong to the installer or the launcher: a
//! build script has no business in the target directory.
//!
//! `-z nodelete`: threads of the engine must not find their code unmapped after a `dlclose`.

#[path = "src/abi/symbols/mod.rs"]
#[expect(dead_code, unused_imports, reason = "verbs without a symbol need no entry")]
mod symbols;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use symbols::{Answer, NODES, Refusal, Symbol, symbols};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/abi/symbols");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    let map = out.join("libpeerdma.map");
    fs::write(&map, version_script())?;
    fs::write(out.join("exports.rs"), exports(&arch))?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

fn version_script() -> String {
    let mut script = String::new();
    for (index, (node, parent)) in NODES.iter().enumerate() {
        writeln!(script, "{node} {{\n  global:").expect("a String takes all");
        for symbol in symbols().filter(|symbol| symbol.nodes.contains(node)) {
            writeln!(script, "    {};", symbol.name).expect("a String takes all");
        }
        if index == 0 {
            script.push_str("  local: *;\n");
        }
        writeln!(script, "}} {};", parent.unwrap_or_default()).expect("a String takes all");
    }
    script
}

fn exports(arch: &str) -> String {
    // A jump within one library needs no PLT: the function is never preempted.
    let jump = match arch {
        "x86_64" => "jmp",
        "aarch64" => "b",
        "riscv64" => "tail",
        other => panic!("no entry sequence for {other}: add its jump instruction"),
    };
    let mut rust = String::from("// Written by build.rs from src/abi/symbols.\n\n");
    for symbol in symbols() {
        match symbol.answer {
            Answer::Byte => rust.push_str(&byte(symbol)),
            Answer::In(module) | Answer::Never(module, ..) => rust.push_str(&entry(
                symbol,
                jump,
                &format!("crate::abi::{module}::{}", symbol.name),
            )),
            Answer::Refuse(refusal, why) => {
                rust.push_str(&stub(symbol, refusal, why));
                rust.push_str(&entry(symbol, jump, &format!("stub_{}", symbol.name)));
            }
        }
    }
    rust
}

/// A function that touches no argument, so that it may stand for any signature.
fn stub(symbol: &Symbol, refusal: Refusal, why: &str) -> String {
    let name = symbol.name;
    let (returns, how) = match refusal {
        Refusal::Errno => ("core::ffi::c_int", "errno"),
        Refusal::MinusOne => ("isize", "minus_one"),
        Refusal::Null => ("*mut core::ffi::c_void", "null"),
        Refusal::Silent => ("usize", "silent"),
    };
    format!(
        "extern \"C\" fn stub_{name}() -> {returns} {{\n    crate::abi::refuse::{how}({name:?}, {why:?})\n}}\n"
    )
}

fn entry(symbol: &Symbol, jump: &str, function: &str) -> String {
    let local = format!("peerdma_entry_{}", symbol.name);
    let mut lines = vec![
        format!(".pushsection .text.{local},\"ax\",@progbits"),
        ".p2align 4".to_owned(),
        format!(".globl {local}"),
        format!(".type {local}, @function"),
        format!("{local}: {jump} {{function}}"),
        format!(".size {local}, . - {local}"),
    ];
    lines.extend(versions(symbol, &local));
    lines.push(".popsection".to_owned());
    global_asm(&lines, &format!("function = sym {function},"))
}

fn byte(symbol: &Symbol) -> String {
    let local = format!("peerdma_entry_{}", symbol.name);
    let mut lines = vec![
        format!(".pushsection .bss.{local},\"aw\",@nobits"),
        format!(".globl {local}"),
        format!(".type {local}, @object"),
        format!("{local}: .zero 1"),
        format!(".size {local}, 1"),
    ];
    lines.extend(versions(symbol, &local));
    lines.push(".popsection".to_owned());
    global_asm(&lines, "")
}

/// The newest version is the default one, which a program linked today binds to; the others stay
/// for programs that name them.
fn versions(symbol: &Symbol, local: &str) -> Vec<String> {
    let newest = symbol.nodes.len() - 1;
    let version = |(i, node)| {
        let at = if i == newest && symbol.linkable { "@@" } else { "@" };
        format!(".symver {local}, {}{at}{node}", symbol.name)
    };
    symbol.nodes.iter().enumerate().map(version).collect()
}

fn global_asm(lines: &[String], operands: &str) -> String {
    let mut rust = String::from("core::arch::global_asm!(\n");
    for line in lines {
        writeln!(rust, "    {line:?},").expect("a String takes all");
    }
    writeln!(rust, "    {operands}\n);\n").expect("a String takes all");
    rust
}
