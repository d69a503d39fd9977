"""Golden answers: small trainings whose recorded bytes and answers stay the same while the code is rewritten.

    python -m tests.golden [TRAINING ...]      compare this tree with the reference commit, on this machine

The bits of a training depend on the processor, so no answer is kept in the repository. `reference.py` names a commit
whose answers are the golden ones. The comparison runs that commit's own `tests.golden` on this machine, then this
tree's, and compares every array byte for byte. The reference's answers are kept in `build/golden/`.

- `trainings.py`: the trainings, one function each.
- `questions.py`: what is asked of each memory. An answer is a mapping of names to arrays; the names are of this
  package, so that the product can rename its own.
- `reference.py`: the reference commit, the differences that are intended, and the comparison.

To change an answer on purpose, list it in `reference.CHANGED` with the reason. Once that has landed, move
`reference.COMMIT` to the landed commit and empty the list.
"""
