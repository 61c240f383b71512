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
#   INGEST_PROTOCOL   tls (the default): a certificate authority for this job alone, made with openssl in a directory that
#                          only you can enter, or the one that DASK_DISTRIBUTED__COMM__TLS__CA_FILE names. With tcp,
#                          whoever reaches the ports of this job over the network can run code as you
#   INGEST_PORT       first of the ports of this job on its nodes (8786). Counted from it: 0 scheduler, 1 its /metrics,
#                          4 to 33 /metrics of the workers, 34 to 63 workers, 64 to 93 their nannies. Two jobs on one
#                          node need different ports; also DUMP_INGEST_METRICS (0.0.0.0:9108) and
#                          DUMP_INGEST_CONSOLIDATOR_METRICS (0.0.0.0:9109)
#   INGEST_TARGETS    directory that Prometheus reads (file_sd_configs): the targets of this job are in a file there while
#                          it runs, and only then. epilog.sh removes the file of a job that was killed
#   INGEST_LIFETIME   time after which workers end between two tasks (24h); choose less than the time limit of the job
# and every setting as DUMP_INGEST_{NAME}.

# Run a command on all nodes, or on the first one, in the background. --overlap: use processors that the training step
# already has.
_dump_ingest_srun() {
    local nodes=("--nodes=$1" "--ntasks=$1")
    [[ $1 != 1 ]] || nodes+=("--nodelist=${_dump_ingest_nodes[0]}")
    shift
    srun --overlap --kill-on-bad-exit=0 "${nodes[@]}" --ntasks-per-node=1 \
        --cpus-per-task="${INGEST_CPUS:-2}" --cpu-bind=none "$@" &
}

# Make a certificate authority for this job, and one certificate for all of its processes. The key of the authority is
# removed at once: nobody can be admitted later.
_dump_ingest_certify() {
    local role
    if [[ -z ${DASK_DISTRIBUTED__COMM__TLS__CA_FILE-} ]]; then
        if ! command -v openssl >/dev/null; then
            echo "dump-ingest: no openssl to make certificates with; install it, or set INGEST_PROTOCOL=tcp" >&2
            return 1
        fi
        _dump_ingest_tls=$1
        rm -rf "$_dump_ingest_tls"
        (
            umask 077
            mkdir "$_dump_ingest_tls" && cd "$_dump_ingest_tls" || exit 1
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 60 \
                -subj "/CN=dump-ingest job $SLURM_JOB_ID" -keyout ca.key -out ca.pem &&
                openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=dump-ingest" \
                    -keyout tls.key -out tls.csr &&
                printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n' >tls.ext &&
                openssl x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 60 \
                    -extfile tls.ext -out tls.pem && rm -f ca.key ca.srl tls.csr tls.ext
        ) 2>"$1.log" || {
            echo "dump-ingest: cannot make certificates in $1:" >&2
            cat "$1.log" >&2
            return 1
        }
        rm -f "$1.log"
        export DASK_DISTRIBUTED__COMM__TLS__CA_FILE=$_dump_ingest_tls/ca.pem
        for role in SCHEDULER WORKER CLIENT; do
            export "DASK_DISTRIBUTED__COMM__TLS__${role}__CERT=$_dump_ingest_tls/tls.pem"
            export "DASK_DISTRIBUTED__COMM__TLS__${role}__KEY=$_dump_ingest_tls/tls.key"
        done
    fi
    export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
}

# Print the targets of one role as JSON for Prometheus: `_dump_ingest_group JOB PORT COUNT NODE...`.
_dump_ingest_group() {
    local job=$1 port=$2 count=$3 node i separator=
    shift 3
    printf '{"labels": {"job": "%s", "run": "slurm-%s"}, "targets": [' "$job" "$SLURM_JOB_ID"
    for node; do
        for ((i = 0; i < count; i++)); do
            printf '%s"%s:%d"' "$separator" "$node" $((port + i))
            separator=', '
        done
    done
    printf ']}'
}

