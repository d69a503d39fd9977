"""What recording a training will take, said after a few of its steps."""
