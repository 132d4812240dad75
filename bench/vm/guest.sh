#!/bin/sh
# Runs the lines of /cases on the kernel's rdma_rxe and on peerdma, in turns and $reps times, and prints what each client
# said under a line "=== REPETITION CASE CARRIER", cases and repetitions counted from 0. A case is a line
# "LOSS PROGRAM ARGS": LOSS is the percentage of packets that the link loses each way.
#
# Each carrier has two hosts of its own, since only one can have UDP 4791. $link joins them:
#
#   direct    a veth pair of MTU $mtu
#   segments  the same, and packets that are sent as one leave the host one by one, as from most NICs
#   switch    as `segments`, with a bridge in between that loses packets
export LC_ALL=C
# Not the tools of busybox, which make no namespaces and drop no packets.
ip=/usr/bin/ip tc=/usr/sbin/tc
mkdir -p /run

# wire FROM TO NAME: an interface `wire` in the namespace FROM, whose other end is NAME in TO.
wire() {
    $ip link add wire netns $1 mtu $mtu type veth peer name $3 netns $2 mtu $mtu
    $ip -n $2 link set $3 up
}

# hosts CARRIER
hosts() {
    for host in $1-a $1-b; do
        $ip netns add $host
        $ip -n $host link set lo up
    done
    if [ "$link" = switch ]; then
        $ip netns add $1-switch
        $ip -n $1-switch link add bridge mtu $mtu type bridge
        $ip -n $1-switch link set bridge up
        for host in a b; do
            wire $1-$host $1-switch port-$host
            $ip -n $1-switch link set port-$host master bridge
        done
    else
        wire $1-a $1-b wire
    fi
    $ip -n $1-a addr add 10.79.0.1/24 dev wire
    $ip -n $1-b addr add 10.79.0.2/24 dev wire
    for host in $1-a $1-b; do
        [ "$link" = direct ] || $ip netns exec $host ethtool -K wire tx-udp-segmentation off || exit 1
        $ip -n $host link set wire up
    done
    # So that the first packet finds the neighbour entry.
    for _ in $(seq 100); do
        $ip netns exec $1-a ping -c 1 -W 1 10.79.0.2 >/dev/null && break
    done
}

# The kernel's GIDs follow the addresses of an interface a moment later.
rxe() {
    hosts rxe
    for host in a b; do
        $ip netns exec rxe-$host rdma link add rxe_$host type rxe netdev wire || exit 1
    done
    for _ in $(seq 100); do
        grep -q ffff:0a4f:0001 /sys/class/infiniband/rxe_a/ports/1/gids/1 &&
            grep -q ffff:0a4f:0002 /sys/class/infiniband/rxe_b/ports/1/gids/1 && break
        sleep 0.1
    done
}

# lose CARRIER PERCENT
lose() {
    for port in port-a port-b; do
        $ip netns exec $1-switch $tc qdisc replace dev $port root netem loss $2% || exit 1
    done
}

# Seconds since the start, those that processors were idle, all together, and their number.
clock() { echo "--- clock $(cat /proc/uptime) $(grep -c ^processor /proc/cpuinfo)"; }

# pair CARRIER PROGRAM ARGS
pair() {
    began=$(clock)
    hosts=$1
    shift
    case $hosts in
        rxe) serves="-d rxe_a -x 1" asks="-d rxe_b -x 1" ;;
        peerdma) serves="-d peerdma0 -x 0" asks="-d peerdma0 -x 0" ;;
    esac
    library=/opt/$hosts
    timeout 120 $ip netns exec $hosts-a env LD_LIBRARY_PATH=$library "$@" $serves -p 18515 >server 2>&1 &
    server=$!
    until $ip netns exec $hosts-a grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    status=0
    timeout 120 $ip netns exec $hosts-b env LD_LIBRARY_PATH=$library "$@" $asks -p 18515 10.79.0.1 >client 2>&1 ||
        status=$?
    [ $status = 0 ] || kill $server 2>/dev/null
    wait $server
    ended=$(clock)
    echo "$began"
    echo "$ended"
    cat client
    echo "--- exit $status"
}

rxe
hosts peerdma
echo "=== machine"
echo "Linux $(uname -r), $(grep -c ^processor /proc/cpuinfo) emulated CPUs"
# What is busy when nothing runs.
echo "=== rest"
clock
sleep 5
clock
for rep in $(seq 0 $((reps - 1))); do
    turns="rxe peerdma"
    [ $((rep % 2)) = 0 ] || turns="peerdma rxe"
    number=0
    while read -r loss command; do
        for carrier in $turns; do
            [ "$link" != switch ] || lose $carrier $loss
            echo "=== $rep $number $carrier"
            pair $carrier $command </dev/null
        done
        number=$((number + 1))
    done </cases
done
