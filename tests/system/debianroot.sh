#!/usr/bin/env bash
# Run a command in a bare Debian root, on a copy of a checkout, and leave no trace: debianroot.sh ROOT CHECKOUT COMMAND…
# The root is covered by an overlay in memory and pivoted into, in namespaces of its own (mounts, processes, host name),
# so that podman finds a root that is a mount point and everything ends with the command. The network is the machine's,
# for package mirrors; `offline COMMAND…` inside runs with a loopback and nothing else. How this machine reaches its
# mirrors (names, certificates, proxies, caches of packages) is handed on.
set -euo pipefail
root=$1 checkout=$2
shift 2
functions=$(dirname "$(readlink -f "$0")")/overlayroot.sh
exec unshare --mount --pid --fork --kill-child --uts --propagation private bash -euc '
. "$1"
root=$2 checkout=$3
shift 3
cover "$root"
mount --rbind /sys "$n/sys"
mount --rbind /dev "$n/dev"
add_folders
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || cp -L "$file" "$n$file"
done
apt-config dump | grep -i "^Acquire::.*Proxy" > "$n/etc/apt/apt.conf.d/99machine" || true
for cache in /opt/wheels "$HOME/.cache/uv"; do
  [ -d "$cache" ] || continue
  mkdir -p "$n/$cache"
  mount --bind "$cache" "$n/$cache"
done
mkdir -p "$n/root/fairlead"
tar -C "$checkout" --null --ignore-failed-read -cf - -T <(git -C "$checkout" ls-files -z --cached --others --exclude-standard) 2>/dev/null |
  tar -C "$n/root/fairlead" -xf - --no-same-owner
printf "%s\n" "#!/bin/sh" "exec unshare --net sh -c \"ip link set lo up; exec \\\"\\\$@\\\"\" offline \"\$@\"" > "$n/usr/local/bin/offline"
chmod 755 "$n/usr/local/bin/offline"
hostname stranger
enter
cd /root/fairlead
exec "$@"' debianroot "$functions" "$root" "$checkout" env -i \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=xterm LANG=C.UTF-8 NO_COLOR=1 DEBIAN_FRONTEND=noninteractive \
  $(env | grep -E '^(PIP_|UV_|SSL_CERT_|REQUESTS_CA)[A-Z_]*=[^ ]*$|^[a-z]*_proxy=[^ ]*$' || true) "$@"
