"""Questions that several processes answer together, one for each shard of a memory.

The front asks each shard for its share of an answer and merges; a share is a plain value that knows how it is answered,
and there is a class for each kind. What is merged has the bits of one engine over the same shards. Which
questions are split, and why, is in docs/decisions/ranks.md.
"""
