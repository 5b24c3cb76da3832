#!/bin/sh
# Rebuilds this folder from a stored run: sh docs/example/build.sh [results/fp8_vs_fp16/RUN]
# Needs chromium for the picture of the first screen.
set -eu
cd "$(dirname "$0")/../.."
run=${1:-fp8_vs_fp16}
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
if ! command -v chromium >/dev/null; then
	echo 'this needs chromium, which takes the picture; nothing was changed' >&2
	exit 1
fi
if [ ! -x .venv/bin/kvbench ]; then
	echo 'kvbench is not set up here; next: make setup' >&2
	exit 1
fi
# Not in one pipe: where the report fails, its message is the last word.
told=$(.venv/bin/kvbench report "$run" --json)
page=$(printf '%s' "$told" | .venv/bin/python -c \
	'import json, sys; print(json.load(sys.stdin)["report"])')
rm -f docs/example/*.png docs/example/*.svg docs/example/report.html
cp "$page" "$(dirname "$page")"/*.png "$(dirname "$page")"/*.svg docs/example/
chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
	--user-data-dir="$profile" --window-size=1100,1180 --hide-scrollbars \
	--force-device-scale-factor=1 --screenshot="$PWD/docs/example/first-screen.png" \
	"file://$PWD/docs/example/report.html"
