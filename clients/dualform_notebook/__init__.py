"""dualform in notebooks: `memory.explorer("test/17")`, a widget that looks at what a prediction attends to.

It asks a memory through `dualform.methods.Answers` alone: a folder and a server at host:port are the same to it.
The extra [notebook] brings the package anywidget, which shows one small ES module of our own (explorer.js) wherever
Jupyter's widgets are shown. Nothing is fetched from elsewhere, and every number comes from the kernel.
"""
