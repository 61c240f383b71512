#!/bin/bash
# For Epilog= in slurm.conf, on every node: a job that Slurm killed could not take its targets out of Prometheus. Write the
# directory here that jobs have in INGEST_TARGETS; Slurm gives no variables of the job to an epilog.
targets=${INGEST_TARGETS:-/shared/prometheus/targets}
[[ -z ${SLURM_JOB_ID-} ]] || rm -f "$targets/dump-ingest-$SLURM_JOB_ID.json"