# Tell Prometheus what to scrape. The file appears whole, because Prometheus may read it at any time.
_dump_ingest_announce() {
    local watched=("${_dump_ingest_nodes[@]}") first=${_dump_ingest_nodes[0]}
    [[ ${INGEST_SHARED:-0} != 1 ]] || watched=("$first")
    {
        printf '['
        _dump_ingest_group dump-ingest-scheduler $((_dump_ingest_port + 1)) 1 "$first"
        printf ',\n'
        _dump_ingest_group dump-ingest-worker $((_dump_ingest_port + 4)) "${INGEST_CPUS:-2}" "${_dump_ingest_nodes[@]}"
        if [[ -n $DUMP_INGEST_METRICS ]]; then
            printf ',\n'
            _dump_ingest_group dump-ingest-watcher "${DUMP_INGEST_METRICS##*:}" 1 "${watched[@]}"
        fi
        if [[ -n $DUMP_INGEST_CONSOLIDATOR_METRICS ]]; then
            printf ',\n'
            _dump_ingest_group dump-ingest-consolidator "${DUMP_INGEST_CONSOLIDATOR_METRICS##*:}" 1 "$first"
        fi
        printf ']\n'
    } >"$_dump_ingest_targets.new"
    chmod 644 "$_dump_ingest_targets.new"
    mv "$_dump_ingest_targets.new" "$_dump_ingest_targets"
}

