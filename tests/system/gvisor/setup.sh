#!/usr/bin/env bash
# Builds gVisor's runsc and its shim for containerd (tests/cluster/tools/gvisor) once, some three minutes of a processor,
# into ~/.cache/fairlead/cluster. Called by tests/system/setup.sh; a second once that has been done.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.."

if ! command -v go >/dev/null; then
  echo "gvisor setup: no go command: the tests of gVisor will be skipped" >&2
  exit 0
fi
nice -n 19 .venv/bin/python -m tools.cluster build --only gvisor >/dev/null ||
  echo "gvisor setup: gVisor was not built: its tests will be skipped" >&2
