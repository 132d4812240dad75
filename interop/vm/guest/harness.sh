#!/bin/sh
# Tests what scripts rely on: variables, kernel modules, an unprivileged user's shell, lo.
set -e
[ -e /sys/module/vgem ]
ifconfig lo | grep -q 127.0.0.1
echo "=== user"
/usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'id -un; touch /tmp/mine /dev/shm/mine'
echo "=== status"
[ "$status" != panic ] || echo c >/proc/sysrq-trigger
exit "$status"
