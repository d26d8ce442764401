#!/bin/sh
# Run a command as another user, who sees folders that would be closed to everybody but root (a checkout in /root).
# usage: asuser.sh UID GROUPS FOLDERS COMMAND...    FOLDERS: absolute paths to be passable, joined by colons
# The modes are changed on a copy that nobody else sees: a mount namespace with an overlay over each such folder.
set -eu
if [ "${ASUSER_INSIDE:-}" = "" ]; then
	exec env ASUSER_INSIDE=1 unshare --mount "$0" "$@"
fi
unset ASUSER_INSIDE
uid=$1 groups=$2 folders=$3
shift 3
layers=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$layers"
number=0
IFS=:
for folder in $folders; do
	number=$((number + 1))
	mkdir -p "$layers/$number/upper" "$layers/$number/work"
	mount -t overlay -o "lowerdir=$folder,upperdir=$layers/$number/upper,workdir=$layers/$number/work" overlay "$folder"
	chmod o+x "$folder"
done
unset IFS
# The layers live on in the mounts; their own folder goes now.
umount -l "$layers"
rmdir "$layers"
exec setpriv --reuid "$uid" --regid "$uid" --groups "$groups" -- "$@"
