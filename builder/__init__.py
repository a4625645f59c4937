"""builder: the image farm for sm_120 inference engines."""

__version__ = "0.1.0"
