"""Distances between two sets of features."""
