"""What questions cost, beside what else could answer them: `python -m benchmarks` from the repository's root.

__main__, plan       the command line; how large a run is
keys, written, data  the keys, from a recorded study or generated; a memory of them; queries, masks and groups
sections/            one file for each kind of question. Each runs in a section_process
contest, timing      one question put to dualform and its peers; whoever is compared takes turns in one race
peers/               what else could answer: one file each
oracle, blocks       the right answers, in float64
*_process            what must not share a process: a section, a server, clients, a memory of one size, trainings
adjoint              what an adjoint takes, and how well it predicts retrainings: a program of its own
cold_profile         where the time of a first answer goes
recording_profile    where the processor's time of recording goes
long_profile         what grows in a long training of small steps
server_memory        what the process of a server holds, idle and asked
engines, trainings   engines that have kept nothing yet; trainings recorded and not
networks             the networks that are trained
gradient_errors      how far dot products of gradients lie from autograd's
token_memory         what opening and masking a memory of very many token slots takes
result, words        what was found; how it is printed
document             benchmarks.md, from benchmarks.json
summary, figure      its pictures: what a person feels, and the time of each contestant
machine              the packages whose versions figures belong to
"""
