#!/bin/sh
# Finds a Python that kvbench can use and hands over to environment.py, which builds .venv.
# It is sh because a machine's first Python may be absent or too old to read a newer one's syntax.
# PYTHON=/path/to/python on the command line or in the environment goes before all others.

here=$(cd "$(dirname "$0")" && pwd) || exit 1

# A version manager's stub exists without its Python, so a candidate counts only once it has run.
suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

# The Python that .venv was made with stays the one it is made with, however it was chosen.
made_with=$(sed -n 's/^executable = //p' "$here/../.venv/pyvenv.cfg" 2>/dev/null)

tried=
for candidate in ${PYTHON:+"$PYTHON"} ${made_with:+"$made_with"} python3 python3.11 python3.12 python3.13 python; do
    if suits "$candidate"; then
        exec "$candidate" "$here/environment.py" "$@"
    fi
    if version=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
        tried="$tried $candidate=$version"
    fi
    if [ -n "$PYTHON" ]; then
        break
    fi
done

cat >&2 <<EOF
kvbench needs Python 3.11, 3.12 or 3.13, and found:${tried:- none at all}
  next: install one (Debian and Ubuntu: apt-get install python3 python3-venv), or name it:
        make setup PYTHON=/path/to/python3.11
EOF
exit 1
