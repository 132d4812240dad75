//! Several processes share one GPU: its memory, its pressure, and what dead processes leave.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{MB, Miss, Mr, Nic, Refused, config, fill, machine, pattern};
use dmabuf::{ExporterErrorKind, ImporterClass, Reach};
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset};

/// A GPU that only the processes of one test share.
fn shared(test: &str) -> GpuConfig {
    let name = format!("{test}-{}", std::process::id());
    GpuConfig { name, shared: true, ..config(Preset::Xe) }
}

fn open(config: &GpuConfig) -> Gpu {
    let tree = pci::PciConfig::default().build(&["nic0", config.name.as_str()]).expect("sound");
    Gpu::open_in(config, tree.into()).expect("a GPU")
}

/// Another process with the same GPU. Killed when dropped.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(config: &GpuConfig) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("ourselves"))
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env("PEERDMA_TEST_GPU", &config.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut other = Self { child, to, from };
        assert_eq!(other.hear(), "open");
        other
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("it listens");
        self.hear()
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).expect("it speaks") > 0, "it ended");
            if let Some((_, said)) = line.split_once("say: ") {
                return said.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("our child");
    }

    /// Stops it, and waits until all of it has stopped.
    fn stop(&self) {
        use rustix::process::{Pid, WaitOptions, waitpid};
        self.signal(rustix::process::Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED);
        assert!(stopped.expect("our child").is_some_and(|(_, status)| status.stopped()));
    }

    fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that [`Other`] starts. By itself this test does nothing.
