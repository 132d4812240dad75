#!/bin/sh
# What mpirun starts in place of ssh: HOST COMMAND... The other host is a network namespace, and has its address as its name.
host=$1
shift
exec nsenter --net="$INTEROP_OTHER_NETNS" unshare --uts sh -c "hostname $host; $*"
