"""What rules found: over several steps and ranks, stored, listed, and tried on past steps."""
