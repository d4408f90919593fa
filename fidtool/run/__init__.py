"""The steps of one run, in this order: open the image sets, compute their statistics, compare
them.
"""
