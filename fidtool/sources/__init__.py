"""Where images live: folders, archives, arrays, lists, tables, remote stores, and Python objects."""
