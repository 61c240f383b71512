"""Worker processes of one command: how they are started, what they run, and how they are spoken to.

A command that takes one dump needs no scheduler: its workers are its children, connected by a pair of sockets
that nobody else can reach.
"""
