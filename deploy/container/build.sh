#!/bin/sh
# Installs dump-ingest and everything it needs into a directory of its own, ready to run read-only.
#
#   deploy/container/build.sh PREFIX
#
# The Dockerfile runs this; run it on a host to have the same there, for instance for the systemd units:
#   deploy/container/build.sh /opt/dump-ingest
#
# PREFIX is where it will stay: scripts and kernels know their path. Environment:
#   PYTHON       interpreter to build on (python3); every user must be able to execute it
#   TOOLS        virtual environment with uv and hatchling; by default one is made from requirements/build.txt
#   WHEELHOUSE   directory of wheels; nothing is downloaded then. Fill it elsewhere, on the same kind of machine:
#                pip download --require-hashes --only-binary :all: -d DIR -r requirements/build.txt
#                pip download --require-hashes --only-binary :all: -d DIR -r requirements/runtime.txt
#   BYTECODE     0: leave Python to compile what it imports, for a quick try
set -eu

prefix=${1:?usage: build.sh PREFIX}
python=${PYTHON:-python3}
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# 1. The tools, with pinned hashes. They do not become part of PREFIX.
tools=${TOOLS:-}
if [ -z "$tools" ]; then
    tools=$scratch/tools
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} -r "$source/requirements/build.txt"
fi
uv=$tools/bin/uv

# 2. The dependencies: only wheels, so that nothing is compiled, and only those with the pinned hashes.
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
"$uv" venv --quiet --allow-existing --python "$python" --no-project "$prefix"
"$uv" pip install --quiet --python "$prefix/bin/python" --require-hashes --only-binary :all: \
    ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} -r "$source/requirements/runtime.txt"

# 3. dump-ingest, from a wheel. It is made of a copy: the source may be read-only, or of another user.
mkdir "$scratch/source"
cp -R "$source/ingest" "$source/workers" "$source/pyproject.toml" "$source/README.md" "$source/CHANGELOG.md" \
    "$source/LICENSE" "$scratch/source/"
(cd "$scratch/source" && "$tools/bin/python" -m hatchling build -t wheel -d "$scratch/dist" >/dev/null)
"$uv" pip install --quiet --python "$prefix/bin/python" --no-deps --no-index "$scratch"/dist/*.whl
cp "$source/deploy/container/health.py" "$prefix/bin/dump-ingest-health"
sed -i "1s|.*|#!$prefix/bin/python|" "$prefix/bin/dump-ingest-health"
chmod 755 "$prefix/bin/dump-ingest-health"

# 4. Tests of libraries go: a tenth of the size, and nothing imports them.
site=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for library in distributed llvmlite numba numpy pandas; do
    find "$site/$library" -type d -name tests -prune -exec rm -rf {} +
done

# 5. Bytecode. A read-only file system keeps none, and each start would compile anew. Checked by nothing
#    (`unchecked-hash`): the files do not change, and layers of images round times.
[ "${BYTECODE:-1}" = 0 ] || "$prefix/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site"

# 6. The kernels of the statistics, for a processor that all machines have; see workers/arrays/kernel_cache.py.
#    -P: of the installation, not of the directory that this is run in.
env -u NUMBA_CACHE_DIR -u NUMBA_CPU_NAME -u NUMBA_CPU_FEATURES "$prefix/bin/python" -P -m workers.arrays.ship_kernels

# 7. What is to be there, is.
"$prefix/bin/dump-ingest" --version
"$prefix/bin/dask" --version
