#!/bin/busybox sh
# Process 1 of a tenant's machine: says what each GPU tells that it was handed, and leaves bytes behind in its memory.
# Words of the kernel's command line: `leave=WORD` (hexadecimal) is what it writes, `stay` keeps it running.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
leave=$(sed -n 's/.*leave=\([^ ]*\).*/\1/p' /proc/cmdline)
word() { printf '%d' "$(devmem $(($1 + $2)) 32)"; }
for path in /sys/bus/pci/devices/*; do
  [ "$(cat "$path/vendor") $(cat "$path/class")" = "0x10de 0x030200" ] || continue
  echo 1 >"$path/enable"
  registers=$(sed -n '1s/ .*//p' "$path/resource")
  memory=$(sed -n '3s/ .*//p' "$path/resource")
  pins=$(($(word "$registers" 0x21224) >> 14 & 1 | ($(word "$registers" 0x21244) >> 14 & 1) << 1 | ($(word "$registers" 0x21248) >> 14 & 1) << 2))
  echo "TENANT gpu=${path##*/} device=$(cat "$path/device") boot0=$(devmem "$registers" 32) pins=$pins found=$(devmem "$memory" 32)"
  [ -z "$leave" ] || devmem "$memory" 32 "0x$leave"
done
echo "TENANT done"
while grep -q stay /proc/cmdline; do sleep 60; done
poweroff -f
