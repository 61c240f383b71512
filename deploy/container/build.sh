#!/bin/sh
# Installs dump-ingest and everything it needs into a directory of its own, ready to run read-only.
#
#   deploy/container/build.sh PREFIX [FINAL]
#
# FINAL is where PREFIX will be when it runs, for packages that are built below another root (DESTDIR); by default PREFIX.
#
# The Dockerfile runs this. Run it on a host to get the same installation there, for instance for the systemd units:
#   deploy/container/build.sh /opt/dump-ingest
#
# The installation cannot be moved from there, because scripts contain their path. Environment:
#   PYTHON       interpreter to use (python3); every user must be able to execute it
#   TOOLS        virtual environment with uv and hatchling; by default one is made from requirements/build.txt
#   WHEELHOUSE   directory of wheels; then nothing is downloaded. Fill it elsewhere, on the same kind of machine:
#                pip download --require-hashes --only-binary :all: -d DIR -r requirements/build.txt
#                pip download --require-hashes --only-binary :all: -d DIR -r requirements/runtime.txt
#   BYTECODE     0: do not compile modules here, for a quick try; Python compiles what it imports
set -eu
unset PYTHONPATH # the installation has everything, and nothing of another one

prefix=${1:?usage: build.sh PREFIX [FINAL]}
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# 1. The tools and the dependencies, unless PREFIX has them already: the Dockerfile makes a layer of them.
tools=${TOOLS:-$scratch/tools}
TOOLS=$tools "$source/deploy/container/dependencies.sh" "$prefix" "${2:-$prefix}"
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
final=${2:-$prefix}
uv=$tools/bin/uv

# 2. dump-ingest, from a wheel. It is built from a copy, because the source may be read-only or belong to another user.
mkdir "$scratch/source"
cp -R "$source/ingest" "$source/workers" "$source/pyproject.toml" "$source/README.md" "$source/CHANGELOG.md" \
    "$source/LICENSE" "$scratch/source/"
(cd "$scratch/source" && "$tools/bin/python" -m hatchling build -t wheel -d "$scratch/dist" >/dev/null)
"$uv" pip install --quiet --python "$prefix/bin/python" --no-deps --no-index "$scratch"/dist/*.whl
cp "$source/deploy/container/health.py" "$prefix/bin/dump-ingest-health"
sed -i "1s|.*|#!$prefix/bin/python|" "$prefix/bin/dump-ingest-health"
chmod 755 "$prefix/bin/dump-ingest-health"

# 3. Its bytecode, like that of the dependencies.
site=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ "${BYTECODE:-1}" = 0 ] || "$prefix/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash \
    -s "$prefix" -p "$final" "$site/ingest" "$site/workers"

# 4. The kernels of the statistics, for a processor type that all machines have; see workers/arrays/compiled/kernel_objects.py.
#    -P: use the installation, not the directory that this script runs in.
env -u NUMBA_CACHE_DIR -u NUMBA_CPU_NAME -u NUMBA_CPU_FEATURES "$prefix/bin/python" -P -m workers.arrays.compiled.ship_kernels

# 5. The list of what is installed, and the scripts for Slurm.
mkdir -p "$prefix/share/slurm"
"$prefix/bin/python" -I "$source/deploy/container/sbom.py" >"$prefix/share/sbom.cdx.json"
cp "$source"/deploy/slurm/*.sh "$source"/deploy/slurm/*.sbatch "$prefix/share/slurm/"

# 6. Check that the programs start.
"$prefix/bin/dump-ingest" --version
"$prefix/bin/dask" --version

# 7. Scripts name the place where they will be. Everything else finds itself.
[ "$final" = "$prefix" ] || grep -rlIF "$prefix" "$prefix/bin" | xargs -r sed -i "s|$prefix|$final|g"
