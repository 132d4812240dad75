#!/bin/sh
# Our own test programs in /tests, and the demo, where /dev/udmabuf is for everyone. Prints what each program said under
# a line "=== NAME".
cd /tmp
chmod 666 /dev/udmabuf
export PEERDMA_LOG=info PEERDMA_REQUIRE=udmabuf RUST_BACKTRACE=1

failed=0
# check NAME PROGRAM ARGS
check() {
    echo "=== $1"
    shift
    timeout 100 /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups "$@" 2>&1 || failed=1
}

for test in /tests/*; do check "${test##*/}" "$test"; done
check demo peerdma demo --rounds 20
exit $failed
