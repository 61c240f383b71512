"""How content passes between the tensors of one step: operators, their calls, who wrote and who read."""
