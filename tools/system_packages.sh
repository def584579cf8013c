#!/usr/bin/env bash
# Installs the Debian packages that are missing; asks for nothing where all are there.
set -euo pipefail

packages=(g++ cmake ninja-build ccache libboost-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev
  libgloo-dev nlohmann-json3-dev)
command -v python3 >/dev/null || packages+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
python3 -c 'import os, sysconfig; exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' \
  2>/dev/null || packages+=(python3-dev)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
# Pages are looked at in a browser; Playwright comes without one.
browser=()
command -v chromium google-chrome >/dev/null || browser=(chromium fonts-dejavu-core)
if [ ${#missing[@]} -eq 0 ] && [ ${#browser[@]} -eq 0 ]; then
  exit 0
fi

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]} ${browser[*]}"
"${sudo[@]}" apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then
  "${sudo[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null
fi
if [ ${#browser[@]} -gt 0 ]; then
  "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${browser[@]}" >/dev/null ||
    echo "no Chromium to be had: tests that look at pages fail, unless RETAPE_TEST_WITHOUT_BROWSER=1"
fi
