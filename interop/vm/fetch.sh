#!/bin/bash
# fetch.sh DIR [arm64]: a stock Debian kernel and a QEMU, unpacked under DIR (about 500 MB); quick when they are there.
#
#   DIR/kernel/vmlinux, DIR/kernel/lib/modules/VERSION    from trixie-backports
#   DIR/qemu/command                                      how to start the QEMU
#
# and for an arm64 machine, which run.sh then knows by DIR/debian:
#
#   DIR/debian    programs and libraries of this machine's own Debian, built for arm64
#   DIR/exit      a program that ends the machine with a status
#
# Nothing is installed, and apt's own state is not touched. QEMU 10 boots every time under emulation and older ones do
# not, so a system that has an older one gets it from bookworm-backports; its libraries are those of the installed
# qemu-system-x86. KERNEL pins the version while the mirror has it; after that the newest is taken.
set -euo pipefail

machine=${2:-amd64}
KERNEL=${KERNEL:-7.2.12+deb13-$machine}
CODENAME=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
PROGRAMS="busybox-static ibverbs-utils iproute2 perftest python3-pip-whl python3-pytest python3-pyverbs python3-venv
    rdma-core rdmacm-utils"

[ "$(uname -m)" = x86_64 ] || { echo "the emulated machine is started by an x86-64 QEMU" >&2; exit 1; }
mkdir -p "$1"
dir=$(realpath "$1")
exec 9>"$dir/lock"
flock 9
here=$(dirname "$(realpath "$0")")
. "$here/apt.sh"
# What of it is for the emulated machine; the rest is for this one.
[ "$machine" = amd64 ] || other=$machine

number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

# foreign COMMAND: for the emulated machine's architecture.
foreign() { arch=${other:-} "$@"; }

# The ELF kernel inside a bzImage, which QEMU starts directly: the header tells where the payload is
# (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).
vmlinux() {
    local at=$((($(number "$1" 0x1f1 1) + 1) * 512 + $(number "$1" 0x248 4))) length
    length=$(number "$1" 0x24c 4)
    dd if="$1" of="$2.packed" iflag=skip_bytes,count_bytes skip="$at" count="$length" bs=1M status=none
    # The last word of the payload is its unpacked size, which is not part of the compressed data.
    case $(number "$2.packed" 0 4) in
        4247762216) zstd -dcq "$2.packed" >"$2" || true ;;
        1484404733) xz -dcq --single-stream "$2.packed" >"$2" || true ;;
        *) echo "$1 is compressed in a way unknown here" >&2; return 1 ;;
    esac
    rm "$2.packed"
    [ "$(number "$2" 0 4)" = 1179403647 ] || { echo "$1 holds no ELF file" >&2; return 1; }
}

if [ ! -e "$dir/kernel" ]; then
    new=$dir/kernel.new
    rm -rf "$new"
    foreign suite trixie-backports apt-get update >&2
    version=$(foreign suite trixie-backports apt-cache search --names-only "^linux-binary-[0-9.]*[+]deb13-$machine\$" |
        sed 's/^linux-binary-//; s/ .*//' | sort -V | awk -v pin="$KERNEL" '$0 == pin { found = 1 } { last = $0 }
            END { print found ? pin : last }')
    [ -n "$version" ] || { echo "$MIRROR has no kernel in trixie-backports" >&2; exit 1; }
    foreign unpack trixie-backports "$new" "linux-base-$version" "linux-modules-$version" "linux-binary-$version"
    [ -e "$new/lib" ] || ln -s usr/lib "$new/lib"
    depmod -b "$new" "$version"
    image=$(find "$new" -name "vmlinuz*" -type f -print -quit)
    # An arm64 kernel is not packed (Documentation/arch/arm64/booting.rst).
    if [ "$machine" = arm64 ]; then cp "$image" "$new/vmlinux"; else vmlinux "$image" "$new/vmlinux"; fi
    mv "$new" "$dir/kernel"
fi

cpu=x86_64 package=qemu-system-x86
[ "$machine" = amd64 ] || cpu=aarch64 package=qemu-system-arm
# version PROGRAM: its first number, 0 if it is missing.
version() { "$1" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p' | grep . || echo 0; }

if [ ! -e "$dir/qemu" ]; then
    new=$dir/qemu.new
    rm -rf "$new"
    mkdir "$new"
    if [ "$(version qemu-system-$cpu)" -ge 10 ]; then
        echo qemu-system-$cpu >"$new/command"
    else
        # Whichever is new enough and runs with the libraries of this machine.
        from=bookworm-backports
        [ "$(version qemu-system-x86_64)" -lt 10 ] || from=$CODENAME
        suite "$from" apt-get update >&2
        unpack "$from" "$new" "$package" qemu-system-common qemu-system-data seabios
        usr=$dir/qemu/usr
        echo "env QEMU_MODULE_DIR=$usr/lib/x86_64-linux-gnu/qemu $usr/bin/qemu-system-$cpu -L $usr/share/qemu" \
            "-L $usr/share/seabios" >"$new/command"
    fi
    mv "$new" "$dir/qemu"
fi

# An earlier list may have been shorter.
if [ "$machine" = arm64 ] && [ "$(cat "$dir/debian/programs" 2>/dev/null)" != "$PROGRAMS" ]; then
    new=$dir/debian.new
    rm -rf "$new"
    mkdir "$new"
    aarch64-linux-gnu-gcc -static -O1 -o "$dir/exit" "$here/exit.c"
    foreign suite "$CODENAME" apt-get update >&2
    # shellcheck disable=SC2086 # several words
    foreign unpack_all "$CODENAME" "$new" $PROGRAMS
    # Packages since trixie take it that these are links.
    for name in bin sbin lib; do [ -e "$new/$name" ] || ln -s "usr/$name" "$new/$name"; done
    echo "$PROGRAMS" >"$new/programs"
    rm -rf "$dir/debian"
    mv "$new" "$dir/debian"
fi
rm -rf "$dir/apt"
