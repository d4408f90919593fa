"""What is wrong with a set of images, or with comparing two: copies, faulty pictures, doubts about a number."""
