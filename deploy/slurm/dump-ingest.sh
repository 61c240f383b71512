# shellcheck shell=bash
# Ingests the dump of a training job inside the Slurm allocation of that job. Source this in the batch script:
#
#   source dump-ingest.sh
#   dump_ingest_start DUMP STORE      starts scheduler, workers, watchers and consolidator
#   srun python train.py
#   dump_ingest_stop                  returns when everything is in the store
#
# Environment variables, all optional:
#   INGEST_PREFIX     where dump-ingest is installed, the same on all nodes (/opt/dump-ingest)
#   INGEST_CPUS       worker processes on each node, with one processor each (2)
#   INGEST_SHARED     1: DUMP is one directory that all nodes see. Then there is one watcher, and any worker takes
#                          any task. Otherwise each node has its own directory at the same path
#   INGEST_WORK       directory that all nodes see, for the scheduler file (the directory of submission)
#   INGEST_SCRATCH    directory on a disk of each node (/tmp)
#   INGEST_INTERFACE  network interface inside the cluster, such as ib0
#   INGEST_PROTOCOL   tls, with certificates in DASK_DISTRIBUTED__COMM__TLS__*. The default is tcp: whoever reaches
#                          the ports of this job over the network can then run code as you
#   INGEST_LIFETIME   time after which workers end between two tasks (24h); choose less than the time limit of the job
# and every setting as DUMP_INGEST_{NAME}.

# Run a command on a number of nodes, in the background. --overlap: use processors that the training step already has.
_dump_ingest_srun() {
    local nodes=$1
    shift
    srun --overlap --kill-on-bad-exit=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \
        --cpus-per-task="${INGEST_CPUS:-2}" --cpu-bind=none "$@" &
}

# Run dump-ingest where the dump is: once, or on each node with the workers of that node.
_dump_ingest_where_the_dump_is() {
    if [[ ${INGEST_SHARED:-0} == 1 ]]; then
        _dump_ingest_srun 1 "$_dump_ingest_bin/dump-ingest" "$@"
    else
        # In single quotes, because only the node knows its name.
        # shellcheck disable=SC2016
        _dump_ingest_srun "$SLURM_JOB_NUM_NODES" bash -c \
            'DUMP_INGEST_WORKER_RESOURCES=host-$(hostname)=1 exec "$@"' - "$_dump_ingest_bin/dump-ingest" "$@"
    fi
}

dump_ingest_start() {
    local work=${INGEST_WORK:-${SLURM_SUBMIT_DIR:-$PWD}} waited=0 network=()
    _dump_ingest_dump=$1
    _dump_ingest_bin=${INGEST_PREFIX:-/opt/dump-ingest}/bin
    _dump_ingest_file=$work/dump-ingest-${SLURM_JOB_ID:?not in a job}.json
    [[ -z ${INGEST_INTERFACE-} ]] || network=(--interface "$INGEST_INTERFACE")
    rm -f "$_dump_ingest_file"
    export DUMP_INGEST_STORE=$2 DUMP_INGEST_SCHEDULER=$_dump_ingest_file
    export DUMP_INGEST_METRICS=${DUMP_INGEST_METRICS-0.0.0.0:9108}
    export DUMP_INGEST_CONSOLIDATOR_METRICS=${DUMP_INGEST_CONSOLIDATOR_METRICS-0.0.0.0:9109}
    export DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=60s

    _dump_ingest_srun 1 "$_dump_ingest_bin/dask" scheduler --scheduler-file "$_dump_ingest_file" --port 0 \
        --protocol "${INGEST_PROTOCOL:-tcp}" --dashboard-address :0 --preload workers.scheduler \
        "${network[@]}"
    _dump_ingest_scheduler=$!
    until [[ -s $_dump_ingest_file ]]; do
        if ((waited++ >= 60)) || ! kill -0 "$_dump_ingest_scheduler" 2>/dev/null; then
            echo "dump-ingest: no scheduler wrote $_dump_ingest_file; do all nodes see $work?" >&2
            return 1
        fi
        sleep 1
    done

    # With a lifetime below the time limit of the job (INGEST_LIFETIME), workers end between two tasks.
    # shellcheck disable=SC2016
    _dump_ingest_srun "$SLURM_JOB_NUM_NODES" bash -c \
        'exec "$@" --resources "host-$(hostname)=1" --local-directory "$(mktemp -d "$0/dump-ingest-XXXXXXXX")"' \
        "${INGEST_SCRATCH:-/tmp}" \
        "$_dump_ingest_bin/dask" worker --scheduler-file "$_dump_ingest_file" --preload workers.plugin \
        --nthreads 1 --nworkers "${INGEST_CPUS:-2}" --memory-limit 2GiB --death-timeout 60 \
        --lifetime "${INGEST_LIFETIME:-24h}" "${network[@]}"
    _dump_ingest_workers=$!

    _dump_ingest_where_the_dump_is watch "$_dump_ingest_dump"
    _dump_ingest_watchers=$!

    # The consolidator runs its tasks in its own process, because the tasks of the watchers keep the workers busy.
    DUMP_INGEST_SCHEDULER='' _dump_ingest_srun 1 "$_dump_ingest_bin/dump-ingest" consolidate --follow
    _dump_ingest_consolidator=$!
}

# srun passes SIGTERM on.
_dump_ingest_end() {
    kill -TERM "$1" 2>/dev/null || true
    wait "$1" || true
}

dump_ingest_stop() {
    local code=0
    _dump_ingest_end "$_dump_ingest_watchers"
    # Ingest what was written last: the watchers would have waited for a quiet period.
    _dump_ingest_where_the_dump_is ingest "$_dump_ingest_dump" --quiet 0
    wait $! || code=$?
    _dump_ingest_end "$_dump_ingest_consolidator"
    _dump_ingest_end "$_dump_ingest_workers"
    _dump_ingest_end "$_dump_ingest_scheduler"
    DUMP_INGEST_SCHEDULER='' "$_dump_ingest_bin/dump-ingest" consolidate || code=$?
    rm -f "$_dump_ingest_file"
    return "$code"
}
