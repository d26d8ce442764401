"""Writes the part of podman's handler that puts several containers into one sandbox of gVisor.

runsc starts a container in an existing sandbox where two annotations of its runtime spec say so. podman expects more of
a runtime than runsc does for such a container, and the handler gives it:

- the process that podman and conmon wait for. runsc writes the sandbox's pid into the pid file, which is not conmon's
  child and outlives the container. The handler writes the pid of a watcher, which waits for the container and ends with
  its exit code.
- standard input and output. runsc takes those of `runsc start`, which podman calls itself; conmon's are those of
  `runsc create`. The watcher, begun during `create`, calls `runsc start`.
- a container that is held before its first instruction with its mounts and device nodes made. runsc makes both during
  `start`. The watcher calls that at once, and a hook of the runtime spec (createContainer) blocks in the gofer, after
  its mounts and nodes, until podman asks for the start.

Which sandbox is joined is said by a file in the bundle, which is podman's and root's alone: annotations of an image
never count, and the handler adds its own after it has looked for those.
Source: gVisor runsc/container/container.go (New, startImpl, SandboxPid), runsc/cmd/sandboxsetup/gofer_mount.go
(SetupRootFS), runsc/specutils/cri.go; conmon(8).
"""

from __future__ import annotations

import shlex
from typing import Final

from fairlead.model.container import sandboxfile

_WATCH: Final = "fairlead-watch"
_HOLD: Final = "fairlead-hold"
_PATIENCE_S: Final = 100
_PLACES: Final = "/run/fairlead-gvisor"
_EDIT: Final = """\
import json, os, sys
path, sandbox, program, place = sys.argv[1:]
with open(path) as file:
    spec = json.load(file)
marks = {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": sandbox}
spec["annotations"] = {**(spec.get("annotations") or {}), **marks}
spec["hooks"] = spec.get("hooks") or {}
hold = {"path": program, "args": [program, "%(hold)s", place]}
spec["hooks"]["createContainer"] = [*(spec["hooks"].get("createContainer") or []), hold]
with open(path + ".part", "w") as file:
    json.dump(spec, file)
os.replace(path + ".part", path)
linux = spec["linux"]
(network,) = [one["path"] for one in linux["namespaces"] if one["type"] == "network"]
print((linux.get("uidMappings") or [{"hostID": 0}])[0]["hostID"], network)
"""
_TEXT: Final = r"""
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
gvisor() { %(runsc)s "$@"; }
case $1 in
%(hold)s)
  # In the gofer, which has mounts and nodes by now. Both ends are opened, so that no word is lost and nobody waits.
  cat >/dev/null
  exec 8<>"$2/go"
  echo held 1<>"$2/held"
  read -r word <&8 && [ "$word" = go ]
  exit ;;
%(watch)s)
  exec 9>"$3/lock" && flock 9 || { echo failed 1<>"$3/held"; exit 125; }
  gvisor --log="$3/log" start "$2" 9>&-
  code=$?
  echo "$code" >"$3/status.part" && mv "$3/status.part" "$3/status"
  echo failed 1<>"$3/held"
  exec 9>&-
  [ "$code" = 0 ] || exit "$code"
  # The sandbox may end first: of a container in it nothing more is known.
  said=$(gvisor wait "$2" 2>/dev/null) || exit 137
  code=${said##*exitStatus\":}
  exit "${code%%%%[!0-9]*}" ;;
esac
verb= id= file= before=
for word; do
  [ "$before" = --pid-file ] && file=$word
  case $word in --pid-file=*) file=${word#--pid-file=} ;; esac
  case $word in create | start | state | delete) [ "$verb" ] || verb=$word ;; esac
  before=$word id=$word
done
case $id in */* | .*) id=- ;; esac
place=%(places)s/$id
if [ "$verb" = create ] && [ -n "$bundle" ] && [ -s "$bundle/%(joins)s" ]; then
  read -r sandbox <"$bundle/%(joins)s"
  rm -rf "$place"
  mkdir -p "$place" && chmod 0711 "$place" && mkfifo -m 0600 "$place/go" "$place/held" || exit 1
  # Others may pass the folder, for the gofer's sake: what runsc says is not theirs to read.
  (umask 077 && : >"$place/log")
  said=$(%(python)s -IS -c %(edit)s "$bundle/config.json" "$sandbox" "$0" "$place") || exit 1
  # The gofer's root may be another user of the host.
  chown "${said%%%% *}" "$place/go" "$place/held" || exit 1
  left=$# drop=
  while [ "$left" -gt 0 ]; do
    word=$1 left=$((left - 1))
    shift
    case $drop$word in
      --pid-file) drop=drop ;;
      drop*) drop= ;;
      --pid-file=*) ;;
      *) set -- "$@" "$word" ;;
    esac
  done
  # A command in the background has no standard input but one that is named.
  exec 7<&0 8<>"$place/held"
  gvisor "$@" 7<&- 8<&- || { code=$?; rm -rf "$place"; exit "$code"; }
  # In the pod's network: who asks for the network of the container's process must never be led into the host's.
  setsid nsenter --net="${said#* }" "$0" %(watch)s "$id" "$place" <&7 7<&- 8<&- &
  watcher=$!
  echo "$watcher" >"$place/pid"
  # Its watcher may be killed and say nothing. podman's own patience is 120 s.
  word=$(timeout %(patience)s head -n 1 <&8)
  if [ "$word" != held ]; then
    if [ -s "$place/log" ]; then
      cat "$place/log" >&2
    else
      echo "its watcher said ${word:-nothing within %(patience)s s}" >&2
    fi
    gvisor delete --force "$id"
    rm -rf "$place"
    exit 1
  fi
  echo "$watcher" >"$file"
  exit
fi
if [ "$verb" = create ] && [ -n "$bundle" ] && [ -e "$bundle/%(passes)s" ]; then
  set -- --nvproxy "$@"
fi
if [ -p "$place/go" ]; then
  case $verb in
  start)
    echo go 1<>"$place/go"
    flock -s "$place/lock" true
    code=1
    read -r code <"$place/status"
    [ "$code" = 0 ] || cat "$place/log" >&2
    exit "$code" ;;
  state)
    # runsc would wait for the lock that its start has.
    if [ ! -e "$place/status" ]; then
      read -r watcher <"$place/pid"
      printf '{"ociVersion":"1.0.2","id":"%%s","status":"created","pid":%%s,"bundle":""}\n' "$id" "$watcher"
      exit
    fi ;;
  delete)
    [ -e "$place/status" ] || echo stop 1<>"$place/go"
    flock -w 20 -s "$place/lock" true
    gvisor "$@"
    code=$?
    rm -rf "$place"
    exit "$code" ;;
  esac
fi
"""


def text(line: str, python: str) -> str:
    """Return the part of the handler that comes before `exec`, after the bundle was looked for and its annotations.

    Args: line: shell words that start runsc with the operator's options.   python: path of an interpreter.
    """
    values = {
        "hold": _HOLD,
        "watch": _WATCH,
        "joins": sandboxfile.JOINS,
        "passes": sandboxfile.PASSES,
        "places": _PLACES,
        "runsc": line,
        "python": shlex.quote(python),
        "patience": _PATIENCE_S,
    }
    return _TEXT % {**values, "edit": shlex.quote(_EDIT % values)}
