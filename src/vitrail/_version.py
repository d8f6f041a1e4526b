"""The version of the package, read by the build and by run directories."""

__version__ = "0.1.0"
