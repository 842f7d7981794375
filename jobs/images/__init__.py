"""The images job: texture and colour features of many small images, clustered with K-means into an index."""
