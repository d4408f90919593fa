"""From RGB pixels to feature vectors: protocols, resizing, networks, their weights, and the devices they run on."""
