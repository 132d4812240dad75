#!/bin/sh
# mpirun starts this instead of ssh: HOST COMMAND... The other host is a network namespace, named by
# its address.
host=$1
shift
exec nsenter --net="$INTEROP_OTHER_NETNS" unshare --uts sh -c "hostname $host; $*"
