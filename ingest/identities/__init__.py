"""What must hold between the tensors of a step, and how far rounding may keep it from holding.

definition.py  what a definition of an operator takes and yields
layers.py      products of matrices, convolutions and norms
operators.py   what operators compute: every output that their definitions allow
gradients.py   gradients of the parameters of a module, and of what calls gave
containers.py  what collectives make of the pieces of all ranks, and modules of what those in them gave
optimizer.py   what an optimizer makes of a parameter
updates.py     what it made of those of a step, with the rates of one another
operands.py    what calls read and wrote, with parameters put together of shards
audit.py       the calls of a step, one after another
budget.py      the error that each operator adds, and that it passes on
check.py       whether an output follows from its inputs
limits.py      how far a result may be from its definition by rounding alone
difference.py  where two tensors differ, what turns one into the other, and how well a statement is backed
"""