# Leave nothing behind. Also when the batch script ends early: it is not to be scraped any more.
_dump_ingest_tidy() {
    rm -f "$_dump_ingest_file"
    [[ -z $_dump_ingest_targets ]] || rm -f "$_dump_ingest_targets"
    [[ -z $_dump_ingest_tls ]] || rm -rf "$_dump_ingest_tls"
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

# Say what is wrong with the arguments or the environment, which otherwise shows a minute later, or never.
_dump_ingest_check() {
    local problem=
    if [[ $# != 2 || -z $1 || -z $2 ]]; then
        problem="write dump_ingest_start DUMP STORE"
    elif [[ -z ${SLURM_JOB_ID-} ]]; then
        problem="SLURM_JOB_ID is not set; this runs in the batch script of a job"
    elif [[ ! -x $_dump_ingest_bin/dump-ingest ]]; then
        problem="no $_dump_ingest_bin/dump-ingest; set INGEST_PREFIX to where it is installed on all nodes"
    elif [[ ! ${INGEST_CPUS:-2} =~ ^([1-9]|[12][0-9]|30)$ ]]; then
        problem="INGEST_CPUS is $INGEST_CPUS; a node has ports for 1 to 30 workers"
    elif [[ ! ${INGEST_PROTOCOL:-tls} =~ ^(tls|tcp)$ ]]; then
        problem="INGEST_PROTOCOL is $INGEST_PROTOCOL; write tls or tcp"
    fi
    [[ -z $problem ]] || {
        echo "dump-ingest: $problem" >&2
        return 1
    }
}

dump_ingest_start() {
    _dump_ingest_bin=${INGEST_PREFIX:-/opt/dump-ingest}/bin
    _dump_ingest_check "$@" || return 1
    local work=${INGEST_WORK:-${SLURM_SUBMIT_DIR:-$PWD}} protocol=${INGEST_PROTOCOL:-tls} waited=0 network=()
    _dump_ingest_dump=$1
    _dump_ingest_file=$work/dump-ingest-$SLURM_JOB_ID.json
    _dump_ingest_port=${INGEST_PORT:-8786}
    _dump_ingest_targets=${INGEST_TARGETS:+$INGEST_TARGETS/dump-ingest-$SLURM_JOB_ID.json}
    _dump_ingest_tls=
    if ! mapfile -t _dump_ingest_nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-$(hostname)}") ||
        ((${#_dump_ingest_nodes[@]} == 0)); then
        echo "dump-ingest: scontrol does not name the nodes of this job" >&2
        return 1
    fi
    [[ -z ${INGEST_INTERFACE-} ]] || network=(--interface "$INGEST_INTERFACE")
    rm -f "$_dump_ingest_file"
    [[ -n $(trap -p EXIT) ]] || trap _dump_ingest_tidy EXIT
    [[ $protocol != tls ]] || _dump_ingest_certify "$work/dump-ingest-$SLURM_JOB_ID.tls" || return 1
    export DUMP_INGEST_STORE=$2 DUMP_INGEST_SCHEDULER=$_dump_ingest_file
    export DUMP_INGEST_METRICS=${DUMP_INGEST_METRICS-0.0.0.0:9108}
    export DUMP_INGEST_CONSOLIDATOR_METRICS=${DUMP_INGEST_CONSOLIDATOR_METRICS-0.0.0.0:9109}
    # The end of the job is the only limit to what `--finish` takes.
    export DUMP_INGEST_DRAIN_S=${DUMP_INGEST_DRAIN_S-86400}
    export DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=60s

    _dump_ingest_srun 1 "$_dump_ingest_bin/dask" scheduler --scheduler-file "$_dump_ingest_file" \
        --protocol "$protocol" --port "$_dump_ingest_port" --dashboard-address ":$((_dump_ingest_port + 1))" \
        --preload workers.scheduler "${network[@]}"
    _dump_ingest_scheduler=$!
    until [[ -s $_dump_ingest_file ]]; do
        if ((waited++ >= 60)) || ! kill -0 "$_dump_ingest_scheduler" 2>/dev/null; then
            echo "dump-ingest: no scheduler wrote $_dump_ingest_file; do all nodes see $work?" >&2
            return 1
        fi
        sleep 1
    done

    # Each worker has ports that a firewall and Prometheus can know. With a lifetime below the time limit of the job
    # (INGEST_LIFETIME), workers end between two tasks.
    # shellcheck disable=SC2016
    _dump_ingest_srun "$SLURM_JOB_NUM_NODES" bash -c '
        scratch=$(mktemp -d "$1/dump-ingest-XXXXXXXX") port=$2 count=$3
        shift 3
        trap "kill -TERM \$(jobs -p) 2>/dev/null" TERM
        for ((i = 0; i < count; i++)); do
            "$@" --resources "host-$(hostname)=1" --local-directory "$scratch" \
                --dashboard-address ":$((port + 4 + i))" --worker-port "$((port + 34 + i))" \
                --nanny-port "$((port + 64 + i))" &
        done
        wait
        wait
        rm -rf "$scratch"' - "${INGEST_SCRATCH:-/tmp}" "$_dump_ingest_port" "${INGEST_CPUS:-2}" \
        "$_dump_ingest_bin/dask" worker --scheduler-file "$_dump_ingest_file" --preload workers.plugin \
        --nthreads 1 --memory-limit 2GiB --death-timeout 60 \
        --lifetime "${INGEST_LIFETIME:-24h}" "${network[@]}"
    _dump_ingest_workers=$!

    _dump_ingest_where_the_dump_is watch "$_dump_ingest_dump" --finish
    _dump_ingest_watchers=$!

    # The consolidator runs its tasks in its own process, because the tasks of the watchers keep the workers busy.
    DUMP_INGEST_SCHEDULER='' _dump_ingest_srun 1 "$_dump_ingest_bin/dump-ingest" consolidate --follow --finish
    _dump_ingest_consolidator=$!
    [[ -z $_dump_ingest_targets ]] || _dump_ingest_announce
}

# srun passes SIGTERM on.
_dump_ingest_end() {
    kill -TERM "$1" 2>/dev/null || true
    wait "$1" || true
}

dump_ingest_stop() {
    local code=0
    # With --finish, watchers and consolidator take everything first, and end when Prometheus has seen that: their targets
    # stay until then. Nobody is called meanwhile, because a process must be down for five minutes.
    _dump_ingest_end "$_dump_ingest_watchers"
    # Whatever became of the watchers, this says whether everything is in the store.
    _dump_ingest_where_the_dump_is ingest "$_dump_ingest_dump" --quiet 0
    wait $! || code=$?
    _dump_ingest_end "$_dump_ingest_consolidator"
    [[ -z $_dump_ingest_targets ]] || rm -f "$_dump_ingest_targets"
    _dump_ingest_end "$_dump_ingest_workers"
    _dump_ingest_end "$_dump_ingest_scheduler"
    DUMP_INGEST_SCHEDULER='' "$_dump_ingest_bin/dump-ingest" consolidate || code=$?
    _dump_ingest_tidy
    return "$code"
}
