"""What belongs to this host, and may be shared with other users of it."""
