"""The metrics. A file defines one, or one and those derived from it: settings, needs, computation,
presentation.
"""
