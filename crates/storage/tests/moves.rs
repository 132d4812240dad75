//! Buffers that move and go away while files are read into them.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Folder, MB, disk, engines, gpu, machine, pattern};
use dmabuf::Reach;
use gpu::{CopyMode, Domain, Place, Preset};
use storage::{Client, Engine, Error};

#[test]
fn a_buffer_that_moves_is_mapped_again_and_no_byte_is_lost() {
    let (folder, tree) = (Folder::new("moves"), machine(true));
    let gpu = gpu(Preset::Xe, CopyMode::Thread, &tree);
    let [one, two] = [1, 2].map(|seed| pattern(seed, 2 * MB as usize));
    let files = [folder.file("one", &one), folder.file("two", &two)];
    for engine in engines() {
        let disk = Client::new(&disk(engine, &tree)).expect("seen before");
        let bo = gpu.alloc(2 * MB, Place::VRAM).expect("room");
        let buffer = disk.attach(&bo.export().expect("exported")).expect("reached");
        let is_over = AtomicBool::new(false);
        let moves = std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let mut moves = 0;
                while !is_over.load(Ordering::Acquire) || moves < 4 {
                    let domain = [Domain::Gtt, Domain::Vram][moves % 2];
                    gpu.move_to(&bo, domain).expect("room").wait(None).expect("no limit");
                    moves += 1;
                }
                moves
            });
            for round in 0..20 {
                let (file, expected) = [(&files[0], &one), (&files[1], &two)][round % 2];
                assert_eq!(disk.read(file, 0, &buffer, 0, 2 * MB), Ok(2 * MB));
                let mut seen = vec![0; expected.len()];
                bo.read(0, &mut seen).expect("inside");
                assert!(seen == **expected, "{engine:?}, round {round}");
            }
            is_over.store(true, Ordering::Release);
            mover.join().expect("no panic")
        });
        assert!(moves >= 4);
        assert_eq!(gpu.stats().stale_accesses, 0, "{engine:?}");
    }
}

#[test]
fn where_the_buffer_is_decides_by_which_way_its_bytes_go() {
    let (folder, tree) = (Folder::new("ways"), machine(true));
    let gpu = gpu(Preset::Xe, CopyMode::Sync, &tree);
    let file = folder.file("file", &pattern(3, MB as usize));
    let disk = Client::new(&disk(Engine::Auto, &tree)).expect("a client");
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let buffer = disk.attach(&bo.export().expect("exported")).expect("reached");
    assert_eq!(buffer.map_type(), Ok(Reach::BusAddress));
    for (domain, way) in [(Domain::Gtt, Reach::System), (Domain::Vram, Reach::BusAddress)] {
        gpu.move_to(&bo, domain).expect("room");
        assert_eq!(disk.read(&file, 0, &buffer, 0, MB), Ok(MB));
        assert_eq!(buffer.map_type(), Ok(way), "{domain:?}");
    }
}

#[test]
fn a_gpu_that_is_removed_under_load_ends_the_requests_with_words() {
    let (folder, tree) = (Folder::new("removed"), machine(true));
    let file = folder.file("file", &pattern(4, 2 * MB as usize));
    for engine in engines() {
        let gpu = gpu(Preset::Xe, CopyMode::Thread, &tree);
        let disk = Client::new(&disk(engine, &tree)).expect("seen before");
        let bo = gpu.alloc(2 * MB, Place::VRAM).expect("room");
        let buffer = disk.attach(&bo.export().expect("exported")).expect("reached");
        let (first, began) = std::sync::mpsc::channel();
        let error = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    match disk.read(&file, 0, &buffer, 0, 2 * MB) {
                        Ok(_) => drop(first.send(())),
                        Err(error) => return error,
                    }
                }
            });
            began.recv().expect("it reads");
            gpu.remove();
            reader.join().expect("no panic")
        });
        assert!(matches!(error, Error::Gone { .. }), "{engine:?}: {error:?}");
        assert_eq!(gpu.stats().stale_accesses, 0, "{engine:?}");
    }
}
