#!/usr/bin/env bash
# A worker's own machine: podman's storage, /run, CDI specs and Fairlead's state as on a new one. tests/conftest.py has
# `unshare` call it, in a mount and a process namespace of its own; all of it is gone with the command's end.
set -euo pipefail
mount --make-rprivate /
for place in /run /var/lib/containers /var/lib/fairlead /var/lib/kubelet /etc/cdi /etc/containers/networks; do
  mkdir -p "$place"
  mount -t tmpfs -o mode=755 tmpfs "$place"
done
mkdir -p /run/lock /run/netns
# Tests name what is the machine's after all (cgroups) by their pid, which would be the same in each namespace.
echo $((RANDOM % 30000 + 300)) >/proc/sys/kernel/ns_last_pid
# Not exec: process 1 is whom orphans come to, and bash reaps them.
"$@"
exit $?