#[test]
fn the_other_process() {
    let Ok(name) = std::env::var("PEERDMA_TEST_GPU") else { return };
    let gpu = open(&GpuConfig { name, shared: true, ..config(Preset::Xe) });
    let mut bos: Vec<Bo> = vec![];
    let mut mrs: Vec<Mr> = vec![];
    let mut bufs: Vec<dmabuf::DmaBuf> = vec![];
    let mut windows: Vec<dmabuf::DmaBuf> = vec![];
    let mut maps: Vec<umem::Umem> = vec![];
    println!("say: open");
    for line in std::io::stdin().lines() {
        let line = line.expect("a pipe");
        let words: Vec<_> = line.split(' ').collect();
        let number = |n: usize| words[n].parse::<u64>().expect("a number");
        let bo = |n: usize| &bos[usize::try_from(number(n)).expect("small")];
        let mr = |n: usize| &mrs[usize::try_from(number(n)).expect("small")];
        let said = match words[0] {
            "alloc" => {
                let place = if words[2] == "only" { Place::ONLY_VRAM } else { Place::VRAM };
                match gpu.alloc(number(1), place) {
                    Ok(bo) => {
                        bos.push(bo);
                        "ok".to_owned()
                    }
                    Err(refusal) => format!("{:?}", refusal.kind),
                }
            }
            "write" => bo(1).write(0, &pattern(number(2), 4096)).map_or("no", |()| "ok").to_owned(),
            "check" => {
                let mut seen = vec![0; 4096];
                bo(1).read(0, &mut seen).expect("alive");
                (seen == pattern(number(2), 4096)).to_string()
            }
            "domain" => bo(1).domain().expect("alive").to_string(),
            "export" => bo(1).export().expect("exported").fd().as_raw_fd().to_string(),
            "window" => {
                // As in a program: a descriptor, and nothing else.
                let window = bo(1).export_range(number(2), number(3)).expect("whole pages");
                let fd = window.fd().as_raw_fd().to_string();
                windows.push(window);
                fd
            }
            "free" => {
                drop(bos.remove(usize::try_from(number(1)).expect("small")));
                "ok".to_owned()
            }
            "import" => {
                let path = format!("/proc/{}/fd/{}", words[1], words[2]);
                let file = File::options().read(true).write(true).open(path).expect("its file");
                let buf = dmabuf::DmaBuf::import(file.as_fd()).expect("a dma-buf");
                let class = match words[3] {
                    "dynamic" => ImporterClass::Dynamic,
                    "revocable" => ImporterClass::PinnedRevocable,
                    _ => ImporterClass::Pinned,
                };
                let nic = Nic::new(class, &machine(true));
                match Mr::register(&nic, &buf) {
                    Ok(mr) => {
                        let said = mr.map_type().to_string();
                        mrs.push(mr);
                        bufs.push(buf);
                        said
                    }
                    Err(refused) => format!("{refused:?}"),
                }
            }
            "take" => {
                let path = format!("/proc/{}/fd/{}", words[1], words[2]);
                let file = File::options().read(true).write(true).open(path).expect("its file");
                match gpu.import(&file) {
                    Ok(bo) => {
                        bos.push(bo);
                        "ok".to_owned()
                    }
                    Err(refusal) => format!("{:?}", refusal.kind),
                }
            }
            "map" => {
                let path = format!("/proc/{}/fd/{}", words[1], words[2]);
                let file = File::options().write(true).open(path).expect("its file");
                let buf = dmabuf::DmaBuf::import(file.as_fd()).expect("a dma-buf");
                match buf.map(number(3), number(4)) {
                    Ok(mapping) => {
                        let len = mapping.len();
                        maps.push(umem::Umem::dmabuf(mapping, 0, len).expect("all of it"));
                        "ok".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            }
            "mapwrite" => {
                let map = &maps[usize::try_from(number(1)).expect("small")];
                map.write(0, &pattern(number(2), 4096)).map_or("no", |()| "ok").to_owned()
            }
            "why" => {
                let buf = &bufs[usize::try_from(number(1)).expect("small")];
                buf.why_gone().unwrap_or_else(|| "nobody says".to_owned())
            }
            "unmap" => {
                drop(maps.remove(usize::try_from(number(1)).expect("small")));
                "ok".to_owned()
            }
            "try" => match bo(1).read(0, &mut [0; 8]) {
                Ok(()) => "ok".to_owned(),
                Err(refusal) => format!("{:?}", refusal.kind),
            },
            "copy" => {
                let (from, to) = (bo(1), bo(2));
                match gpu::copy((from, 0), (to, 0), from.size().min(to.size())) {
                    Ok(()) => "ok".to_owned(),
                    Err(refusal) => format!("{:?}", refusal.kind),
                }
            }
            "mrwrite" => {
                let data = pattern(number(2), 4096);
                retried(mr(1), || mr(1).write(0, &data)).to_owned()
            }
            "mrcheck" => {
                let mut seen = vec![0; 4096];
                let done = retried(mr(1), || mr(1).read(0, &mut seen));
                if done == "ok" {
                    (seen == pattern(number(2), 4096)).to_string()
                } else {
                    done.into()
                }
            }
            "mrtype" => mr(1).map_type().to_string(),
            "mapped" => mr(1).is_mapped().to_string(),
            "deregister" => {
                mr(1).unmap();
                drop(mrs.remove(usize::try_from(number(1)).expect("small")));
                "ok".to_owned()
            }
            "used" => gpu.used(Domain::Vram).to_string(),
            other => panic!("{other}"),
        };
        println!("say: {said}");
    }
}

/// An access that maps again when that turns out to be necessary.
fn retried(mr: &Mr, mut once: impl FnMut() -> Result<(), Miss>) -> &'static str {
    loop {
        match once() {
            Ok(()) => return "ok",
            Err(Miss::Fault { .. }) => return "fault",
            Err(Miss::Stale) => mr.unmap(),
            Err(Miss::NotMapped) => {}
        }
        match mr.map() {
            Ok(()) => {}
            // Depending on whether the notification or the access comes first.
            Err(Refused::Revoked | Refused::Pin(ExporterErrorKind::NoDevice)) => return "revoked",
            Err(_) => return "refused",
        }
    }
}

#[test]
fn pressure_in_one_process_evicts_a_buffer_of_another() {
    let config = shared("pressure");
    let gpu = open(&config);
    let tree = pci::PciConfig::default().build(&["nic0", config.name.as_str()]).expect("sound");
    let bo = gpu.alloc(3 * MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(1, 4096)).expect("inside");
    let nic = Nic::new(ImporterClass::Dynamic, &tree);
    let mr = Mr::register(&nic, &bo.export().expect("exported")).expect("served");
    assert_eq!(mr.map_type(), Reach::BusAddress);

    let mut other = Other::start(&config);
    assert_eq!(other.say("used"), (3 * MB).to_string(), "one budget for both");
    assert_eq!(other.say(&format!("alloc {} only", 2 * MB)), "ok");
    assert_eq!((bo.domain(), mr.is_mapped()), (Ok(Domain::Gtt), false));
    let stats = gpu.stats();
    assert_eq!((stats.evictions, stats.evictions_for_others), (1, 1));
    mr.map().expect("mapped again");
    let mut seen = vec![0; 4096];
    mr.read(0, &mut seen).expect("mapped");
    assert!((mr.map_type(), seen) == (Reach::System, pattern(1, 4096)));

    // And the other way round, where the bytes survive.
    assert_eq!(other.say("write 0 7"), "ok");
    assert_eq!(other.say(&format!("alloc {} any", 2 * MB)), "ok");
    assert_eq!(other.say("write 1 8"), "ok");
    let _more = gpu.alloc(2 * MB, Place::ONLY_VRAM).expect("the one that may go goes");
    assert_eq!(gpu.stats().evictions_by_others, 1);
    assert_eq!((other.say("domain 0"), other.say("domain 1")), ("VRAM".into(), "GTT".into()));
    assert_eq!((other.say("check 0 7"), other.say("check 1 8")), ("true".into(), "true".into()));
    let refusal = gpu.alloc(2 * MB, Place::ONLY_VRAM).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::NoMemory, "what may be in VRAM only stays");
}

