"""From what the user typed to batches of RGB pixels: find the images, plan the batches, decode them."""
