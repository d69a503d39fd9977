"""dualform in notebooks: `memory.explorer("test/17")`, a widget that shows what a prediction attends to.

It uses only `dualform.methods.Answers`, so a folder and a server at host:port work alike. The extra [notebook] installs
the package anywidget, which shows one small ES module of ours (explorer.js) wherever Jupyter widgets work. It loads
nothing from the network, and every number comes from the kernel.
"""
