#!/usr/bin/env bash
# What the slow ring needs beside tools/setup.sh. For its virtual machine: an emulator and a compiler from Debian, a
# Debian kernel and Debian's systemd, which are unpacked and never installed. For a stranger's first hour: bare roots of
# Debian 12 and 13. Does nothing in a few milliseconds once that has been done.
set -euo pipefail

say() { echo "system setup: $*" >&2; }

# what shows it is there : package that brings it
needs="/usr/bin/mmdebstrap:mmdebstrap /usr/bin/qemu-system-x86_64:qemu-system-x86 /usr/bin/busybox:busybox-static /usr/sbin/runc:runc /usr/bin/crun:crun /usr/bin/ssh:openssh-client
  /usr/bin/gcc:gcc /usr/lib/x86_64-linux-gnu/libc.a:libc6-dev"
kernel="$HOME/.cache/fairlead/debian/linux-cloud"
# Process 1 of the virtual machine that is reloaded, where this machine has no systemd of its own; with its libraries.
systemd="$HOME/.cache/fairlead/debian/systemd"
roots="$HOME/.cache/fairlead/debian/root"
systemd_packages="systemd libsystemd-shared libacl1 libapparmor1 libaudit1 libblkid1 libcap-ng0 libcap2 libcrypt1
  libgcrypt20 libgpg-error0 libip4tc2 libkmod2 liblz4-1 liblzma5 libmount1 libpam0g libpcre2-8-0 libseccomp2 libselinux1
  libssl3 libzstd1"

[ "$(uname -m)" = x86_64 ] || { say "the virtual machine is an x86-64 one: its tests will be skipped"; exit 0; }
missing=()
for need in $needs; do
  [ -e "${need%%:*}" ] || missing+=("${need##*:}")
done
# A registry that asks for credentials, for tenancies' own.
registry="$HOME/.cache/fairlead/debian/registry"
# A newer emulator and a kernel of our own, for the machine of an HGX node.
hgx="$(dirname "$(readlink -f "$0")")/hgx/setup.sh"
# The kernel's NFS server and client in the virtual machine.
nfs="$HOME/.cache/fairlead/debian/nfs"
nfs_packages="nfs-kernel-server nfs-common libdevmapper1.02.1 libevent-2.1-7 libevent-core-2.1-7 libkeyutils1
  libnfsidmap1 libsqlite3-0 libtirpc3 libwrap0"
# libvirt's schema of a domain, and what checks XML against it.
libvirt="$HOME/.cache/fairlead/debian/libvirt"
# gVisor, for the tests of sandboxes.
gvisor="$(dirname "$(readlink -f "$0")")/gvisor/setup.sh"
# JupyterLab of PyPI, behind `fairlead open`.
jupyter="$HOME/.cache/fairlead/jupyter"
has_systemd() { [ -e /lib/systemd/systemd ] || [ -d "$systemd" ]; }
has_roots() { [ -d "$roots-bookworm" ] && [ -d "$roots-trixie" ]; }
[ ${#missing[@]} -eq 0 ] && [ -d "$kernel" ] && [ -d "$registry" ] && [ -d "$nfs" ] && [ -d "$libvirt" ] && [ -d "$jupyter" ] && has_systemd && has_roots && { "$gvisor"; exec "$hgx"; }
if [ "$(id -u)" -ne 0 ]; then
  say "missing: ${missing[*]}, a kernel in $kernel or systemd in $systemd. Run as root: their tests will be skipped"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }
apt update || say "package lists are as old as they were"
if [ ${#missing[@]} -gt 0 ]; then
  say "installing Debian packages: ${missing[*]}"
  apt install -y --no-install-recommends "${missing[@]}"
fi
unpack() { # folder, packages
  say "unpacking ${*:2}"
  mkdir -p "${1%/*}"
  part="$(mktemp -d "$1.XXXX")"
  trap 'rm -rf "$part"' EXIT
  if ! (cd "$part" && apt download "${@:2}" 2>/dev/null && for file in *.deb; do dpkg -x "$file" .; done && rm ./*.deb); then
    say "no ${*:2} to be had: its tests will be skipped"
    exit 0
  fi
  # Another run may have been quicker.
  mv -T "$part" "$1" 2>/dev/null || [ -d "$1" ]
}
if [ ! -d "$kernel" ]; then
  # The cloud flavour boots in two seconds without KVM, and has VFIO's modules.
  package="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')"
  [ -n "$package" ] || { say "no cloud kernel among this machine's packages: its tests will be skipped"; exit 0; }
  unpack "$kernel" "$package"
fi
# shellcheck disable=SC2086  # a list of packages
has_systemd || unpack "$systemd" $systemd_packages
[ -d "$registry" ] || unpack "$registry" docker-registry
[ -d "$libvirt" ] || unpack "$libvirt" libvirt0 libxml2-utils libxml2
# shellcheck disable=SC2086  # a list of packages
[ -d "$nfs" ] || unpack "$nfs" $nfs_packages
if [ ! -d "$jupyter" ]; then
  say "installing JupyterLab into $jupyter"
  # With the interpreter of the tests, which a container mounts beside it. Its scripts name where it was made.
  python="$("$(dirname "$(readlink -f "$0")")/../../.venv/bin/python" -c 'import sys; print(sys._base_executable)')"
  if ! { "$python" -m venv "$jupyter" && "$jupyter/bin/python" -m pip install -q --disable-pip-version-check 'jupyterlab==4.*'; }; then
    say "no JupyterLab to be had: its tests will be skipped"
    rm -rf "$jupyter"
  fi
fi
# Bare roots: Debian's own mirror as apt has it here, and nothing more than a checkout's README asks for.
mirror="$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(SITE)' |
  awk '$1 == "Debian" && $2 !~ /-/ {print $3; exit}')"
for suite in bookworm trixie; do
  [ ! -d "$roots-$suite" ] || continue
  [ -n "$mirror" ] || { say "apt has no mirror of Debian here: the tests of bare roots will be skipped"; break; }
  say "making a bare root of Debian $suite"
  mkdir -p "${roots%/*}"
  part="$(mktemp -d "$roots-$suite.XXXX")"
  trap 'rm -rf "$part"' EXIT
  if ! mmdebstrap --quiet --variant=minbase --include=ca-certificates,make \
    --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$part" "deb $mirror $suite main"; then
    say "no root of $suite to be had: its tests will be skipped"
    rm -rf "$part"
    continue
  fi
  chmod 755 "$part"
  mv -T "$part" "$roots-$suite" 2>/dev/null || [ -d "$roots-$suite" ]
done
"$gvisor"
"$hgx"
