"""dualform for agents: a server of the Model Context Protocol over one memory, with tools that only read.

It is asked through `dualform.methods.Answers` alone, so that a folder and a server at host:port are the same to it. The
extra [mcp] brings the package `mcp`, which speaks the protocol.
"""
