"""What must hold between the tensors of a step, and how far rounding may keep it from holding.

definition.py    what a definition of an operator takes and yields
products.py      products of matrices
convolutions.py  convolutions, forward and backward
norms.py         norms, with the `eps` that holds
operators.py     what operators compute: every output that their definitions allow
backward.py      gradients of the parameters of a module
activations.py   gradients of what calls gave, by what their readers pass back
collectives.py   what collectives make of the pieces of all ranks
optimizer.py     what an optimizer makes of a parameter
updates.py       what it made of those of a step, with the rates of one another
audit.py         the calls of a step, one after another
budget.py        the error that each operator adds, and that it passes on
check.py         whether an output follows from its inputs
limits.py        how far a result may be from its definition by rounding alone
difference.py    where two tensors differ, and what turns one into the other
"""
