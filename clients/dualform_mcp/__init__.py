"""dualform for agents: a Model Context Protocol server over one memory, with read-only tools.

It uses only `dualform.methods.Answers`, so a folder and a server at host:port work alike. The extra [mcp] installs the
package `mcp`, which implements the protocol.
"""
