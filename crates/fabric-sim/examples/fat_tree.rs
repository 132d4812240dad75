//! A table of what fat trees of up to a thousand hosts come to, with the real transport, and beside
//! it with models of a NIC that has DCQCN and of Linux's rxe.
//!
//! `cargo run --release -p fabric-sim --example fat_tree [k...]`: the ports of the switches, 4, 8
//! and 16 if nothing is said, for 16, 128 and 1024 hosts. The last columns are what the simulation
//! itself costs: events, and seconds.

use std::fs;

use fabric_sim::tree::{Pfc, Scenario, Sender, Shape, scenario::Outcome};

const MEGA: u64 = 1 << 20;

fn main() {
    let mut ks: Vec<usize> = std::env::args().skip(1).filter_map(|k| k.parse().ok()).collect();
    if ks.is_empty() {
        ks = vec![4, 8, 16];
    }
    for k in ks {
        let marks = Shape::new(k);
        let pfc = Some(Pfc { pause: 128 << 10, resume: 96 << 10 });
        let both = Shape { pfc, ..marks.clone() };
        let pauses = Shape { red: None, ..both.clone() };
        let drops = Shape { red: None, ..marks.clone() };
        let hosts = marks.hosts();
        println!("\n{hosts} hosts\n{:<28} {}", "", Outcome::HEAD);
        for (name, shape) in
            [("ECN", marks), ("ECN and PFC", both), ("PFC alone", pauses), ("neither", drops)]
        {
            for (what, scenario, bytes) in [
                ("permutation", Scenario::Permutation, 4 * MEGA),
                ("beside streams", Scenario::Mixed, 4 * MEGA),
                ("64 to 1", Scenario::Incast(64), MEGA),
                ("a line fails", Scenario::LineFails, 4 * MEGA),
                ("a host stops", Scenario::HostStops, 4 * MEGA),
                ("all to all", Scenario::AllToAll, MEGA / hosts as u64),
            ] {
                println!("{name:<13} {what:<14} {}", scenario.run(&shape, bytes));
                // A rate that nobody marks is that of the line, and rxe's packets bear no mark.
                let (sender, model) = match shape.red {
                    Some(_) => (Sender::Dcqcn, "DCQCN's NIC"),
                    None => (Sender::Rxe, "rxe"),
                };
                if matches!(scenario, Scenario::Mixed | Scenario::AllToAll) {
                    continue;
                }
                let shape = Shape { sender, ..shape.clone() };
                println!("{:<13} {:<14} {}", "", model, scenario.run(&shape, bytes));
            }
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        println!("memory so far, at most: {}", most.unwrap_or(" ?").trim());
    }
}
