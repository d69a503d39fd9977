"""Takes samples out of a memory for good: which they are, what is kept of what they brought, and the new files."""
