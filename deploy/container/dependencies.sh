#!/bin/sh
# Installs what dump-ingest needs into a directory of its own. build.sh runs this; the Dockerfile runs it before, so that
# a change of the source does not install everything again.
#
#   deploy/container/dependencies.sh PREFIX [FINAL]
#
# Arguments and environment are those of build.sh. TOOLS must be given: if there is nothing yet, the tools are installed
# there. If PREFIX has the same dependencies, by the same interpreter and for the same FINAL, this does nothing more.
set -eu

prefix=${1:?usage: dependencies.sh PREFIX [FINAL]}
python=${PYTHON:-python3}
source=$(cd "$(dirname "$0")/../.." && pwd)
tools=${TOOLS:?a directory for the tools}

# 1. The tools, with pinned hashes. They are not installed into PREFIX.
if [ ! -e "$tools" ]; then
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} -r "$source/requirements/build.txt"
fi

# 2. The dependencies: only wheels, so that nothing is compiled, and only those with the pinned hashes.
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
final=${2:-$prefix}
installed=$prefix/share/dependencies.txt
wanted=$("$python" -VV; echo "for $final, bytecode ${BYTECODE:-1}"; cat "$source/requirements/runtime.txt")
[ ! -e "$installed" ] || [ "$(cat "$installed")" != "$wanted" ] || exit 0
rm -f "$installed"
"$tools/bin/uv" venv --quiet --allow-existing --python "$python" --no-project "$prefix"
"$tools/bin/uv" pip install --quiet --python "$prefix/bin/python" --require-hashes --only-binary :all: \
    ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} -r "$source/requirements/runtime.txt"

# 3. Remove the tests of libraries: they are a tenth of the size, and nothing imports them.
site=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for library in distributed llvmlite numba numpy pandas; do
    find "$site/$library" -type d -name tests -prune -exec rm -rf {} +
done

# 4. Bytecode. On a read-only file system Python cannot store it, and each start would compile it again. It is not
#    checked against its source (`unchecked-hash`): the files do not change, and image layers round modification times.
[ "${BYTECODE:-1}" = 0 ] || "$prefix/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash \
    -s "$prefix" -p "$final" "$site"

# 5. What is installed: written last, so that after an interruption everything is installed again.
mkdir -p "$prefix/share"
printf '%s\n' "$wanted" >"$installed"
