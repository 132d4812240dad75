#!/bin/sh
# Compares what crate pci says of this machine with what its kernel says, by a module of ours. $seed and $rounds are for
# judge; $has_iommu is 1 if there is one.
failed=0
insmod /p2pdma_judge.ko || exit 1
# Virtual functions, of devices without a driver.
echo 8086 10c9 >/sys/bus/pci/drivers/pci-pf-stub/new_id
for physical in /sys/bus/pci/drivers/pci-pf-stub/0*; do
    [ ! -e "$physical" ] || echo 2 >"$physical/sriov_numvfs" || failed=1
done
echo "=== machine"
echo "functions=$(ls /sys/bus/pci/devices | wc -l) virtual=$(ls -d /sys/bus/pci/devices/*/physfn 2>/dev/null | wc -l)"
echo "=== judge"
judge "$seed" "$rounds" || failed=1
if [ "$has_iommu" = 1 ]; then
    echo "=== hidden"
    /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups judge --hidden || failed=1
fi
[ $failed = 0 ] || dmesg | tail -n 20
exit $failed
