"""Steps as tasks of workers: processes of this command, or a Dask cluster.

submitter.py        which tasks a step becomes; starting them, retries, and what comes of them
window.py           a bounded number of tasks in flight, for read-backs and rechecks; tasks that do not end
runners.py          tasks whose results are waited for in order, in threads or on a cluster
outcomes.py         what became of a step
clients.py          what both kinds of workers have in common for their callers; results and errors of tasks
processes.py        worker processes without Dask: for `ingest`, which takes one dump
cluster.py          a Dask cluster: the user's, or our own for `watch`
own_dask_cluster.py our own: over TLS with a key of the run; started so that Ctrl-C does not reach it
"""
