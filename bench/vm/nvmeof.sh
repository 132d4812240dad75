#!/bin/sh
# The kernel's host reads 4 KiB blocks at random, 32 at a time, from three targets that serve the same file, in turns and
# $reps times. What fio says of each is under a line "=== REPETITION TARGET", with its reads per second in a line "iops N":
#
#   peerdma  examples/nvmet in a host of its own, over a veth pair, by the kernel's rdma_rxe on this side
#   tcp      the kernel's target in that host, over the same veth pair, by TCP
#   rxe      the kernel's target here, by rdma_rxe: rdma_cm of the kernel knows this host only, so that its packets
#            go to the device that they come from
export LC_ALL=C
# Not the tools of busybox, which make no namespaces.
ip=/usr/bin/ip
nvmet=/sys/kernel/config/nvmet
nqn=nqn.2026-11.org.example:bench
id=11111111-2222-4333-8444-555555555555
mkdir -p /run

fail() {
    echo "FAILED: $*"
    cat /tmp/target
    dmesg | tail -n 20
    exit 1
}

# wait_for WORDS COMMAND: until it succeeds.
wait_for() {
    local words=$1
    shift
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    fail "no $words"
}

# port NUMBER TRANSPORT ADDRESS: one of the kernel's target.
port() {
    mkdir $nvmet/ports/$1
    cd $nvmet/ports/$1 || fail "no port"
    echo ipv4 >addr_adrfam && echo $2 >addr_trtype && echo $3 >addr_traddr && echo 443$1 >addr_trsvcid || fail "port $1"
    ln -s $nvmet/subsystems/$nqn subsystems/$nqn || fail "port $1 does not listen"
}

# A port listens in the network namespace of whoever makes it: this script again, by `ip netns exec`, which shows another
# /sys.
if [ "$1" = port ]; then
    mount -t configfs none /sys/kernel/config
    "$@"
    exit
fi

$ip netns add far
$ip link add wire mtu 4300 type veth peer name wire netns far mtu 4300
$ip addr add 10.79.0.1/24 dev wire
$ip -n far addr add 10.79.0.2/24 dev wire
$ip link set lo up
$ip link set wire up
$ip -n far link set lo up
$ip -n far link set wire up
/usr/bin/rdma link add rxe0 type rxe netdev wire || fail "no rxe"
wait_for "GID" grep -q ffff:0a4f:0001 /sys/class/infiniband/rxe0/ports/1/gids/1
wait_for "neighbour" ping -c 1 -W 1 10.79.0.2

dd if=/dev/urandom of=/tmp/disk bs=1M count=64 2>/dev/null
mkfifo /tmp/input
$ip netns exec far /bin/nvmet --listen 10.79.0.2:4430 --netdev wire --nqn $nqn /tmp/disk </tmp/input >/tmp/target 2>&1 &
exec 3>/tmp/input
wait_for "target" grep -q "data through" /tmp/target

mount -t configfs none /sys/kernel/config
mkdir $nvmet/subsystems/$nqn $nvmet/subsystems/$nqn/namespaces/1
echo 1 >$nvmet/subsystems/$nqn/attr_allow_any_host
(cd $nvmet/subsystems/$nqn/namespaces/1 && echo /tmp/disk >device_path && echo 1 >buffered_io && echo 1 >enable) ||
    fail "the namespace is not enabled"
$ip netns exec far /bin/sh /test.sh port 1 tcp 10.79.0.2
port 2 rdma 10.79.0.1

# reads TRANSPORT ADDRESS PORT
reads() {
    nvme connect -t $1 -a $2 -s $3 -n $nqn --hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id --hostid=$id || fail "connection"
    wait_for "disk" test -b /dev/nvme0n1
    fio --name=reads --filename=/dev/nvme0n1 --rw=randread --bs=4k --iodepth=32 --direct=1 --ioengine=io_uring \
        --runtime=8 --ramp_time=2 --time_based --eta=never --minimal --output=/tmp/fio 2>&1 || fail "fio: $(cat /tmp/fio)"
    # The eighth field of version 3 of its terse output.
    echo "iops $(cut -d';' -f8 /tmp/fio)"
    nvme disconnect -n $nqn >/dev/null
}

echo "=== machine"
echo "Linux $(uname -r), $(grep -c ^processor /proc/cpuinfo) emulated CPUs"
for rep in $(seq 0 $((reps - 1))); do
    targets="peerdma tcp rxe"
    [ $((rep % 2)) = 0 ] || targets="rxe tcp peerdma"
    for target in $targets; do
        echo "=== $rep $target"
        case $target in
            peerdma) reads rdma 10.79.0.2 4430 ;;
            tcp) reads tcp 10.79.0.2 4431 ;;
            rxe) reads rdma 10.79.0.1 4432 ;;
        esac
    done
done
exec 3>&-
