#!/bin/sh
# Pairs of programs of one unprivileged user, under Yama's ptrace_scope $scope. Prints what each program said under a
# line "=== NAME".
set -e
cd /tmp
echo "$scope" >/proc/sys/kernel/yama/ptrace_scope
export LD_LIBRARY_PATH=/opt/peerdma PEERDMA_LOG=info

as_user() { timeout 100 /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups "$@"; }

# show NAME STATUS FILE; a program that failed ends the test.
show() {
    echo "=== $1"
    cat "$3"
    echo "--- exit $2"
    [ "$2" = 0 ]
}

# pair PROGRAM ARGS: a server, and when its socket listens, a client.
pair() {
    as_user "$@" -p 18515 >server 2>&1 &
    server=$!
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
        kill -0 $server || { show "$1 server" 255 server; }
        sleep 0.1
    done
    client_status=0
    as_user "$@" -p 18515 127.0.0.1 >client 2>&1 || client_status=$?
    server_status=0
    wait $server || server_status=$?
    show "$1 client" $client_status client
    show "$1 server" $server_status server
}

as_user id -u
pair ibv_rc_pingpong -g 0 -c -n 100 -s 70000
for program in ib_write_bw ib_read_bw; do
    pair $program -F -s 4096 -n 1000 -t 16
done
pair ib_atomic_bw -F -n 1000 -t 16
demo_status=0
as_user peerdma demo --rounds 4 >demo 2>&1 || demo_status=$?
show demo $demo_status demo
