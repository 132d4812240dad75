#!/bin/sh
# The kernel's own test_hmm and crate hmm, by the same random steps. $seeds are with commas between, $steps for each.
insmod /test_hmm.ko || exit 1
for seed in $(echo "$seeds" | tr , " "); do
    echo "=== $seed"
    dmirror "$seed" "$steps" || failed=1
done
[ -z "$failed" ] || dmesg | tail -n 20
[ -z "$failed" ]
