"""Steps as tasks of workers: processes of this command, or a Dask cluster.

submitter.py        which tasks a step becomes; starting them, retries, and what becomes of the step
window.py           a bounded number of tasks in flight, for read-backs and rechecks; tasks that do not end
runners.py          starting workers; tasks whose results are waited for in order, in threads or of workers
clients.py          what both kinds of workers have in common for their callers; results and errors of tasks
processes.py        worker processes of the command itself, without Dask
cluster.py          a Dask cluster of the user
"""
