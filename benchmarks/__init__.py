"""The cost of questions and of recording, and other packages: `python -m benchmarks` from the repository's root.

__main__                the command line: which sections are measured, on how much data
harness                 plans, sections, races, processes
data                    generated keys, and memories of them; queries, masks and groups
peers                   other packages, and one question put to dualform and all of them
oracle                  the right answers, in float64
processes               first answers of a process, and pages for a browser
recording               trainings with the recorder on, and the networks that are trained
serving                 questions over gRPC: many clients, floods, and the memory of servers
search                  the best slots, filters, groups and sums; memories of several sizes
values                  contributions, dot products of gradients, the ledger, ablated weights
document                benchmarks.md and its pictures, from benchmarks.json

Programs of their own:

recording_profile       the processor's time of recording, by part
attribution             which score predicts a retraining
attribution_ways        the trainings and the scores that it compares
adjoint                 the time of an adjoint, and how well it predicts retrainings
"""
