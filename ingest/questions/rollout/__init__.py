"""A trainer against the engine that samples for it: other names, other cuts, other batches, the same values.

fibres.py       parameters as vectors along their last two axes, and numbers that tell equal ones apart
misplaced.py    which fibre of the trainer each fibre of the rollout is, nearly is, or should have been
weights.py      whether the weights of a trainer arrived
sequences.py    which row of which call is which token of which sequence, on both sides
recomputed.py, attention.py
                what rows follow from, in float64
diverging.py    the first module that did something else to the same tokens
routing.py      which experts tokens chose, and which of them dropped these
by_token.py     the answer, with log-probabilities
"""
