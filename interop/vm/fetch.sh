#!/bin/bash
# fetch.sh DIR: a stock Debian kernel and a QEMU, unpacked under DIR (about 500 MB); quick when they are there.
#
#   DIR/kernel/vmlinux, DIR/kernel/lib/modules/VERSION    from trixie-backports
#   DIR/qemu/command                                      how to start the QEMU
#
# Nothing is installed, and apt's own state is not touched. QEMU 10 boots every time under emulation and older ones do
# not, so a system that has an older one gets it from bookworm-backports; its libraries are those of the installed
# qemu-system-x86. KERNEL pins the version while the mirror has it; after that the newest is taken.
set -euo pipefail

KERNEL=${KERNEL:-7.2.12+deb13-amd64}

[ "$(uname -m)" = x86_64 ] || { echo "the emulated machine is an x86-64 one, and so must its programs be" >&2; exit 1; }
mkdir -p "$1"
dir=$(realpath "$1")
exec 9>"$dir/lock"
flock 9
here=$(dirname "$(realpath "$0")")
. "$here/apt.sh"

number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

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
    suite trixie-backports apt-get update >&2
    version=$(suite trixie-backports apt-cache search --names-only '^linux-binary-[0-9].*+deb13-amd64$' |
        sed 's/^linux-binary-//; s/ .*//' | sort -V | awk -v pin="$KERNEL" '$0 == pin { found = 1 } { last = $0 }
            END { print found ? pin : last }')
    [ -n "$version" ] || { echo "$MIRROR has no kernel in trixie-backports" >&2; exit 1; }
    unpack trixie-backports "$new" "linux-base-$version" "linux-modules-$version" "linux-binary-$version"
    [ -e "$new/lib" ] || ln -s usr/lib "$new/lib"
    depmod -b "$new" "$version"
    image=$(find "$new" -name "vmlinuz*" -type f -print -quit)
    vmlinux "$image" "$new/vmlinux"
    mv "$new" "$dir/kernel"
fi

if [ ! -e "$dir/qemu" ]; then
    new=$dir/qemu.new
    rm -rf "$new"
    mkdir "$new"
    if [ "$(qemu-system-x86_64 --version | sed -n 's/.*version \([0-9]*\).*/\1/p')" -ge 10 ]; then
        echo qemu-system-x86_64 >"$new/command"
    else
        suite bookworm-backports apt-get update >&2
        unpack bookworm-backports "$new" qemu-system-x86 qemu-system-common qemu-system-data seabios
        usr=$dir/qemu/usr
        echo "env QEMU_MODULE_DIR=$usr/lib/x86_64-linux-gnu/qemu $usr/bin/qemu-system-x86_64 -L $usr/share/qemu" \
            "-L $usr/share/seabios" >"$new/command"
    fi
    mv "$new" "$dir/qemu"
fi
rm -rf "$dir/apt"
