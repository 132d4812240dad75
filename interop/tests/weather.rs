//! Moves, evictions and losses of GPU memory, on demand: by a fault plan, and by hand.

use std::path::PathBuf;

use interop::need::Need;
use interop::{Artefacts, Mode, Output, Program, Scratch, compile, needs};

/// A machine with a GPU `gpu0` of a driver, and a NIC of an importer class. The GPU is unique,
/// since tests run concurrently.
fn machine(scratch: &Scratch, driver: &str, importer: &str) -> PathBuf {
    machine_with(scratch, driver, importer, "name = \"gpu0\"\nshared = false")
}

fn machine_with(scratch: &Scratch, driver: &str, importer: &str, gpu: &str) -> PathBuf {
    let path = scratch.file("peerdma.toml");
    let text = format!(
        "[[nic]]\nname = \"peerdma0\"\nimporter = \"{importer}\"\n\
         [[gpu]]\n{gpu}\npreset = \"{driver}\"\nvram = \"64M\"\ngtt = \"64M\"\n"
    );
    std::fs::write(&path, text).expect("a file of our own");
    path
}

fn program(scratch: &Scratch, driver: &str, importer: &str, args: &[&str]) -> Program {
    let config = machine(scratch, driver, importer);
    let program = Program::new(compile("weather", scratch)).gpu("nvidia");
    program.args(args).env("PEERDMA_CONFIG", config)
}

#[track_caller]
fn under(plan: &str, driver: &str, importer: &str, args: &[&str]) -> Output {
    let scratch = Scratch::new();
    let file = scratch.file("plan.toml");
    std::fs::write(&file, plan).expect("a file of our own");
    program(&scratch, driver, importer, args).env("PEERDMA_FAULT", file).output()
}

/// The buffer goes back and forth under the NIC's WRITEs, by their count, by time, and by calls of
/// CUDA; the key stays valid and every byte is checked.
#[test]
fn a_dynamic_nic_keeps_its_key_in_a_storm() {
    needs!(Need::Header("infiniband/verbs.h"));
    let plan = "seed = 3\n\
        [[fault]]\nname = 'out'\ndo = 'evict'\nopcode = 'RC_RDMA_WRITE_LAST'\nqp = 1\nevery = 3\n\
        [[fault]]\nname = 'in'\ndo = 'move'\nto = 'vram'\nopcode = 'RC_RDMA_WRITE_FIRST'\nqp = 1\nevery = 2\n\
        [[fault]]\nname = 'middle'\ndo = 'evict'\nopcode = 'RC_RDMA_WRITE_MIDDLE'\nqp = 1\nprobability = 0.02\n\
        [[fault]]\nname = 'clock'\ndo = 'move'\nto = 'vram'\nevery = '2ms'\n\
        [[fault]]\nname = 'reader'\ndo = 'move'\nto = 'gtt'\ngpu = 'gpu0'\nbuffer = 1\noperation = 'cuMemcpyDtoH'\nprobability = 0.2\n";
    let out = under(plan, "amdgpu", "dynamic", &["storm", "300"]);
    out.success().says("ok").says("reader: move fired").says("of 300 operations");
    out.says("out: evict fired").says("clock: move fired").says("buffers evicted");
    out.says("on peerdma0:").says("on its GPUs:").never_says("no GPU open");
}

/// Buffers of render nodes, which a DRM program creates, maps and exports, and which RDMA writes.
#[test]
fn drm_programs_are_affected_too() {
    needs!(Need::Header("infiniband/verbs.h"), Need::Header("libdrm/drm.h"));
    let scratch = Scratch::new();
    let node = Program::new(compile("drm_node", &scratch));
    let file = scratch.file("plan.toml");
    let plan = "[[fault]]\nname = 'out'\ndo = 'evict'\nevery = '200us'\n\
        [[fault]]\nname = 'in'\ndo = 'move'\nto = 'vram'\nevery = '300us'\n";
    std::fs::write(&file, plan).expect("a file of our own");
    for driver in ["amdgpu", "xe"] {
        let config = machine(&scratch, driver, "dynamic");
        let program = node.clone().gpu(driver).args([driver]).env("PEERDMA_CONFIG", config);
        let out = program.env("PEERDMA_FAULT", &file).output();
        out.success().says("ok").says("out: evict fired").says("in: move fired");
    }
}

