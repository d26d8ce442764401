#!/bin/busybox sh
# Process 1 of a verifier's machine: a stand-in for an image with NVIDIA's driver. It reads registers of the GPUs that it
# was handed, one of which plays the version of the firmware, and reports as `fairlead vfio guest-report` would.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
nonce=$(sed -n 's/.*fairlead.nonce=\([^ ]*\).*/\1/p' /proc/cmdline)
word() { printf '%d' "$(devmem $(($1 + $2)) 32)"; }
gpus=
for path in /sys/bus/pci/devices/*; do
  [ "$(cat "$path/vendor") $(cat "$path/class")" = "0x10de 0x030200" ] || continue
  echo 1 >"$path/enable"
  registers=$(sed -n '1s/ .*//p' "$path/resource")
  device=$(cat "$path/device")
  case "$device" in
    0x2901) module=$(word "$registers" 0x21284) ;; # a Blackwell GPU's firmware says it
    *)
      pins=$(($(word "$registers" 0x21224) >> 14 & 1 | ($(word "$registers" 0x21244) >> 14 & 1) << 1 | ($(word "$registers" 0x21248) >> 14 & 1) << 2))
      module=$(((pins ^ 4) + 1))
      ;;
  esac
  firmware=$(devmem $((registers + 0x21280)) 32)
  gpus="$gpus${gpus:+,}{\"pci\":\"${path##*/}\",\"device\":\"${device#0x}10de\",\"vbios\":\"$firmware\",\"inforom\":\"G520\""
  gpus="$gpus,\"module\":$module,\"mig_mode\":false}"
done
[ "$(printf '%d' "$firmware")" != 0 ] || while true; do sleep 60; done # firmware that hangs its driver
port=$(grep -l org.fairlead.report /sys/class/virtio-ports/*/name)
port=${port#/sys/class/virtio-ports/}
echo "{\"version\":\"fairlead.guest-report/1\",\"nonce\":\"$nonce\",\"driver\":\"stand-in\",\"gpus\":[$gpus]}" >"/dev/${port%/name}"
exec sleep 100000
