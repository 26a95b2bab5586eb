"""Images on disk, in the layouts that people have, decoded once into a cache.

Nothing in here imports torch: the processes that decode start without it, in a third of the time.
"""
