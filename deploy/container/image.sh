#!/bin/sh
# Builds the image, with labels that say what it was made from, and with an SBOM and provenance.
#
#   deploy/container/image.sh TAG [OPTION...]
#
#   deploy/container/image.sh dump-ingest:mine                                     for this machine
#   deploy/container/image.sh registry.example.com/dump-ingest:1.2.3 --push        and push it
#
# The engine is docker with buildx, or podman; options go to its `build`. Every image has an SBOM of its Python packages
# (CycloneDX) in /opt/dump-ingest/share/sbom.cdx.json. With --push, docker also attaches an SBOM of the whole image, Debian's
# packages included, and the provenance of the build (SLSA), both as attestations in the registry:
#   docker buildx imagetools inspect TAG --format '{{json .SBOM}}'
# This needs a builder with the driver docker-container: docker buildx create --use. Environment:
#   ENGINE       docker or podman; by default the first one that is installed
#   REVISION     commit that the image is built from (asks git)
#   SOURCE_URL   where its source is (asks git for `origin`)
set -eu

tag=${1:?usage: image.sh TAG [OPTION...]}
shift
top=$(cd "$(dirname "$0")/../.." && pwd)
engine=${ENGINE:-$(command -v docker >/dev/null && echo docker || echo podman)}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$top/pyproject.toml")
base=$(sed -n 's/^ARG PYTHON_IMAGE=//p' "$top/deploy/Dockerfile")
revision=${REVISION:-$(git -C "$top" rev-parse HEAD 2>/dev/null || echo unknown)}
# Without the name and password that an address may hold.
url=${SOURCE_URL:-$(git -C "$top" remote get-url origin 2>/dev/null | sed 's|//[^/@]*@|//|' || true)}

case " $* " in
*" PYTHON_IMAGE="* | *"=PYTHON_IMAGE="*) ;; # the caller names another base, whose digest is not known here
*) set -- --label "org.opencontainers.image.base.name=${base%@*}" \
    --label "org.opencontainers.image.base.digest=${base#*@}" "$@" ;;
esac
set -- --file "$top/deploy/Dockerfile" --tag "$tag" \
    --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.revision=$revision" \
    --label "org.opencontainers.image.source=$url" "$@" "$top"

case $engine in
docker)
    case " $* " in
    *" --push "*) set -- --sbom=true --provenance=mode=max "$@" ;;
    *) set -- --load "$@" ;;
    esac
    exec docker buildx build "$@"
    ;;
podman) # The format of OCI has no health checks.
    push=
    for word; do # leave out --push, which is another command of podman
        shift
        if [ "$word" = --push ]; then push=1; else set -- "$@" "$word"; fi
    done
    podman build --format docker "$@"
    [ -z "$push" ] || podman push "$tag"
    ;;
*) echo "ENGINE is docker or podman, not $engine" >&2 && exit 2 ;;
esac
