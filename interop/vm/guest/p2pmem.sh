#!/bin/sh
# Memory that the driver of the disk at $pool lends, between that disk and the wire.
ifconfig eth0 10.78.0.2 netmask 255.255.255.0 mtu 4300 up
for _ in $(seq 100); do
    [ -b /dev/nvme0n1 ] && break
    sleep 0.1
done
dmesg -c >/dev/null
echo "=== disk"
readlink -f /sys/class/block/nvme0n1
ls -l "$(dirname "$(readlink -f /sys/class/block/nvme0n1)")"
echo "=== send"
p2pmem send 10.78.0.1:7472 eth0 /dev/nvme0n1 "$pool" /sys/bus/pci/drivers/nvme/unbind
status=$?
echo "=== kernel"
dmesg
exit $status
