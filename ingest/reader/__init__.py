"""Reading a store: steps, tensors, files; finding, exporting, verifying."""
