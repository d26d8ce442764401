#!/usr/bin/env bash
# Prepares a cluster beside tools/setup.sh: Debian packages, and the programs built from tests/cluster/tools (once,
# about eight minutes on two idle cores). Well under a second once that has been done.
#   tests/cluster/setup.sh [VERSION...]         what the cluster ring needs, other engines and Fairlead's image too
#   tests/cluster/setup.sh --play [VERSION...]  what a cluster needs, and nothing else
# VERSION: Kubernetes minor versions to build; none: the default one.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "cluster setup: $*" >&2; }

ring=--ring
[ "${1:-}" != --play ] || { ring=; shift; }

# what shows it is there : package that brings it
needs="/usr/lib/cni/bridge:containernetworking-plugins /usr/bin/openssl:openssl /usr/sbin/iptables:iptables
  /usr/sbin/runc:runc /usr/bin/busybox:busybox-static /usr/bin/nsenter:util-linux /usr/bin/podman:podman
  /usr/bin/conmon:conmon /usr/bin/gcc:gcc /usr/include/stdio.h:libc6-dev"

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
  apt-get update -qq -o DPkg::Lock::Timeout=300 >/dev/null
  apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends "${missing[@]}" >/dev/null
fi

# What Debian 12 ships and no Go module can be built to: unpacked, never installed, so no service of it starts.
unpack() { # package, its releases as awk's pattern, folder
  local package="$1" releases="$2" old="$HOME/.cache/fairlead/debian/$3" version part
  [ ! -d "$old" ] || return 0
  version="$(apt-cache madison "$package" 2>/dev/null | awk -v wanted="$releases" '$3 ~ wanted {print $3; exit}' || true)"
  if [ -z "$version" ]; then
    say "no $3 among this machine's packages: its tests will be skipped"
    return 0
  fi
  say "unpacking $package $version"
  mkdir -p "${old%/*}"
  part="$(mktemp -d "$old.XXXX")"
  if (cd "$part" && apt-get download -qq "$package=$version" >/dev/null 2>&1 && dpkg -x ./*.deb . && rm ./*.deb); then
    mv "$part" "$old"
  else
    say "no $package $version: its tests will be skipped"
    rm -rf "$part"
  fi
}
if [ -n "$ring" ]; then
  unpack containerd '^1[.]6[.]' containerd-1.6
  unpack docker.io '^20[.]10[.]' docker-20.10
  unpack prometheus '^2[.]' prometheus
fi

# What they print on stdout is for programs; how far they are, they report on stderr.
[ $# -gt 0 ] || set -- ""
for version in "$@"; do
  .venv/bin/python -m tools.cluster build $ring ${version:+--version "$version"} >/dev/null
done
[ -z "$ring" ] || .venv/bin/python -m tools.image build >/dev/null
