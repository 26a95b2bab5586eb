"""The linear representation study: why balance between clusters matters, measured beside the theorem's bound.

>>> from hcfl.theory.study import study
>>> found = study(imbalances=(1, 0.3), seeds=2, steps=40)
>>> found.summaries[0].rate < found.summaries[1].rate
True
"""
