"""Recording with the trainers that people use: one file each. Importing one of them loads its package."""
