"""Images on disk, in the layouts that people have, decoded once into a cache.

Apart from `hcfl.data`, which needs torch: the processes that decode start without it, in a third of the time.
"""
