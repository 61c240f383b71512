"""Looking at a dump: what it has, what is complete, and events that make the next look come sooner."""
