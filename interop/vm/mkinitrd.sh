#!/bin/bash
# mkinitrd.sh KERNEL OUT.cpio [-m MODULE]... [-p PROGRAM]... [-f FILE:PATH]...: what the machine finds when it boots.
#
#   -m  a module of the kernel, with what it depends on, loaded in that order
#   -p  a program of this machine, at its own path and in PATH, with its libraries
#   -f  a file at another path; if it is a program, with its libraries
#
# busybox is its shell and its tools. /init is the `init` next to this script, and runs /test.sh. For a machine of another
# architecture, BUSYBOX is the file of its busybox; programs then come without libraries.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
kernel=$1 out=$2
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# The guest's users must be able to enter its root.
chmod 755 "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,etc,modules}

# copy FILE PATH
copy() {
    [ -e "$root$2" ] && return
    mkdir -p "$(dirname "$root$2")"
    cp -L "$1" "$root$2"
}

# Our programs are mostly debug information, all of which would be read at boot. strip refuses files
# that are not programs.
thin() { strip --strip-debug "$root$1" 2>/dev/null || true; }

# ldd names libraries by absolute path, and complains of files that have none.
libraries() {
    local library
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ )]*'); do copy "$library" "$library"; done
}

copy "${BUSYBOX:-$(command -v busybox)}" /bin/busybox
for applet in $(busybox --list); do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
done
copy "$here/init" /init
printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
: >"$root/modules/order"
# pthread_exit loads it by name.
libgcc=/lib/x86_64-linux-gnu/libgcc_s.so.1
[ -n "${BUSYBOX:-}" ] || copy "$libgcc" "$libgcc"

while getopts m:p:f: option; do
    case $option in
        m)
            version=$(ls "$kernel/lib/modules")
            modprobe -d "$kernel" -S "$version" --show-depends "$OPTARG" |
                sed -n 's/^insmod \([^ ]*\).*/\1/p' >>"$root/modules/order"
            ;;
        p)
            program=$(realpath "$(command -v "$OPTARG")")
            copy "$program" "$program"
            thin "$program"
            libraries "$program"
            # A busybox applet of the same name stays: programs that replace an applet are started
            # by their path.
            name=$root/bin/$(basename "$OPTARG")
            [ -e "$name" ] || ln -s "$program" "$name"
            ;;
        f)
            copy "${OPTARG%%:*}" "${OPTARG#*:}"
            thin "${OPTARG#*:}"
            libraries "${OPTARG%%:*}"
            ;;
        *) exit 2 ;;
    esac
done

awk '!seen[$0]++' "$root/modules/order" | while read -r module; do
    name=$(basename "$module")
    case $module in
        *.xz) name=${name%.xz} && xz -dc "$module" >"$root/modules/$name" ;;
        *.zst) name=${name%.zst} && zstd -dcq "$module" >"$root/modules/$name" ;;
        *) cp "$module" "$root/modules/$name" ;;
    esac
    echo "$name"
done >"$root/modules.order"
mv "$root/modules.order" "$root/modules/order"

(cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$out"
