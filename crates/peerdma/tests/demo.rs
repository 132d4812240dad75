//! What `peerdma demo` shows on a terminal, and what it does not show elsewhere.

use std::process::{Command, Output};

const DEMO: &str = concat!(env!("CARGO_BIN_EXE_peerdma"), " demo --size 1024 --rounds 2");

/// Runs a shell command with an environment of this locale and more variables.
fn run(mut command: Command, more: &[(&str, &str)]) -> String {
    command.env_remove("NO_COLOR").env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    let Output { status, stdout, stderr } =
        command.envs(more.iter().copied()).output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}: {out}{err}");
    format!("{out}{err}")
}

/// With standard output and standard error on a pseudo terminal, which `script` makes.
fn on_a_terminal(more: &[(&str, &str)]) -> String {
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", DEMO, "/dev/null"]);
    run(script, more)
}

/// The bars: whatever follows the table.
fn bars(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.contains(" GB/s ") && line.matches(" GB/s ").count() == 1)
        .collect()
}

#[test]
fn a_terminal_shows_progress_and_bars() {
    let text = on_a_terminal(&[]);
    assert!(text.contains("\r\x1b[K1/96  host to host: SEND"), "{text}");
    assert!(text.contains("96/96  "), "{text}");
    // Four operations with a rate, of sixteen pairs of memory.
    let bars = bars(&text);
    assert_eq!(bars.len(), 64, "{text}");
    assert!(bars.iter().any(|line| line.contains('█')), "{text}");
    assert!(bars.iter().all(|line| line.contains("\x1b[3")), "{text}");
}

#[test]
fn colours_and_blocks_can_be_declined() {
    let text = on_a_terminal(&[("NO_COLOR", "1"), ("LC_ALL", "C")]);
    let bars = bars(&text);
    assert_eq!(bars.len(), 64, "{text}");
    assert!(bars.iter().all(|line| line.contains(" #") && !line.contains('\x1b')), "{text}");
    assert!(!text.contains('█') && !text.contains("\x1b[3"), "{text}");
    // Progress needs the line to be rewritten, which such a terminal cannot do.
    let text = on_a_terminal(&[("TERM", "dumb")]);
    assert!(!text.contains('\x1b') && !text.contains("1/96"), "{text}");
}

#[test]
fn a_pipe_gets_the_table_alone() {
    let mut sh = Command::new("sh");
    sh.args(["-c", DEMO]);
    let text = run(sh, &[]);
    assert!(text.contains("every byte was checked"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains("1/96") && bars(&text).is_empty(), "{text}");
}
