#!/bin/sh
# Go on with a run that ended early, from its last complete round: ./resume.sh runs/flower
cd "$(dirname "$0")" && . ./environment || exit 1
if [ $# = 0 ] || [ ! -d "$1" ]; then echo "resume.sh: usage: ./resume.sh RUN_FOLDER, such as runs/flower" >&2; exit 2; fi
folder="$1"; shift
exec ./run.sh --run-config "resume='$folder'" "$@"
