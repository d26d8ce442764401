# Functions of debianroot.sh and systemdroot.sh, for a mount namespace of their own: an overlay in memory over a root.

cover() { # ROOT: lay the overlay, with a /proc; $n is its path from then on
  local t=/mnt # nothing is left of it: it ends with the namespace
  mount -t tmpfs tmpfs "$t"
  mkdir "$t/upper" "$t/work" "$t/new"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$t/upper,workdir=$t/work" "$t/new"
  n=$t/new
  mount -t proc proc "$n/proc"
}

add_folders() { # what podman and Fairlead write lies in memory, on no overlay
  local folder
  for folder in run tmp var/lib/containers var/lib/fairlead; do
    mkdir -p "$n/$folder"
    mount -t tmpfs tmpfs "$n/$folder"
  done
  chmod 1777 "$n/tmp"
}

enter() { # make the overlay the root
  mkdir -p "$n/old"
  cd "$n"
  pivot_root . old
  umount -l old
}
