"""The hands that lay out the specification's test vectors, byte by byte."""
