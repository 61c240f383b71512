"""The store: where things are in it, how they are encoded, how a step becomes visible."""
