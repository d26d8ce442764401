#!/usr/bin/env bash
# What the cluster ring needs beside tools/setup.sh: Debian packages, a Go tool chain, and the programs built from
# tests/cluster/tools (once, minutes), and Fairlead's image. Well under a second once that has been done.
#   tests/cluster/setup.sh [VERSION...]      Kubernetes minor versions to build; none: the default one
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "cluster setup: $*" >&2; }

# what shows it is there : package that brings it
needs="/usr/lib/cni/bridge:containernetworking-plugins /usr/bin/openssl:openssl /usr/sbin/iptables:iptables
  /usr/sbin/runc:runc /usr/bin/busybox:busybox-static /usr/bin/nsenter:util-linux"

missing=()
for need in $needs; do
  [ -e "${need%%:*}" ] || missing+=("${need##*:}")
done
command -v ip >/dev/null 2>&1 || missing+=(iproute2)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    say "missing: ${missing[*]}. Run as root: apt-get install --no-install-recommends ${missing[*]}"
    exit 6
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# containerd 1.6 as Debian 12 ships it: its modules do not fit together outside its own vendor folder.
old="$HOME/.cache/fairlead/debian/containerd-1.6"
if [ ! -d "$old" ]; then
  version="$(apt-cache madison containerd 2>/dev/null | awk '$3 ~ /^1\.6\./ {print $3; exit}' || true)"
  if [ -n "$version" ]; then
    say "unpacking containerd $version"
    mkdir -p "${old%/*}"
    part="$(mktemp -d "$old.XXXX")"
    if (cd "$part" && apt-get download -qq "containerd=$version" >/dev/null 2>&1 && dpkg -x ./*.deb . && rm ./*.deb); then
      mv "$part" "$old"
    else
      say "no containerd $version: its tests will be skipped"
      rm -rf "$part"
    fi
  else
    say "no containerd 1.6 among this machine's packages: its tests will be skipped"
  fi
fi

[ $# -gt 0 ] || set -- ""
for version in "$@"; do
  .venv/bin/python -m tools.cluster build --older ${version:+--version "$version"} >/dev/null
done
.venv/bin/python -m tools.image build >/dev/null
