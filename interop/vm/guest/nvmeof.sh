#!/bin/sh
# The kernel's host of NVMe over Fabrics, nvme-rdma, on rdma_rxe. $what says which part of interop/tests/nvmeof.rs it plays,
# and $ports where targets listen at 10.78.0.1.
id=11111111-2222-4333-8444-555555555555
fabric="-t rdma -a 10.78.0.1 --hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id --hostid=$id"

fail() {
    echo "FAILED: $*"
    dmesg | tail -n 40
    exit 1
}

# wait_for WORDS COMMAND: until it succeeds.
wait_for() {
    local words=$1
    shift
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    fail "no $words"
}

up() {
    ifconfig eth0 10.78.0.2 netmask 255.255.255.0 mtu 4300 up
    rdma link add rxe0 type rxe netdev eth0
    # Its GIDs follow the addresses of the interface a moment later.
    wait_for "GID" grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1
    # Kernel messages from here on are about what follows.
    dmesg -c >/dev/null
}

# connect PORT ARGS
connect() {
    local port=$1
    shift
    nvme connect $fabric -s "$port" -n "nqn.2026-11.org.example:$port" "$@"
}

# The block device of namespace $1. The kernel scans the namespaces of a controller in no particular
# order.
disk() { grep -lx "$1" /sys/block/nvme[0-9]n[0-9]/nsid 2>/dev/null | cut -d/ -f4; }
has_disks() { [ -b "/dev/$(disk 1)" ] && [ -b "/dev/$(disk 2)" ]; }

verify() { fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --minimal --output=/tmp/fio "$@" || fail "fio $*: $(cat /tmp/fio)"; }

# The kernel's messages about the host since the last call.
said() { dmesg -c | grep -i "nvme\|rdma\|rxe\|blk\|I/O error"; }

moves() {
    for port in $(echo "$ports" | tr , " "); do
        echo "=== discover $port"
        nvme discover $fabric -s "$port" || fail "discovery"
        connect "$port" -k 60 || fail "connection"
        wait_for "namespaces" has_disks
        one=$(disk 1) two=$(disk 2)
        echo "=== identify $port"
        nvme id-ctrl /dev/nvme0
        for name in "$one" "$two"; do
            nvme id-ns "/dev/$name" || fail "Identify Namespace"
            (cd "/sys/block/$name" && grep . size nsid ro queue/logical_block_size queue/write_cache queue/fua \
                queue/max_hw_sectors_kb queue/write_zeroes_max_bytes queue/discard_max_bytes)
        done
        nvme smart-log /dev/nvme0 || fail "smart-log"
        nvme error-log -e 1 /dev/nvme0 || fail "error-log"
        nvme fw-log /dev/nvme0 || fail "fw-log"
        # The data reads as it was written on the other side.
        echo "=== sum $port"
        dd "if=/dev/$one" bs=128k iflag=direct 2>/dev/null | sha256sum
        # And the other way: commands of many sizes, some with in-capsule data.
        dd if=/pattern "of=/dev/$two" bs=128k count=16 oflag=direct 2>/dev/null || fail "a write"
        dd if=/pattern "of=/dev/$two" bs=4k skip=512 seek=512 count=256 oflag=direct 2>/dev/null || fail "a write"
        dd if=/pattern "of=/dev/$two" bs=1536 skip=2048 seek=2048 oflag=direct 2>/dev/null || fail "a write"
        dd "if=/dev/$two" bs=64k count=64 iflag=direct 2>/dev/null | cmp - /pattern || fail "what was written reads differently"
        /usr/sbin/blkdiscard -z -o 1M -l 1M "/dev/$two" || fail "Write Zeroes"
        verify "--filename=/dev/$two" --offset=4m --size=2m --rw=randwrite --bs=4k --iodepth=32
        verify "--filename=/dev/$two" --offset=6m --size=2m --rw=randwrite --bssplit=512/30:6k/20:16k/20:20k/20:256k/10 --iodepth=8 \
            --verify=md5 --sync=dsync --fsync=16
        nvme flush "/dev/$two" -n 2 || fail "Flush"
        nvme disconnect -n "nqn.2026-11.org.example:$port"
        echo "=== kernel $port"
        said
    done
}

up
$what
