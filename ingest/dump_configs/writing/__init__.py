"""Writers of configurations: one module for each dump system."""
