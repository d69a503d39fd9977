"""The shards of a memory on several machines: who starts their processes, waits for them and replaces them.

What is asked of them, and how answers are merged, is the engine's affair (dualform.query.shards).
"""
