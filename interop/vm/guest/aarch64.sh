#!/bin/sh
# peerdma built for arm64, on a machine of that kind. /part lists the programs, one a line.
#
#   run NAME|COMMAND              prints its output under a line "=== NAME"
#   pair NAME|SERVER|CLIENT       those of both under "=== NAME server" and "=== NAME client"
#
# The first word of a command may be one of the programs made here: `ours` runs on peerdma, in a network namespace of its own;
# `kernels` on the kernel's rdma_rxe, which is at the other end of a veth.
for share in debian built files; do
    mkdir "/$share"
    mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 "$share" "/$share" || exit 1
done
ln -s /debian/usr /debian/lib /debian/sbin /
# /bin stays busybox's but for ip, of which its shell has one too.
ip=/debian/bin/ip
ln -sf $ip /bin/ip
mkdir -p /run /var/run /root /opt/peerdma
cp -r /debian/etc/libibverbs.d /etc/
for name in libibverbs.so.1 librdmacm.so.1; do ln -s /built/libpeerdma.so "/opt/peerdma/$name"; done
cd /tmp || exit 1

$ip netns add near
$ip link add eth0 mtu 4300 type veth peer name eth1 mtu 4300 netns near
ifconfig eth0 10.78.0.2 netmask 255.255.255.0 up
$ip -n near address add 10.78.0.1/24 dev eth1
$ip -n near link set eth1 up
$ip -n near link set lo up
cat >/bin/ours <<EOT
#!/bin/sh
exec $ip netns exec near env LD_LIBRARY_PATH=/opt/peerdma PEERDMA_LOG=warn,peerdma::counters=info "\$@"
EOT
cat >/bin/kernels <<EOT
#!/bin/sh
exec "\$@"
EOT
chmod 755 /bin/ours /bin/kernels
if grep -q kernels /part; then
    rdma link add rxe0 type rxe netdev eth0 || exit 1
    # Its GIDs follow the addresses of the interface a moment later.
    for _ in $(seq 100); do
        grep -q ffff:0a4e:0002 /sys/class/infiniband/rxe0/ports/1/gids/1 && break
        sleep 0.1
    done
fi

failed=0
# A program without a listener on the other side says one of these, and is started again.
early="couldn't connect|event_rejected|event: rejected|connect error|addr_error|event_unreachable"

# show NAME STATUS FILE
show() {
    echo "=== $1"
    cat "$3"
    echo "--- exit $2"
    [ "$2" = 0 ] || failed=1
}

pair() {
    timeout "$patience" $2 >server 2>&1 </dev/null &
    server=$!
    for _ in $(seq 300); do
        status=0
        timeout "$patience" $3 >client 2>&1 </dev/null || status=$?
        [ $status != 0 ] && grep -qiE "$early" client && kill -0 $server || break
        sleep 0.2
    done
    # It waits for a client that has given up.
    [ $status = 0 ] || kill $server
    server_status=0
    wait $server || server_status=$?
    show "$1 server" $server_status server
    show "$1 client" $status client
}

while IFS='|' read -r what one two; do
    name=${what#* }
    case $what in
        "run "*)
            status=0
            timeout "$patience" $one >said 2>&1 </dev/null || status=$?
            show "$name" $status said
            ;;
        "pair "*) pair "$name" "$one" "$two" ;;
    esac
done </part
exit $failed
