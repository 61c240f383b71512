"""How the ranks of a run hold each tensor: what follows from shapes and values, and what stays open."""
