"""The service: one watcher's loop over the steps of one dump, and what it reports to its observers.

service.py         `tick`: scan, decide, submit, settle, delete; when to scan; puts the parts together
offering.py        what it is to do; plans, decisions, and steps on their way; a store or a cluster that does
                   not answer; what ranks share, for the pool
one_shot.py        `ingest`: ticks until everything is in the store; what that came to; what would be done
                   with each step now, and a running watcher, for others to ask
foreign_dump.py    refuses a dump that is not the one the store has
rechecks.py        while nothing else is to be done: dump files read again, objects of the store listed
stopping.py        a request to stop
live_watcher.py    the same, fetched from a running watcher
"""
