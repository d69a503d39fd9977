"""One file of chosen predictions, each under a list of masks: the pages' own panels, with everything inside, so that it
is looked at without a server.
"""
