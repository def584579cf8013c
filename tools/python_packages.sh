#!/usr/bin/env bash
# Makes the virtual environment and fills it with what pyproject.toml lists. torch comes first: whatever
# depends on it then finds the version that Retape is written for.
set -euo pipefail

install() {
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$VENV/$1.txt"
}

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
"$VENV/bin/python" tools/requirements.py torch >"$VENV/torch.txt"
"$VENV/bin/python" tools/requirements.py dependencies test peers develop >"$VENV/all.txt"
install torch
install all