#[test]
fn memory_of_a_dead_process_is_free_again() {
    let config = shared("dead");
    let gpu = open(&config);
    let mut other = Other::start(&config);
    assert_eq!(other.say(&format!("alloc {} only", 4 * MB)), "ok");
    assert_eq!(other.say("write 0 3"), "ok");
    assert!(gpu.alloc(MB, Place::ONLY_VRAM).is_err());
    other.kill();
    let bo = gpu.alloc(4 * MB, Place::ONLY_VRAM).expect("nobody has it");
    let mut seen = vec![1; 4096];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen.iter().all(|byte| *byte == 0), "and nobody sees what it held");
    assert_eq!(gpu.stats().reclaimed, 1);
}

#[test]
fn memory_that_a_dead_process_exported_stays_as_long_as_it_is_held() {
    let config = shared("held");
    let gpu = open(&config);
    let mut other = Other::start(&config);
    assert_eq!(other.say(&format!("alloc {} only", 4 * MB)), "ok");
    let fd = other.say("export 0");
    let path = format!("/proc/{}/fd/{fd}", other.child.id());
    let held = File::options().read(true).write(true).open(path).expect("our child's file");
    other.kill();
    let refusal = gpu.alloc(MB, Place::ONLY_VRAM).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::NoMemory);
    // A new process takes the dead process's number, but not its buffers.
    let mut newcomer = Other::start(&config);
    assert_eq!(newcomer.say("used"), (4 * MB).to_string());
    assert_eq!(newcomer.say("alloc 4096 only"), "NoMemory");
    drop(held);
    assert_eq!(newcomer.say("alloc 4096 only"), "ok");
    assert_eq!(newcomer.say("used"), 4096.to_string());
}

#[test]
fn a_window_shows_another_process_its_pages_and_no_others() {
    let config = shared("window");
    let gpu = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(5, 4096)).expect("inside");
    bo.write(4096, &pattern(6, 4096)).expect("inside");
    bo.write(8192, &pattern(7, 4096)).expect("inside");
    let window = bo.export_range(4096, 4096).expect("whole pages");
    let mut other = Other::start(&config);
    let import = format!("import {} {} dynamic", std::process::id(), window.fd().as_raw_fd());
    assert_eq!(other.say(&import), Reach::BusAddress.to_string());
    assert_eq!(other.say("mrcheck 0 6"), "true");
    gpu.evict(&bo).expect("nothing pins it");
    let _full = fill(&gpu);
    assert_eq!(other.say("mrwrite 0 9"), "ok");
    assert_eq!(other.say("mrtype 0"), Reach::System.to_string());
    let mut seen = vec![0; 3 * 4096];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen == [pattern(5, 4096), pattern(9, 4096), pattern(7, 4096)].concat());
    // The exporter's program is done with both; the importer is not.
    drop((bo, window));
    assert_eq!(other.say("mrcheck 0 9"), "true");
}

