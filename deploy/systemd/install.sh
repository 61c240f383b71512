#!/bin/sh
# Installs dump-ingest into /opt/dump-ingest, and its systemd units. Run it as root on each host, and again for an upgrade.
# Existing files in /etc/default and /etc/dump-ingest stay unchanged. Then enable what the host is to do:
#
#   systemctl enable --now dump-ingest-scheduler dump-ingest-consolidator       on one host
#   systemctl enable --now dump-ingest-gc.timer                                 on the same host: retention of the store
#   systemctl enable --now dump-ingest-page                                     where people look at the store: docs/page.md
#   systemctl enable --now dump-ingest-worker@{0..3} dump-ingest-watcher@NAME   on each training host
#
# --units installs only the units. With DESTDIR, files go below that directory, ready to be packed and to run at
# /opt/dump-ingest; no user is created.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
units=$root/etc/systemd/system

if [ "${1-}" != --units ]; then
    "$here/../container/build.sh" "$root/opt/dump-ingest" /opt/dump-ingest
    install -D -m 644 -t "$root/opt/dump-ingest/share/doc" "$here"/../../docs/*.md
fi
if [ -z "$root" ] && ! getent passwd dump-ingest >/dev/null; then
    useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dump-ingest
fi

install -d "$units/dump-ingest-.service.d" "$units/dump-ingest-gc.service.d"
install -m 644 "$here"/*.service "$here"/*.slice "$here"/*.timer "$units/"
install -m 644 "$here"/dump-ingest-.service.d/*.conf "$units/dump-ingest-.service.d/"
install -m 644 "$here"/dump-ingest-gc.service.d/*.conf "$units/dump-ingest-gc.service.d/"

install -d -m 755 "$root/etc/default"
install -d -m 700 "$root/etc/dump-ingest" "$root/etc/dump-ingest/tls"
for file in "$here"/default/*; do
    name=$(basename "$file")
    [ -e "$root/etc/default/$name" ] || install -m 600 "$file" "$root/etc/default/$name"
done

if [ -z "$root" ]; then
    systemctl daemon-reload
fi
