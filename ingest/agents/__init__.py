"""What coding agents ask: the answers of the page's API as tools of the Model Context Protocol, and a skill.

server.py  the tools: what they take, and their answers, cut to what fits into a conversation; the
           protocol, by the package `mcp`: over standard input and output, or HTTP
SKILL.md   how to find with the command line what went wrong, for agents that read skills
"""