#[test]
fn a_window_of_a_dead_process_keeps_its_memory_as_long_as_it_is_held() {
    let config = shared("heldwindow");
    let gpu = open(&config);
    let mut other = Other::start(&config);
    assert_eq!(other.say(&format!("alloc {} only", 4 * MB)), "ok");
    let windows = [0, 8192].map(|offset| other.say(&format!("window 0 {offset} 4096")));
    let held = windows.map(|fd| {
        let path = format!("/proc/{}/fd/{fd}", other.child.id());
        File::options().read(true).write(true).open(path).expect("our child's file")
    });
    assert_eq!(other.say("free 0"), "ok");
    other.kill();
    for file in held {
        let refusal = gpu.alloc(MB, Place::ONLY_VRAM).unwrap_err();
        assert_eq!(refusal.kind, ExporterErrorKind::NoMemory, "either window is enough");
        drop(file);
    }
    gpu.alloc(MB, Place::ONLY_VRAM).expect("nobody has it");
}

#[test]
fn another_process_of_the_gpu_reads_writes_and_copies_a_buffer_that_moves() {
    let config = shared("taken");
    let gpu = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(1, 4096)).expect("inside");
    let exported = bo.export().expect("exported");
    let mut other = Other::start(&config);
    let take = format!("take {} {}", std::process::id(), exported.fd().as_raw_fd());
    assert_eq!((other.say(&take), other.say("check 0 1")), ("ok".into(), "true".into()));
    assert_eq!(other.say(&format!("alloc {MB} any")), "ok");
    for (round, domain) in [Domain::Gtt, Domain::Vram].into_iter().enumerate() {
        gpu.move_to(&bo, domain).expect("room");
        let seed = 10 + round as u64;
        bo.write(0, &pattern(seed, 4096)).expect("inside");
        assert_eq!(other.say("copy 0 1"), "ok");
        assert_eq!(other.say(&format!("check 1 {seed}")), "true");
        assert_eq!(bo.domain(), Ok(domain), "its own GPU leaves it where it is");
    }
    assert_eq!(other.say("write 0 77"), "ok");
    let mut seen = vec![0; 4096];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen == pattern(77, 4096));
    // Memory that its owner releases stays for its holders; memory that the owner's GPU loses is
    // gone.
    gpu.remove();
    assert_eq!(other.say("try 0"), "NoDevice");
}

#[test]
fn an_imported_buffer_outlives_its_owner_and_its_last_holder_gives_it_back() {
    let config = shared("outlives");
    let gpu = open(&config);
    let mut owner = Other::start(&config);
    assert_eq!(owner.say(&format!("alloc {} only", 3 * MB)), "ok");
    assert_eq!(owner.say("write 0 5"), "ok");
    let fd = owner.say("export 0");
    let path = format!("/proc/{}/fd/{fd}", owner.child.id());
    let file = File::options().read(true).write(true).open(path).expect("our child's file");
    let taken = gpu.import(&file).expect("a buffer of our GPU");
    drop(file);
    owner.kill();
    let mut seen = vec![0; 4096];
    taken.read(0, &mut seen).expect("amdgpu's kin keep what is held");
    assert!(seen == pattern(5, 4096));
    assert!(gpu.alloc(2 * MB, Place::ONLY_VRAM).is_err(), "it is held");
    drop(taken);
    gpu.alloc(2 * MB, Place::ONLY_VRAM).expect("and now it is not");
}