#[test]
fn pinned_or_static_memory_refuses_the_move_and_the_report_tells_it() {
    needs!(Need::Header("infiniband/verbs.h"));
    let plan = "[[fault]]\ndo = 'evict'\noperation = 'cuMemcpyDtoH'\nnth = 2\n";
    let out = under(plan, "amdgpu", "pinned", &["storm", "20"]);
    out.success().says("evict: fired once, of 20 operations");
    out.says("0 buffers evicted, 1 refused (gpu0.bo1 is pinned and cannot move to GTT)");
    let out = under(plan, "nvidia", "dynamic", &["storm", "20"]);
    out.success().says("0 buffers evicted, 1 refused (gpu0.bo1: nvidia never moves)");
}

#[test]
fn a_revocable_nic_reports_its_dead_key_in_a_completion() {
    needs!(Need::Header("infiniband/verbs.h"));
    let revoke = "[[fault]]\nname = 'thief'\ndo = 'revoke'\ngpu = 'gpu0'\nbuffer = 1\n";
    let plan = format!("{revoke}opcode = 'RC_RDMA_WRITE_LAST'\nqp = 1\nnth = 10\n");
    let out = under(&plan, "amdgpu", "revocable", &["dead", "1000000"]);
    out.success().says("remote access error");
    out.says("thief: revoke fired once").says("1 buffer revoked");
    // The log names the act.
    let scratch = Scratch::new();
    let file = scratch.file("plan.toml");
    std::fs::write(&file, plan).expect("a file of our own");
    let explained = scratch.file("explained");
    let program = program(&scratch, "amdgpu", "revocable", &["dead", "1000000"]);
    program.env("PEERDMA_FAULT", file).env("PEERDMA_EXPLAIN", &explained).output().success();
    let said = std::fs::read_to_string(&explained).expect("a sentence");
    assert!(said.contains("REM_ACCESS_ERR"), "{said}");
    assert!(said.contains("lost its memory: gpu0.bo1 was revoked: revoked by fault 1"), "{said}");
}

#[test]
fn the_same_copy_gets_the_same_reset_again() {
    needs!(Need::Header("infiniband/verbs.h"));
    let plan = "[[fault]]\ndo = 'reset'\noperation = 'cuMemcpyDtoH'\nnth = '4-5'\n";
    for _ in 0..3 {
        let out = under(plan, "amdgpu", "dynamic", &["copies", "9"]);
        out.success().says("9 copies, 2 with wrong bytes");
        out.says("reset: fired 2 times, of 9 operations").says("2 GPUs reset");
    }
}

#[test]
fn vram_is_full_and_copies_are_slow_for_a_while() {
    needs!(Need::Header("infiniband/verbs.h"));
    let plan = "[[fault]]\ndo = 'throttle'\nrate = '10M'\nfor = '100ms'\n\
        operation = 'cuMemcpyHtoD'\nnth = 1\n";
    let out = under(plan, "amdgpu", "dynamic", &["copies", "20"]);
    out.success().says("20 copies, 0 with wrong bytes");
    out.says("throttle: fired once, of 20 operations").says("1 GPU throttled");
    // An allocation that cannot move finds no room.
    let plan = "[[fault]]\ndo = 'fill'\nshare = 1.0\noperation = 'cuMemAlloc'\nnth = 2\n";
    let out = under(plan, "nvidia", "dynamic", &["twice"]);
    out.failure().says("2, and not 0").says("1 GPU filled");
}

#[test]
fn a_plan_for_gpus_is_checked_before_the_program_starts() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let file = scratch.file("plan.toml");
    std::fs::write(&file, "[[fault]]\ndo = 'move'\n").expect("a file of our own");
    let program =
        Program::new(Artefacts::find().peerdma()).mode(Mode::Plain).args(["run", "--fault"]);
    let out = program.args([file.as_os_str(), "--".as_ref(), "true".as_ref()]).output();
    out.failure().says("fault 1 (move): does not say where");
}

#[test]
fn a_running_program_is_listed_and_its_memory_moved_by_hand() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let go = scratch.file("go");
    let args = ["sleep", go.to_str().expect("plain text")];
    let config = machine_with(&scratch, "amdgpu", "dynamic", "name = \"hand0\"");
    let program = Program::new(compile("weather", &scratch)).gpu("nvidia").args(args);
    let mut running = program.env("PEERDMA_CONFIG", config).start();
    running.wait_says("ready");
    let gpu = |args: &[&str]| {
        let program = Program::new(Artefacts::find().peerdma()).args(["gpu"]).args(args);
        program.mode(Mode::Plain).output()
    };
    let listed = gpu(&[]);
    listed.success().says("hand0 (amdgpu) at 0000:").says("(weather)").says("hand0.bo1");
    listed.says("VRAM").says("peerdma0 (dynamic)");
    gpu(&["evict", "hand0", "hand0.bo1"]).success().says("(weather): 1 buffer evicted");
    gpu(&[]).success().says("GTT");
    gpu(&["move", "hand0", "1", "vram"]).success().says("1 buffer moved to VRAM");
    gpu(&["evict", "hand0", "7"]).failure().says("no process has buffer 7");
    gpu(&["evict", "gpu9"]).failure().says("no process has a GPU gpu9");
    running.stop();
    gpu(&[]).success().says("it does not answer: is it stopped?");
    running.resume();
    gpu(&["evict", "hand0"]).success().says("1 buffer evicted");
    std::fs::write(&go, "").expect("a file of our own");
    running.finish().success().says("ok");
}

