#!/bin/sh
# `peerdma matrix --by-c` with the kernel's udmabuf. The machine has no compiler: /opt/by_c was compiled outside, of
# /opt/by_c.c, which must be the source that peerdma itself has.
cat >/bin/cc <<'EOF'
#!/bin/sh
for argument in "$@"; do
    case $before in -o) program=$argument ;; esac
    case $argument in *.c) source=$argument ;; esac
    before=$argument
done
cmp "$source" /opt/by_c.c && exec cp /opt/by_c "$program"
EOF
chmod 755 /bin/cc
chmod 666 /dev/udmabuf
cd /tmp
echo "=== matrix"
/usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups /opt/peerdma/peerdma matrix --by-c 2>&1
