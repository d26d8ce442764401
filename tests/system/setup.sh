#!/usr/bin/env bash
# What the slow ring's virtual machine needs beside tools/setup.sh: an emulator and a compiler from Debian, and a Debian
# kernel, which is unpacked and never installed. Does nothing in a few milliseconds once that has been done.
set -euo pipefail

say() { echo "system setup: $*" >&2; }

# what shows it is there : package that brings it
needs="/usr/bin/qemu-system-x86_64:qemu-system-x86 /usr/bin/busybox:busybox-static /usr/sbin/runc:runc /usr/bin/crun:crun
  /usr/bin/gcc:gcc /usr/lib/x86_64-linux-gnu/libc.a:libc6-dev"
kernel="$HOME/.cache/fairlead/debian/linux-cloud"

[ "$(uname -m)" = x86_64 ] || { say "the virtual machine is an x86-64 one: its tests will be skipped"; exit 0; }
missing=()
for need in $needs; do
  [ -e "${need%%:*}" ] || missing+=("${need##*:}")
done
[ ${#missing[@]} -eq 0 ] && [ -d "$kernel" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  say "missing: ${missing[*]} and a kernel in $kernel. Run as root: their tests will be skipped"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }
apt update || say "package lists are as old as they were"
if [ ${#missing[@]} -gt 0 ]; then
  say "installing Debian packages: ${missing[*]}"
  apt install -y --no-install-recommends "${missing[@]}"
fi
if [ ! -d "$kernel" ]; then
  # The cloud flavour boots in two seconds without KVM, and has VFIO's modules.
  package="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')"
  [ -n "$package" ] || { say "no cloud kernel among this machine's packages: its tests will be skipped"; exit 0; }
  say "unpacking $package"
  mkdir -p "${kernel%/*}"
  part="$(mktemp -d "$kernel.XXXX")"
  trap 'rm -rf "$part"' EXIT
  if ! (cd "$part" && apt download "$package" 2>/dev/null && dpkg -x ./*.deb . && rm ./*.deb); then
    say "no $package to be had: its tests will be skipped"
    exit 0
  fi
  # Another run may have been quicker.
  mv -T "$part" "$kernel" 2>/dev/null || [ -d "$kernel" ]
fi
