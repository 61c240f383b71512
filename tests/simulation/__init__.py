"""A simulator: the real decisions of the service, on a virtual clock, dump, cluster and store.

Each schedule is drawn from a seed: who takes part, what the job does, which step comes next, and what fails.
Invariants are checked after each change of the store or the dump. See docs/design/011-simulation.md.
"""
