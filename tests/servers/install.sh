#!/usr/bin/env bash
# Install the servers that tests run from Debian's packages. Does nothing if they are already installed.
# With --check, only reports what is missing.
set -euo pipefail

packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need ceph-mon ceph-mon
need ceph-osd ceph-osd
need ceph ceph-common
need radosgw radosgw
need prometheus prometheus
need systemd-analyze systemd
command -v alertmanager >/dev/null || need prometheus-alertmanager prometheus-alertmanager
need ip iproute2
need openssl openssl
need chromium chromium
# Containers, and the base of their image where no registry can be reached.
need podman podman
need runc runc
need catatonit catatonit
need mmdebstrap mmdebstrap
need iptables iptables
[[ -x /usr/lib/podman/netavark ]] || packages+=(netavark)
[[ -x /usr/lib/podman/aardvark-dns ]] || packages+=(aardvark-dns)
compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || packages+=(libfaketime)

# What `python -m bench peers` compares with.
if [[ ${1-} != --check ]]; then
    need mksquashfs squashfs-tools
    need restic restic
    need borg borgbackup
    need zstd zstd
fi

((${#packages[@]})) || exit 0

if [[ ${1-} == --check ]]; then
    echo "Some tests need servers that are not installed: ${packages[*]}. To install them: make servers" >&2
    exit 1
fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    echo "Cannot install ${packages[*]}: this needs root and apt-get (Debian 12 or newer)." >&2
    echo "On other systems, install Ceph (mon, osd, radosgw), Prometheus, Alertmanager, Chromium and Podman with your package manager." >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}"
