"""A trainer against the engine that samples for it: other names, other cuts, other batches, the same values.

fibres.py       vectors along the last two axes of a tensor, and numbers that tell equal ones apart
parameters.py   the parameters of one side, read once
found.py        which fibre of the trainer each fibre of the rollout is
differing.py    what became of fibres that are not the trainer's
sequences.py    which row of which call is which token of which sequence
linked.py       which sequences, and which columns of which modules, belong together
recomputed.py, attention.py
                what rows follow from, in float64
diverging.py    the first module that did something else to the same tokens
outcomes.py     log-probabilities and chosen experts
"""
