#!/usr/bin/env bash
# What the machine of an HGX node is made of (tests/system/hgx): QEMU 11 from Debian sid, for its vfio-user, libvirt of the
# same Debian, and a kernel of our configuration from Debian's source, for iommufd, which no kernel of Debian's has. All
# are unpacked, none is installed. Called by tests/system/setup.sh; a few milliseconds once all is there.
set -euo pipefail

say() { echo "hgx setup: $*" >&2; }

here="$(dirname "$(readlink -f "$0")")"
cache="$HOME/.cache/fairlead/debian"
emulator="$cache/qemu-11"
digest="$(sha256sum "$here/kernel.config")"
kernel="$cache/linux-hgx-${digest:0:12}"
libvirt="$cache/libvirt-12"
[ ! -d "$emulator" ] || [ ! -d "$kernel" ] || [ ! -d "$libvirt" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
  say "no $emulator, no $kernel or no $libvirt. Run as root: their tests will be skipped"
  exit 0
fi
mkdir -p "$cache"
# One at a time: the kernel takes minutes.
exec 9>"$cache/hgx.lock"
flock 9

mirror="$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(SITE)' |
  awk '$1 == "Debian" && $2 !~ /-/ {print $3; exit}')"
[ -n "$mirror" ] || { say "apt has no mirror of Debian here: the tests of HGX nodes will be skipped"; exit 0; }
part="$(mktemp -d "$cache/hgx.XXXX")"
trap 'rm -rf "$part"' EXIT
extract() { # package, folder
  mmdebstrap --quiet --variant=extract --include="$1" --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='APT::Install-Recommends "false"' sid "$2" "deb $mirror sid main" >"$part/log" 2>&1
}

if [ ! -d "$emulator" ]; then
  say "unpacking qemu-system-x86 of Debian sid"
  extract qemu-system-x86 "$part/all" || { say "no QEMU to be had: the tests of HGX nodes will be skipped"; exit 0; }
  # The one program with its libraries and firmware, to be run by its own dynamic loader.
  mkdir -p "$part/qemu/usr/bin" "$part/qemu/usr/lib" "$part/qemu/usr/share"
  mv "$part/all/usr/bin/qemu-system-x86_64" "$part/qemu/usr/bin"
  mv "$part/all/usr/lib/x86_64-linux-gnu" "$part/qemu/usr/lib"
  mv "$part/all/usr/lib64" "$part/qemu/usr"
  mv "$part/all/usr/share/qemu" "$part/all/usr/share/seabios" "$part/qemu/usr/share"
  if ! "$part/qemu/usr/lib64/ld-linux-x86-64.so.2" --library-path "$part/qemu/usr/lib/x86_64-linux-gnu" \
    "$part/qemu/usr/bin/qemu-system-x86_64" -device vfio-user-pci,help >"$part/log" 2>&1; then
    say "QEMU of Debian sid has no vfio-user-pci here: the tests of HGX nodes will be skipped"
    exit 0
  fi
  chmod 755 "$part/qemu"
  mv -T "$part/qemu" "$emulator"
fi

if [ ! -d "$libvirt" ]; then
  say "unpacking libvirt of Debian sid"
  if extract libvirt-daemon-driver-qemu,qemu-utils,ovmf,systemd-boot-efi "$part/all-libvirt"; then
    # `virt-qemu-run` needs no daemon: the driver, its libraries, what it knows of processors, and firmware with the files
    # by which a host chooses among it. It is laid over QEMU's folder and looks at paths of its own: it runs in a chroot.
    # The stub makes a program for UEFI of a kernel and its initramfs, as the disk of a machine boots it.
    own="$part/all-libvirt/usr" libraries=lib/x86_64-linux-gnu
    mkdir -p "$part/libvirt/usr"/{bin,$libraries/libvirt,share/qemu}
    mv "$own/bin/virt-qemu-run" "$own/bin/qemu-img" "$part/libvirt/usr/bin"
    mv "$own/$libraries/libvirt/connection-driver" "$part/libvirt/usr/$libraries/libvirt"
    mv "$own/share/libvirt" "$own/share/OVMF" "$own/lib/systemd/boot/efi/linuxx64.efi.stub" "$part/libvirt/usr/share"
    mv "$own/share/qemu/firmware" "$part/libvirt/usr/share/qemu"
    for program in "$part"/libvirt/usr/bin/* "$part/libvirt/usr/$libraries/libvirt/connection-driver"/*; do
      "$own/lib64/ld-linux-x86-64.so.2" --library-path "$own/$libraries" --list "$program"
    done | awk '/=> \// {print $3}' | sort -u | xargs cp -Lt "$part/libvirt/usr/$libraries"
    mv "$own/lib64" "$part/libvirt/usr"
    cp -L --remove-destination "$own/$libraries/ld-linux-x86-64.so.2" "$part/libvirt/usr/lib64"
    chmod 755 "$part/libvirt"
    mv -T "$part/libvirt" "$libvirt"
  else
    say "no libvirt of Debian sid to be had: its test will be skipped"
  fi
fi

if [ ! -d "$kernel" ]; then
  needs="/usr/bin/flex:flex /usr/bin/bison:bison /usr/bin/bc:bc /usr/bin/make:make /usr/bin/xz:xz-utils
    /usr/include/libelf.h:libelf-dev /usr/bin/gcc:gcc /usr/lib/x86_64-linux-gnu/libc.a:libc6-dev"
  missing=()
  for need in $needs; do
    [ -e "${need%%:*}" ] || missing+=("${need##*:}")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    say "installing Debian packages: ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
      "${missing[@]}" >/dev/null
  fi
  say "unpacking linux-source of Debian sid"
  extract linux-source "$part/source" || { say "no source to be had: the tests of HGX nodes will be skipped"; exit 0; }
  mkdir "$part/linux" "$part/kernel"
  tar -C "$part/linux" --strip-components 1 -xf "$part"/source/usr/src/linux-source-*.tar.xz
  cd "$part/linux"
  make -s tinyconfig >"$part/log" 2>&1
  cat "$here/kernel.config" >>.config
  make -s olddefconfig >>"$part/log" 2>&1
  # An option whose needs have changed is dropped in silence.
  while read -r line; do
    case "$line" in
      "# CONFIG_"*" is not set") name="${line#\# }"; ! grep -q "^${name% is not set}=" .config ;;
      CONFIG_*) grep -qxF "$line" .config ;;
    esac || { say "$(make -s kernelversion) does not take $line: mend $here/kernel.config"; exit 1; }
  done <"$here/kernel.config"
  version="$(make -s kernelversion)"
  say "building Linux $version: some 16 minutes of a processor, once ($(nproc) at hand)"
  if ! nice -n 10 make -s -j"$(nproc)" vmlinux >>"$part/log" 2>&1; then
    tail -n 20 "$part/log" >&2
    say "Linux $version was not built: the tests of HGX nodes will be skipped"
    exit 0
  fi
  strip -s -o "$part/kernel/vmlinux" vmlinux
  cp .config "$part/kernel/config"
  echo "$version" >"$part/kernel/version"
  chmod 755 "$part/kernel"
  mv -T "$part/kernel" "$kernel"
fi
