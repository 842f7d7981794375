"""Images clustered by what an ONNX model sees in them, beside a clustering by their histograms."""
