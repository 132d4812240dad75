#!/bin/sh
# Runs the cases of /cases on the device of $guest (`rxe`: the kernel's; `peerdma`), one after the
# other, and prints the output of each under a line "=== NUMBER". A case is a line "ROLE PROGRAM
# ARGS": ROLE is `serves` or `asks`. A program that asks retries until the other side listens: as
# long as its output matches $early.
ifconfig eth0 10.78.0.2 netmask 255.255.255.0 mtu 4300 up
if [ "$guest" = rxe ]; then
    rdma link add rxe0 type rxe netdev eth0
    # Its GIDs follow the addresses of the interface a moment later.
    for _ in $(seq 100); do
        grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
        sleep 0.1
    done
else
    export LD_LIBRARY_PATH=/opt/peerdma PEERDMA_LOG=warn,peerdma::counters=info
fi
number=0 failed=0
while read -r role command; do
    status=0
    # The server must not stay for ever if the other side gave up the case.
    timeout "$patience" $command >out 2>&1 </dev/null || status=$?
    if [ "$role" = asks ]; then
        for _ in $(seq 150); do
            [ $status != 0 ] && grep -qiE "$early" out || break
            sleep 0.2
            status=0
            timeout "$patience" $command >out 2>&1 </dev/null || status=$?
        done
    fi
    echo "=== $number"
    cat out
    echo "--- exit $status"
    [ $status = 0 ] || failed=1
    number=$((number + 1))
done </cases
if [ "$guest" = rxe ]; then
    echo "=== counters"
    grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/*
fi
exit $failed
