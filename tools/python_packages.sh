#!/usr/bin/env bash
# Makes the virtual environment and fills it. torch comes first: whatever depends on it then finds
# the version that Retape is written for.
set -euo pipefail

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.13.0
"${pip[@]}" 'scikit-build-core>=0.10' 'rich>=13' 'jinja2>=3' 'pebble>=5' 'safetensors>=0.4' numpy \
  pytest pytest-xdist pytest-timeout expecttest 'playwright>=1.50' transformers==5.22.2 \
  peft==0.21.2 accelerate==1.15.0 libclang==18.1.1 \
  clang-format==23.1.3 ruff==0.17.5  # pinned: other versions format differently
# A peer that retape bench runs beside; it would ask for torch.
"${pip[@]}" --no-deps torch_remat==0.2.2
