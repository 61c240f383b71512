"""The service: one watcher's loop over the steps of one dump, and what it reports to its observers.

build.py, service.py     puts the parts together; `tick`: scan, decide, submit, settle, delete
one_shot.py              `ingest`: ticks until everything is in the store
scan_schedule.py         when to scan the dump

decider.py, planner.py   decisions and plans for complete steps
foreign_dump.py          refuses a dump that is not the one the store has
offering.py, settling.py steps on their way to the workers, and after an outcome
commits.py               commits, read back after they were made
rechecks.py,             while nothing else is to be done: dump files read again, objects of the store listed
startup_check.py
shared_tensors.py        what ranks share, for the pool
disk_watch.py            how full the disk of the dump is
dependencies.py,         a store or a cluster that does not answer
store_probe.py
stopping.py, report.py   a request to stop; what a run came to
observers.py             who is told of events

explaining.py            `watch --explain`: what would be done with each step now
live_steps.py,           the state of a running watcher, served next to its metrics
live_watcher.py,
process_address.py
readiness.py, backlog.py the answer of `/ready`; what a watcher leaves behind when it ends
"""
