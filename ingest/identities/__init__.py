"""What must hold between the tensors of a step, and how far rounding may keep it from holding.

limits.py        how far a result may be from its definition by rounding alone
difference.py    where two tensors differ, and what turns one into the other
"""
