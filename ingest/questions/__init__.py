"""Questions over a store: origin, divergence, comparison, trend."""
