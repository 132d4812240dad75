//! docs/CUDA_PROGRAMS.md: the results of each program, in each variant.

use std::fmt::Write as _;
use std::fs;

use super::build::PROGRAMS;
use crate::sh::{Outcome, read, root, tool};

const PAGE: &str = "docs/CUDA_PROGRAMS.md";

/// Writes the page. `rows` are lines of words between tabs: the program, the variant, what was run,
/// the result, and why.
pub(crate) fn write(rows: &str) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let mut page = format!(
        "# Programs of others that move GPU memory\n\n\
         Written by `cargo xtask cuda-rdma` on {}: programs that use CUDA, unmodified, by `peerdma run --gpu=nvidia` on a machine \
         that needs no GPU (docs/CUDA.md); UCX with Level Zero and HSA, too (docs/LEVEL_ZERO.md, docs/HSA.md). Open MPI's ranks are on two hosts. `interop/tests/cuda_rdma` runs them and has the reasons; what they move is compared \
         where the program itself, or the row, says so.\n\n| program | what it is |\n|---|---|\n",
        day.trim()
    );
    for program in &PROGRAMS {
        writeln!(page, "| {} | {} |", program.name, program.version()?)
            .expect("a String takes all");
    }
    page.push_str("\n| program | way | run | result | why |\n|---|---|---|---|---|\n");
    let mut rows: Vec<_> = rows.lines().collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let cells: Vec<_> = row.replace('|', "\\|").split('\t').map(str::to_owned).collect();
        writeln!(page, "| {} |", cells.join(" | ")).expect("a String takes all");
    }
    fs::write(root().join(PAGE), page).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}
