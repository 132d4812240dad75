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
        /usr/sbin/blkdiscard -o 2M -l 1M "/dev/$two" || fail "Dataset Management"
        verify "--filename=/dev/$two" --offset=4m --size=2m --rw=randwrite --bs=4k --iodepth=32
        verify "--filename=/dev/$two" --offset=6m --size=2m --rw=randwrite --bssplit=512/30:6k/20:16k/20:20k/20:256k/10 --iodepth=8 \
            --verify=md5 --sync=dsync --fsync=16
        nvme flush "/dev/$two" -n 2 || fail "Flush"
        nvme disconnect -n "nqn.2026-11.org.example:$port"
        echo "=== kernel $port"
        said
    done
}

# state: of the controller. A reset and a lost connection make it "resetting" and "connecting" for a while.
is_live() { [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; }
# The number of reads and writes that the first namespace has completed.
completed() { awk '{ print $1 + $5 }' "/sys/block/$one/stat"; }
goes_on() { [ "$(completed)" -gt "$goal" ]; }
# reconnects COUNT: whether the kernel came back that often after it had lost the target.
reconnected() { [ "$(dmesg | grep -c "Successfully reconnected")" -ge "$1" ]; }
# tell WORD: to the other side, by the first block of the second namespace.
tell() { echo "$1" | dd "of=/dev/$two" bs=512 count=1 conv=sync oflag=direct 2>/dev/null || fail "$1 cannot be told"; }

# For as long as there is no /tmp/over: writes, each verified, with many under way.
load() {
    while [ ! -e /tmp/over ]; do
        fio --name=load "--filename=/dev/$one" --offset=1m --size=4m --rw=randwrite --bssplit=4k/70:16k/10:128k/20 --direct=1 \
            --ioengine=io_uring --iodepth=32 --verify=crc32c --minimal >>/tmp/fio 2>&1 || touch /tmp/failed
    done
}

recovers() {
    connect "$ports" -k 5 --reconnect-delay=1 --ctrl-loss-tmo=100 || fail "connection"
    wait_for "namespaces" has_disks
    one=$(disk 1) two=$(disk 2)
    load &
    for _ in 1 2 3; do
        goal=$(($(completed) + 200))
        wait_for "reads and writes" goes_on
        echo 1 >/sys/class/nvme/nvme0/reset_controller || fail "reset"
        wait_for "controller after a reset" is_live
    done
    for number in 1 2; do
        goal=$(($(completed) + 200))
        wait_for "reads and writes" goes_on
        tell "kill $number"
        wait_for "reconnection" reconnected "$number"
        wait_for "controller after a reconnection" is_live
    done
    goal=$(($(completed) + 200))
    wait_for "reads and writes" goes_on
    touch /tmp/over
    wait
    [ ! -e /tmp/failed ] || fail "fio: $(cat /tmp/fio)"
    echo "=== runs"
    wc -l </tmp/fio
    # A namespace that nothing was lost of, and a target that is told so.
    dd if=/pattern "of=/dev/$one" bs=128k oflag=direct 2>/dev/null || fail "a write"
    nvme disconnect -n "nqn.2026-11.org.example:$ports"
    echo "=== kernel"
    said
}

# refused COMMAND: with words, and the controller stays.
refused() {
    "$@" 2>&1 && fail "$* succeeded"
    is_live || fail "the controller does not live after $*"
}
is_short() { ! dd "if=/dev/$one" of=/dev/null bs=4k skip=3072 count=1 iflag=direct 2>/dev/null; }

# refuses: what the target says no to.
refuses() {
    echo "=== other subsystem"
    nvme connect $fabric -s "$ports" -n nqn.2026-11.org.example:other 2>&1 && fail "it is connected to what is not there"
    said
    connect "$ports" -k 2 --queue-size=1024 || fail "connection"
    wait_for "namespaces" has_disks
    one=$(disk 1) two=$(disk 2)
    # An idle host is known to live by its Keep Alive alone.
    sleep 5
    is_live || fail "the controller does not live"
    echo "=== idle"
    said
    echo "=== beyond the end"
    refused nvme read "/dev/$one" --start-block=32768 --block-count=0 --data-size=512
    echo "=== no such command"
    refused nvme io-passthru "/dev/$one" --opcode=5 --namespace-id=1 --data-len=512 --write --input-file=/pattern
    echo "=== another length"
    refused nvme io-passthru "/dev/$one" --opcode=2 --namespace-id=1 --data-len=4096 --read
    echo "=== no such page"
    refused nvme get-log /dev/nvme0 --log-id=32 --log-len=512
    echo "=== no such feature"
    refused nvme get-feature /dev/nvme0 -f 125
    echo "=== short file"
    tell shrink
    wait_for "a read that fails" is_short
    dd "if=/dev/$one" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null || fail "a read"
    is_live || fail "the controller does not live"
    said
    nvme disconnect -n "nqn.2026-11.org.example:$ports"
}

has_disk() { [ -b "/dev/$(disk "$1")" ]; }
has_no_disk() { [ -z "$(disk "$1")" ]; }
# has_sectors COUNT: the first namespace.
has_sectors() { [ "$(cat "/sys/block/$one/size")" = "$1" ]; }

# changes: namespaces change their size, go and come, and memory goes, while the host is connected.
changes() {
    connect "$ports" -k 60 --reconnect-delay=1 || fail "connection"
    wait_for "namespaces" has_disks
    one=$(disk 1) two=$(disk 2)
    said >/dev/null
    echo "=== size"
    tell grow
    wait_for "larger namespace" has_sectors 65536
    dd if=/pattern "of=/dev/$one" bs=4k count=1 seek=8191 oflag=direct 2>/dev/null || fail "a write to the new end"
    tell shrink
    wait_for "smaller namespace" has_sectors 32768
    echo "=== gone"
    tell remove
    wait_for "end of a namespace" has_no_disk 1
    said
    echo "=== read-only"
    tell protected
    wait_for "namespace that cannot be written" has_disk 1
    one=$(disk 1)
    echo "ro $(cat "/sys/block/$one/ro")"
    dd if=/pattern "of=/dev/$one" bs=512 count=1 oflag=direct 2>&1 && fail "it was written"
    refused nvme write "/dev/$one" --start-block=0 --block-count=0 --data-size=512 --data=/pattern
    echo "=== sum"
    dd "if=/dev/$one" bs=64k count=1 iflag=direct 2>/dev/null | sha256sum
    echo "=== full"
    tell full
    wait_for "namespace on a full disk" has_disk 3
    full=$(disk 3)
    dd if=/pattern "of=/dev/$full" bs=64k oflag=direct 2>&1 && fail "a disk of 2 MiB took 4"
    is_live || fail "the controller does not live"
    dd "if=/dev/$full" bs=64k count=16 iflag=direct 2>/dev/null | cmp -n 1048576 - /pattern || fail "what was written reads differently"
    said
    echo "=== unplugged"
    # The first block of this one is for words.
    one=$two
    load &
    goal=$(($(completed) + 200))
    wait_for "reads and writes" goes_on
    tell unplug
    goal=$(($(completed) + 400))
    wait_for "reads and writes" goes_on
    touch /tmp/over
    wait
    [ ! -e /tmp/failed ] || fail "fio: $(cat /tmp/fio)"
    is_live || fail "the controller does not live"
    nvme disconnect -n "nqn.2026-11.org.example:$ports"
    said
}

# serves: the kernel's own target, until the other side has written "over" to its second namespace.
serves() {
    local nvmet=/sys/kernel/config/nvmet nqn=nqn.2026-11.org.example:kernel
    mount -t configfs none /sys/kernel/config
    mkdir "$nvmet/subsystems/$nqn" "$nvmet/ports/1"
    echo 1 >"$nvmet/subsystems/$nqn/attr_allow_any_host"
    for number in 1 2; do
        dd if=/dev/zero of=/tmp/disk$number bs=1M count=8 2>/dev/null
        mkdir "$nvmet/subsystems/$nqn/namespaces/$number"
        cd "$nvmet/subsystems/$nqn/namespaces/$number" || fail "no namespace"
        # The files are in a tmpfs.
        echo /tmp/disk$number >device_path && echo 1 >buffered_io && echo 1 >enable || fail "the namespace is not enabled"
    done
    dd if=/pattern of=/tmp/disk2 bs=1M conv=notrunc 2>/dev/null
    cd "$nvmet/ports/1" || fail "no port"
    echo ipv4 >addr_adrfam && echo rdma >addr_trtype && echo 10.78.0.2 >addr_traddr && echo 4420 >addr_trsvcid || fail "the port"
    ln -s "$nvmet/subsystems/$nqn" "subsystems/$nqn" || fail "it does not listen: $(said)"
    ping -c 1 10.78.0.1 >/dev/null || fail "nobody is there"
    wait_for "end" grep -q ^over /tmp/disk2
    echo "=== sum"
    dd if=/tmp/disk1 bs=1M 2>/dev/null | sha256sum
    rm "subsystems/$nqn"
    echo "=== kernel"
    said
}

up
$what
