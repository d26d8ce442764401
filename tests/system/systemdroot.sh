#!/usr/bin/env bash
# Boot a root with systemd as process 1, run one script there as a unit, and leave no trace: systemdroot.sh ROOT SCRIPT
# In namespaces of its own (mounts, processes, network, host name, IPC, cgroups): an overlay in memory over the root, a
# /dev of its own, a cgroup v2 of its own; /sys and the kernel's settings are read-only, but for those of the network.
# What the script prints is printed, its exit code is the exit code; where it failed, systemd's own log follows.
set -euo pipefail
root=$1 script=$2
functions=$(dirname "$(readlink -f "$0")")/overlayroot.sh
own=$(mktemp -d "$(findmnt -n -t cgroup2 -o TARGET | head -1)/fairlead-boot-XXXXXX")
printed=$(mktemp) code=124
finish() {
  cat "$printed"
  [ "$code" -eq 0 ] || tail -n 100 "$printed.boot"
  rm -f "$printed" "$printed.boot"
  for _ in $(seq 50); do # its processes are gone with process 1; their cgroups follow
    find "$own" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$own" ] || return 0
    sleep 0.1
  done
}
trap finish EXIT
(
  echo "$BASHPID" >"$own/cgroup.procs"
  exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup --propagation private bash -euc '
. "$1"
root=$2 script=$3 printed=$4
cover "$root"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$n/sys"
mount -t cgroup2 cgroup2 "$n/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$n/dev"
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
  IFS=: read -r name major minor <<<"$node"
  mknod -m 666 "$n/dev/$name" c "$major" "$minor"
done
mkdir "$n/dev/pts" "$n/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$n/dev/pts"
mount -t tmpfs tmpfs "$n/dev/shm"
ln -s pts/ptmx "$n/dev/ptmx"
ln -s /proc/self/fd "$n/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${number%:*}" "$n/dev/${number#*:}"; done
add_folders
mount --bind "$n/proc/sys" "$n/proc/sys"
mount --bind "$n/proc/sys/net" "$n/proc/sys/net"
mount -o remount,bind,ro "$n/proc/sys"
echo stranger >"$n/etc/hostname"
echo 0123456789abcdef0123456789abcdef >"$n/etc/machine-id"
# A machine whose controllers are with cgroup v1 has none to give; podman would insist on this one.
if ! grep -qw pids "$n/sys/fs/cgroup/cgroup.controllers"; then
  mkdir -p "$n/etc/containers/containers.conf.d"
  printf "[containers]\npids_limit = 0\n" >"$n/etc/containers/containers.conf.d/no-pids.conf"
fi
cat >"$n/etc/systemd/system/stranger.service" <<END
[Unit]
Description=What a stranger types
Wants=multi-user.target
After=multi-user.target
[Service]
Type=oneshot
Environment=NO_COLOR=1 HOME=/root LANG=C.UTF-8 TERM=xterm
StandardOutput=append:/printed
StandardError=append:/printed
ExecStart=/bin/bash -ex /script
ExecStopPost=systemctl --no-block exit \$EXIT_STATUS
END
cp "$script" "$n/script"
touch "$n/printed"
mount --bind "$printed" "$n/printed"
enter
exec env -i container=fairlead-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  setpriv --bounding-set -sys_module,-sys_time,-sys_boot,-sys_rawio,-syslog \
  /lib/systemd/systemd --unit=stranger.service --log-level=info --log-target=console
' systemdroot "$functions" "$root" "$script" "$printed" >"$printed.boot" 2>&1
) &
trap 'kill $! 2>/dev/null' INT TERM
wait $! && code=0 || code=$?
exit "$code"
