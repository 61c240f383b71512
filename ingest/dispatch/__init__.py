"""Steps as tasks of workers: processes of this command, or a Dask cluster.

parts.py, submitter.py   which tasks a step becomes; starting them, retries, and what comes of them
window.py                a bounded number of tasks in flight, for read-backs and rechecks
outcomes.py, futures.py  what became of a step; results and errors of tasks
task_monitor.py          tasks that do not come to an end, and workers that are replaced for it

clients.py               what both kinds of workers have in common for their callers
local_workers.py,        worker processes without Dask: for `ingest`, which takes one dump
local_client.py
cluster.py, handshake.py a Dask cluster: the user's, or our own for `watch`
own_cluster.py,          our own: over TLS with a key of the run; started so that Ctrl-C does not reach it
own_workers.py
"""
