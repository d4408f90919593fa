"""Decodes the images of a source into batches of RGB pixels."""
