"""One module for each family of programs: `train` is the program, `FAULTS` what can be wrong in it."""
