#!/bin/sh
# The tests $tests of crate verbs on the NIC of the system's libibverbs: the kernel's rxe.
ifconfig lo up
ifconfig dummy0 10.78.0.2 netmask 255.255.255.0 mtu 4300 up
rdma link add rxe0 type rxe netdev dummy0 || exit 1
# Its GIDs follow the addresses of the interface a moment later.
for _ in $(seq 100); do
    grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
    sleep 0.1
done
echo "=== devices"
peerdma devices
export PEERDMA_PROVIDER=system
for test in $(echo "$tests" | tr , " "); do
    echo "=== $test"
    timeout "$patience" "$test" 2>&1
    status=$?
    echo "--- exit $status"
    [ $status = 0 ] || failed=1
done
[ -z "$failed" ] || dmesg | tail -n 20
[ -z "$failed" ]
