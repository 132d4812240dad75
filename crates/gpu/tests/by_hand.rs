//! The GPUs of running programs, observed and acted on from outside.

mod common;

use common::{MB, Mr, Nic, config, fill, pattern};
use dmabuf::ImporterClass;
use gpu::{ByHand, Domain, Gpu, GpuConfig, Member, Place, Preset};

fn open(test: &str, preset: Preset) -> (Gpu, std::sync::Arc<pci::PciTree>) {
    let name = format!("{test}-{}", std::process::id());
    let config = GpuConfig { name, shared: true, ..config(preset) };
    let tree = pci::PciConfig::default().build(&["nic0", config.name.as_str()]).expect("sound");
    let tree = std::sync::Arc::new(tree);
    (Gpu::open_in(&config, tree.clone()).expect("a GPU"), tree)
}

/// The GPU as a process sees it that does not share it.
fn seen(gpu: &Gpu) -> Member {
    let mut members = gpu::survey();
    members.retain(|member| member.gpu == gpu.config().name);
    assert_eq!(members.len(), 1, "{members:?}");
    members.remove(0)
}

#[test]
fn buffers_of_a_program_are_listed_and_moved_from_outside() {
    let (gpu, tree) = open("hand", Preset::Xe);
    let bo = gpu.alloc(2 * MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(3, 4096)).expect("inside");
    let buf = bo.export().expect("exported");
    let mr = Mr::register(&Nic::new(ImporterClass::Dynamic, &tree), &buf).expect("served");
    mr.read(0, &mut [0; 8]).expect("mapped");
    let member = seen(&gpu);
    assert_eq!(member.pid, Some(std::process::id()));
    let view = member.view.clone().expect("it answers");
    assert_eq!((&*view.preset, view.vram, view.vram_used), ("xe", gpu.config().vram, 2 * MB));
    let [buffer] = view.buffers.as_slice() else { panic!("{view:?}") };
    assert_eq!((buffer.number, buffer.size, &*buffer.place), (1, 2 * MB, "VRAM"));
    assert_eq!((buffer.pins, buffer.moves, buffer.dma_bufs), (0, 0, 1));
    assert!(buffer.importers[0].contains("(dynamic)"), "{buffer:?}");
    let done = member.act(ByHand::Evict, None);
    assert_eq!(done, Ok(("1 buffer evicted".to_owned(), vec![])));
    assert_eq!(bo.domain(), Ok(Domain::Gtt));
    let full = fill(&gpu);
    let mut bytes = vec![0; 4096];
    mr.map().expect("where it is now");
    mr.read(0, &mut bytes).expect("mapped again");
    assert!(bytes == pattern(3, 4096), "the bytes went along");
    drop(full);
    let done = member.act(ByHand::MoveToVram, Some(1));
    assert_eq!(done, Ok(("1 buffer moved to VRAM".to_owned(), vec![])));
    assert_eq!(bo.domain(), Ok(Domain::Vram));
    let (_, why) = member.act(ByHand::Evict, Some(9)).expect("it answers");
    assert!(why[0].contains("there is no"), "{why:?}");
    assert_eq!(seen(&gpu).view.expect("it answers").buffers[0].moves, 2);
}

#[test]
fn a_buffer_that_cannot_move_is_explained() {
    let (gpu, tree) = open("pinned", Preset::Xe);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buf = bo.export().expect("exported");
    let mr = Mr::register(&Nic::new(ImporterClass::Pinned, &tree), &buf).expect("served");
    let (done, why) = seen(&gpu).act(ByHand::Evict, None).expect("it answers");
    assert_eq!(done, "0 buffers evicted");
    assert!(why[0].contains("is pinned and cannot move to GTT"), "{why:?}");
    drop(mr);
    let (gpu, _) = open("fixed", Preset::Nvidia);
    let bo = gpu.alloc(MB, Place::ONLY_VRAM).expect("room");
    let (_, why) = seen(&gpu).act(ByHand::Evict, None).expect("it answers");
    assert!(why[0].contains("nvidia never moves"), "{why:?}");
    drop(bo);
}

#[test]
fn a_gpu_is_reset_and_unplugged_from_outside() {
    let (gpu, _) = open("unplugged", Preset::Xe);
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, b"lost").expect("inside");
    let member = seen(&gpu);
    assert_eq!(member.act(ByHand::Reset, None), Ok(("1 GPU reset".to_owned(), vec![])));
    let mut bytes = [1; 4];
    bo.read(0, &mut bytes).expect("there again");
    assert_eq!(bytes, [0; 4], "what VRAM held is lost");
    assert_eq!(member.act(ByHand::Unplug, None), Ok(("1 GPU unplugged".to_owned(), vec![])));
    let refusal = bo.read(0, &mut bytes).expect_err("gone");
    assert!(refusal.what.contains("was removed"), "{refusal}");
    assert!(seen(&gpu).view.expect("it answers").is_removed);
    let (_, why) = member.act(ByHand::Reset, None).expect("it answers");
    assert!(why[0].contains("was removed"), "{why:?}");
}

/// More buffers than one answer holds.
#[test]
fn a_program_with_many_buffers_reports_all() {
    let (gpu, _) = open("many", Preset::Xe);
    let bos: Vec<_> = (0..900).map(|_| gpu.alloc(4096, Place::VRAM).expect("room")).collect();
    let view = seen(&gpu).view.expect("it answers");
    let numbers: Vec<_> = view.buffers.iter().map(|buffer| buffer.number).collect();
    assert_eq!(numbers, (1..=900).collect::<Vec<_>>());
    let (done, _) = seen(&gpu).act(ByHand::Evict, None).expect("it answers");
    assert_eq!(done, "900 buffers evicted");
    drop(bos);
}
