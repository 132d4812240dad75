#!/bin/sh
# blktests of this machine's Debian, shared by 9p: `check` runs against nvmet as the target, with the kernel's nvme-rdma on
# rdma_rxe as the host. $tests are those to run, separated by commas; without any, the group nvme. $size is the length of the
# disk, $large that of the tests in $roomy, and $timeout limits those that run for a time.
#
#   /share/usr, /share/alternatives    /usr of this Debian, and /etc/alternatives, to which some of it links
#   /share/modules                     the modules of the kernel
#   /share/blktests                    blktests, built
#   /share/programs                    nvmet
#
# The lines after "=== check" and "=== check devices" are what `check` prints; those after "=== details" help to find out
# why a test failed.
export PATH=/instead:/usr/local/bin:/usr/sbin:/usr/bin:/bin

# A root with Debian's programs, above which files can be made.
outside() {
    mkdir /share /upper /debian
    mount -t tmpfs none /upper
    for share in usr alternatives modules blktests programs; do
        mkdir "/share/$share"
        mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 "$share" "/share/$share" || exit 1
    done
    mount -t tmpfs -o mode=755 none /debian
    cd /debian || exit 1
    mkdir usr etc etc/alternatives dev proc sys tmp run var mnt boot blktests opt root instead
    mkdir -p /upper/usr /upper/blktests /upper/work-usr /upper/work-blktests
    for share in usr blktests; do
        mount -t overlay -o "lowerdir=/share/$share,upperdir=/upper/$share,workdir=/upper/work-$share" none $share || exit 1
    done
    for name in bin sbin lib lib64; do ln -s usr/$name $name; done
    ln -s /run var/run
    version=$(uname -r)
    mkdir -p "usr/lib/modules/$version"
    mount -o bind /share/modules "usr/lib/modules/$version"
    mount -o bind /share/alternatives etc/alternatives
    mount -o bind /share/programs opt
    # blktests takes the version for a number, which "7.2.12+deb13" is not, and tests that ask for one would end there.
    ln -s "/usr/lib/modules/$version/config" "boot/config-${version%%+*}"
    ln -s "$version" "usr/lib/modules/${version%%+*}"
    printf '#!/bin/sh\n[ "$*" = -r ] && echo %s || exec /usr/bin/uname "$@"\n' "${version%%+*}" >instead/uname
    cp /etc/passwd /etc/group etc/
    cp /test.sh /control run/
    # The tests are root's already; su would ask PAM.
    printf '#!/bin/sh\nexec "$@"\n' >instead/sudo
    printf '#!/bin/sh\nexec setpriv --reuid "$1" --regid 1000 --clear-groups sh -c "$3"\n' >instead/su
    chmod 755 instead/*
    mount -t devtmpfs none dev
    mount -t sysfs none sys
    mount -t configfs none sys/kernel/config
    mount -t debugfs none sys/kernel/debug
    ln -s /proc/self/fd dev/fd
    mkdir -p dev/shm dev/pts
    mount -t devpts none dev/pts
    mount -t tmpfs -o mode=1777 none dev/shm
    mount -t tmpfs -o mode=1777,size=80% none tmp
    # udev does not work in a chroot, which it knows by the root of the first process: that is a process of ours here.
    exec chroot /debian unshare --pid --fork --kill-child sh /run/test.sh inside
}

fail() {
    echo "FAILED: $*"
    dmesg | tail -n 40
    exit 1
}

inside() {
    mount -t proc none /proc
    ip netns add near
    ip link add eth0 mtu 4300 type veth peer name eth1 mtu 4300 netns near
    ip address add 10.78.0.2/24 dev eth0
    ip link set eth0 up
    ip -n near address add 10.78.0.1/24 dev eth1
    ip -n near link set eth1 up
    ip -n near link set lo up
    rdma link add rxe0 type rxe netdev eth0 || fail "no rxe"
    # Its GIDs follow the addresses of the interface a moment later.
    for _ in $(seq 100); do
        grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
        sleep 0.1
    done
    mkdir -p /run/udev
    /usr/lib/systemd/systemd-udevd --daemon || fail "no udevd"
    chmod 755 /run/control
    # As a variable that is passed on, it leads the target to the file that a test made for it.
    export TMPDIR=/tmp
    export NVME_IMG_SIZE="$size" NVME_NUM_ITER=10 NVME_TARGET_CONTROL=/run/control USE_RXE=1
    export NORMAL_USER=user LOGGER_PROG=true OUTPUT=/tmp/results TIMEOUT="$timeout"
    cd /blktests || exit 1
    echo "=== check"
    run $(echo "${tests:-nvme}" | tr , ' ')
    echo "=== check devices"
    devices $(echo "${tests:-nvme}" | tr , ' ')
    echo "=== details"
    for bad in $(find /tmp/results -name '*.out.bad'); do
        echo "--- $bad"
        cat "$bad"
        echo "--- what it kept"
        tail -n 30 "${bad%.out.bad}.full"
    done
    echo "--- nvmet"
    tail -n 200 /tmp/nvmet.log
    echo "--- kernel"
    dmesg | tail -n 60
    echo "=== end"
    exit 0
}

# check ARGUMENTS: without colours, which it has for terminals.
check() {
    local options=
    for test in $(echo "$without" | tr , ' '); do options="$options -x $test"; done
    ./check $options "$@" 2>&1 | cat
}

# run TEST...: those that need a larger disk get one.
run() {
    check "$@"
    for test in $(echo "$roomy" | tr , ' '); do
        case " $* " in
            *" nvme "* | *" $test "*) NVME_IMG_SIZE=$large check "$test" ;;
        esac
    done
}

# devices TEST...: those for a device that is there, with one of the target's.
devices() {
    local nqn uuid chosen=
    for test in "$@"; do
        [ "$test" != nvme ] && ! grep -q "^test_device()" "tests/$test" || chosen="$chosen $test"
    done
    [ -n "$chosen" ] || return
    nqn=$(/run/control config --show-subsysnqn)
    uuid=$(/run/control config --show-subsys-uuid)
    /run/control setup --subsysnqn "$nqn" --subsys-uuid "$uuid" --hostnqn "$(/run/control config --show-hostnqn)"
    nvme connect -t rdma -a 10.78.0.1 -s 4420 -n "$nqn" --hostnqn="$(/run/control config --show-hostnqn)" \
        --hostid="$(/run/control config --show-hostid)" >/dev/null || fail "no device"
    for _ in $(seq 100); do
        # Of a path of a namespace there is no device.
        device=$(grep -lx "$uuid" /sys/block/nvme[0-9]n*/uuid 2>/dev/null | cut -d/ -f4)
        [ -b "/dev/$device" ] && break
        sleep 0.1
    done
    TEST_DEVS=/dev/$device check -d $chosen
    nvme disconnect -n "$nqn" >/dev/null
    /run/control cleanup --subsysnqn "$nqn"
}

${1:-outside}
