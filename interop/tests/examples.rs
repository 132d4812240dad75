//! The examples of the Rust API, each as two processes.

use interop::{Artefacts, Mode, Program, Running};

/// Starts the half of an example that listens, and gives the address it prints.
fn listen(name: &str) -> (Running, String) {
    let path = Artefacts::find().example(name);
    let mut running = Program::new(path).mode(Mode::Plain).start();
    running.wait_says("127.0.0.1:");
    let address = running.printed().lines().next().unwrap_or_default().to_owned();
    (running, address)
}

fn both_halves(name: &str) -> (interop::Output, interop::Output) {
    let (listening, address) = listen(name);
    let path = Artefacts::find().example(name);
    let connecting = Program::new(path).mode(Mode::Plain).args([address]).output();
    connecting.success();
    let listening = listening.finish();
    listening.success();
    (listening, connecting)
}

#[test]
fn ping_pong() {
    let (server, client) = both_halves("ping_pong");
    server.says("10000 rounds of 64 bytes");
    client.says("10000 rounds of 64 bytes");
}

#[test]
fn one_sided_write() {
    let (target, writer) = both_halves("one_sided_write");
    target.says("1048576 bytes, every one right");
    writer.says("wrote 1048576 bytes: Success");
}

#[test]
fn gpu_memory() {
    let (target, writer) = both_halves("gpu_memory");
    writer.says("wrote 1048576 bytes: Success");
    target.says("1048576 bytes in VRAM, all 0x5a: true");
}
