# What programs leave behind in namespaces of their own: argument 1 is the peerdma program. Prints
# one line for each leftover. The program may be in the /tmp that is about to be hidden.
mount --bind "${1%/*}" /mnt || exit 1
mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm && ip link set lo up || exit 1
run="/mnt/${1##*/} run --"
listening() { until grep -q ":$(printf %04X "$1") .* 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done; }

# A run to its end.
$run ibv_rc_pingpong -p 20001 -g 0 -n 1000 >/dev/null & server=$!
listening 20001
$run ibv_rc_pingpong -p 20001 -g 0 -n 1000 127.0.0.1 >/dev/null || echo "the client failed"
wait $server || echo "the server failed"

# Everything is killed midway: the program by its pid, so that its parent has to notice.
$run ib_write_bw -p 20002 -F -D 60 >/dev/null 2>&1 & server=$!
listening 20002
$run ib_write_bw -p 20002 -F -D 60 127.0.0.1 >/dev/null 2>&1 & client=$!
until grep -c peerdma/ /proc/net/unix | grep -qv '^[01]$'; do sleep 0.02; done
sleep 0.5
kill -9 $server
wait $client $server 2>/dev/null

# A program that is killed while nobody is connected to it.
$run ibv_rc_pingpong -p 20003 -g 0 >/dev/null 2>&1 & server=$!
listening 20003
kill -9 $server
wait $server 2>/dev/null

# A killed process needs a moment to disappear; what is still there after that stays.
processes() { cat /proc/[0-9]*/comm 2>/dev/null | grep "peerdma\|ibv_rc_pingpong\|ib_write_bw"; }
tries=0
while [ -n "$(processes)" ] && [ $tries -lt 250 ]; do sleep 0.02; tries=$((tries + 1)); done
processes | sed 's/^/process /'
find /tmp /dev/shm -mindepth 1 | sed 's/^/file /'
grep peerdma /proc/net/unix | sed 's/^/socket /'
echo "that is all"
