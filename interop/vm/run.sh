#!/bin/bash
# run.sh DIR INITRD [-t SECONDS] [-a "KERNEL ARGUMENTS"] [-i] [-- QEMU ARGUMENTS]: boots what fetch.sh left in DIR,
# prints what the test prints and ends with the test's status, 0 to 126. With -i, the machine has one processor, and its
# clock counts instructions, one a nanosecond.
#
#   200  the machine did not reach the test, three times
#   201  the test did not end in time
#   202  the machine died while the test ran: never tried again, never a pass
#
# Where an assertion in QEMU itself ends the machine, it is tried again, too, and that is said.
#
# VARIABLE=VALUE among the kernel's arguments is in the test's environment.
set -euo pipefail

dir=$1 initrd=$2
shift 2
limit=60 append=
clock=(-accel tcg,thread=multi -smp 2)
while [ $# -gt 0 ]; do
    case $1 in
        -t) limit=$2 && shift 2 ;;
        -a) append=$2 && shift 2 ;;
        -i) clock=(-accel tcg,thread=single -smp 1 -icount shift=0,sleep=off) && shift ;;
        --) shift && break ;;
        *) echo "run.sh: $1?" >&2 && exit 2 ;;
    esac
done
read -ra qemu <"$dir/qemu/command"
if [ -e "$dir/debian" ]; then
    # A machine as ARM servers are; semihosting lets init end QEMU with a status.
    console=ttyAMA0
    machine=(-M virt -m 2G -cpu neoverse-n1 -semihosting-config "enable=on,target=native,userspace=on")
    ends() { echo "$1"; }
else
    console=ttyS0
    machine=(-M q35 -m 1G -cpu max -device "isa-debug-exit,iobase=0xf4,iosize=4")
    # isa-debug-exit ends QEMU with twice the value plus one.
    ends() { echo $(($1 * 2 + 1 & 255)); }
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for _ in 1 2 3; do
    status=0
    timeout -k 2 "$limit" "${qemu[@]}" "${clock[@]}" "${machine[@]}" \
        -nodefaults -display none -monitor none -serial stdio -no-reboot \
        -kernel "$dir/kernel/vmlinux" -initrd "$initrd" \
        -append "console=$console quiet panic=-1 $append" "$@" </dev/null >"$log" 2>&1 || status=$?
    # The serial line ends lines as terminals do.
    sed -i 's/\r$//' "$log"
    if [ "$status" = 134 ] && grep -a '^qemu-system-[^ :]*: .*: Assertion .* failed\.$' "$log" >&2; then
        echo "QEMU failed, and not the machine: once more" >&2
        continue
    fi
    if grep -aq '^VM-START$' "$log"; then
        sed '0,/^VM-START$/d; /^VM-EXIT [0-9]*$/d' "$log"
        [ "$status" != 124 ] || exit 201
        verdict=$(sed -n 's/^VM-EXIT \([0-9]*\)$/\1/p' "$log" | tail -1)
        if [ -n "$verdict" ] && [ "$status" = "$(ends "$verdict")" ]; then exit "$verdict"; fi
        echo "the machine died: QEMU ended with $status" >&2
        exit 202
    fi
    echo "the machine did not start: QEMU ended with $status" >&2
    tail -n 20 "$log" >&2
done
exit 200