#[test]
fn another_process_maps_the_buffer_itself_and_holds_it_there_meanwhile() {
    let config = shared("cpumap");
    let gpu = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let whole = bo.export().expect("exported");
    let window = bo.export_range(4 * 4096, 8 * 4096).expect("whole pages");
    let mut other = Other::start(&config);
    let map = |buf: &dmabuf::DmaBuf, offset: u64, len: u64| {
        format!("map {} {} {offset} {len}", std::process::id(), buf.fd().as_raw_fd())
    };
    assert_eq!(other.say(&map(&whole, 4096, 4096)), "ok");
    assert_eq!(other.say(&map(&window, 2 * 4096, 4096)), "ok");
    assert_eq!(other.say("mapwrite 0 1"), "ok");
    assert_eq!(other.say("mapwrite 1 2"), "ok");
    let mut seen = vec![0; 8 * 4096];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen[4096..8192] == pattern(1, 4096) && seen[6 * 4096..7 * 4096] == pattern(2, 4096));
    let beyond = other.say(&map(&window, 8 * 4096, 1));
    assert!(beyond.contains("not all inside"), "{beyond}");
    let evicted = || gpu.evict(&bo).map(drop).map_err(|refusal| refusal.kind);
    assert_eq!(evicted(), Err(ExporterErrorKind::Busy));
    assert_eq!(other.say("unmap 0"), "ok");
    assert_eq!(evicted(), Err(ExporterErrorKind::Busy), "it has another");
    other.kill();
    // Its connection ends when the thread here that serves it has noticed the end.
    while evicted() == Err(ExporterErrorKind::Busy) {
        std::thread::yield_now();
    }
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
}

#[test]
fn memory_outlives_the_process_that_made_it_and_ends_with_the_last() {
    let config = shared("heirs");
    let mut first = Other::start(&config);
    let mut second = Other::start(&config);
    assert_eq!(first.say("alloc 4096 any"), "ok");
    assert_eq!(second.say("alloc 8192 any"), "ok");
    first.kill();
    let mut third = Other::start(&config);
    assert_eq!(third.say("used"), 8192.to_string(), "the second handed it on");
    second.kill();
    third.kill();
    assert_eq!(open(&config).used(Domain::Vram), 0, "a new GPU");
}

#[test]
fn a_stopped_process_is_passed_over() {
    let config = shared("stopped");
    let gpu = open(&config);
    let mut other = Other::start(&config);
    assert_eq!(other.say(&format!("alloc {} any", 3 * MB)), "ok");
    other.stop();
    let bo = gpu.alloc(2 * MB, Place::VRAM).expect("GTT, since nobody answers");
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    other.signal(rustix::process::Signal::CONT);
    assert_eq!(other.say("domain 0"), "VRAM");
}

#[test]
fn a_process_with_another_configuration_of_the_gpu_is_refused() {
    let config = shared("otherwise");
    let _gpu = open(&config);
    let wrong = GpuConfig { vram: 8 * MB, ..config };
    let refusal = Gpu::open_in(&wrong, machine(true)).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::Invalid);
    assert!(refusal.what.contains("another configuration"), "{refusal}");
}

#[test]
fn a_buffer_imported_by_another_process_also_moves_and_is_revoked_there() {
    let config = shared("import");
    let gpu = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let import = format!("import {} {}", std::process::id(), buf.fd().as_raw_fd());
    let mut other = Other::start(&config);
    assert_eq!(other.say(&format!("{import} dynamic")), "bus address");
    assert_eq!(other.say("mrwrite 0 11"), "ok");
    let mut seen = vec![0; 4096];
    bo.read(0, &mut seen).expect("inside");
    assert!(seen == pattern(11, 4096), "one memory");

    gpu.evict(&bo).expect("a dynamic importer does not pin");
    let full = fill(&gpu);
    assert_eq!(other.say("mrcheck 0 11"), "true", "mapped again, and the bytes went along");
    assert_eq!(other.say("mrtype 0"), "system memory");
    assert_eq!(other.say("mrwrite 0 12"), "ok");
    drop(full);
    gpu.move_to(&bo, Domain::Vram).expect("room");
    bo.read(0, &mut seen).expect("inside");
    assert!(seen == pattern(12, 4096));
    assert_eq!(other.say("deregister 0"), "ok");

    assert_eq!(other.say(&format!("{import} pinned")), "bus address");
    let refusal = gpu.evict(&bo).unwrap_err();
    assert_eq!(refusal.kind, ExporterErrorKind::Busy, "pinned from there");
    assert_eq!(other.say("deregister 0"), "ok");
    evict_soon(&gpu, &bo);
    gpu.move_to(&bo, Domain::Vram).expect("room");
    assert_eq!(other.say(&format!("{import} revocable")), "bus address");
    assert!(gpu.reset().is_empty(), "everybody let go");
    assert_eq!(other.say("mrcheck 0 12"), "revoked");
}

