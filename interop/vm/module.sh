#!/bin/bash
# module.sh DIR                     what modules of the kernel in DIR/kernel are built with (about 100 MB to fetch), in DIR/build
# module.sh DIR OUT.ko FILE...      a module from FILEs, of which the first has its name
#
# A FILE that begins with linux: is one of the kernel's own, from Debian's package of its source (165 MB more), as in
# linux:lib/test_hmm.c. Headers, compiler and tools are those of the kernel's own distribution, unpacked and not installed,
# so they run with DIR/build as their root.
set -euo pipefail

[ -e "$1/kernel" ] || { echo "module.sh: $1 has no kernel: fetch.sh" >&2; exit 1; }
dir=$(realpath "$1")
shift
exec 9>"$dir/lock"
flock 9
here=$(dirname "$(realpath "$0")")
. "$here/apt.sh"

suites="trixie trixie-backports"
version=$(ls "$dir/kernel/lib/modules")
build=$dir/build

if [ ! -e "$build" ]; then
    new=$dir/build.new
    rm -rf "$new"
    mkdir "$new"
    suite "$suites" apt-get update >&2
    if ! suite "$suites" apt-cache show "linux-headers-$version" >/dev/null 2>&1; then
        echo "E: $MIRROR has no headers of $version: remove $dir/kernel to take a newer kernel" >&2
        exit 1
    fi
    for name in bin sbin lib lib64; do
        mkdir -p "$new/usr/$name"
        ln -s "usr/$name" "$new/$name"
    done
    unpack_all "$suites" "$new" "linux-headers-$version" gcc-14 make dash coreutils sed grep mawk
    ln -sf dash "$new/bin/sh"
    ln -sf mawk "$new/bin/awk"
    # All that objtool wants to know of a process: where its stack is.
    mkdir -p "$new"/{dev,tmp,proc/self}
    echo "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]" >"$new/proc/self/maps"
    mv "$new" "$build"
fi

# kernel_file PATH: of the kernel's source, from the package of the same version.
kernel_file() {
    local source=$dir/source short
    short=$(echo "$version" | cut -d. -f1,2)
    if [ ! -e "$source" ]; then
        suite "$suites" apt-get update >&2
        local full=${version%%+*}
        if ! suite "$suites" apt-cache show "linux-source-$short" | grep "^Version: $full-" >/dev/null; then
            echo "E: $MIRROR has no source of $full" >&2
            return 1
        fi
        rm -rf "$source.new"
        unpack "$suites" "$source.new" "linux-source-$short"
        mv "$source.new" "$source"
    fi
    tar -xJOf "$source/usr/src/linux-source-$short.tar.xz" "linux-source-$short/$1"
}

if [ $# -gt 0 ]; then
    out=$1
    shift
    work=$(mktemp -d "$build/tmp/XXXXXX")
    trap 'rm -rf "$work"' EXIT
    name=$(basename "${1#linux:}" .c)
    for file in "$@"; do
        case $file in
            linux:*) kernel_file "${file#linux:}" >"$work/$(basename "$file")" ;;
            *) cp "$file" "$work" ;;
        esac
    done
    echo "obj-m := $name.o" >"$work/Kbuild"
    enter=(chroot "$build")
    [ "$(id -u)" = 0 ] || enter=(unshare --map-root-user --root="$build")
    "${enter[@]}" /usr/bin/env -i PATH=/usr/bin make -s -C "/usr/src/linux-headers-$version" \
        M="/tmp/$(basename "$work")" modules >&2
    cp "$work/$name.ko" "$out"
fi
rm -rf "$dir/apt"
