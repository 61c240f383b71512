"""Measures of the sources: size, imports, complexity, names and wording."""
