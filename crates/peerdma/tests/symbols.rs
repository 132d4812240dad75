//! The symbol table of the library matches the tables, and has everything that the system's
//! libraries offer.

mod common;
#[path = "../src/abi/symbols/mod.rs"]
#[expect(dead_code, reason = "the tables are used by the build script too")]
mod symbols;

use std::collections::BTreeSet;
use std::path::Path;

use symbols::{INLINE, NODES, PRIVATE, RDMACM, VERBS, symbols};

#[test]
fn tables_are_sorted_and_name_nothing_twice() {
    for table in [VERBS, PRIVATE, RDMACM] {
        assert!(table.is_sorted_by(|a, b| a.name < b.name));
    }
    assert!(INLINE.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn every_node_exists() {
    for symbol in symbols() {
        for node in symbol.nodes {
            assert!(NODES.iter().any(|(name, _)| name == node), "{}: no node {node}", symbol.name);
        }
    }
}

#[test]
fn every_row_is_exported_with_its_versions_and_nothing_else_is() {
    let Some(exported) = common::defined_symbols(common::library()) else {
        return common::cannot_run("there is no readelf");
    };
    let mut expected = Vec::new();
    for symbol in symbols() {
        let (newest, older) = symbol.nodes.split_last().expect("a symbol has a version");
        expected.extend(older.iter().map(|node| format!("{}@{node}", symbol.name)));
        let at = if symbol.linkable { "@@" } else { "@" };
        expected.push(format!("{}{at}{newest}", symbol.name));
    }
    expected.sort();
    assert_eq!(exported, expected);
}

/// Version 1.0 of a symbol that also has a version 1.1 is the ABI of 2006, which nothing uses.
#[test]
fn whatever_a_program_can_bind_in_the_systems_libraries_is_here() {
    let ours: BTreeSet<String> = symbols()
        .flat_map(|symbol| symbol.nodes.iter().map(|node| format!("{}@{node}", symbol.name)))
        .collect();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
            .map(|directory| Path::new(directory).join(library))
            .into_iter()
            .find(|path| path.exists());
        let Some(path) = found else {
            common::cannot_run(&format!("the system has no {library}"));
            continue;
        };
        let Some(theirs) = common::defined_symbols(&path) else {
            return common::cannot_run("there is no readelf");
        };
        for symbol in theirs.iter().map(|symbol| symbol.replace("@@", "@")) {
            let replaced = symbol.strip_suffix("@IBVERBS_1.0");
            let is_old = replaced.is_some_and(|name| ours.contains(&format!("{name}@IBVERBS_1.1")));
            assert!(is_old || ours.contains(&symbol), "{library} has {symbol}");
        }
    }
}
