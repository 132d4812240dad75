#!/bin/sh
# Posts by crate `verbs` and by the library's own call, with both providers, in turns and $reps times. The clock of this
# machine counts instructions. What the program says is under a line "=== REPETITION PROVIDER".
export LC_ALL=C
# Not the tool of busybox, which makes no veth pairs.
ip=/usr/bin/ip

$ip link add wire type veth peer name far
$ip addr add 10.79.0.1/24 dev wire
$ip link set far up
$ip link set wire up
/usr/bin/rdma link add rxe0 type rxe netdev wire || exit 1
# The kernel's GIDs follow the addresses of an interface a moment later.
for _ in $(seq 100); do
    grep -q ffff:0a4f:0001 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
    sleep 0.1
done

echo "=== machine"
echo "Linux $(uname -r), $(grep -c ^processor /proc/cpuinfo) emulated CPU"
for rep in $(seq 0 $((reps - 1))); do
    for provider in system /opt/libpeerdma.so; do
        echo "=== $rep ${provider##*/}"
        echo post | PEERDMA_PROVIDER=$provider timeout 300 /bin/bench --role post 40 2>&1
    done
done
