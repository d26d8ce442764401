#!/usr/bin/env bash
# The journey in one command: Fairlead starts on this machine, the articles' pod asks for two GPUs, its output and its
# trace are shown, everything is stopped. Real GPUs are used where there are any; simulated ones otherwise, said plainly.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
manifest=examples/articles/gpu-pod.yaml
image=docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04

folder=$(mktemp -d /tmp/fairlead-demo.XXXXXX)
export FAIRLEAD_STATE_FOLDER=$folder/state FAIRLEAD_STATE_RUN=$folder/run FAIRLEAD_LOG_LEVEL=warning
made_image=
service=

finish() {
  status=$?
  trap - EXIT
  if [ -n "$service" ] && kill -0 "$service" 2>/dev/null; then
    fairlead down >/dev/null 2>&1 || kill "$service" 2>/dev/null || true
    wait "$service" 2>/dev/null || true
  fi
  [ -z "$made_image" ] || fairlead image rm "$image" >/dev/null 2>&1 || podman rmi -f "$image" >/dev/null 2>&1 || true
  [ $status -eq 0 ] || cat "$folder/up.log" >&2 || true
  rm -rf "$folder"
  exit $status
}
trap finish EXIT

show() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

start() {
  fairlead up "$@" >"$folder/up.log" 2>&1 &
  service=$!
  local tries=0
  while kill -0 "$service" 2>/dev/null; do
    ! grep -q ' is up on ' "$folder/up.log" || { grep -v '^{' "$folder/up.log"; return 0; }
    [ $((tries += 1)) -lt 600 ] || { echo "fairlead up was not ready within 30 s" >&2; return 6; }
    sleep 0.05
  done
  wait "$service" || return $?
}

code=0
printf '\033[1m$ fairlead up &\033[0m\n'
start || code=$?
if [ "$code" -ne 0 ]; then
  grep -q 'no GPU was found' "$folder/up.log" || exit "$code"
  echo "No GPU was found on this machine, so this demo runs on SIMULATED silicon: 8 x H100, no work is done on them."
  printf '\n\033[1m$ fairlead up --simulate h100x8 &\033[0m\n'
  start --simulate h100x8
fi

if ! podman image exists "$image"; then
  # No registry is needed: a stand-in of some two megabytes under the name the article uses, removed at the end.
  echo "(image $image is not here: a local stand-in is imported under its name)"
  fairlead image demo "$image" >/dev/null
  made_image=yes
fi

show fairlead gpus
echo; echo "The articles' pod ($manifest):"; sed -n '/^apiVersion/,$p' "$manifest" | sed 's/^/    /'
show fairlead run -f "$manifest"
show fairlead trace gpu-pod
show fairlead down
