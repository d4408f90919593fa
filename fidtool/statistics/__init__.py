"""Statistics of feature vectors: exact sums, mean and covariance, and the files that store them."""
