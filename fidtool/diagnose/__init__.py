"""Diagnosis of image sets and of comparisons: duplicates, faulty images, and warnings about a
result.
"""
