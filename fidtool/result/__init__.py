"""What a run found: values and their names, evaluations as JSON, changes between them, and their
requirements.
"""
