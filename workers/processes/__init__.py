"""Worker processes of one command: its children, connected by pairs of sockets that nobody else can reach."""
