#!/bin/sh
# rdma-core's tests in the directory $tests on the kernel's rdma_rxe. Python, its verbs and the tests are those of the
# machine outside, whose root is shared by 9p and only read.
mkdir /outside
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /outside || exit 1
for directory in proc sys dev tmp; do mount --bind /$directory /outside/$directory; done
# A netdev with a carrier and room for every path MTU. busybox's ip cannot make it.
/usr/bin/ip link add eth0 mtu 4200 type veth peer name eth1 mtu 4200
ifconfig eth0 10.78.0.2 netmask 255.255.255.0 up
ifconfig eth1 up
rdma link add rxe0 type rxe netdev eth0
# Its GIDs follow the addresses of the interface a moment later.
for _ in $(seq 100); do
    grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
    sleep 0.1
done
echo "=== kernel"
uname -r
echo "=== tests"
timeout 1500 chroot /outside /bin/sh -c \
    "cd '$tests' && PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 tests/run_tests.py -v --dev rxe0" 2>&1
# Tests that fail are a result.
exit 0
