"""Factorize many matrices (LU, QR, Cholesky): a manifest in, factors on the store, one line for each out."""
