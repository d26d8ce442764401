#!/usr/bin/env bash
# Run a command in a bare Debian root, on a copy of a checkout, and leave no trace: debianroot.sh ROOT CHECKOUT COMMAND…
# The root is covered by an overlay in memory and pivoted into, in namespaces of its own (mounts, processes, host name),
# so that podman finds a root that is a mount point and everything ends with the command. The network is the machine's,
# for package mirrors; `offline COMMAND…` inside runs with a loopback and nothing else. How this machine reaches its
# mirrors (names, certificates, proxies, caches of packages) is handed on.
set -euo pipefail
root=$1 checkout=$2
shift 2
exec unshare --mount --pid --fork --kill-child --uts --propagation private bash -euc '
root=$1 checkout=$2
shift 2
t=/mnt # in a mount namespace of our own: nothing is left of it
mount -t tmpfs tmpfs "$t"
mkdir "$t/upper" "$t/work" "$t/new"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$t/upper,workdir=$t/work" "$t/new"
n=$t/new
mount -t proc proc "$n/proc"
mount --rbind /sys "$n/sys"
mount --rbind /dev "$n/dev"
for folder in run tmp var/lib/containers var/lib/fairlead; do
  mkdir -p "$n/$folder"
  mount -t tmpfs tmpfs "$n/$folder"
done
chmod 1777 "$n/tmp"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp -L "$file" "$n$file"
done
apt-config dump | grep -i "^Acquire::.*Proxy" > "$n/etc/apt/apt.conf.d/99machine" || true
for cache in /opt/wheels "$HOME/.cache/uv"; do
  [ -d "$cache" ] || continue
  mkdir -p "$n/$cache"
  mount --bind "$cache" "$n/$cache"
done
mkdir -p "$n/root/fairlead" "$n/old"
tar -C "$checkout" --null --ignore-failed-read -cf - -T <(git -C "$checkout" ls-files -z --cached --others --exclude-standard) 2>/dev/null |
  tar -C "$n/root/fairlead" -xf - --no-same-owner
printf "%s\n" "#!/bin/sh" "exec unshare --net sh -c \"ip link set lo up; exec \\\"\\\$@\\\"\" offline \"\$@\"" > "$n/usr/local/bin/offline"
chmod 755 "$n/usr/local/bin/offline"
hostname stranger
cd "$n"
pivot_root . old
umount -l old
cd /root/fairlead
exec "$@"' debianroot "$root" "$checkout" env -i \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=xterm LANG=C.UTF-8 NO_COLOR=1 DEBIAN_FRONTEND=noninteractive \
  $(env | grep -E '^(PIP_|UV_|SSL_CERT_|REQUESTS_CA)[A-Z_]*=[^ ]*$|^[a-z]*_proxy=[^ ]*$' || true) "$@"
