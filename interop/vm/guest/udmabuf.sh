#!/bin/sh
# Our own test programs in /tests, and the demo, where the kernel's buffers are for everyone. Prints what each program
# said under a line "=== NAME".
cd /tmp
# The shared memory device of QEMU, whose BAR 2 is memory, goes to VFIO.
for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" "$device/device")" = "0x1af4
0x1110" ] || continue
    echo vfio-pci >"$device/driver_override"
    echo "${device##*/}" >/sys/bus/pci/drivers_probe
    group=$(readlink "$device/iommu_group")
    export VFIO_BUFFER="/bin/vfio_buffer ${device##*/} ${group##*/} 2"
done
chmod 666 /dev/udmabuf /dev/dri/card* /dev/dma_heap/* /dev/vfio/*
export PEERDMA_LOG=info PEERDMA_REQUIRE=udmabuf,dma-heap,vgem,vfio VGEM_FENCE=/bin/vgem_fence RUST_BACKTRACE=1

failed=0
# check NAME PROGRAM ARGS
check() {
    echo "=== $1"
    shift
    timeout 100 /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups "$@" 2>&1 || failed=1
}

for test in /tests/*; do check "${test##*/}" "$test"; done
check kernel_buffers env LD_LIBRARY_PATH=/opt/peerdma kernel_buffers udmabuf dma_heap vgem virtio_gpu
check demo peerdma demo --rounds 20
exit $failed
