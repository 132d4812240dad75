//! The examples of the Rust API, each as several processes. Each compares the data and fails if it
//! is wrong.

use std::ffi::OsStr;

use interop::{Artefacts, Mode, Program, Running, Scratch};

/// An example, with the provider of its NIC.
fn example(name: &str, provider: &OsStr) -> Program {
    let program = Program::new(Artefacts::find().example(name)).mode(Mode::Plain);
    program.env("PEERDMA_PROVIDER", provider)
}

/// Starts the listening side of an example, and returns the address that it prints.
fn listen(name: &str, args: &[&OsStr], provider: &OsStr) -> (Running, String) {
    let mut running = example(name, provider).args(args).start();
    running.wait_until("it prints its address", |running| running.printed().contains('\n'));
    let address = running.printed().lines().next().unwrap_or_default().to_owned();
    (running, address)
}

/// The software device, and a NIC of a library.
fn each_provider(test: impl Fn(&OsStr)) {
    let library = Artefacts::find().library();
    [OsStr::new("soft"), library.as_os_str()].into_iter().for_each(test);
}

fn both_halves(name: &str, provider: &OsStr) -> (interop::Output, interop::Output) {
    let (listening, address) = listen(name, &[], provider);
    let connecting = example(name, provider).args([address]).output();
    connecting.success();
    let listening = listening.finish();
    listening.success();
    (listening, connecting)
}

#[test]
fn ping_pong() {
    each_provider(|provider| {
        let (server, client) = both_halves("ping_pong", provider);
        server.says("10000 rounds of 64 bytes");
        client.says("10000 rounds of 64 bytes");
    });
}

#[test]
fn one_sided_write() {
    each_provider(|provider| {
        let (target, writer) = both_halves("one_sided_write", provider);
        target.says("1048576 bytes, every one correct");
        writer.says("wrote 1048576 bytes: Success");
    });
}

#[test]
fn key_value_store() {
    each_provider(|provider| {
        let (server, client) = both_halves("key_value_store", provider);
        client.says("20000 look-ups, every value whole and none older than the one before");
        server.says("the client is done: Disconnected");
    });
}

/// The file is longer than the queue.
#[test]
fn file_transfer() {
    let scratch = Scratch::new();
    let (file, into) = (scratch.file("file"), scratch.file("into"));
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at * 7 + (at >> 11)) as u8).collect();
    std::fs::write(&file, &bytes).expect("a file of our own");
    each_provider(|provider| {
        let (receiver, address) = listen("file_transfer", &[into.as_os_str()], provider);
        let args = [file.as_os_str(), OsStr::new(&address)];
        let sender = example("file_transfer", provider).args(args).output();
        sender.success().says("sent 3000001 bytes");
        receiver.finish().success().says("received 3000001 bytes");
        assert!(std::fs::read(&into).expect("it is there") == bytes);
        std::fs::remove_file(&into).expect("it is there");
    });
}

/// Several clients at once.
fn one_and_many(name: &str, many: usize, provider: &OsStr, says: &str) -> interop::Output {
    one_and_others(name, name, many, provider, says)
}

/// Several clients at once, of another example.
fn one_and_others(
    name: &str,
    client: &str,
    many: usize,
    provider: &OsStr,
    says: &str,
) -> interop::Output {
    let (server, address) = listen(name, &[], provider);
    let client = || example(client, provider).args([&address]).start();
    let clients: Vec<Running> = std::iter::repeat_with(client).take(many).collect();
    for client in clients {
        client.finish().success().says(says);
    }
    let server = server.finish();
    server.success();
    server
}

#[test]
fn rpc() {
    each_provider(|provider| {
        let server = one_and_many("rpc", 3, provider, "1000 calls, every answer right");
        server.says("3 clients were served");
    });
}

#[test]
fn rpc_async() {
    each_provider(|provider| {
        let says = "1000 calls, every answer right";
        let server = one_and_others("rpc_async", "rpc", 3, provider, says);
        server.says("3 clients were served");
    });
}

#[test]
fn parameter_server() {
    each_provider(|provider| {
        let server = one_and_many("parameter_server", 2, provider, "20 rounds");
        server.says("65536 parameters in VRAM, at most 0.0");
    });
}

#[test]
fn gpu_memory() {
    each_provider(|provider| {
        let (target, writer) = both_halves("gpu_memory", provider);
        writer.says("wrote 1048576 bytes: Success");
        target.says("1048576 bytes in VRAM, every one correct");
    });
}

/// Runs an example that starts its other processes itself.
fn alone(name: &str, says: &str) {
    each_provider(|provider| {
        example(name, provider).output().success().says(says);
    });
}

#[test]
fn a_lock_in_device_memory() {
    alone("dm_lock", "4 clients counted to 20000, and the lock is free");
}

#[test]
fn counters_in_device_memory() {
    alone("dm_counters", "4 clients raised 16 counters to 1600 together");
}

#[test]
fn device_memory_as_a_staging_buffer() {
    let says = "64 messages of 16384 bytes came through device memory, each one correct";
    alone("dm_staging", says);
}

#[test]
fn multicast_out_of_device_memory() {
    alone("dm_multicast", "one write of 4096 bytes, 6 sends, every byte correct");
}