/// The CPU's pages there are taken away first, and only then is the memory reused.
#[test]
fn mappings_and_imports_of_another_process_end_with_the_gpu() {
    let config = shared("zapped");
    let gpu = open(&config);
    let [bo, other_bo] = [(); 2].map(|()| gpu.alloc(MB, Place::VISIBLE_VRAM).expect("room"));
    let (buf, other_buf) = (bo.export().expect("exported"), other_bo.export().expect("exported"));
    let mut other = Other::start(&config);
    let at = |buf: &dmabuf::DmaBuf| format!("{} {}", std::process::id(), buf.fd().as_raw_fd());
    assert_eq!(other.say(&format!("map {} 4096 8192", at(&buf))), "ok");
    assert_eq!(other.say(&format!("map {} 0 4096", at(&other_buf))), "ok");
    assert_eq!(other.say("mapwrite 0 5"), "ok");
    let mut seen = vec![0; 4096];
    bo.read(4096, &mut seen).expect("inside");
    assert!(seen == pattern(5, 4096), "the same memory");
    assert_eq!(other.say(&format!("import {} dynamic", at(&buf))), "bus address");
    assert_eq!(other.say("why 0"), "nobody says");

    let mut members = gpu::survey();
    members.retain(|member| member.pid == Some(std::process::id()) && member.gpu == config.name);
    let done = members[0].act(gpu::ByHand::Unplug, None);
    assert_eq!(done, Ok(("1 GPU unplugged".to_owned(), vec![])), "nobody keeps anything");
    let start = std::time::Instant::now();
    while other.say("mapwrite 0 6") == "ok" || other.say("mapwrite 1 6") == "ok" {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "the pages go");
    }
    while other.say("used") != "0" {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "the memory is given back");
    }
    assert_eq!(other.say("unmap 0"), "ok");
    let why = other.say("why 0");
    assert!(why.contains("bo1 was revoked: the GPU was unplugged by "), "{why}");
    assert_eq!(other.say("alloc 4096 only"), "ok", "its own GPU is there");
}

#[test]
fn an_importer_that_dies_leaves_the_buffer_free_to_move() {
    let config = shared("gone");
    let gpu = open(&config);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let import = format!("import {} {} pinned", std::process::id(), buf.fd().as_raw_fd());
    let mut other = Other::start(&config);
    assert_eq!(other.say(&import), "bus address");
    assert!(gpu.evict(&bo).is_err());
    other.kill();
    evict_soon(&gpu, &bo);
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
}

/// A thread of this process notices what another process gives back, or its end.
fn evict_soon(gpu: &Gpu, bo: &Bo) {
    let start = std::time::Instant::now();
    while gpu.evict(bo).is_err() {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "its pin ends with it");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_stopped_process_is_listed_as_not_answering() {
    let config = shared("silent");
    let gpu = open(&config);
    let other = Other::start(&config);
    let pid = other.child.id();
    other.stop();
    let mut members = gpu::survey();
    members.retain(|member| member.gpu == config.name);
    let of = |pid: u32| members.iter().find(|member| member.pid == Some(pid)).expect("listed");
    let silent = of(pid).view.as_ref().expect_err("it is stopped");
    assert!(silent.contains("stopped"), "{silent}");
    assert!(of(std::process::id()).view.is_ok());
    drop(gpu);
}
