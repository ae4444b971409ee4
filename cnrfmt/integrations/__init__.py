"""One module per framework or foreign format, imported only on use.

`convert.convert` goes both ways between containers and HDF5, safetensors and npz files. How it lays out what
those formats have no place for is documented in `scheme`.
"""
