"""Sources of images: folders, archives, arrays, lists, tables, remote stores, and Python
objects.
"""
