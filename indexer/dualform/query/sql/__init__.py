"""Free SQL over a snapshot's tables, in a process of its own."""
