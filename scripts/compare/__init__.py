"""What ``compare_versions.py`` is made of: the cases, their images, the two versions, the comparison."""
