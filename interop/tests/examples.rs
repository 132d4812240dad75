//! The examples of the Rust API, each as several processes. Each compares the data and fails if it
//! is wrong.

use std::ffi::OsStr;

use interop::{Artefacts, Mode, Program, Running};

/// An example, with the provider of its NIC if it is not the usual one.
fn example(name: &str, provider: Option<&OsStr>) -> Program {
    let program = Program::new(Artefacts::find().example(name)).mode(Mode::Plain);
    match provider {
        Some(provider) => program.env("PEERDMA_PROVIDER", provider),
        None => program,
    }
}

/// Starts the listening side of an example, and returns the address that it prints.
fn listen(name: &str, provider: Option<&OsStr>) -> (Running, String) {
    let mut running = example(name, provider).start();
    running.wait_says("127.0.0.1:");
    let address = running.printed().lines().next().unwrap_or_default().to_owned();
    (running, address)
}

fn both_halves(name: &str) -> (interop::Output, interop::Output) {
    both_halves_with(name, None)
}

fn both_halves_with(name: &str, provider: Option<&OsStr>) -> (interop::Output, interop::Output) {
    let (listening, address) = listen(name, provider);
    let connecting = example(name, provider).args([address]).output();
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
    target.says("1048576 bytes, every one correct");
    writer.says("wrote 1048576 bytes: Success");
}

/// On the software device, and on a NIC of a library.
#[test]
fn key_value_store() {
    let library = Artefacts::find().library();
    let providers = [OsStr::new("soft"), library.as_os_str()];
    for provider in providers {
        let (server, client) = both_halves_with("key_value_store", Some(provider));
        client.says("20000 look-ups, every value whole and none older than the one before");
        server.says("the client is done");
    }
}

#[test]
fn gpu_memory() {
    let (target, writer) = both_halves("gpu_memory");
    writer.says("wrote 1048576 bytes: Success");
    target.says("1048576 bytes in VRAM, every one correct");
}

/// Runs an example that starts its other processes itself.
fn alone(name: &str) -> interop::Output {
    let output = example(name, None).output();
    output.success();
    output
}

#[test]
fn a_lock_in_device_memory() {
    alone("dm_lock").says("4 clients counted to 20000, and the lock is free");
}

#[test]
fn counters_in_device_memory() {
    alone("dm_counters").says("4 clients raised 16 counters to 1600 together");
}

#[test]
fn device_memory_as_a_staging_buffer() {
    alone("dm_staging")
        .says("64 messages of 16384 bytes passed through device memory, every byte correct");
}

#[test]
fn multicast_out_of_device_memory() {
    alone("dm_multicast").says("one write of 4096 bytes, 6 sends, every byte correct");
}
