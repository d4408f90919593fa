"""From feature vectors to a mean and a covariance: exact sums, and the files that keep the result."""