/// A program and another process, to which it sent a descriptor, have mapped a buffer whose GPU is
/// pulled. Both get SIGBUS at the address that they touched, their other mappings are intact, and
/// CUDA returns error codes.
#[test]
fn cpu_mappings_of_a_pulled_gpu_raise_sigbus_in_every_process() {
    let scratch = Scratch::new();
    let (go, config) = (scratch.file("go"), scratch.file("peerdma.toml"));
    for preset in ["nvidia", "amdgpu"] {
        let _ = std::fs::remove_file(&go);
        let gpu = |name: &str| {
            let name = format!("{name}-{}", std::process::id());
            format!(
                "[[gpu]]\nname = \"{name}\"\npreset = \"{preset}\"\nvram = \"64M\"\ngtt = \"64M\"\n"
            )
        };
        let text = format!("[[nic]]\nname = \"peerdma0\"\n{}{}", gpu("pulled"), gpu("kept"));
        std::fs::write(&config, text).expect("a file of our own");
        let program = Program::new(compile("unplugged", &scratch)).gpu("nvidia").args([&go]);
        let mut running = program.env("PEERDMA_CONFIG", &config).start();
        running.wait_says("ready");
        let pulled = format!("pulled-{}", std::process::id());
        let by_hand = Program::new(Artefacts::find().peerdma()).args(["gpu", "unplug", &pulled]);
        by_hand.mode(Mode::Plain).output().success().says("1 GPU unplugged");
        std::fs::write(&go, "").expect("a file of our own");
        let out = running.finish();
        out.success().says("the program: SIGBUS").says("another process: SIGBUS").says("ok");
    }
}

/// Everything at once: buffers of two GPUs move, are evicted, find VRAM full and copies slow, while
/// two NICs and CUDA write and read them. No byte is wrong, and no key dies.
#[test]
fn no_byte_is_wrong_in_a_storm_over_two_gpus_and_two_nics() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let (config, plan) = (scratch.file("peerdma.toml"), scratch.file("plan.toml"));
    let text = "seed = 11\n\
        [[fault]]\nname = 'out'\ndo = 'evict'\nevery = '700us'\nprobability = 0.6\n\
        [[fault]]\nname = 'home'\ndo = 'move'\nto = 'vram'\nevery = '3ms'\n\
        [[fault]]\nname = 'away'\ndo = 'move'\nto = 'gtt'\nevery = '5ms'\ngpu = 'storm1'\nprobability = 0.3\n\
        [[fault]]\nname = 'full'\ndo = 'fill'\nshare = 0.97\nfor = '8ms'\nevery = '20ms'\n\
        [[fault]]\nname = 'slow'\ndo = 'throttle'\nrate = '2G'\nfor = '5ms'\nevery = '13ms'\n\
        [[fault]]\nname = 'call'\ndo = 'evict'\noperation = 'cuMemcpyDtoD'\nprobability = 0.1\n";
    std::fs::write(&plan, text).expect("a file of our own");
    let storm = Program::new(compile("gpu_storm", &scratch)).gpu("nvidia");
    for (driver, still) in [("amdgpu", "pinned"), ("xe", "revocable")] {
        let gpu = |name: &str| {
            format!(
                "[[gpu]]\nname = \"{name}\"\npreset = \"{driver}\"\nshared = false\nvram = \"16M\"\ngtt = \"64M\"\n"
            )
        };
        let nic = |name: &str, importer: &str| {
            format!("[[nic]]\nname = \"{name}\"\nimporter = \"{importer}\"\n")
        };
        let nics = nic("peerdma0", "dynamic") + &nic("peerdma1", still);
        std::fs::write(&config, nics + &gpu("storm0") + &gpu("storm1")).expect("a file of our own");
        let program = storm.clone().args(["7", "1000"]).env("PEERDMA_CONFIG", &config);
        let out = program.env("PEERDMA_FAULT", &plan).output();
        out.success().says("ok").says("out: evict fired").says("home: move fired");
        out.says("full: fill fired").says("slow: throttle fired").says("buffers evicted");
        // To VRAM, if the first eviction came before the NIC pinned them.
        out.says("is pinned and cannot move to ");
    }
}
