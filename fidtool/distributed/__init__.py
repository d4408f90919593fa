"""Who am I among the ranks, and how do the ranks talk."""
