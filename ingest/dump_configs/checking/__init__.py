"""Rules that a configuration must keep: one module for each dump system, each rule with its source."""
