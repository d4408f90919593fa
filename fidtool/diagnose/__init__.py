"""What is wrong with a set of images, or with comparing two: copies, faulty pictures, and warnings about a number."""
