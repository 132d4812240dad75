//! An importer that ignores that its mapping is invalid is caught, with an IOMMU and without.

mod common;

use common::{MB, Miss, Mr, Nic, config, dma_write, open, pattern};
use dmabuf::ImporterClass::Dynamic;
use dmabuf::Iommu;
use gpu::{GpuConfig, Place, Preset};

#[test]
fn with_an_iommu_it_faults_and_the_report_says_who_when_and_why() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    bo.write(0, &pattern(3, 4096)).expect("inside");
    let mr =
        Mr::register(&Nic::mutant(Dynamic, &tree), &bo.export().expect("exported")).expect("in");
    mr.write(0, b"fine so far").expect("mapped");
    let addr = mr.addr();
    gpu.evict(&bo).expect("not pinned");
    assert!(mr.is_mapped(), "it kept its mapping");

    let Err(Miss::Fault { at }) = mr.write(16, b"stale") else { panic!("a stale access faults") };
    assert_eq!(at, addr + 16);
    let report = gpu.report_fault(at).expect("the window remembers");
    assert_eq!((report.what.as_str(), report.addr, report.len), ("gpu0.bo1", addr, MB));
    assert!(report.why.starts_with("evicted"), "{report}");
    assert!(report.when.elapsed().is_ok());
    assert_eq!(gpu.stats().stale_accesses, 1);
    // An address that was never used is not a stale access.
    assert!(gpu.report_fault(1 << 20).is_none());

    let mut bytes = [0; 11];
    bo.read(0, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"fine so far", "nothing was damaged");
}

#[test]
fn without_an_iommu_it_reads_other_bytes_and_its_writes_are_lost() {
    let (gpu, tree) = open(&GpuConfig { iommu: Iommu::Off, ..config(Preset::Xe) });
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let data = pattern(4, 4096);
    bo.write(0, &data).expect("inside");
    let mr =
        Mr::register(&Nic::mutant(Dynamic, &tree), &bo.export().expect("exported")).expect("in");
    gpu.evict(&bo).expect("not pinned");
    // Another buffer gets the old place.
    let other = gpu.alloc(MB, Place::VRAM).expect("room");
    other.write(0, &pattern(5, 4096)).expect("inside");

    let mut seen = vec![0; 4096];
    mr.read(0, &mut seen).expect("nothing stops it");
    assert!(seen != data, "a test that compares bytes notices");
    mr.write(0, b"lost").expect("nothing stops it");
    let mut bytes = vec![0; 4096];
    bo.read(0, &mut bytes).expect("inside");
    assert!(bytes == data, "what it wrote did not arrive: a test that compares bytes notices");
    other.read(0, &mut bytes).expect("inside");
    assert!(bytes == pattern(5, 4096), "and the next owner of the place is not its victim");
    assert!(gpu.window().describe(mr.addr()).is_some(), "the address is known to be void");
}

#[test]
fn a_buffer_that_is_freed_leaves_no_address_behind() {
    let (gpu, tree) = open(&config(Preset::Xe));
    let bo = gpu.alloc(MB, Place::VRAM).expect("room");
    let mr = Mr::register(&Nic::new(Dynamic, &tree), &bo.export().expect("exported")).expect("in");
    let addr = mr.addr();
    drop(bo);
    dma_write(addr, b"alive").expect("the attachment keeps it");
    mr.unmap();
    drop(mr);
    assert_eq!(dma_write(addr, b"dead"), Err(Miss::Fault { at: addr }));
    assert!(gpu.report_fault(addr).expect("remembered").why.contains("freed"));
}
