//! Memory at bus addresses, and exporters that are gone.

use dmabuf::{BusWindow, Iommu, Reach, SgEntry, SgTable};
use umem::{Fault, HostBuf, Umem};

const PAGE: u64 = 4096;

/// An exporter may drop its window while an importer still has the addresses. The program must not
/// get these addresses for other memory.
#[test]
fn addresses_stay_the_windows_while_memory_is_registered_by_them() {
    let window = BusWindow::new(16 * PAGE, Iommu::On).expect("addresses exist");
    let pages = HostBuf::memfd("gone", PAGE as usize).expect("memory exists");
    let placed = window.place(pages.fd().expect("a memfd"), 0, PAGE, "bo1").expect("room");
    let addr = placed.addr();
    let entries = vec![SgEntry { addr, len: PAGE, backing: None }];
    let table = SgTable { entries, map_type: Reach::System, epoch: None };
    let umem = Umem::bus(&table, 0, PAGE, None).expect("on the bus");
    umem.write(0, &[7; 8]).expect("it is placed");

    drop(placed);
    drop(window);
    assert!(dmabuf::window::of(addr, PAGE).is_some(), "the program may map something there");
    assert!(matches!(umem.write(0, &[8; 8]), Err(Fault::Page { .. })));

    drop(umem);
    assert!(dmabuf::window::of(addr, PAGE).is_none(), "nobody uses it");
}
