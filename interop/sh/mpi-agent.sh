#!/bin/sh
# What mpirun starts in place of ssh: HOST COMMAND... The other host is a network namespace, and has a name of its own.
shift
exec nsenter --net="$INTEROP_OTHER_NETNS" unshare --uts sh -c "hostname other; $*"
