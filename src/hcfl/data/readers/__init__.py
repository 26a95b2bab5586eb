"""Readers of images on disk in their common layouts; decoded images are kept in a cache.

These modules do not import torch: without it, the processes that decode start in a third of the time.
"""
