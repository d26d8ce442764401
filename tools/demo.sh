#!/usr/bin/env bash
# The whole path in one command: Fairlead starts on this machine, the articles' pod asks for two GPUs, its output and its
# trace are shown, everything is stopped. Real GPUs are used where there are any; simulated ones otherwise, said plainly.
# Where another Fairlead has this machine's real GPUs, the demo is shown on that one; beside one that simulates, the demo
# keeps its own simulated GPUs to itself. Settings of the caller's environment are not the demo's.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
manifest=examples/articles/gpu-pod.yaml
image=docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04
claim=examples/articles/dra-workload-corrected.yaml
claim_image=docker.io/pytorch/pytorch:latest

unset "${!FAIRLEAD_@}"
folder=$(mktemp -d /tmp/fairlead-demo.XXXXXX)
export FAIRLEAD_STATE_FOLDER=$folder/state FAIRLEAD_STATE_RUN=$folder/run FAIRLEAD_LOG_LEVEL=warning
made_images=()
has_claims=
service=
guest=
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\033[1m' plain=$'\033[0m'
fi

finish() {
  status=$?
  trap - EXIT
  if [ -n "$service" ] && kill -0 "$service" 2>/dev/null; then
    fairlead down >/dev/null 2>&1 || kill "$service" 2>/dev/null || true
    wait "$service" 2>/dev/null || true
  fi
  [ -z "$guest" ] || fairlead rm gpu-pod >/dev/null 2>&1 || true
  for made in "${made_images[@]}"; do
    fairlead image rm "$made" >/dev/null 2>&1 || podman rmi -f "$made" >/dev/null 2>&1 || true
  done
  [ $status -eq 0 ] || cat "$folder/up.log" >&2 || true
  rm -rf "$folder"
  exit $status
}
trap finish EXIT

say() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; }

show() { echo; say "$*"; "$@"; }

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

simulate() {
  echo "$1 This demo runs on SIMULATED silicon: 8 x H100, no work is done on them."
  echo "The device plugin gives six of them away, ResourceClaims the last two:"
  printf 'version: v1\nfairlead: {claims: {devices: [6, 7]}}\n' | tee "$folder/doors.yaml" | sed 's/^/    /'
  echo; say "fairlead up --simulate h100x8 --plugin-config-file doors.yaml &"
  start --simulate h100x8 --plugin-config-file "$folder/doors.yaml"
  has_claims=yes
}

beside() { # the address of the other service, as the refusal names it
  echo "Another Fairlead runs here: $(sed -n 's/.* is in use by another fairlead (\(.*\))$/\1/p' "$folder/up.log" | head -1)."
  if [ -n "$1" ] && found=$(fairlead --url "$1" status -o json 2>/dev/null) &&
    ! grep -q '"is_simulated": *true' <<<"$found"; then
    echo "It has this machine's GPUs, so the demo is shown on it."
    export FAIRLEAD_URL=$1
    guest=yes
  else
    simulate "It stays as it is."
  fi
}

code=0
say "fairlead up &"
start || code=$?
if [ "$code" -ne 0 ]; then
  if grep -q 'no GPU was found' "$folder/up.log"; then
    simulate "No GPU was found on this machine."
  elif [ "$code" -eq 4 ]; then
    beside "$(sed -n 's/.*fairlead --url \(http+unix:[^ ]*\) status.*/\1/p' "$folder/up.log" | head -1)"
  else
    exit "$code"
  fi
fi

stand_in() { # no registry is needed: some two megabytes under the name that the article uses, removed at the end
  ! podman image exists "$1" >/dev/null 2>&1 || return 0
  echo "(image $1 is not here: a local stand-in is imported under its name)"
  fairlead image demo "$1" >/dev/null
  made_images+=("$1")
}

stand_in "$image"

show fairlead gpus
echo; echo "The articles' pod ($manifest):"; sed -n '/^apiVersion/,$p' "$manifest" | sed 's/^/    /'
show fairlead run -f "$manifest"
show fairlead trace gpu-pod
if [ -n "$has_claims" ]; then
  stand_in "$claim_image"
  echo; echo "The article's claim, in the version that is served ($claim):"; sed -n '/^apiVersion/,$p' "$claim" | sed 's/^/    /'
  show fairlead run -f "$claim"
  show fairlead trace dra-workload
fi
[ -n "$guest" ] || show fairlead down
