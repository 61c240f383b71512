"""What must hold between the tensors of a step, and how far rounding may keep it from holding.

definition.py    what a definition of an operator takes and yields
products.py      products of matrices, and convolutions
operators.py     what operators compute: every output that their definitions allow
check.py         whether an output follows from its inputs
limits.py        how far a result may be from its definition by rounding alone
difference.py    where two tensors differ, and what turns one into the other
"""
