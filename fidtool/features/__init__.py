"""From RGB pixels to feature vectors: protocols, resizing, networks, their weights and devices."""
